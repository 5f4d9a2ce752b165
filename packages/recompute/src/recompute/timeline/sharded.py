"""Weights and gradients split over data-parallel ranks (ZeRO, FSDP), and what is whole for a moment.

Sources: NVIDIA/Megatron-LM core_v0.19.0
megatron/core/distributed/fsdp/src/megatron_fsdp/param_and_grad_buffer.py
(``_init_each_parameter_group_buffers``: what each strategy splits; ``AllGatherPipeline``,
``GradReducePipeline``: how much is whole at once) and megatron_fsdp.py (units are transformer layers,
``suggested_communication_unit_size``); megatron/core/distributed/torch_fully_sharded_data_parallel.py
with PyTorch's ``fully_shard``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

from recompute.config.schema import JobConfig
from recompute.config.versions import core_at_least
from recompute.timeline.units_of_work import Unit

UNIT_ELEMENTS: Final = 1_000_000_000
"""Least ``suggested_communication_unit_size``: gradients that may wait for their reduction, elements;
weights are gathered ahead by half of it."""


RESHARDS: Final = ("ddp.reshard_after_forward", "arguments.torch_fsdp2_reshard_after_forward")
"""Where a job says whether FSDP2 splits weights again after forward."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sharding:
    """What data-parallel ranks split."""

    parameters: bool
    gradients: bool
    states: bool
    megatron: bool = False
    """Megatron FSDP: embedding and output layer are no units, so they stay whole once gathered."""
    torch: bool = False
    """PyTorch's FSDP2: gradients have no buffer, their shards appear in backward."""
    keeps_whole: bool = False
    """PyTorch's ``reshard_after_forward=False``: weights stay whole from forward until backward is over."""
    double_buffer: bool = False
    """Two units' buffers are kept for good instead of being allocated."""


def sharding_of(job: JobConfig) -> Sharding:
    """Return what a job's wrapper splits."""
    ddp, optimizer = job.ddp, job.optimizer
    if ddp is not None and ddp.use_torch_fsdp2:
        given = (job.unmodelled.get(name, True) for name in RESHARDS)
        whole = any(value is False for value in given)
        return Sharding(parameters=True, gradients=True, states=True, torch=True, keeps_whole=whole)
    if ddp is not None and ddp.use_megatron_fsdp:
        strategy = ddp.data_parallel_sharding_strategy
        return Sharding(
            parameters=strategy == "optim_grads_params",
            gradients=strategy in {"optim_grads", "optim_grads_params"},
            states=strategy != "no_shard",
            megatron=True,
            double_buffer=ddp.fsdp_double_buffer and strategy == "optim_grads_params",
        )
    distributed = bool(
        (ddp is not None and ddp.use_distributed_optimizer)
        or (optimizer is not None and optimizer.use_distributed_optimizer)
    )
    return Sharding(parameters=False, gradients=False, states=distributed)


def main_gradient_bytes(job: JobConfig, parameter: int) -> int:
    """Return the bytes of one element of the main gradient buffer.

    From core 0.17 on Megatron FSDP has a field of its own, by default the parameters' dtype.
    """
    if job.ddp is None or job.ddp.use_torch_fsdp2:
        return parameter
    if job.ddp.use_megatron_fsdp and core_at_least(job, (0, 17)):
        given = str(job.unmodelled.get("ddp.megatron_fsdp_main_grads_dtype", "auto"))
        return 4 if given.rpartition(".")[2] in {"fp32", "float32"} else parameter
    return 4 if job.ddp.grad_reduce_in_fp32 else parameter


@dataclass(frozen=True, slots=True, kw_only=True)
class Wholes:
    """Bytes of the layers of one unit of work when whole, in forward order."""

    weights: tuple[int, ...]
    gradients: tuple[int, ...]
    elements: tuple[int, ...]


NO_WHOLES: Final = Wholes(weights=(), gradients=(), elements=())


