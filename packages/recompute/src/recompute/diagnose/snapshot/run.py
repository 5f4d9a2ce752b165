"""Snapshots into the answer: beside a log's verdict, or as the verdict itself."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from recompute.diagnose.actions import keys_for, render
from recompute.diagnose.frames import LAYER_OWNERS, Owner
from recompute.diagnose.inputs import Source
from recompute.diagnose.logs import Progress
from recompute.diagnose.prefixes import rank_of_path
from recompute.diagnose.snapshot.compare import compare
from recompute.diagnose.snapshot.counterfactual import Effect
from recompute.diagnose.snapshot.report import SnapshotReport, report
from recompute.diagnose.snapshot.structure import read_snapshot
from recompute.diagnose.types import Diagnosis, Evidence, NextAction, Numbers, Stage, Verdict
from recompute.units import format_gib

if TYPE_CHECKING:
    from recompute.diagnose.run import Answer

MIN_HOLES: Final = 0.10
"""Share of reserved memory in holes, above which a failed request that fits them is fragmentation."""

_BY_OWNER: Final[dict[str, Verdict]] = {
    "optimizer": Verdict.OPTIMIZER_STATE,
    "grad_buffer": Verdict.GRADIENTS,
    "parameters": Verdict.PARAMETERS,
    "logits": Verdict.LOGITS,
    **{str(owner): Verdict.ACTIVATION for owner in LAYER_OWNERS},
}


def with_snapshots(
    answer: Answer, sources: tuple[Source, ...], *, has_logs: bool, progress: Progress | None
) -> Answer:
    """Read the snapshots and add what they show.

    Args:
        answer: Of the logs, or empty.
        sources: The snapshot files.
        has_logs: Whether a log's verdict stands; then snapshots only add to it.
        progress: Told how far the reading is.
    """
    reports = tuple(report(read_snapshot(source, _told(source, progress))) for source in sources)
    comparison = compare(reports[0], reports[1]) if len(reports) == 2 else None
    diagnosis = answer.diagnosis if has_logs else judge(reports)
    diagnosis = dataclasses.replace(
        diagnosis, next_actions=(*saving_actions(reports[0]), *diagnosis.next_actions)
    )
    return dataclasses.replace(
        answer, diagnosis=diagnosis, snapshots=reports, comparison=comparison
    )


def _told(source: Source, progress: Progress | None) -> Callable[[int], None] | None:
    if progress is None:
        return None
    return lambda done: progress(source.path, done, source.size)


def judge(reports: tuple[SnapshotReport, ...]) -> Diagnosis:
    """Give the verdict of snapshots alone: of the first that failed, else that nothing failed."""
    shown = next((item for item in reports if item.failure is not None), reports[0])
    verdict, stage, rule, summary = _verdict(shown)
    return Diagnosis(
        verdict=verdict,
        stage=stage,
        rank=rank_of_path(shown.path),
        numbers=_numbers(shown),
        evidence=_evidence(shown),
        next_actions=tuple(render(key, ()) for key in keys_for(rule, verdict)),
        rules=(rule,),
        summary=summary,
    )


def _verdict(shown: SnapshotReport) -> tuple[Verdict, Stage, str, str]:
    fragments, failure = shown.fragmentation, shown.failure
    peak = f"peak {format_gib(shown.peak_bytes)} in {shown.peak_stage}"
    if shown.growth is not None and shown.growth.bytes_per_step > shown.peak_bytes // 1000:
        return (
            Verdict.LEAK,
            shown.peak_stage,
            "snapshot-growth",
            f"{format_gib(shown.growth.bytes_per_step)} more stay alive after every step; {peak}",
        )
    if failure is None:
        return (
            Verdict.NOT_OOM,
            Stage.UNKNOWN,
            "snapshot-healthy",
            f"no failure was recorded; {peak}",
        )
    if (
        failure.device_free_bytes is not None
        and failure.device_free_bytes >= failure.requested_bytes
    ):
        return (
            Verdict.DEVICE_LIMIT,
            failure.stage,
            "free-covers-request",
            f"{format_gib(failure.device_free_bytes)} was free and {format_gib(failure.requested_bytes)} refused",
        )
    holes = fragments.free_in_used_segments_bytes
    if holes >= failure.requested_bytes and holes > MIN_HOLES * max(fragments.reserved_bytes, 1):
        return (
            Verdict.FRAGMENTATION,
            failure.stage,
            "slack-covers-request",
            f"{format_gib(holes)} lie in holes, more than the request of {format_gib(failure.requested_bytes)}",
        )
    if fragments.private_bytes > fragments.reserved_bytes // 2:
        return (
            Verdict.GRAPH_POOLS,
            failure.stage,
            "private-pools",
            f"private pools hold {format_gib(fragments.private_bytes)}",
        )
    verdict, name = _owner_of_peak(shown)
    return verdict, failure.stage, "snapshot-peak", f"{peak}; most of it is {name}"


def _owner_of_peak(shown: SnapshotReport) -> tuple[Verdict, str]:
    sizes: Counter[Verdict] = Counter()
    names: dict[Verdict, Counter[str]] = {}
    for item in shown.alive_at_peak:
        verdict = _BY_OWNER.get(item.owner, Verdict.CAPACITY)
        sizes[verdict] += item.bytes
        names.setdefault(verdict, Counter())[item.owner] += item.bytes
    if not sizes:
        return Verdict.CAPACITY, "unknown"
    named = [
        (verdict, size) for verdict, size in sizes.most_common() if verdict is not Verdict.CAPACITY
    ]
    total = sum(sizes.values())
    chosen = named[0][0] if named and named[0][1] > total // 4 else sizes.most_common(1)[0][0]
    return chosen, names[chosen].most_common(1)[0][0]


def _numbers(shown: SnapshotReport) -> Numbers:
    fragments, failure = shown.fragmentation, shown.failure
    return Numbers(
        requested_bytes=failure.requested_bytes if failure else None,
        free_bytes=failure.device_free_bytes if failure else None,
        allocated_bytes=shown.peak_bytes,
        reserved_unallocated_bytes=fragments.free_in_used_segments_bytes,
        private_pool_bytes=fragments.private_bytes,
    )


def _evidence(shown: SnapshotReport) -> tuple[Evidence, ...]:
    rows = [
        Evidence(
            file=shown.path,
            line=1,
            text=f"{item.owner}: {format_gib(item.bytes)} in {item.count} tensors ({item.where or 'no stack'})",
        )
        for item in shown.alive_at_peak[:4]
    ]
    if shown.failure is not None:
        text = f"oom event: {format_gib(shown.failure.requested_bytes, 3)} for {shown.failure.owner} ({shown.failure.where})"
        rows.insert(0, Evidence(file=shown.path, line=1, text=text))
    return tuple(rows)


def saving_actions(shown: SnapshotReport) -> tuple[NextAction, ...]:
    """Return the labels that would have lowered this run's peak, best first, at most three."""
    helpful = [
        effect for effect in shown.effects if effect.peak_delta_bytes < -shown.peak_bytes // 200
    ]
    narrow = sorted(
        (effect for effect in helpful if effect.label != "full"),
        key=lambda effect: effect.peak_bytes,
    )
    chosen = narrow[:3] or [effect for effect in helpful if effect.label == "full"]
    return tuple(_saving(effect, shown) for effect in chosen)


def _saving(effect: Effect, shown: SnapshotReport) -> NextAction:
    if effect.label == "full":
        overrides: tuple[str, ...] = (
            "model.recompute_granularity=full",
            "model.recompute_method=uniform",
            "model.recompute_num_layers=1",
        )
    else:
        overrides = (
            "model.recompute_granularity=selective",
            f"model.recompute_modules=[{effect.label}]",
        )
    return NextAction(
        action=f"{effect.label} would have brought this run from {format_gib(shown.peak_bytes)} to {format_gib(effect.peak_bytes)}",
        overrides=overrides,
        why=f"replayed on its own timeline: {format_gib(effect.discarded_bytes)} discarded, {effect.passes} passes, {format_gib(effect.transient_bytes)} transient",
    )


__all__ = ["Owner", "judge", "saving_actions", "with_snapshots"]
