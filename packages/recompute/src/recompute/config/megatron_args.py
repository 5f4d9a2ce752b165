"""Megatron-LM arguments by argparse name, and the fields of the job that each one gives.

The flags give values by argparse name; :mod:`recompute.config.megatron_defaults` makes a draft of them.

Source: NVIDIA/Megatron-LM core_v0.19.0 megatron/training/arguments.py, megatron/training/argument_utils.py and
megatron/training/training.py; the flags of 0.8 to main are in ``megatron_flags.json``
(``tools/megatron_flags.py``).
"""

from __future__ import annotations

import difflib
import functools
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from recompute.config.draft import Unresolved
from recompute.config.foreign_fields import RENAMED_FIELDS
from recompute.config.known import known_fields
from recompute.config.schema import FrozenValue
from recompute.config.section_types import kinds
from recompute.config.shell_lexer import Token, unknown_name
from recompute.config.yaml_source import scalar
from recompute.errors import ConfigError

RENAMED: Final[Mapping[str, str]] = {
    "num_experts": "model.num_moe_experts",
    "decoder_first_pipeline_num_layers": "model.num_layers_in_first_pipeline_stage",
    "decoder_last_pipeline_num_layers": "model.num_layers_in_last_pipeline_stage",
    "encoder_num_layers": "model.num_layers",
    "encoder_seq_length": "model.seq_length",
    "fp8_param_gather": "model.fp8_param",
    "fp4_param_gather": "model.fp4_param",
    "te_rng_tracker": "model.use_te_rng_tracker",
    "cuda_graph_scope_deprecated": "model.cuda_graph_scope",
    "hybrid_layer_pattern": "model.hybrid_override_pattern",
    "padded_vocab_size": "model.vocab_size",
    "pad_vocab_size": "model.should_pad_vocab",
    "accumulate_allreduce_grads_in_fp32": "ddp.grad_reduce_in_fp32",
    "ddp_bucket_size": "ddp.bucket_size",
    "ddp_reduce_scatter_with_fp32_accumulation": "ddp.reduce_scatter_with_fp32_accumulation",
    "ddp_param_name_patterns_for_fp32_local_accumulation": (
        "ddp.param_name_patterns_for_fp32_local_accumulation"
    ),
    "ddp_average_in_collective": "ddp.average_in_collective",
    "check_for_nan_in_loss_and_grad": "ddp.check_for_nan_in_grad",
    "use_custom_fsdp": "ddp.use_megatron_fsdp",
    "tp_comm_overlap": "model.tp_comm_overlap",
    "micro_batch_size": "train.micro_batch_size",
    "global_batch_size": "train.global_batch_size",
    "train_iters": "train.train_iters",
}
"""Argparse name -> our field, where the two differ or two sections have the name."""

CONSUMED: Final = frozenset(
    (
        "swiglu",
        "squared_relu",
        "quick_geglu",
        "openai_gelu",
        "group_query_attention",
        "untie_embeddings_and_output_weights",
        "no_persist_layer_norm",
        "bias_gelu_fusion",
        "bias_swiglu_fusion",
        "recompute_activations",
        "use_rotary_position_embeddings",
        "num_layers_per_virtual_pipeline_stage",
        "num_virtual_stages_per_pipeline_rank",
        "use_flash_attn",
        "grad_reduce_in_bf16",
        "spec",
        "tokenizer_type",
        "max_position_embeddings",
        "model_parallel_size",
        "batch_size",
        "checkpoint_activations",
    )
)
"""Argparse names that decide fields of other names."""

