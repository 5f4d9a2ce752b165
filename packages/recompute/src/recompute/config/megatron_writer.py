"""A job as Megatron-LM arguments that read back to the same model.

Each flag is written only when reading an argument list without it would give another value; what no flag
can say is listed in comments, found by reading the result back.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any, Final

from recompute.config.build import build
from recompute.config.launch_script import read_launch_script
from recompute.config.megatron_args import RENAMED, megatron_flags, parse_flags
from recompute.config.megatron_defaults import to_draft
from recompute.config.overrides import parse_value
from recompute.config.schema import FrozenValue, JobConfig, JobIdentity
from recompute.config.section_types import kinds
from recompute.config.yaml_text import yaml_value

SECTIONS: Final = ("model", "train", "optimizer", "ddp")
PREFERRED: Final[Mapping[str, str]] = {
    "model.recompute_modules": "--recompute-modules",
    "model.seq_length": "--seq-length",
    "model.hybrid_override_pattern": "--hybrid-override-pattern",
    "model.num_moe_experts": "--num-experts",
    "model.vocab_size": "--vocab-size",
    "ddp.grad_reduce_in_fp32": "--accumulate-allreduce-grads-in-fp32",
    "ddp.use_megatron_fsdp": "--use-megatron-fsdp",
}
"""Field -> flag, where several flags give a field."""
SPECIAL: Final = frozenset(
    (
        "model.activation_func",
        "model.gated_linear_unit",
        "model.bias_activation_fusion",
        "model.share_embeddings_and_output_weights",
        "model.num_query_groups",
        "model.virtual_pipeline_model_parallel_size",
        "model.persist_layer_norm",
        "model.params_dtype",
        "model.should_pad_vocab",
        "model.vocab_size",
        "model.is_hybrid_model",
        "model.cpu_offloading",
        "model.deallocate_pipeline_outputs",
        "ddp.grad_reduce_in_fp32",
        "ddp.fp8_param_gather",
    )
)
"""Fields that other flags decide."""


def megatron_arguments(job: JobConfig) -> str:
    """Return the arguments, one flag per line, and what they cannot say as comments.

    Args:
        job: As loaded or normalized.
    """
    job = _without_empty_list(job)
    flags = list(_special(job))
    base = _read(flags, job)
    for section in SECTIONS:
        ours, theirs = getattr(job, section), getattr(base, section)
        if ours is None:
            continue
        for name in kinds(section):
            field = f"{section}.{name}"
            value = getattr(ours, name)
            if field not in SPECIAL and value != getattr(theirs, name):
                flags += _flag(field, value)
    flags = list(dict.fromkeys(flags))
    lines = [*flags, *(f"# no flag: {text}" for text in _unsaid(job, _read(flags, job)))]
    return "\n".join(lines) + "\n"


def _without_empty_list(job: JobConfig) -> JobConfig:
    """Say no recompute as arguments can: without a granularity, since no flag holds an empty list."""
    model = job.model
    if model.recompute_granularity != "selective" or model.recompute_modules != ():
        return job
    off = replace(model, recompute_granularity=None, recompute_modules=None)
    return replace(job, model=off)


def _read(flags: list[str], job: JobConfig) -> JobConfig:
    """Return the job that a list of flags means."""
    text = "\n".join(flags) or "--bf16"
    draft = to_draft(parse_flags(read_launch_script(text, megatron_flags()).arguments, "-"))
    identity = JobIdentity(
        path="-", sha256=job.identity.sha256, format="megatron-args", entry_point="megatron-lm"
    )
    draft.sections.setdefault("model", {})
    return build(draft, identity)


def _special(job: JobConfig) -> Iterator[str]:
    model = job.model
    yield f"--num-layers {model.num_layers}"
    yield f"--hidden-size {model.hidden_size}"
    yield from _activation(job)
    if not model.share_embeddings_and_output_weights:
        yield "--untie-embeddings-and-output-weights"
    if model.num_query_groups is not None and not model.multi_latent_attention:
        yield "--group-query-attention"
        yield f"--num-query-groups {model.num_query_groups}"
    if model.virtual_pipeline_model_parallel_size is not None:
        chunks = model.virtual_pipeline_model_parallel_size
        yield f"--num-virtual-stages-per-pipeline-rank {chunks}"
    if not model.persist_layer_norm:
        yield "--no-persist-layer-norm"
    if model.vocab_size is not None:
        name = "--vocab-size" if model.should_pad_vocab else "--padded-vocab-size"
        yield f"{name} {model.vocab_size}"
    if job.ddp is not None and model.bf16:
        reduce_in_fp32 = job.ddp.grad_reduce_in_fp32
        yield "--accumulate-allreduce-grads-in-fp32" if reduce_in_fp32 else "--grad-reduce-in-bf16"
    if model.bf16:
        yield "--bf16"


def _activation(job: JobConfig) -> Iterator[str]:
    model = job.model
    swiglu = model.gated_linear_unit and model.activation_func == "silu"
    if swiglu:
        yield "--swiglu"
    elif model.gated_linear_unit and model.activation_func == "quick_gelu":
        yield "--quick-geglu"
    elif model.activation_func == "squared_relu":
        yield "--squared-relu"
    if not model.bias_activation_fusion:
        yield "--no-bias-swiglu-fusion" if swiglu else "--no-bias-gelu-fusion"


def _flag(field: str, value: FrozenValue) -> list[str]:
    """Return the flag that gives a field a value, or nothing."""
    for flag, row in _candidates(field):
        if row[1] == 0:
            if isinstance(value, bool) and row[3] is value:
                return [flag]
            continue
        if value is None or isinstance(value, bool | dict):
            return []
        if not isinstance(value, tuple):
            return [f"{flag} {_word(value)}"]
        if field == "model.window_size" or row[2].endswith("_type"):
            return [f"{flag} {_word(_list_text(field, value))}"]
        if row[1] in ("+", "*") and value:
            return [f"{flag} " + " ".join(_word(item) for item in value)]
    return []


def flags_for(overrides: Iterable[str]) -> tuple[str, ...]:
    """Return Hydra overrides as what to do to the arguments of Megatron-LM, one line for each flag.

    Args:
        overrides: As findings and levers give them; exports of variables stay as they are, and what no
            flag can say stays an override, marked so.
    """
    return tuple(dict.fromkeys(line for text in overrides for line in _as_flags(text)))


def _as_flags(override: str) -> Iterator[str]:
    name, equals, text = override.partition("=")
    if not equals or name.startswith(("export ", "~")) or "." not in name:
        yield override
        return
    value = parse_value(text, override)
    if name in _BY_VALUE:
        yield from _BY_VALUE[name].get(value, (f"{override}  # no flag",))
        return
    flags = [flag for flag, _ in _candidates(name)]
    said = [] if value == () else _flag(name, value)
    if said:
        yield from said
    elif flags and (value is None or value is False or value == ()):
        yield "drop " + " or ".join(flag for flag in flags if not flag.startswith("--no-"))
    elif flags and value is True:
        yield f"drop {flags[0]}"
    else:
        yield f"{override}  # no flag"


_BY_VALUE: Final[Mapping[str, Mapping[FrozenValue, tuple[str, ...]]]] = {
    "model.bias_activation_fusion": {
        True: ("drop --no-bias-swiglu-fusion and --no-bias-gelu-fusion",),
        False: ("--no-bias-swiglu-fusion",),
    },
    "ddp.grad_reduce_in_fp32": {
        True: ("--accumulate-allreduce-grads-in-fp32",),
        False: ("drop --accumulate-allreduce-grads-in-fp32", "--grad-reduce-in-bf16"),
    },
    "model.share_embeddings_and_output_weights": {
        True: ("drop --untie-embeddings-and-output-weights",),
        False: ("--untie-embeddings-and-output-weights",),
    },
}
"""Field -> value -> lines, where other flags decide the field."""


def _candidates(field: str) -> list[tuple[str, Any]]:
    section, _, name = field.partition(".")
    table = megatron_flags()
    if field in PREFERRED:
        return [(PREFERRED[field], table[PREFERRED[field]])]
    renamed = {argument for argument, target in RENAMED.items() if target == field}
    if name not in RENAMED or RENAMED[name] == field:
        renamed.add(name)
    found = [(flag, row) for flag, row in table.items() if row[0] in renamed]
    # A section other than the model's shares a flag with it: one flag sets both.
    return found if section in SECTIONS else []


def _list_text(field: str, value: tuple[FrozenValue, ...]) -> str:
    inner = ",".join(str(item) for item in value)
    return f"({inner})" if field == "model.window_size" else f"[{inner}]"


def _word(value: FrozenValue) -> str:
    """Return a value as one shell word."""
    text = str(value)
    if text and all(char.isalnum() or char in "_.,:/+-@%=" for char in text):
        return text
    return "'" + text.replace("'", "'\\''") + "'"


def _unsaid(job: JobConfig, read: JobConfig) -> Iterator[str]:
    """Yield what the arguments do not say: fields whose value differs when they are read back."""
    for section in SECTIONS:
        ours, theirs = getattr(job, section), getattr(read, section)
        if ours is None:
            yield f"{section}=null"
            continue
        for name in kinds(section):
            value = getattr(ours, name)
            if value != getattr(theirs, name):
                yield f"{section}.{name}={yaml_value(value)}"
