"""The sizes that one rank sees, worked out once from the job."""

from __future__ import annotations

from dataclasses import dataclass

from recompute.config.schema import JobConfig, ModelConfig
from recompute.config.versions import core_at_least, transformer_engine_at_least

DTYPE_BYTES = {"fp32": 4, "bf16": 2, "fp16": 2, "fp8": 1}
"""Bytes of one element."""


BLACKWELL = frozenset(("b200", "b300", "gb200", "gb300"))
"""GPUs of compute capability 10.0 and later."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """Sizes on one rank. Widths are already divided by tensor parallelism."""

    tokens: int
    """T: tokens of one micro-batch on one rank, context parallelism applied."""
    batch: int
    """Sequences of one micro-batch."""
    seq: int
    """Tokens of one sequence on one rank, context parallelism applied."""
    tp: int
    cp: int
    sequence_parallel: bool
    hidden: int
    heads: int
    """Attention heads on this rank."""
    groups: int
    """Key and value heads on this rank."""
    head_dim: int
    ffn: int
    """Dense feed-forward width on this rank."""
    vocab: int
    """Padded vocabulary on this rank."""
    act: int
    """Bytes of one activation element."""
    residual: int
    """Bytes of one element of the residual stream."""
    ep: int = 1
    """Expert-parallel ranks."""
    etp: int = 1
    """Tensor-parallel ranks inside an expert."""
    local_experts: int = 0
    """Routed experts on this rank."""
    expert_ffn: int = 0
    """Feed-forward width of one routed expert on this rank."""
    shared_ffn: int = 0
    """Feed-forward width of the shared experts on this rank."""
    expert_load: float = 1.0
    """Routed tokens that arrive at this rank over their mean: 1 balanced, more on a hot rank."""
    local: bool = False
    """Megatron's own layers instead of Transformer Engine's."""
    blackwell: bool = False
    """FP8 GEMMs read either layout (sm_100 and later): no transposed copies."""
    permutes_by_sort: bool = True
    """Unfused permutation sorts the whole routing map (from core 0.17); before, it selects by mask."""
    norms_whole_query: bool = True
    """MLA without query compression fuses its query norm into ``linear_q_proj`` (from core 0.19)."""
    loss_overwrites_logits: bool = False
    """Transformer Engine's cross entropy writes the gradient over the logits (before 2.20)."""

    @property
    def stream_tokens(self) -> int:
        """S: tokens between tensor-parallel regions, sequence parallelism applied."""
        return self.tokens // self.tp if self.sequence_parallel and self.tp > 1 else self.tokens

    @property
    def stream(self) -> int:
        """Bytes of the residual stream of one micro-batch."""
        return self.stream_tokens * self.hidden * self.residual


def padded_vocab(model: ModelConfig) -> int:
    """Return the vocabulary as Megatron pads it.

    Source: NVIDIA/Megatron-LM core_v0.19.0 megatron/training/tokenizer ``vocab_size_with_padding``:
    up to a multiple of ``make_vocab_size_divisible_by * tensor_model_parallel_size``.
    """
    vocab = model.vocab_size or 0
    if not model.should_pad_vocab:
        return vocab
    multiple = model.make_vocab_size_divisible_by * model.tensor_model_parallel_size
    return -(-vocab // multiple) * multiple


def activation_dtype(model: ModelConfig) -> str:
    """Return the dtype of activations outside FP8 regions."""
    if model.bf16:
        return "bf16"
    if model.fp16:
        return "fp16"
    return model.params_dtype


def head_dim(model: ModelConfig) -> int:
    """Return ``kv_channels`` with Megatron's default."""
    return model.kv_channels or model.hidden_size // model.num_attention_heads


def shape_of(job: JobConfig, *, expert_load: float = 1.0) -> Shape:
    """Work out the sizes of one rank.

    Args:
        job: A complete job: batch size and sequence length are there, sizes divide.
        expert_load: Routed tokens that arrive at this rank over their mean; all of them at most.

    Returns:
        Sizes of one tensor-parallel rank; all ranks of a stage have the same.
    """
    model = job.model
    tp, cp = model.tensor_model_parallel_size, model.context_parallel_size
    act = DTYPE_BYTES[activation_dtype(model)]
    seq = job.seq_length // cp
    groups = model.num_query_groups or model.num_attention_heads
    return Shape(
        tokens=seq * job.micro_batch_size,
        batch=job.micro_batch_size,
        seq=seq,
        tp=tp,
        cp=cp,
        sequence_parallel=model.sequence_parallel,
        hidden=model.hidden_size,
        heads=model.num_attention_heads // tp,
        groups=max(1, groups // tp),
        head_dim=head_dim(model),
        ffn=(model.ffn_hidden_size or 4 * model.hidden_size) // tp,
        vocab=padded_vocab(model) // tp,
        act=act,
        residual=4 if model.fp32_residual_connection else act,
        ep=model.expert_model_parallel_size,
        etp=expert_tensor_parallel(model),
        local_experts=(model.num_moe_experts or 0) // model.expert_model_parallel_size,
        expert_ffn=(model.moe_ffn_hidden_size or model.ffn_hidden_size or 4 * model.hidden_size)
        // expert_tensor_parallel(model),
        shared_ffn=(model.moe_shared_expert_intermediate_size or 0) // tp,
        expert_load=min(expert_load, float(model.expert_model_parallel_size)),
        local=model.transformer_impl == "local",
        blackwell=(job.hardware.gpu or "").lower() in BLACKWELL,
        permutes_by_sort=core_at_least(job, (0, 17)),
        norms_whole_query=core_at_least(job, (0, 19)),
        loss_overwrites_logits=not transformer_engine_at_least(job, (2, 20)),
    )


def expert_tensor_parallel(model: ModelConfig) -> int:
    """Return the tensor-parallel size inside an expert: that of the model unless it is given."""
    if model.expert_tensor_parallel_size is None:
        return model.tensor_model_parallel_size
    return model.expert_tensor_parallel_size
