"""Hostile and broken input: our own error, exit code 2, never a traceback, never a hang."""

from __future__ import annotations

import contextlib
import os
import random
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from recompute.config.load import load
from recompute.config.source import MAX_BYTES
from recompute.errors import ConfigError, InputError, RecomputeError

EXAMPLES = Path(__file__).parents[4] / "examples"
BOMB = "a: &a [x,x,x,x,x,x,x,x,x,x]\n" + "".join(
    f"{chr(98 + i)}: &{chr(98 + i)} [{','.join(['*' + chr(97 + i)] * 10)}]\n" for i in range(9)
)
MODEL = "model: {num_layers: 2, hidden_size: 64, num_attention_heads: 4}\n"


@pytest.mark.parametrize(
    ("data", "code"),
    [
        (BOMB.encode(), "yaml-limit"),
        (b"a: &a {b: *a}\n", "yaml-alias"),
        (b"model: *nowhere\n", "yaml-alias"),
        (b"[" * 200_000, "yaml-limit"),
        (b"{a: " * 200_000, "yaml-limit"),
        (b"- " * 200_000, "yaml-limit"),
        (b'{"a":' * 200_000, "yaml-limit"),
        (b"a: [" + b"1," * 500_000 + b"]", "yaml-limit"),
        (b"x" * (MAX_BYTES + 1), "too-large"),
        (b'{"a": [' + b"1," * 500_000 + b"1]}", "yaml-limit"),
        (b"#!/bin/sh\n" + b"a b c " * 500_000, "too-large"),
        (b"#!/bin/sh\n" + b"A=1;" * 30_000, "shell-limit"),
        (b"#!/bin/sh\necho " + b"$(" * 50_000, "shell-syntax"),
        (b"#!/bin/sh\necho " + b"$A" * 50_000, "no-training-command"),
        (b"model:\n  \xff\xfe: 1\n", "not-utf8"),
        ("model: é".encode("utf-16"), "not-utf8"),
        (b"model:\n  a: \0\n", "not-text"),
        (b"\x7fELF\x02\x01\x01\0\0\0", "not-text"),
        (b"", "empty-job"),
        (b" \n\t\n", "empty-job"),
        (b"# nothing\n", "not-a-job"),
        (b"just text\n", "not-a-job"),
        (b"- a\n- b\n", "not-a-job"),
        (b"3\n", "not-a-job"),
        (b"model:\n  num_layers: 4\n  num_layers: 8\n", "duplicate-key"),
        (b'{"model": {"num_layers": 4, "num_layers": 8}}', "duplicate-key"),
        (b"model: !!python/object/apply:os.system [ls]\n", "yaml-tag"),
        (b"model: !custom {a: 1}\n", "yaml-tag"),
        (b"model:\n  a: !!binary aGVsbG8=\n", "yaml-tag"),
        (b"a: 1\n---\nb: 2\n", "yaml-syntax"),
        (b"model: {a: 'b\n", "yaml-syntax"),
        (b"model:\n\t- a\n", "yaml-syntax"),
        (b"model: a: b\n", "yaml-syntax"),
        (b"? [a, b]\n: c\n", "yaml-key"),
        (b"? {a: b}\n: c\n", "yaml-key"),
        (b"model:\n  <<: 3\n", "yaml-key"),
        (b"model:\n  num_layers: " + b"9" * 5000 + b"\n", "huge-number"),
        (b'{"model": {"num_layers": ' + b"9" * 5000 + b"}}", "huge-number"),
        (b"model:\n  num_layers: !!int nine\n", "huge-number"),
        (b"model:\n  num_layers: 1e400\n", "wrong-type"),
        (b"model:\n  num_layers: .inf\n", "wrong-type"),
        (b"model: [a, b]\n", "wrong-type"),
        (b"model:\n", "missing-section"),
        (b"train:\n  micro_batch_size: 1\n", "missing-section"),
        (b"MODEL_ARGS: 3\n", "wrong-type"),
        (b"peft: adapter\n" + MODEL.encode(), "bad-value"),
        (b"peft: {_target_: os.system}\n" + MODEL.encode(), "bad-value"),
        (b"mixed_precision: 3\n" + MODEL.encode(), "wrong-type"),
        (b"mixed_precision: [a]\n" + MODEL.encode(), "wrong-type"),
        (b"framework: {megatron_core: {a: 1}}\n" + MODEL.encode(), "wrong-type"),
        (b"hardware: {gpu: 3}\n" + MODEL.encode(), "wrong-type"),
        (b"3: 4\n" + MODEL.encode(), "unknown-section"),
        (b"model: {3: 4}\n", "unknown-field"),
    ],
)
def test_hostile_input_is_refused(data: Any, code: Any) -> None:
    with pytest.raises(ConfigError) as caught:
        load("-", stdin=data)
    assert caught.value.code == code
    assert caught.value.exit_code == 2
    assert len(caught.value.message) < 400


