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

OTHER_NAMES: Final[Mapping[str, str]] = {
    "n_layers": "model.num_layers",
    "n_layer": "model.num_layers",
    "num_hidden_layers": "model.num_layers",
    "layers": "model.num_layers",
    "dim": "model.hidden_size",
    "hidden_dim": "model.hidden_size",
    "d_model": "model.hidden_size",
    "n_embd": "model.hidden_size",
    "n_heads": "model.num_attention_heads",
    "n_head": "model.num_attention_heads",
    "num_heads": "model.num_attention_heads",
    "n_kv_heads": "model.num_query_groups",
    "num_kv_heads": "model.num_query_groups",
    "num_key_value_heads": "model.num_query_groups",
    "intermediate_size": "model.ffn_hidden_size",
    "ffn_dim": "model.ffn_hidden_size",
    "ffn_size": "model.ffn_hidden_size",
    "num_experts": "model.num_moe_experts",
    "num_local_experts": "model.num_moe_experts",
    "n_routed_experts": "model.num_moe_experts",
    "num_experts_per_tok": "model.moe_router_topk",
    "top_k": "model.moe_router_topk",
    "hidden_act": "model.activation_func",
    "padded_vocab_size": "model.vocab_size",
    "seq_len": "model.seq_length",
    "sequence_length": "model.seq_length",
    "max_seq_len": "model.seq_length",
    "tie_word_embeddings": "model.share_embeddings_and_output_weights",
    "tp": "model.tensor_model_parallel_size",
    "tp_size": "model.tensor_model_parallel_size",
    "pp": "model.pipeline_model_parallel_size",
    "pp_size": "model.pipeline_model_parallel_size",
    "vpp": "model.virtual_pipeline_model_parallel_size",
    "cp": "model.context_parallel_size",
    "cp_size": "model.context_parallel_size",
    "ep": "model.expert_model_parallel_size",
    "ep_size": "model.expert_model_parallel_size",
    "etp": "model.expert_tensor_parallel_size",
    "sp": "model.sequence_parallel",
    "mbs": "train.micro_batch_size",
    "gbs": "train.global_batch_size",
    "micro_batch": "train.micro_batch_size",
    "batch_size": "train.micro_batch_size",
    "gpus": "hardware.num_gpus",
    "world_size": "hardware.num_gpus",
    "distributed_optimizer": "optimizer.use_distributed_optimizer",
}
"""Name in Hugging Face configurations or everyday speech -> the field of a job, for hints only."""

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
