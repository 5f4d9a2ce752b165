"""What one kind of evidence says, and what every test of evidence needs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from recompute.diagnose.message_shapes import OomMessage
from recompute.diagnose.observation import Event, Observation, Oom, Place, first_oom
from recompute.diagnose.types import Stage, Verdict


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One verdict with what it rests on."""

    rule: str
    verdict: Verdict
    stage: Stage = Stage.UNKNOWN
    places: tuple[Place, ...] = ()
    oom: Oom | None = None
    rank: int | None = None
    summary: str = ""


def stage_of_failure(seen: Observation, oom: Oom | None, default: Stage = Stage.UNKNOWN) -> Stage:
    """Return the stage by stack, else by what the prose says, else ``default``."""
    if oom is not None and oom.stage is not Stage.UNKNOWN:
        return oom.stage
    if seen.prose_stages:
        return seen.prose_stages[-1][0]
    return default


def from_oom(
    seen: Observation,
    oom: Oom,
    rule: str,
    verdict: Verdict,
    summary: str,
    *,
    stage: Stage | None = None,
) -> Finding:
    """Make a finding that rests on one message.

    Args:
        seen: What was read.
        oom: The message.
        rule: Row that speaks.
        verdict: Its verdict.
        summary: One sentence.
        stage: The stage, where the stack or the prose does not decide.
    """
    return Finding(
        rule=rule,
        verdict=verdict,
        stage=stage_of_failure(seen, oom) if stage is None else stage,
        places=(oom.place,),
        oom=oom,
        rank=oom.place.rank,
        summary=summary,
    )


def passing(seen: Observation, test: Callable[[OomMessage], bool]) -> Oom | None:
    """Return the judged message if it passes ``test``, else the first that does and has numbers."""
    oom = judged(seen)
    if oom is not None and test(oom.message):
        return oom
    if oom is not None and oom.message.numbers_known >= 3:
        return None
    return first_oom([other for other in seen.ooms if test(other.message)])


def judged(seen: Observation) -> Oom | None:
    """The message to judge by: of the rank that failed first."""
    return first_oom(seen.ooms)


def is_moe(seen: Observation) -> bool:
    """Tell whether the configuration in the log has experts."""
    experts = seen.arguments.get("num_experts") or seen.summary.get("model", {}).get(
        "num_moe_experts"
    )
    if experts not in {None, "None", "0", "1"}:
        return True
    return "num_moe_experts:" in seen.yaml_text and "num_moe_experts: null" not in seen.yaml_text


def rank_skew(seen: Observation) -> tuple[int, int, float] | None:
    """Return the hot rank, its bytes, and by what share it exceeds the median; ``None`` for one rank."""
    peaks: dict[int, int] = {}
    for (_, rank), series in seen.memory.items():
        value = max(
            (report.max_allocated or report.allocated or 0 for report, _ in series), default=0
        )
        if rank is not None and value:
            peaks[rank] = max(peaks.get(rank, 0), value)
    for oom in seen.ooms:
        if oom.place.rank is not None and oom.message.allocated:
            peaks[oom.place.rank] = max(peaks.get(oom.place.rank, 0), oom.message.allocated)
    if len(peaks) < 2:
        return None
    ordered = sorted(peaks.values())
    middle = ordered[(len(ordered) - 1) // 2]
    hot = max(peaks, key=lambda rank: (peaks[rank], -rank))
    return hot, peaks[hot], (peaks[hot] - middle) / max(middle, 1)


def best_event(events: list[Event]) -> Event:
    """Prefer a line that names the cause to the first one."""
    for event in events:
        if event.row.id in {"cublas-alloc", "nccl-calloc"}:
            return event
    return events[0]
