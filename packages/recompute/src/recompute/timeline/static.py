"""What is allocated all step long: parameters, gradients, optimizer states.

Sources: NVIDIA/Megatron-LM core_v0.19.0 megatron/core/distributed/param_and_grad_buffer.py (gradient
buffers), megatron/core/optimizer/distrib_optimizer.py and optimizer.py (master copies, shards),
TransformerEngine v2.20 transformer_engine/pytorch/optimizers/fused_adam.py (precision-aware states).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from recompute.config.schema import JobConfig, OptimizerConfig
from recompute.config.versions import transformer_engine_at_least
from recompute.model.shape import DTYPE_BYTES, activation_dtype
from recompute.model.tape import Op, OpClass
from recompute.timeline.muon import Part, muon_states, uses_muon
from recompute.timeline.reduction import FP32, Reduction, accumulates_in_fp32, reduction_of
from recompute.timeline.sharded import main_gradient_bytes, sharding_of
from recompute.timeline.types import StaticBytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Parallelism:
    """Group sizes of one job."""

    world: int
    data: int
    """Data-parallel size, context parallelism excluded."""
    dense_shards: int
    """Ranks over which dense optimizer states are sharded (data and context)."""
    expert_shards: int
    """Ranks over which routed experts' optimizer states are sharded."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ParameterCount:
    """Parameters of one rank."""

    dense: int
    expert: int
    frozen: int = 0
    """Parameters that do not train: no gradient, no optimizer state."""
    one_byte: int = 0
    """Of all parameters, those stored in FP8 (``fp8_param``)."""

    @property
    def total(self) -> int:
        """Parameters that train."""
        return self.dense + self.expert


@dataclass(frozen=True, slots=True, kw_only=True)
class StateBytes:
    """Static bytes of one rank and what the optimizer step adds for a moment."""

    static: StaticBytes
    gradients_in_backward: int
    """Gradients that appear during backward and go after the step (no DDP wrapper)."""
    step_transient: int
    """Gradients copied to FP32 for the step."""
    reduction: Reduction
    """What reducing gradients takes besides their buffer."""


