"""A job written out reads back: as YAML to the same job, as arguments to the same model."""

from __future__ import annotations

import dataclasses
import shlex
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from recompute.config.choice import LABELS, NO_RECOMPUTE, choice_of, full, selective
from recompute.config.job_writers import bridge_yaml, job_yaml, same_job
from recompute.config.load import load
from recompute.config.megatron_writer import megatron_arguments
from recompute.config.normalize import normalize
from recompute.config.override_writers import FLAGS, overrides_for
from recompute.config.recipe import recipe_names

EXAMPLES = Path(__file__).parents[4] / "examples"
PATHS = [
    *sorted(str(path) for path in EXAMPLES.glob("*.yaml")),
    str(EXAMPLES / "llama3-8b.sh"),
    str(EXAMPLES / "llama3-8b-hf/config.json"),
]

FIELDS = st.fixed_dictionaries(
    {},
    optional={
        "model.normalization": st.sampled_from(["LayerNorm", "RMSNorm"]),
        "model.hidden_dropout": st.floats(0, 1),
        "model.gated_linear_unit": st.booleans(),
        "model.activation_func": st.sampled_from(["gelu", "silu", "squared_relu", "quick_gelu"]),
        "model.num_query_groups": st.sampled_from([1, 2, 4]),
        "model.tensor_model_parallel_size": st.sampled_from([1, 2]),
        "model.virtual_pipeline_model_parallel_size": st.none(),
        "model.bf16": st.booleans(),
        "model.transformer_impl": st.sampled_from(["transformer_engine", "local"]),
        "model.recompute_granularity": st.sampled_from(["full", "selective", "nonsense: #x", None]),
        "model.recompute_modules": st.one_of(
            st.none(),
            st.lists(st.sampled_from([*LABELS, "no such", "a,b", "'q'"]), max_size=3).map(tuple),
        ),
        "model.recompute_num_layers": st.one_of(st.none(), st.integers(-3, 9)),
        "model.moe_layer_freq": st.lists(st.integers(0, 1), min_size=4, max_size=4).map(tuple),
        "model.window_size": st.one_of(
            st.none(), st.tuples(st.integers(0, 99), st.integers(-1, 9))
        ),
        "model.share_embeddings_and_output_weights": st.booleans(),
        "model.cuda_graph_modules": st.one_of(st.none(), st.just(("attn", "mlp"))),
        "ddp.grad_reduce_in_fp32": st.booleans(),
        "ddp.bucket_size": st.one_of(st.none(), st.integers(0, 2**40)),
        "optimizer.exp_avg_dtype": st.sampled_from(["fp32", "bf16", "fp8"]),
        "train.micro_batch_size": st.integers(1, 8),
        "hardware.num_gpus": st.sampled_from([2, 8]),
        "framework.torch": st.sampled_from(["2.7.0", "2.10"]),
    },
)
BASE = b"model: {num_layers: 4, hidden_size: 512, num_attention_heads: 8, vocab_size: 1000}\n"


def made(fields: Any) -> Any:
    """A job with the given fields; text and lists go through the YAML reader, as a user's would."""
    from recompute.config.yaml_text import yaml_value

    lines: dict[str, list[str]] = {
        "model": ["  num_layers: 4", "  hidden_size: 512", "  num_attention_heads: 8"]
    }
    for name, value in fields.items():
        section, _, field = name.partition(".")
        lines.setdefault(section, []).append(f"  {field}: {yaml_value(value)}")
    text = "".join(f"{section}:\n" + "\n".join(rows) + "\n" for section, rows in lines.items())
    return load("-", stdin=text.encode())


def reread(text: str) -> Any:
    return load("-", stdin=text.encode())


@given(FIELDS, st.booleans())
def test_yaml_reads_back_to_the_same_job(fields: Any, every: Any) -> None:
    job = made(fields)
    assert same_job(reread(job_yaml(job, every=every)), job)
    normal = normalize(job)
    again = normalize(reread(job_yaml(normal)))
    assert same_job(again, normal)


@given(FIELDS)
def test_what_arguments_cannot_say_is_named(fields: Any) -> None:
    job = normalize(made(fields))
    text = megatron_arguments(job)
    unsaid = {
        line.split()[3].partition("=")[0]
        for line in text.splitlines()
        if line.startswith("# no flag: ")
    }
    read = load("-", stdin=text.encode())
    if (job.model.recompute_granularity, job.model.recompute_modules) == ("selective", ()):
        assert read.model.recompute_granularity is None  # how arguments say no recompute
        off = {"recompute_granularity": None, "recompute_modules": None}
        job = dataclasses.replace(job, model=dataclasses.replace(job.model, **off))
    for section in ("model", "train", "optimizer", "ddp"):
        ours, theirs = getattr(job, section), getattr(read, section)
        for field in dataclasses.fields(ours):
            name = f"{section}.{field.name}"
            if name not in unsaid:
                assert getattr(ours, field.name) == getattr(theirs, field.name), name


