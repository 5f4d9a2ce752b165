"""Verdicts from the allocator's own numbers."""

from __future__ import annotations

from typing import Final

from recompute.diagnose import accounting
from recompute.diagnose.finding import Finding, from_oom, judged, passing, stage_of_failure
from recompute.diagnose.observation import Observation, first_oom
from recompute.diagnose.types import Stage, Verdict
from recompute.units import format_gib

WEAK_PHRASES: Final = frozenset(
    {"says-late", "says-few-steps", "says-same-step", "says-activation", "says-full"}
)
"""Phrases that say when it failed, not with what."""


def corrupt_size(seen: Observation) -> Finding | None:
    """The request is garbage."""
    oom = first_oom([oom for oom in seen.ooms if oom.message.corrupt_size])
    if oom is None or (
        len(seen.ooms) > 1 and any(other.message.numbers_known >= 3 for other in seen.ooms)
    ):
        return None
    return from_oom(
        seen,
        oom,
        "exabyte",
        Verdict.IMPOSSIBLE_REQUEST,
        "the size of the request is garbage: look for an earlier failure",
    )


def impossible_request(seen: Observation) -> Finding | None:
    """More than the device has."""
    oom = passing(seen, accounting.over_total)
    if oom is None:
        return None
    total = oom.message.total
    card = f"a card of {format_gib(total)}" if total else "any card"
    return from_oom(
        seen,
        oom,
        "request-over-total",
        Verdict.IMPOSSIBLE_REQUEST,
        f"one request of {format_gib(oom.message.requested or 0)} on {card}",
    )


def device_limit(seen: Observation) -> Finding | None:
    """The device had room; a limit refused."""
    oom = passing(seen, accounting.limited)
    if oom is None:
        return None
    message = oom.message
    free = format_gib(message.free) if message.free is not None else "memory"
    why = "an allowed limit is in force" if message.allowed is not None else f"{free} was free"
    return from_oom(
        seen,
        oom,
        "free-covers-request",
        Verdict.DEVICE_LIMIT,
        f"not capacity: {why} and the request was refused",
    )


def other_process(seen: Observation) -> Finding | None:
    """Somebody else holds the card."""
    oom = passing(seen, accounting.held_by_others)
    if oom is None:
        return None
    others = accounting.others_bytes(oom.message) or 0
    return from_oom(
        seen,
        oom,
        "outside-torch",
        Verdict.OTHER_PROCESS,
        f"{format_gib(others)} of the card is outside this process's allocator",
    )


def own_non_torch(seen: Observation) -> Finding | None:
    """This process holds too much outside its torch allocator."""
    oom = passing(seen, accounting.outside_is_own)
    if oom is None:
        return None
    outside = accounting.own_outside_bytes(oom.message) or 0
    return from_oom(
        seen,
        oom,
        "outside-torch-own",
        Verdict.NON_TORCH_MEMORY,
        f"this process holds {format_gib(outside)} outside torch: NCCL, cuBLAS, context",
    )


def fragmentation(seen: Observation) -> Finding | None:
    """The memory was there, in pieces."""
    oom = judged(seen)
    if oom is None or not accounting.fragmented(oom.message):
        return None
    slack = oom.message.reserved_unallocated or 0
    return from_oom(
        seen,
        oom,
        "slack-covers-request",
        Verdict.FRAGMENTATION,
        f"{format_gib(slack)} reserved and unused, more than the request of {format_gib(oom.message.requested or 0)}",
    )


def request_like_logits(seen: Observation) -> Finding | None:
    """A single request of a size that only logits, or attention without a fused kernel, have."""
    oom = judged(seen)
    if (
        oom is None
        or oom.frames
        or oom.message.shape == "xla"
        or not accounting.one_large_tensor(oom.message)
    ):
        return None
    if any(hit.row.id not in WEAK_PHRASES for hit, _ in seen.phrases if hit.row.needs != "no_oom"):
        return None
    return from_oom(
        seen,
        oom,
        "request-like-logits",
        Verdict.LOGITS,
        f"one tensor of {format_gib(oom.message.requested or 0)}: tokens x vocabulary / TP x 4 bytes",
        stage=stage_of_failure(seen, oom, Stage.LOSS),
    )


def capacity(seen: Observation) -> Finding | None:
    """The device was full; nothing shows with what."""
    oom = judged(seen)
    if oom is None:
        return None
    rule = "nearly-full" if accounting.nearly_full(oom.message) else "device-full"
    return from_oom(
        seen,
        oom,
        rule,
        Verdict.CAPACITY,
        "the device was full; nothing here shows whose memory it was",
    )