def test_merge_keys_and_aliases_work_where_they_are_harmless() -> None:
    text = "x: &x {num_layers: 2, hidden_size: 64}\nmodel:\n  <<: *x\n  num_attention_heads: 4\n  hidden_size: 128\n"
    with pytest.raises(ConfigError) as caught:
        load("-", stdin=text.encode())
    assert caught.value.code == "unknown-section"
    text = "model:\n  <<: {num_layers: 2, hidden_size: 64}\n  num_attention_heads: 4\n  hidden_size: 128\n"
    model = load("-", stdin=text.encode()).model
    assert (model.num_layers, model.hidden_size) == (2, 128)


def test_files_that_are_no_job_files(tmp_path: Path) -> None:
    loop = tmp_path / "loop.yaml"
    loop.symlink_to(loop)
    directory = tmp_path / "dir"
    directory.mkdir()
    file = tmp_path / "file.yaml"
    file.write_text(MODEL)
    cases = {
        str(tmp_path / "none.yaml"): "not-found",
        str(file / "below.yaml"): "not-found",
        str(directory): "not-a-file",
        str(loop): "unreadable",
        "a\0b": "not-found",
        "x" * 5000: "unreadable",
    }
    for path, code in cases.items():
        with pytest.raises(ConfigError) as caught:
            load(path)
        assert caught.value.code == code, path


@pytest.mark.skipif(os.geteuid() == 0, reason="root reads everything")
def test_an_unreadable_file(tmp_path: Path) -> None:
    file = tmp_path / "job.yaml"
    file.write_text(MODEL)
    file.chmod(0)
    with pytest.raises(ConfigError) as caught:
        load(str(file))
    assert caught.value.code == "unreadable"


def test_endless_files_are_cut_off() -> None:
    with pytest.raises(ConfigError) as caught:
        load("/dev/zero")
    assert caught.value.code == "too-large"


def test_a_pipe_without_a_writer_does_not_hang(tmp_path: Path) -> None:
    fifo = tmp_path / "fifo.yaml"
    os.mkfifo(fifo)
    with pytest.raises(RecomputeError):
        load(str(fifo))


@given(st.binary(max_size=300))
def test_random_bytes_raise_nothing_but_our_errors(data: Any) -> None:
    only_ours(data)


@given(st.text(max_size=200))
def test_random_text_raises_nothing_but_our_errors(text: Any) -> None:
    only_ours(text.encode("utf-8", "surrogatepass"))


@given(
    st.lists(
        st.sampled_from(
            [
                "--num-layers",
                "4",
                "$A",
                "${A:-",
                "}",
                "(",
                ")",
                "'",
                '"',
                "\\\n",
                "\n",
                "A=",
                "A=(",
                "$((",
                "1+",
                "))",
                "if",
                "[",
                "]",
                "then",
                "else",
                "fi",
                "export",
                "<<E",
                "E",
                "#",
                ";",
                "|",
                "python",
                "x.py",
                "-c",
                "`",
                "$(",
                "--bf16=1",
                "--recompute-modules",
                "é",
                " ",
            ]
        ),
        max_size=40,
    )
)
def test_random_scripts_raise_nothing_but_our_errors(words: Any) -> None:
    only_ours(("#!/bin/sh\n" + " ".join(words)).encode())


def only_ours(data: bytes) -> None:
    with contextlib.suppress(InputError):
        load("-", stdin=data)


SEEDS = [
    *sorted(EXAMPLES.glob("*.yaml")),
    EXAMPLES / "llama3-8b.sh",
    EXAMPLES / "llama3-8b-hf/config.json",
]


@pytest.mark.parametrize("path", SEEDS, ids=lambda path: path.name)
@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(seed=st.integers(0, 2**32))
def test_mutated_examples_raise_nothing_but_our_errors(path: Any, seed: int) -> None:
    draw = random.Random(seed)  # noqa: S311 - mutations, not secrets
    data = bytearray(path.read_bytes())
    for _ in range(draw.randint(1, 6)):
        at = draw.randrange(len(data))
        match draw.randrange(4):
            case 0:
                data[at] = draw.randrange(256)
            case 1:
                del data[at : at + draw.randint(1, 40)]
            case 2:
                data[at:at] = draw.choice(
                    [b"[", b"{", b": ", b"- ", b"\n  ", b"&a ", b"*a", b"null", b"-1", b"'"]
                )
            case _:
                piece = data[at : at + 30]
                data[draw.randrange(len(data)) : 0] = piece
    only_ours(bytes(data))