@pytest.mark.parametrize("path", PATHS, ids=lambda path: path.rpartition("/")[2])
def test_examples_read_back(path: Any) -> None:
    job = normalize(load(path))
    again = normalize(reread(job_yaml(job)))
    assert same_job(again, job)
    assert again.identity.entry_point == job.identity.entry_point


def test_the_example_script_reads_back_from_arguments() -> None:
    job = normalize(load(str(EXAMPLES / "llama3-8b.sh")))
    text = megatron_arguments(job)
    assert "# no flag" not in text
    assert normalize(load("-", stdin=text.encode())).model == job.model


def test_an_empty_list_is_written_for_megatron_lm_as_no_granularity() -> None:
    empty = ("model.recompute_granularity=selective", "model.recompute_modules=[]")
    job = load(str(EXAMPLES / "llama3-8b.yaml"), *empty)
    text = megatron_arguments(job)
    assert "recompute" not in text
    assert choice_of(load("-", stdin=text.encode())) == choice_of(job) == NO_RECOMPUTE


def test_recipes_read_back() -> None:
    for name in recipe_names()[::29]:
        if "partial_cg_dev" in name:
            continue
        job = normalize(load(f"recipe:{name}"))
        text = job_yaml(job)
        if job.model.num_layers:
            assert same_job(normalize(reread(text)), job), name


def test_bridge_yaml_reads_back_to_the_same_model() -> None:
    job = normalize(load(str(EXAMPLES / "llama3-70b.yaml")))
    text = bridge_yaml(job)
    assert "_target_: torch.nn.functional.silu" in text
    assert "hardware" not in text
    again = reread(text)
    assert again.model == job.model
    assert again.ddp == job.ddp


CHOICES = [
    NO_RECOMPUTE,
    selective("mlp"),
    selective("core_attn", "mlp"),
    full("block", 4),
    full("uniform", 1),
]
BEFORE = [
    [],
    [
        "model.recompute_granularity=full",
        "model.recompute_method=block",
        "model.recompute_num_layers=5",
    ],
    ["model.recompute_granularity=selective", "model.recompute_modules=[moe_act]"],
    ["model.moe_layer_recompute=true"],
]


@pytest.mark.parametrize("before", BEFORE, ids=lambda before: before[0] if before else "none")
@pytest.mark.parametrize("choice", CHOICES, ids=lambda choice: choice.label())
def test_overrides_read_back_to_the_choice(choice: Any, before: Any) -> None:
    job = load("-", *before, stdin=BASE)
    texts = overrides_for(choice, job)
    assert choice_of(load("-", *before, *texts["hydra"].split(), stdin=BASE)) == choice
    fields = load(
        "-",
        stdin=(
            texts["yaml"] + "  num_layers: 4\n  hidden_size: 512\n  num_attention_heads: 8\n"
        ).encode(),
    )
    assert choice_of(fields) == choice
    python = [
        line.removeprefix("cfg.").replace(" = ", "=", 1)
        for line in texts["bridge_python"].splitlines()
    ]
    python = [
        line.replace("=None", "=null").replace("=False", "=false").replace('"', "'")
        for line in python
    ]
    assert choice_of(load("-", *before, *python, stdin=BASE)) == choice


@pytest.mark.parametrize("choice", CHOICES, ids=lambda choice: choice.label())
def test_flags_read_back_once_the_old_ones_are_dropped(choice: Any) -> None:
    base = "--num-layers 4 --hidden-size 512 --num-attention-heads 8"
    job = load(
        "-",
        stdin=f"{base} --recompute-granularity full --recompute-method block --recompute-num-layers 1\n".encode(),
    )
    text = overrides_for(choice, job)["megatron_lm"]
    flags, _, comment = text.partition("#")
    assert set(FLAGS) <= set(comment.split())
    assert choice_of(load("-", stdin=f"{base} {flags}\n".encode())) == choice


def test_overrides_for_a_fresh_command_are_flags_only() -> None:
    job = load("-", stdin=b"--num-layers 4 --hidden-size 512 --num-attention-heads 8\n")
    text = overrides_for(selective("mlp"), job)["megatron_lm"]
    assert shlex.split(text) == [
        "--recompute-granularity",
        "selective",
        "--recompute-modules",
        "mlp",
    ]
