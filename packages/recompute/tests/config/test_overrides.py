"""Hydra-style overrides."""

from __future__ import annotations

import contextlib
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from recompute.config.load import load
from recompute.config.overrides import parse_value
from recompute.config.yaml_text import yaml_value
from recompute.errors import ConfigError, InputError

JOB = b"model: {num_layers: 4, hidden_size: 512, num_attention_heads: 8, seq_length: 128}\n"

SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(10**30), 10**30),
    st.floats(allow_nan=False),
    st.text(max_size=30),
)
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3).map(tuple),
        st.dictionaries(st.text(max_size=5), inner, max_size=3),
    ),
    max_leaves=8,
)


def hydra(value: Any) -> str:
    """Write a value in Hydra's grammar, an escape for the quote only."""
    match value:
        case str():
            return "'" + value.replace("\\", "\\\\").replace("'", "\\'") + "'"
        case tuple():
            return "[" + ", ".join(hydra(item) for item in value) + "]"
        case dict():
            return (
                "{" + ", ".join(f"{hydra(key)}: {hydra(item)}" for key, item in value.items()) + "}"
            )
        case _:
            return yaml_value(value)


@given(VALUES)
def test_values_read_back(value: Any) -> None:
    assert parse_value(hydra(value)) == value


@given(st.text(max_size=40))
def test_no_override_raises_anything_but_our_errors(text: Any) -> None:
    with contextlib.suppress(InputError):
        load("-", text, stdin=JOB)


@pytest.mark.parametrize(
    ("override", "read"),
    [
        ("model.num_layers=8", lambda job: job.model.num_layers == 8),
        ("+train.micro_batch_size=2", lambda job: job.train.micro_batch_size == 2),
        ("++train.micro_batch_size=2", lambda job: job.train.micro_batch_size == 2),
        ("~model.seq_length", lambda job: job.model.seq_length is None),
        ("model.seq_length=null", lambda job: job.model.seq_length is None),
        ("ddp=null", lambda job: job.ddp is None),
        ("optimizer=null", lambda job: job.optimizer is None),
        ("model.recompute_modules=[]", lambda job: job.model.recompute_modules == ()),
        (
            "model.recompute_modules=[mlp, 'moe']",
            lambda job: job.model.recompute_modules == ("mlp", "moe"),
        ),
        ("ddp={bucket_size: 1024}", lambda job: job.ddp.bucket_size == 1024),
        ("peft=dora", lambda job: job.peft.scheme == "dora"),
        ("model.vision.hidden_size=64", lambda job: job.model.vision == {"hidden_size": 64}),
        ("model.moe_layer_freq=[0]*1+[1]*3", None),
        (
            "model.moe_layer_freq='[0]*1+[1]*3'",
            lambda job: job.model.moe_layer_freq == (0, 1, 1, 1),
        ),
        ("env_vars.A=1", lambda job: job.environment == {"A": "1"}),
    ],
)
def test_forms(override: Any, read: Any) -> None:
    if read is None:
        with pytest.raises(ConfigError):
            load("-", override, stdin=JOB)
    else:
        assert read(load("-", override, stdin=JOB))


def test_a_field_of_a_null_section_brings_the_section_back() -> None:
    job = load("-", "ddp=null", "ddp.bucket_size=1", stdin=JOB)
    assert job.ddp is not None
    assert job.ddp.bucket_size == 1


def test_the_last_override_wins() -> None:
    assert load("-", "model.num_layers=8", "model.num_layers=16", stdin=JOB).model.num_layers == 16


@pytest.mark.parametrize(
    "override",
    [
        "model.num_layers",
        "=4",
        "model..x=1",
        "1model.x=1",
        "model.x=[1",
        "model.x='a",
        "model.x={a}",
        "model.x=[1]2",
        "~model.hidden_dropout",
        "~ddp",
        "~a.b.c",
        "model.x=" + "[" * 40 + "]" * 40,
        "model.x=" + "a" * 200_000,
        "model.x=[,]",
    ],
)
def test_what_is_no_override_is_refused(override: Any) -> None:
    with pytest.raises(ConfigError) as caught:
        load("-", override, stdin=JOB)
    assert caught.value.code == "bad-override"
    assert len(caught.value.message) < 200


@pytest.mark.parametrize(
    ("written", "size"), [("50GiB", 50 << 30), ("'80 GB'", 80 * 10**9), ("123456", 123456)]
)
def test_the_memory_of_a_device_may_be_written_as_a_size(written: str, size: int) -> None:
    job = load("-", f"hardware.memory_bytes={written}", stdin=JOB)
    assert job.hardware.memory_bytes == size


@pytest.mark.parametrize("written", ["much", "50G", "-1GiB", "0", "nan", "1e99"])
def test_a_memory_that_is_no_size_is_refused(written: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load("-", f"hardware.memory_bytes={written}", stdin=JOB)
    assert caught.value.code in {"wrong-type", "bad-value"}


@pytest.mark.parametrize("section", ["model", "train", "ddp", "optimizer", "peft", "comm_overlap"])
@pytest.mark.parametrize("value", ["-1", "word", "true", "[1,2]"])
def test_a_section_that_is_no_mapping_is_refused(section: str, value: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load("-", f"{section}={value}", stdin=JOB)
    assert caught.value.hint


def test_more_prediction_depths_than_any_model_has_are_refused() -> None:
    assert load("-", "model.mtp_num_layers=64", stdin=JOB).model.mtp_num_layers == 64
    with pytest.raises(ConfigError) as caught:
        load("-", "model.mtp_num_layers=65", stdin=JOB)
    assert caught.value.data["maximum"] == 64