def with_wholes(
    units: Sequence[Unit], wholes: Sequence[Wholes], sharding: Sharding, shards: int
) -> tuple[Unit, ...]:
    """Add to each unit the weights that are whole while it runs, and its gradients.

    Args:
        units: One chunk, ends included.
        wholes: What each unit's layers weigh.
        sharding: What is split.
        shards: Ranks of the dense group; 1 splits nothing.
    """
    if shards == 1 or not sharding.gradients:
        return tuple(units)
    flat = [size for whole in wholes for size in whole.weights]
    elements = [size for whole in wholes for size in whole.elements]
    ahead = _limit(elements, sharding)
    result, first = [], 0
    for unit, whole in zip(units, wholes, strict=True):
        span = range(first, first + len(whole.weights))
        first += len(whole.weights)
        forward = backward = 0
        if sharding.parameters and not sharding.double_buffer:
            forward = max((_gathered(flat, elements, i, 1, ahead) for i in span), default=0)
            backward = max((_gathered(flat, elements, i, -1, ahead) for i in span), default=0)
        own, left = _gradients(whole, sharding, shards)
        grown = _grown(unit, (forward, backward), own, left)
        result.append(_kept(grown, whole, backward) if sharding.keeps_whole else grown)
    return tuple(result)


def _kept(unit: Unit, whole: Wholes, gathered: int) -> Unit:
    """Keep a unit's weights whole between its forward and its backward, which gathers none ahead then."""
    size = sum(whole.weights)
    return replace(
        unit,
        saved=unit.saved + size,
        backward_peak=unit.backward_peak - gathered + size,
        alive_saved=(*unit.alive_saved, ("gathered weights", size)),
        alive_at_backward_peak=(
            *unit.alive_at_backward_peak,
            ("gathered weights", size - gathered),
        ),
    )


def _gradients(whole: Wholes, sharding: Sharding, shards: int) -> tuple[int, int]:
    """Return the whole gradients of a running unit, and the bytes that it leaves behind.

    PyTorch's reduction of the unit before reads a copy of its gradients while these appear; only
    shards stay.
    """
    own, every = max(whole.gradients, default=0), sum(whole.gradients)
    return (2 * own, -(-every // shards)) if sharding.torch else (own, every)


def _grown(unit: Unit, gathered: tuple[int, int], own: int, left: int) -> Unit:
    """Add gathered weights (forward, backward) and gradients (while it runs, left behind)."""
    forward, backward = gathered
    return replace(
        unit,
        forward_peak=unit.forward_peak + forward,
        backward_peak=unit.backward_peak + backward + own,
        weight_grads=unit.weight_grads + left,
        alive_at_forward_peak=(*unit.alive_at_forward_peak, ("gathered weights", forward)),
        alive_at_backward_peak=(
            *unit.alive_at_backward_peak,
            ("gathered weights", backward),
            ("whole gradients", own),
        ),
    )


def _limit(elements: Sequence[int], sharding: Sharding) -> int:
    """Return the elements that may be gathered ahead: half a communication unit, or one layer."""
    if sharding.torch or not elements:
        return 1
    return max(UNIT_ELEMENTS, 2 * sum(elements) // len(elements)) // 2


def queue_bytes(job: JobConfig, sharding: Sharding, parameter: int) -> int | None:
    """Return the bytes of whole gradients that may wait for their reduction; ``None`` for no limit."""
    if not sharding.megatron or not sharding.gradients:
        return None
    return UNIT_ELEMENTS * main_gradient_bytes(job, parameter)


def _gathered(flat: Sequence[int], elements: Sequence[int], at: int, step: int, ahead: int) -> int:
    """Sum a layer's weights and those gathered ahead of it."""
    total, taken, index = flat[at], 0, at + step
    while 0 <= index < len(flat) and taken < ahead:
        total += flat[index]
        taken += elements[index]
        index += step
    return total


def kept_buffers(wholes: Sequence[Wholes], sharding: Sharding) -> int:
    """Return the bytes of two units' buffers that ``fsdp_double_buffer`` keeps for good."""
    if not sharding.double_buffer:
        return 0
    largest = [max(w.weights, default=0) + max(w.gradients, default=0) for w in wholes]
    return 2 * max(largest, default=0)
