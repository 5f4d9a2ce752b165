"""Megatron-LM arguments -> :class:`~recompute.config.draft.Draft`, with Megatron-LM's own defaults.

Two steps, as in Megatron-LM: the flags give values by argparse name (``parse_flags``), then those become
fields of the job as ``validate_args``, ``core_transformer_config_from_args``, ``get_megatron_ddp_config`` and
``get_megatron_optimizer_config`` would set them (``to_draft``). Where Megatron-LM sets something that nobody
gave, the job says so in ``changes``.

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

from recompute.config.draft import Draft, Unresolved
from recompute.config.known import known_fields
from recompute.config.schema import FrozenValue
from recompute.config.section_types import kinds
from recompute.config.shell_lexer import Token, unknown_name
from recompute.config.yaml_source import scalar
from recompute.errors import ConfigError

ARGUMENTS: Final = "NVIDIA/Megatron-LM core_v0.19.0 megatron/training/arguments.py validate_args"
TRANSFORMER: Final = (
    "NVIDIA/Megatron-LM core_v0.19.0 megatron/training/argument_utils.py "
    "core_transformer_config_from_args"
)

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

IMPLIED: Final[tuple[tuple[str, FrozenValue, str], ...]] = (
    ("gradient_accumulation_fusion", True, "model.gradient_accumulation_fusion"),
    ("masked_softmax_fusion", True, "model.masked_softmax_fusion"),
    ("bias_dropout_fusion", True, "model.bias_dropout_fusion"),
    ("attention_softmax_in_fp32", False, "model.attention_softmax_in_fp32"),
    ("check_for_nan_in_loss_and_grad", True, "ddp.check_for_nan_in_grad"),
)
"""Argparse name, its default, our field: where Megatron-LM's default is not the config class's own."""


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
    position = 0
    while position < len(words):
        word = words[position]
        position += 1
        flag, equals, attached = word.text.partition("=")
        if not flag.startswith("--"):
            if flag and unknown_name(flag) is None and not flag.startswith("-"):
                raise _stray(word, path)
            continue
        if unknown_name(flag) is not None:
            continue
        row = _row(flag, word, path)
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
        near = difflib.get_close_matches(flag, table, 1, 0.6)
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
        raise _bad(flag, value, path, f"needs a number, not {value.text[:40]!r}")
    return number


def _bad(flag: str, word: Token, path: str, problem: str) -> ConfigError:
    return ConfigError(
        "bad-flag",
        f"{path}:{word.line}: {flag} {problem}",
        hint="write it as Megatron-LM takes it, for example --recompute-modules mlp core_attn",
        data={"flag": flag, "line": word.line},
    )


def to_draft(given: Mapping[str, Given]) -> Draft:
    """Return the fields of the job that arguments set, and what Megatron-LM sets beside them.

    Args:
        given: Values by argparse name.
    """
    draft = Draft()
    for name, item in given.items():
        for target in _targets(name):
            section, _, field = target.partition(".")
            draft.set(section, field, _spelling(name, item.value), item.where)
        if name not in CONSUMED and not _targets(name) and not isinstance(item.value, Unresolved):
            draft.set(_home(name), name, item.value, item.where)
    arguments = _Arguments(given, draft)
    arguments.defaults()
    arguments.activation()
    arguments.embeddings()
    arguments.attention()
    arguments.parallelism()
    arguments.precision()
    arguments.recompute()
    return draft


def _targets(name: str) -> tuple[str, ...]:
    if name in RENAMED:
        extra = ("ddp.fp8_param_gather",) if name == "fp8_param_gather" else ()
        return (RENAMED[name], *extra)
    if name in CONSUMED:
        return ()
    sections = ("model", "optimizer", "ddp", "train")
    return tuple(f"{section}.{name}" for section in sections if name in kinds(section))


def _home(name: str) -> str:
    """Return the section that knows a field we do not model, or ``arguments``."""
    known = known_fields()
    return next(
        (s for s in ("model", "optimizer", "ddp", "train") if name in known[s]), "arguments"
    )


def _spelling(name: str, value: FrozenValue) -> FrozenValue:
    """Return values as the config classes spell them."""
    if isinstance(value, Unresolved):
        return value
    if name == "window_size" and isinstance(value, str):
        return tuple(scalar(part.strip()) for part in value.strip("() ").split(","))
    if name in ("moe_router_load_balancing_type", "moe_aux_loss_coeff", "cp_comm_type"):
        read = tuple(scalar(item) if isinstance(item, str) else item for item in _as_tuple(value))
        return read[0] if len(read) == 1 else read
    if name in ("moe_layer_freq", "linear_attention_freq", "no_rope_freq", "window_attn_skip_freq"):
        return scalar(value) if isinstance(value, str) else value
    if name == "cuda_graph_modules" and isinstance(value, tuple):
        return tuple(word for item in value for word in str(item).split(",") if word)
    return value


def _as_tuple(value: FrozenValue) -> tuple[FrozenValue, ...]:
    return value if isinstance(value, tuple) else (value,)


class _Arguments:
    """What ``validate_args`` and the builders of the config classes decide from several flags."""

    def __init__(self, given: Mapping[str, Given], draft: Draft) -> None:
        self.given = given
        self.draft = draft

    def on(self, name: str) -> bool:
        """Tell whether a switch is on."""
        return name in self.given and self.given[name].value is True

    def off(self, name: str) -> bool:
        """Tell whether a switch that is on by default was turned off."""
        return name in self.given and self.given[name].value is False

    def value(self, name: str) -> Any:
        """Return a value as given, or ``None``."""
        return self.given[name].value if name in self.given else None

    def derive(self, target: str, *names: str, value: FrozenValue) -> None:
        """Set a field that flags decide; it counts as given where the flag was."""
        section, _, field = target.partition(".")
        where = next((self.given[name].where for name in names if name in self.given), "derived")
        self.draft.set(section, field, value, where)

    def implied(self, target: str, why: str, source: str, *, value: FrozenValue) -> None:
        """Set a field that no flag gives, visibly."""
        section, _, field = target.partition(".")
        if not self.draft.has(section, field):
            self.draft.change(target, value, why, source)

    def defaults(self) -> None:
        """Write Megatron-LM's defaults where the config classes have others."""
        if self.on("optimizer_cpu_offload") and "optimizer_offload_fraction" not in self.given:
            target = "optimizer.optimizer_offload_fraction"
            self.implied(target, "default of --optimizer-offload-fraction", ARGUMENTS, value=1.0)
        for name, default, target in IMPLIED:
            if name not in self.given:
                self.implied(target, f"Megatron-LM's default of {name}", ARGUMENTS, value=default)
        self.implied(
            "model.persist_layer_norm",
            "on unless --no-persist-layer-norm",
            TRANSFORMER,
            value=not self.on("no_persist_layer_norm"),
        )
        self.implied(
            "model.deallocate_pipeline_outputs", "always on from arguments", TRANSFORMER, value=True
        )

    def activation(self) -> None:
        """Turn --swiglu and its kind into the activation, the gate and the fusion."""
        gated = self.on("swiglu") or self.on("quick_geglu")
        if gated:
            self.derive("model.gated_linear_unit", "swiglu", "quick_geglu", value=True)
        name = {"swiglu": "silu", "quick_geglu": "quick_gelu", "squared_relu": "squared_relu"}
        for flag, activation in name.items():
            if self.on(flag):
                self.derive("model.activation_func", flag, value=activation)
        fused = not self.off("bias_swiglu_fusion" if self.on("swiglu") else "bias_gelu_fusion")
        if not self.on("swiglu") and self.off("add_bias_linear"):
            fused = False
        self.implied(
            "model.bias_activation_fusion",
            "on unless turned off; the GELU fusion needs biases",
            TRANSFORMER,
            value=fused,
        )
        hidden = self.value("hidden_size")
        if "ffn_hidden_size" not in self.given and isinstance(hidden, int):
            size = int((4 * hidden * 2 / 3) / 64) * 64 if self.on("swiglu") else 4 * hidden
            why = "two thirds of four times the hidden size, a multiple of 64" if gated else "4 x"
            self.implied("model.ffn_hidden_size", why, ARGUMENTS, value=size)

    def embeddings(self) -> None:
        """Positions, tied weights, vocabulary."""
        draft = self.draft
        if self.on("use_rotary_position_embeddings"):
            self.derive(
                "model.position_embedding_type", "use_rotary_position_embeddings", value="rope"
            )
        rope = draft.get("model", "position_embedding_type", "learned_absolute") == "rope"
        self.implied(
            "model.apply_rope_fusion",
            "on for rope unless --no-rope-fusion",
            ARGUMENTS,
            value=rope and (not self.off("apply_rope_fusion")),
        )
        if self.on("untie_embeddings_and_output_weights"):
            self.derive(
                "model.share_embeddings_and_output_weights",
                "untie_embeddings_and_output_weights",
                value=False,
            )
        if "padded_vocab_size" in self.given:
            self.derive("model.should_pad_vocab", "padded_vocab_size", value=False)
        elif self.value("tokenizer_type") == "NullTokenizer" and draft.has("model", "vocab_size"):
            size = draft.get("model", "vocab_size")
            if isinstance(size, int):
                draft.change(
                    "model.vocab_size",
                    size + 1,
                    "NullTokenizer adds an end-of-document token",
                    "NVIDIA/Megatron-LM core_v0.19.0 megatron/core/tokenizers NullTokenizer",
                )

    def attention(self) -> None:
        """Query groups, backend, layer spec."""
        draft = self.draft
        if "num_query_groups" in self.given and not self.on("group_query_attention"):
            draft.change(
                "model.num_query_groups",
                None,
                "without --group-query-attention the number of groups is ignored",
                TRANSFORMER,
            )
        if self.on("use_flash_attn") and "attention_backend" not in self.given:
            self.derive("model.attention_backend", "use_flash_attn", value="flash")
        spec = self.value("spec")
        if spec is not None and "local" in _as_tuple(spec):
            self.derive("model.transformer_impl", "spec", value="local")

    def parallelism(self) -> None:
        """Virtual stages, sequence parallelism, overlap."""
        draft = self.draft
        chunks = self.value("num_virtual_stages_per_pipeline_rank")
        per_chunk = self.value("num_layers_per_virtual_pipeline_stage")
        layers = draft.get("model", "num_layers")
        stages = draft.get("model", "pipeline_model_parallel_size", 1)
        if isinstance(per_chunk, int) and isinstance(layers, int) and isinstance(stages, int):
            ends = ("account_for_embedding_in_pipeline_split", "account_for_loss_in_pipeline_split")
            total = layers + sum(draft.get("model", end) is True for end in ends)
            chunks = _exact(total, stages, per_chunk)
        if isinstance(chunks, int):
            self.derive(
                "model.virtual_pipeline_model_parallel_size",
                "num_virtual_stages_per_pipeline_rank",
                "num_layers_per_virtual_pipeline_stage",
                value=chunks if chunks > 1 else None,
            )
        interleaved = isinstance(chunks, int) and chunks > 1
        draft.change(
            "model.overlap_p2p_comm",
            interleaved and not self.off("overlap_p2p_comm"),
            "on for the interleaved schedule only, unless turned off",
            ARGUMENTS,
        )
        if (
            self.on("sequence_parallel")
            and draft.get("model", "tensor_model_parallel_size", 1) == 1
        ):
            draft.change(
                "model.sequence_parallel",
                after=False,
                why="Megatron-LM turns it off without tensor parallelism",
                source=ARGUMENTS,
            )

    def precision(self) -> None:
        """Parameter dtype, and gradients in fp32 for bf16."""
        for name in ("bf16", "fp16"):
            if self.on(name):
                self.implied("model.params_dtype", f"--{name}", ARGUMENTS, value=name)
        if self.on("grad_reduce_in_bf16"):
            self.derive("ddp.grad_reduce_in_fp32", "grad_reduce_in_bf16", value=False)
        elif self.on("bf16") and self.value("main_grads_dtype") in (None, "fp32"):
            self.implied(
                "ddp.grad_reduce_in_fp32",
                "bf16 accumulates and reduces gradients in fp32",
                ARGUMENTS,
                value=True,
            )
        if self.on("use_megatron_fsdp") or self.on("use_custom_fsdp"):
            for target in ("ddp.use_distributed_optimizer", "optimizer.use_distributed_optimizer"):
                self.implied(target, "Megatron FSDP needs it", ARGUMENTS, value=True)

    def recompute(self) -> None:
        """--recompute-activations and --cpu-offloading-num-layers set other fields."""
        draft = self.draft
        if self.on("recompute_activations"):
            draft.change(
                "model.recompute_granularity",
                "selective",
                "--recompute-activations overrides --recompute-granularity",
                ARGUMENTS,
            )
            draft.where["model.recompute_granularity"] = self.given["recompute_activations"].where
        layers = self.value("cpu_offloading_num_layers")
        if isinstance(layers, int) and layers > 0:
            self.implied(
                "model.cpu_offloading", "--cpu-offloading-num-layers", ARGUMENTS, value=True
            )
        if draft.has("model", "recompute_modules") and not draft.get("model", "recompute_modules"):
            draft.assume(
                "empty-modules-flag",
                "--recompute-modules without a label means no recompute up to Megatron Core 0.15; "
                "from 0.16 on argparse refuses it",
            )


def _exact(total: int, stages: int, per_chunk: int) -> int:
    """Return the chunks per rank; Megatron-LM wants both divisions to be exact."""
    if stages < 1 or per_chunk < 1 or total % stages or (total // stages) % per_chunk:
        raise ConfigError(
            "does-not-divide",
            f"{total} layers on {stages} pipeline ranks do not divide by "
            f"--num-layers-per-virtual-pipeline-stage {per_chunk}",
            hint="choose a number of layers per virtual stage that divides the layers of a rank",
            data={"layers": total, "stages": stages, "per_chunk": per_chunk},
        )
    return total // stages // per_chunk
