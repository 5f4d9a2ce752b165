"""What Megatron-LM decides from several arguments, and its own defaults: arguments -> draft.

Source: NVIDIA/Megatron-LM core_v0.19.0 megatron/training/arguments.py ``validate_args``,
megatron/training/argument_utils.py ``core_transformer_config_from_args``, megatron/training/training.py
``get_megatron_ddp_config`` and ``get_megatron_optimizer_config``.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

from recompute.config.draft import Draft, Unresolved
from recompute.config.megatron_args import CONSUMED, Given, as_tuple, home_of, spelling, targets_of
from recompute.config.schema import FrozenValue
from recompute.errors import ConfigError

ARGUMENTS: Final = "NVIDIA/Megatron-LM core_v0.19.0 megatron/training/arguments.py validate_args"
BATCHES: Final = "NVIDIA/Megatron-LM core_v0.19.0 megatron/core/num_microbatches_calculator.py"
TRANSFORMER: Final = (
    "NVIDIA/Megatron-LM core_v0.19.0 megatron/training/argument_utils.py "
    "core_transformer_config_from_args"
)

IMPLIED: Final[tuple[tuple[str, FrozenValue, str], ...]] = (
    ("gradient_accumulation_fusion", True, "model.gradient_accumulation_fusion"),
    ("masked_softmax_fusion", True, "model.masked_softmax_fusion"),
    ("bias_dropout_fusion", True, "model.bias_dropout_fusion"),
    ("attention_softmax_in_fp32", False, "model.attention_softmax_in_fp32"),
    ("check_for_nan_in_loss_and_grad", True, "ddp.check_for_nan_in_grad"),
)
"""Argparse name, its default, our field: where Megatron-LM's default is not the config class's own."""


def to_draft(given: Mapping[str, Given]) -> Draft:
    """Return the fields of the job that arguments set, and what Megatron-LM sets beside them.

    Args:
        given: Values by argparse name.
    """
    draft = Draft()
    for name, item in given.items():
        for target in targets_of(name):
            section, _, field = target.partition(".")
            draft.set(section, field, spelling(name, item.value), item.where)
        if name not in CONSUMED and not targets_of(name) and not isinstance(item.value, Unresolved):
            draft.set(home_of(name), name, item.value, item.where)
    arguments = _Arguments(given, draft)
    arguments.defaults()
    arguments.activation()
    arguments.embeddings()
    arguments.attention()
    arguments.parallelism()
    arguments.precision()
    arguments.recompute()
    return draft


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
        if self.on("multi_latent_attention"):
            for name, default in (("q_lora_rank", None), ("kv_lora_rank", 32)):
                flag = "--" + name.replace("_", "-")
                why = f"default of {flag}"
                self.implied(f"model.{name}", why, ARGUMENTS, value=default)
        steps = re.match(r"\s*\d{1,12}:(\d{1,9})\b", str(self.value("step_batch_size_schedule")))
        if steps:
            why = "first step of --step-batch-size-schedule"
            target = "train.global_batch_size"
            self.implied(target, why, BATCHES, value=int(steps[1]))
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
        elif "tokenizer_type" in self.given and not draft.has("model", "vocab_size"):
            # Kept for the hint that names the tokenizer's vocabulary.
            given = self.given["tokenizer_type"]
            if isinstance(given.value, str):
                draft.set("arguments", "tokenizer_type", given.value, given.where)

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
        if spec is not None and "local" in as_tuple(spec):
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