def parallelism_of(job: JobConfig) -> Parallelism:
    """Work out group sizes; without ``hardware.num_gpus`` the job is one data-parallel replica.

    torch FSDP2 has one mesh for every parameter, experts too: the data-parallel group with context
    (NVIDIA/Megatron-LM core_v0.19.0 megatron/core/distributed/torch_fully_sharded_data_parallel.py).
    """
    model = job.model
    replica = (
        model.tensor_model_parallel_size
        * model.pipeline_model_parallel_size
        * model.context_parallel_size
    )
    expert_tp = model.expert_tensor_parallel_size or model.tensor_model_parallel_size
    expert_replica = (
        expert_tp * model.expert_model_parallel_size * model.pipeline_model_parallel_size
    )
    world = job.hardware.num_gpus or max(replica, expert_replica)
    data = max(1, world // replica)
    instances = job.ddp.num_distributed_optimizer_instances if job.ddp else 1
    dense = max(1, data * model.context_parallel_size // instances)
    one_mesh = job.ddp is not None and job.ddp.use_torch_fsdp2
    return Parallelism(
        world=world,
        data=data,
        dense_shards=dense,
        expert_shards=dense if one_mesh else max(1, world // expert_replica // instances),
    )


def microbatches_of(job: JobConfig) -> int:
    """Return the micro-batches of one step; one when the job gives no global batch size."""
    if job.train.global_batch_size is None:
        return 1
    return max(1, job.train.global_batch_size // (job.micro_batch_size * parallelism_of(job).data))


def dummy_gradients(job: JobConfig, ops: Iterable[Op]) -> int:
    """Return the bytes of the stand-ins for weight gradients that fused accumulation hands back.

    With ``gradient_accumulation_fusion`` a linear adds into the main gradient itself and gives
    autograd a buffer of the weight's shape that is cached for the whole run, one for each shape
    (TransformerEngine v2.20 transformer_engine/pytorch/module/base.py get_dummy_wgrad, used by
    NVIDIA/Megatron-LM core_v0.19.0 megatron/core/tensor_parallel/layers.py too).
    """
    if job.ddp is None or not job.model.gradient_accumulation_fusion:
        return 0
    linears = {(op.name, op.weight_bytes // op.weights) for op in ops if op.kind is OpClass.GEMM}
    return sum(size for _, size in linears)


def state_bytes(
    job: JobConfig, count: ParameterCount, held: int = 0, parts: Sequence[Part] = ()
) -> StateBytes:
    """Return the static bytes of a rank.

    Args:
        job: The job.
        count: Parameters of the rank.
        held: What its modules hold all step long besides parameters: stand-ins for gradients,
            quantized weights, workspaces and shared buffers.
        parts: Its parameters one by one, where the optimizer tells them apart.
    """
    dtype = DTYPE_BYTES[activation_dtype(job.model)]
    groups, sharding = parallelism_of(job), sharding_of(job)
    gradient = main_gradient_bytes(job, dtype)
    split, local = _split(count, groups), accumulates_in_fp32(job)
    states, transient = 2 * dtype * count.total, 0
    if job.optimizer is not None:
        dense, expert = split if sharding.states else (count.dense, count.expert)
        on_device = 1 - offloaded_share(job.optimizer)
        states = optimizer_bytes_per_parameter(job.optimizer, dtype) * (dense + expert)
        if parts and uses_muon(job):
            shards = (groups.dense_shards, groups.expert_shards) if sharding.states else (1, 1)
            states = muon_states(job, parts, shards, dtype)
        states = int(states * on_device)
        transient = _gradient_copy(job.optimizer, FP32 if local else gradient, dtype) * (
            dense + expert
        )
        transient += _moment_copies(job, max(dense, expert))
    buffered, appearing = count.total * (gradient + (FP32 if local else 0)), 0
    if sharding.gradients:
        buffered = sum(split) * gradient
    if job.ddp is None or sharding.torch:
        buffered, appearing = 0, buffered if sharding.torch else dtype * count.total
    return StateBytes(
        static=StaticBytes(
            parameters=_parameter_bytes(count, dtype, groups, sharded=sharding.parameters),
            gradients=buffered,
            optimizer=states,
            other=held,
        ),
        gradients_in_backward=appearing,
        step_transient=transient,
        reduction=reduction_of(
            job,
            count.dense,
            count.expert,
            gradient,
            (groups.dense_shards, groups.expert_shards),
        ),
    )


def _split(count: ParameterCount, groups: Parallelism) -> tuple[int, int]:
    """Return a rank's share of the dense and of the routed experts' parameters."""
    return -(-count.dense // groups.dense_shards), -(-count.expert // groups.expert_shards)


def _parameter_bytes(
    count: ParameterCount, dtype: int, groups: Parallelism, *, sharded: bool
) -> int:
    held = dtype * (count.total + count.frozen) - (dtype - 1) * count.one_byte
    if not sharded:
        return held
    elements = max(1, count.total + count.frozen)
    frozen = -(-count.frozen // groups.dense_shards)
    return held * (sum(_split(count, groups)) + frozen) // elements


def is_distributed(job: JobConfig) -> bool:
    """Say whether optimizer states are sharded over data parallel ranks."""
    return sharding_of(job).states


def offloaded_share(optimizer: OptimizerConfig) -> float:
    """Return the share of the parameters whose states live on the host.

    Source: NVIDIA/Megatron-LM core_v0.19.0 megatron/core/optimizer/cpu_offloading/hybrid_optimizer.py
    HybridDeviceOptimizer._get_sub_optimizer_param_groups.
    """
    return optimizer.optimizer_offload_fraction if optimizer.optimizer_cpu_offload else 0.0


def optimizer_bytes_per_parameter(optimizer: OptimizerConfig, parameter: int) -> int:
    """Return master copy and moments of one parameter, bytes, before sharding.

    With ``use_precision_aware_optimizer`` and FP32 masters of BF16 parameters, only the 16 low bits
    are kept (``store_param_remainders``), unless Megatron Core keeps the masters itself.
    """
    if optimizer.optimizer == "sgd":
        return (4 if parameter < 4 else 0) + 4
    if not optimizer.use_precision_aware_optimizer:
        return (4 if parameter < 4 else 0) + 8
    master = DTYPE_BYTES[optimizer.main_params_dtype]
    remainders = optimizer.store_param_remainders and not optimizer.core_keeps_masters
    if master == 4 and parameter == 2 and remainders:
        master = 2
    moments = DTYPE_BYTES[optimizer.exp_avg_dtype] + DTYPE_BYTES[optimizer.exp_avg_sq_dtype]
    return (master if parameter < 4 else 0) + moments


def _gradient_copy(optimizer: OptimizerConfig, gradient: int, parameter: int) -> int:
    """Bytes per held parameter of the FP32 gradient copy that the step makes of a 16-bit buffer."""
    aware = optimizer.use_precision_aware_optimizer and not optimizer.core_keeps_masters
    if aware or gradient == 4 or parameter == 4:
        return 0
    return 4


def _moment_copies(job: JobConfig, parameters: int) -> int:
    """Bytes of the FP32 copies that the step makes of narrow moments.

    Of all parameters of one optimizer at a time (dense and experts have one each). From Transformer
    Engine 2.14 on the kernel reads bfloat16 moments itself when both are that
    (TransformerEngine 459e7cf49 transformer_engine/pytorch/optimizers/fused_adam.py ``fuse_unscale``).
    """
    optimizer = job.optimizer
    if optimizer is None or not optimizer.use_precision_aware_optimizer:
        return 0
    moments = (optimizer.exp_avg_dtype, optimizer.exp_avg_sq_dtype)
    if moments == ("bf16", "bf16") and transformer_engine_at_least(job, (2, 14)):
        return 0
    return sum(4 for moment in moments if moment != "fp32") * parameters