GONE: Final[Mapping[str, str]] = {
    "checkpoint_activations": "--recompute-activations, or --recompute-granularity with --recompute-method",
    "batch_size": "--micro-batch-size",
    "model_parallel_size": "--tensor-model-parallel-size",
    "warmup": "--lr-warmup-fraction",
}
"""Flags on which Megatron-LM itself stops, and what it says to use instead."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Given:
    """One flag as given."""

    value: FrozenValue
    where: str


@functools.cache
def megatron_flags() -> Mapping[str, Sequence[Any]]:
    """Return ``flag -> (argparse name, number of values, type[, constant])``."""
    text = Path(__file__).with_name("megatron_flags.json").read_text(encoding="utf-8")
    table: dict[str, Sequence[Any]] = json.loads(text)
    return table


def parse_flags(words: Sequence[Token], path: str) -> dict[str, Given]:
    """Return the values that an argument list gives, by argparse name; the last one wins.

    Args:
        words: Flags and their values, quotes removed.
        path: Named in messages; a value is recorded as given at ``path:line``.

    Raises:
        ConfigError: ``unknown-flag``, ``bad-flag`` or ``removed-flag``.
    """
    given: dict[str, Given] = {}
    position, matters = 0, True
    while position < len(words):
        word = words[position]
        position += 1
        flag, equals, attached = word.text.partition("=")
        if not flag.startswith("--"):
            stray = flag and unknown_name(flag) is None and not flag.startswith("-")
            if stray and matters:
                raise _stray(word, path)
            continue
        if unknown_name(flag) is not None:
            continue
        row = _row(flag, word, path)
        matters = _matters(row[0])
        values: list[Token] = [Token(text=attached, line=word.line)] if equals else []
        if not equals and row[1] != 0:
            start = position
            while position < len(words) and not _is_flag(words[position].text):
                position += 1
                if row[1] == 1 or (isinstance(row[1], int) and position - start == row[1]):
                    break
            values = list(words[start:position])
        given[row[0]] = Given(
            value=_value(flag, row, values, word, path), where=f"{path}:{word.line}"
        )
    return given


def _matters(name: str) -> bool:
    """Tell whether an argument enters the job; what does not is not worth refusing a script for."""
    return bool(targets_of(name)) or name in CONSUMED


def _is_flag(text: str) -> bool:
    return text.startswith("--") or (text.startswith("-") and text[1:2].isalpha())


def _stray(word: Token, path: str) -> ConfigError:
    return ConfigError(
        "bad-flag",
        f"{path}:{word.line}: {word.text[:60]!r} belongs to no flag",
        hint="flags start with --; a list follows one flag, separated by spaces",
        data={"value": word.text[:200], "line": word.line},
    )


def _row(flag: str, word: Token, path: str) -> Sequence[Any]:
    table = megatron_flags()
    if flag not in table:
        flag = _underscored(flag)
    if flag not in table:
        old = RENAMED_FIELDS.get(flag.lstrip("-").replace("-", "_"))
        near = (
            [f"--{old.replace('_', '-')}"]
            if old is not None
            else difflib.get_close_matches(flag, table, 1, 0.6)
        )
        raise ConfigError(
            "unknown-flag",
            f"{path}:{word.line}: Megatron-LM has no flag {flag[:60]}",
            hint=f"did you mean {near[0]}?" if near else "give Megatron-LM's own arguments only",
            data={"flag": flag[:200], "line": word.line, "nearest": near[0] if near else None},
        )
    row = table[flag]
    if row[0] in GONE:
        raise ConfigError(
            "removed-flag",
            f"{path}:{word.line}: Megatron-LM stops at {flag}, which it removed",
            hint=f"use {GONE[row[0]]}",
            data={"flag": flag, "line": word.line},
        )
    return row


def _underscored(flag: str) -> str:
    """Return the spelling with hyphens: configuration files write some flags with underscores."""
    return "--" + flag.removeprefix("--").replace("_", "-")


def _value(
    flag: str, row: Sequence[Any], values: list[Token], word: Token, path: str
) -> FrozenValue:
    if row[1] == 0:
        if values:
            raise _bad(flag, word, path, "takes no value")
        return row[3]
    if not values and row[1] not in ("*", "?") and row[0] != "recompute_modules":
        if not _matters(row[0]):
            return None
        raise _bad(flag, word, path, "needs a value")
    for value in values:
        name = unknown_name(value.text)
        if name is not None:
            return Unresolved(name=name, flag=flag)
    read = tuple(_typed(flag, row[2], value, path) for value in values)
    if row[1] in ("*", "+") or (isinstance(row[1], int) and row[1] > 1):
        return read
    return read[0] if read else None


def _typed(flag: str, kind: str, value: Token, path: str) -> FrozenValue:
    if kind not in ("int", "float"):
        return value.text
    number = scalar(value.text)
    if isinstance(number, bool) or not isinstance(number, int if kind == "int" else int | float):
        if not _matters(megatron_flags()[_underscored(flag)][0]):
            return value.text
        raise _bad(flag, value, path, f"needs a number, not {value.text[:40]!r}")
    return number


def _bad(flag: str, word: Token, path: str, problem: str) -> ConfigError:
    return ConfigError(
        "bad-flag",
        f"{path}:{word.line}: {flag} {problem}",
        hint="write it as Megatron-LM takes it, for example --recompute-modules mlp core_attn",
        data={"flag": flag, "line": word.line},
    )


def targets_of(name: str) -> tuple[str, ...]:
    """Return the fields of the job that an argument gives, by its argparse name."""
    if name in RENAMED:
        extra = ("ddp.fp8_param_gather",) if name == "fp8_param_gather" else ()
        return (RENAMED[name], *extra)
    if name in CONSUMED:
        return ()
    sections = ("model", "optimizer", "ddp", "train")
    return tuple(f"{section}.{name}" for section in sections if name in kinds(section))


def home_of(name: str) -> str:
    """Return the section that knows a field we do not model, or ``arguments``."""
    known = known_fields()
    return next(
        (s for s in ("model", "optimizer", "ddp", "train") if name in known[s]), "arguments"
    )


def spelling(name: str, value: FrozenValue) -> FrozenValue:
    """Return values as the config classes spell them."""
    if isinstance(value, Unresolved):
        return value
    if name == "window_size" and isinstance(value, str):
        return tuple(scalar(part.strip()) for part in value.strip("() ").split(","))
    if name in ("moe_router_load_balancing_type", "moe_aux_loss_coeff", "cp_comm_type"):
        read = tuple(scalar(item) if isinstance(item, str) else item for item in as_tuple(value))
        return read[0] if len(read) == 1 else read
    if name in ("moe_layer_freq", "linear_attention_freq", "no_rope_freq", "window_attn_skip_freq"):
        return scalar(value) if isinstance(value, str) else value
    if name == "cuda_graph_modules" and isinstance(value, tuple):
        return tuple(word for item in value for word in str(item).split(",") if word)
    return value


def as_tuple(value: FrozenValue) -> tuple[FrozenValue, ...]:
    """Return a list as it is, and anything else as a list of one."""
    return value if isinstance(value, tuple) else (value,)
