"""Recompute settings of other tools that turn up in job files: accepted, kept, and judged by rules.

They are no fields of Megatron. Refusing the whole file would hide everything else that is to be said
about it, so they are kept in ``JobConfig.unmodelled`` for ``recompute.rules.foreign``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

FOREIGN_FIELDS: Final = frozenset(
    {
        # NeMo 1 and Megatron-LM before 2022
        "activation_checkpoint_method",
        "activation_checkpoint_num_layers",
        "activations_checkpoint_granularity",
        "activations_checkpoint_layers_per_pipeline",
        "activations_checkpoint_method",
        "activations_checkpoint_num_layers",
        "activations_checkpoint_recompute",
        "checkpoint_activations",
        "checkpoint_method",
        "checkpoint_num_layers",
        "recompute_activations",
        # forks and other trainers on Megatron
        "dtensor_activation_checkpointing",
        "extract_layer_indices",
        "freeze_vision_model",
        "force_eval_mode",
        "mhc_recompute_attn_cuda_graph_split",
        "model_type",
        "recompute_layer_ids",
        # Hugging Face and PyTorch
        "activation_checkpoint",
        "activation_recompute",
        "checkpoint",
        "fsdp",
        "use_reentrant",
        "activation_checkpoint_mode",
        "activation_checkpointing",
        "checkpoint_order",
        "compile",
        "dropout",
        "enable_input_require_grads",
        "gradient_checkpointing",
        "gradient_checkpointing_kwargs",
        "ops_to_save",
        "order",
        "policy",
        "preserve_rng_state",
        "residual_dropout",
        "save_ops",
        "torch_compile",
        "use_cache",
    }
)
"""Names that are accepted in the sections of a job although Megatron has no such field."""

RENAMED_FIELDS: Final[Mapping[str, str]] = {
    "activations_checkpoint_granularity": "recompute_granularity",
    "activations_checkpoint_method": "recompute_method",
    "activations_checkpoint_num_layers": "recompute_num_layers",
    "activations_checkpoint_recompute": "recompute_modules",
    "activation_checkpoint_method": "recompute_method",
    "activation_checkpoint_num_layers": "recompute_num_layers",
    "checkpoint_num_layers": "recompute_num_layers",
    "checkpoint_method": "recompute_method",
}
"""Old or NeMo 1 name -> Megatron's field."""
