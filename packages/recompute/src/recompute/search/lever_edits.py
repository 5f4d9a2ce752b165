"""The fields that each lever changes, or nothing where it does not apply."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from recompute.config.pipeline import chunk_count, layers_per_chunk
from recompute.config.versions import refuses_engine_loss
from recompute.search.reserved import EXPANDABLE, allocator_of
from recompute.timeline.static import is_distributed, parallelism_of

if TYPE_CHECKING:
    from recompute.config.schema import JobConfig
    from recompute.rules.types import Edit
    from recompute.timeline.types import Prediction

ALLOCATOR_VARIABLE = "PYTORCH_CUDA_ALLOC_CONF"
"""Read by every PyTorch; the shorter ``PYTORCH_ALLOC_CONF`` from 2.9 on only."""
_NO_RECIPE: Final[Mapping[str, str]] = {"optimizer.fp8_recipe": "delayed"}
"""What makes the optimizer's recipe one that it does not mind."""


@dataclass(frozen=True, slots=True)
class Before:
    """A job, and what it takes without recompute."""

    job: JobConfig
    control: Prediction


def fused_activation(before: Before) -> Edit | None:
    """Fuse bias and activation where Megatron has a fused form.

    Source: NVIDIA/Megatron-LM core_v0.19.0 megatron/core/transformer/mlp.py MLP.forward: gelu, and
    silu of a gated unit.
    """
    model = before.job.model
    fusable = model.activation_func == "gelu" or (
        model.activation_func == "silu" and model.gated_linear_unit
    )
    done = model.bias_activation_fusion or model.use_te_activation_func
    return None if done or not fusable else {"model.bias_activation_fusion": True}


def fused_cross_entropy(before: Before) -> Edit | None:
    """Use Transformer Engine's cross entropy.

    Megatron-LM's command line refuses it from core 0.18.2 on, for stability; Megatron Bridge has no such
    check.
    """
    model = before.job.model
    if before.job.identity.entry_point == "megatron-lm" and refuses_engine_loss(before.job):
        return None
    done = model.cross_entropy_loss_fusion and model.cross_entropy_fusion_impl == "te"
    if done or model.transformer_impl != "transformer_engine":
        return None
    return {"model.cross_entropy_loss_fusion": True, "model.cross_entropy_fusion_impl": "te"}


def expandable_segments(before: Before) -> Edit | None:
    """Export the allocator's setting, keeping what is there, and what CUDA graphs need beside it."""
    job = before.job
    if allocator_of(job.environment) is EXPANDABLE:
        return None
    present = job.environment.get(ALLOCATOR_VARIABLE, "")
    kept = [part for part in present.split(",") if part and "expandable_segments" not in part]
    value = ",".join((*kept, "expandable_segments:True"))
    graphs = job.model.enable_cuda_graph or job.model.cuda_graph_impl != "none"
    beside = {"environment.NCCL_GRAPH_REGISTER": "0"} if graphs else {}
    return {f"environment.{ALLOCATOR_VARIABLE}": value, **beside}


def sequence_parallel(before: Before) -> Edit | None:
    """Split the stream over the tensor group."""
    job = before.job
    model = job.model
    divides = job.seq_length // model.context_parallel_size % model.tensor_model_parallel_size == 0
    if model.tensor_model_parallel_size == 1 or model.sequence_parallel or not divides:
        return None
    return {"model.sequence_parallel": True}


def distributed_optimizer(before: Before) -> Edit | None:
    """Shard the optimizer over the data-parallel ranks that hold the same parameters.

    Source: NVIDIA/Megatron-LM core_v0.19.0 megatron/core/optimizer/distrib_optimizer.py
    ``DistributedOptimizer.__init__``: Adam only.
    """
    job = before.job
    if job.ddp is None or job.optimizer is None or job.optimizer.optimizer != "adam":
        return None
    if is_distributed(job) or job.ddp.use_megatron_fsdp or parallelism_of(job).dense_shards == 1:
        return None
    return {"ddp.use_distributed_optimizer": True, "optimizer.use_distributed_optimizer": True}


