"""What a tape computes once, and what a choice makes it compute again."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from recompute.model.tape import Link, Op, OpClass
from recompute.timeline.types import Replay


def work_of(ops: Iterable[Op], times: int = 1) -> Replay:
    """Sum operations by class, ``times`` over."""
    flops: Counter[str] = Counter()
    traffic: Counter[str] = Counter()
    comm: Counter[str] = Counter()
    kernels = 0
    for op in ops:
        kind = OpClass.NARROW_GEMM if op.casts else op.kind
        flops[kind] += op.flops * times
        traffic[kind] += op.traffic * times
        if op.casts:
            traffic[OpClass.CAST] += op.casts.source * times
            traffic[OpClass.GRADIENT_CAST] += op.casts.gradient * times
        for link, size in op.comm:
            comm[link] += size * times
        kernels += times if op.flops or op.traffic else 0
    return _replay(flops, traffic, comm, kernels)


def weight_casts_of(ops: Iterable[Op]) -> Replay:
    """Sum what quantizing the weights moves, once a step."""
    size = sum(op.casts.weight for op in ops if op.casts)
    return _replay(Counter(), Counter({OpClass.CAST: size}), Counter(), 0)


def total(parts: Iterable[tuple[Replay, int]]) -> Replay:
    """Add up work, each part so many times."""
    flops: Counter[str] = Counter()
    traffic: Counter[str] = Counter()
    comm: Counter[str] = Counter()
    kernels = 0
    for part, times in parts:
        for counter, items in ((flops, part.flops), (traffic, part.traffic)):
            for kind, amount in items:
                counter[kind] += amount * times
        for link, amount in part.comm:
            comm[link] += amount * times
        kernels += part.kernels * times
    return _replay(flops, traffic, comm, kernels)


def _replay(flops: Counter[str], traffic: Counter[str], comm: Counter[str], kernels: int) -> Replay:
    return Replay(
        flops=tuple((kind, flops[kind]) for kind in OpClass if flops[kind]),
        traffic=tuple((kind, traffic[kind]) for kind in OpClass if traffic[kind]),
        comm=tuple((link, comm[link]) for link in Link if comm[link]),
        kernels=kernels,
    )
