"""What the allocator's own numbers say: one test per row, in order.

The account: ``total = free + allocated + slack + outside``. Before raising, PyTorch frees every
cached block it can, so slack is fragmentation or private pools, never plain cache; from torch 2.4 on
``allocated`` already includes private pools (comments in ``c10/cuda/CUDACachingAllocator.cpp``).
Thresholds were fitted on nine public messages (docs/reference/verdicts.md).
"""

from __future__ import annotations

from typing import Final

from recompute.diagnose.message_shapes import OomMessage
from recompute.diagnose.types import Numbers
from recompute.units import GIB

OUTSIDE_SHARE: Final = 0.10
"""More than this share of the card outside this allocator is somebody else."""
FREE_SHARE: Final = 0.02
"""Less free memory than this share of the card is none: segments are taken in steps."""
SLACK_SHARE: Final = 0.05
POOL_SHARE: Final = 0.05
LARGEST_DEVICE: Final = 320 * GIB
"""No single device has more memory; a larger request is impossible on any."""
LARGE_TENSOR: Final = 12 * GIB
"""A single request this large in a trainer is logits, or attention without a fused kernel."""


def numbers_of(message: OomMessage) -> Numbers:
    """Return the numbers of the contract."""
    return Numbers(
        requested_bytes=message.requested,
        total_bytes=message.total,
        free_bytes=message.free,
        allocated_bytes=message.allocated,
        reserved_unallocated_bytes=message.reserved_unallocated,
        private_pool_bytes=message.private_pools,
        non_torch_bytes=message.non_torch,
    )


def over_total(message: OomMessage) -> bool:
    """Whether the request is larger than the device, or than any device."""
    if message.requested is None:
        return False
    return message.requested > (message.total or LARGEST_DEVICE)


def limited(message: OomMessage) -> bool:
    """Whether the device had room and something else refused."""
    if message.allowed is not None:
        return True
    if message.free is None or message.requested is None:
        return False
    room = message.free - message.requested
    return room >= message.free // 20 and message.free >= FREE_SHARE * (message.total or 0)


def others_bytes(message: OomMessage) -> int | None:
    """Return what other processes hold, as far as the message tells; bytes."""
    foreign = [process.in_use_bytes for process in message.processes if not process.own]
    own = [
        process.in_use_bytes
        for process in message.processes
        if process.own and process.in_use_bytes
    ]
    outside = message.non_torch
    held = (message.allocated or 0) + (message.reserved_unallocated or 0)
    if outside is None:
        return sum(foreign) if foreign and message.allocated is None else None
    if own:
        return max(outside - max(own[0] - held, 0), 0)
    return outside


def own_outside_bytes(message: OomMessage) -> int | None:
    """Return what this process holds outside its torch allocator, where the message says; bytes."""
    own = [
        process.in_use_bytes
        for process in message.processes
        if process.own and process.in_use_bytes
    ]
    if not own or message.allocated is None:
        return None
    return max(own[0] - message.allocated - (message.reserved_unallocated or 0), 0)


def held_by_others(message: OomMessage) -> bool:
    """Whether another process explains the failure."""
    others = others_bytes(message)
    if others is None:
        return False
    if message.total is None:
        return others >= GIB
    return others > OUTSIDE_SHARE * message.total


def outside_is_own(message: OomMessage) -> bool:
    """Whether this process holds too much outside its torch allocator."""
    outside = own_outside_bytes(message)
    return (
        outside is not None
        and message.total is not None
        and outside > OUTSIDE_SHARE * message.total
    )


def pools_dominate(message: OomMessage) -> bool:
    """Whether private pools are the part that could be given back."""
    pools = message.private_pools
    if not pools:
        return False
    floor = POOL_SHARE * message.total if message.total else (message.requested or 0)
    return pools > (message.reserved_unallocated or 0) and pools >= floor


def fragmented(message: OomMessage) -> bool:
    """Whether the slack would cover the request and is more than a rounding of the card."""
    slack, total = message.reserved_unallocated, message.total
    if slack is None or message.requested is None or total is None:
        return False
    return slack >= message.requested and slack > SLACK_SHARE * total


def nearly_full(message: OomMessage) -> bool:
    """Whether the slack would cover the request but is small."""
    slack, total = message.reserved_unallocated, message.total
    if slack is None or message.requested is None or total is None:
        return False
    return message.requested <= slack <= SLACK_SHARE * total


def one_large_tensor(message: OomMessage) -> bool:
    """Whether the request alone is of a size that only logits or unfused attention have."""
    return (
        message.requested is not None
        and message.requested >= LARGE_TENSOR
        and not over_total(message)
    )