def precision_aware(before: Before) -> Edit | None:
    """Keep only what the parameters lack of the master weights.

    Source: NVIDIA/Megatron-LM core_v0.19.0 megatron/core/optimizer/optimizer_config.py
    ``__post_init__``: Adam with the distributed optimizer.
    """
    job = before.job
    optimizer = job.optimizer
    if optimizer is None or optimizer.use_precision_aware_optimizer or not _sharded_adam(job):
        return None
    recipe = _NO_RECIPE if job.has_unused_optimizer_recipe else {}
    return {"optimizer.use_precision_aware_optimizer": True, **recipe}


def engine_masters(before: Before) -> Edit | None:
    """Take away the FP8 recipe that no layer uses but the precision-aware optimizer minds.

    Applies where rule ``masters-kept-twice`` does.
    """
    return _NO_RECIPE if before.job.masters_kept_twice else None


def bf16_moments(before: Before) -> Edit | None:
    """Halve both moments; needs the precision-aware optimizer."""
    job = before.job
    optimizer = job.optimizer
    if optimizer is None or not _sharded_adam(job):
        return None
    if {optimizer.exp_avg_dtype, optimizer.exp_avg_sq_dtype} != {"fp32"}:
        return None
    return {
        "optimizer.use_precision_aware_optimizer": True,
        "optimizer.exp_avg_dtype": "bf16",
        "optimizer.exp_avg_sq_dtype": "bf16",
    }


def bf16_gradients(before: Before) -> Edit | None:
    """Make the gradient buffer 16 bits wide."""
    job = before.job
    if job.ddp is None or not job.ddp.grad_reduce_in_fp32 or not job.model.bf16:
        return None
    return {"ddp.grad_reduce_in_fp32": False}


def uneven_pipeline(before: Before) -> Edit | None:
    """Take layers from the hottest end when the other stages divide what is left."""
    job = before.job
    model = job.model
    stages = model.pipeline_model_parallel_size
    given = (
        model.num_layers_in_first_pipeline_stage,
        model.num_layers_in_last_pipeline_stage,
        model.pipeline_model_parallel_layout,
    )
    counted = model.account_for_embedding_in_pipeline_split or (
        model.account_for_loss_in_pipeline_split
    )
    if stages < 2 or counted or any(value is not None for value in given):
        return None
    hot = dict(before.control.hot.rank).get("pp", 0)
    if hot not in {0, stages - 1}:
        return None
    end = "first" if hot == 0 else "last"
    chunks = chunk_count(model)
    for count in range(sum(layers_per_chunk(job)[hot]) - chunks, 0, -chunks):
        rest = model.num_layers - count
        if rest % ((stages - 1) * chunks) == 0 and count % chunks == 0:
            return {f"model.num_layers_in_{end}_pipeline_stage": count}
    return None


def smaller_micro_batch(before: Before) -> Edit | None:
    """Halve the micro-batch; the global batch stays, so there are twice as many."""
    size = before.job.micro_batch_size
    return {"train.micro_batch_size": size // 2} if size > 1 and size % 2 == 0 else None


def offload_optimizer(before: Before) -> Edit | None:
    """Keep all optimizer states on the host.

    Source: NVIDIA/Megatron-LM core_v0.19.0 megatron/core/optimizer/cpu_offloading.
    """
    job = before.job
    optimizer = job.optimizer
    if optimizer is None or optimizer.optimizer_cpu_offload or not _sharded_adam(job):
        return None
    return {
        "optimizer.optimizer_cpu_offload": True,
        "optimizer.optimizer_offload_fraction": 1.0,
        "optimizer.use_precision_aware_optimizer": True,
    }


def _sharded_adam(job: JobConfig) -> bool:
    optimizer = job.optimizer
    return optimizer is not None and optimizer.optimizer == "adam" and is_distributed(job)
