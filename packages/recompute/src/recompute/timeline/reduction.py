"""Gradient buffers beside Megatron's own: local accumulation in FP32, and a reduction that sums in FP32.

Sources: NVIDIA/Megatron-LM core_v0.16.0 to core_v0.19.0 megatron/core/distributed/:
reduce_scatter_with_fp32_accumulation.py (the exchanged copy of a bucket, and the FP32 sum of a shard),
param_and_grad_buffer.py (``extra_main_grads`` from 0.17 on; ``start_grad_sync``: from 0.18 on the bucket
before is finished first), distributed_data_parallel.py (``bucket_size``; without ``overlap_grad_reduce``
one bucket holds everything).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from recompute.config.schema import JobConfig
from recompute.config.versions import core_at_least
from recompute.timeline.sharded import sharding_of

FP32: Final = 4
"""Bytes of an element."""

EVERY: Final = "all"
"""The pattern that names every parameter."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reduction:
    """What reducing the gradients of one rank takes besides their buffer, bytes."""

    at_sync: int
    """At the end of backward, when all of them are finished."""
    in_backward: int
    """At most, while backward goes on."""


def accumulates_in_fp32(job: JobConfig) -> bool:
    """Say whether every parameter has an FP32 gradient besides the buffer that is reduced."""
    ddp = job.ddp
    if ddp is None or ddp.use_megatron_fsdp or ddp.use_torch_fsdp2:
        return False
    named = EVERY in ddp.param_name_patterns_for_fp32_local_accumulation
    return named and not ddp.grad_reduce_in_fp32 and core_at_least(job, (0, 17))


def accumulates_partly(job: JobConfig) -> bool:
    """Say whether names, which the model does not know, decide which parameters have one."""
    ddp = job.ddp
    patterns = () if ddp is None else ddp.param_name_patterns_for_fp32_local_accumulation
    return bool(patterns) and EVERY not in patterns and core_at_least(job, (0, 17))


def reduction_of(
    job: JobConfig, dense: int, expert: int, element: int, groups: tuple[int, int]
) -> Reduction:
    """Return what ``reduce_scatter_with_fp32_accumulation`` takes.

    Args:
        job: The job.
        dense: Parameters of the rank outside routed experts.
        expert: Those of its routed experts; they have a buffer of their own.
        element: Bytes of one element of the buffer.
        groups: Ranks that reduce the dense, and the experts', gradients.
    """
    ddp = job.ddp
    sharding = sharding_of(job)
    if ddp is None or not ddp.reduce_scatter_with_fp32_accumulation or not sharding.states:
        return Reduction(at_sync=0, in_backward=0)
    if sharding.megatron or sharding.torch:
        return Reduction(at_sync=0, in_backward=0)
    largest = max(dense, expert)
    ranks = groups[0] if dense >= expert else groups[1]
    if not ddp.overlap_grad_reduce:
        return Reduction(at_sync=_bytes(largest, ranks, element), in_backward=0)
    bucket = min(largest, ddp.bucket_size or max(40_000_000, 1_000_000 * groups[0]))
    if core_at_least(job, (0, 18)):
        one = _bytes(bucket, ranks, element)
        return Reduction(at_sync=one, in_backward=one)
    every = (dense + expert) * element + -(-bucket // ranks) * FP32
    return Reduction(at_sync=every, in_backward=every)


def _bytes(elements: int, ranks: int, element: int) -> int:
    """Return the exchanged copy of a bucket and the FP32 sum of its shard."""
    return elements * element + -(-elements // ranks) * FP32
