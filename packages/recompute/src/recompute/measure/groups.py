"""Rows gathered by candidate and repeat, the control found, and what makes runs comparable."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from statistics import median
from typing import Final

from recompute.config.choice import NO_RECOMPUTE, RecomputeChoice
from recompute.errors import InputError
from recompute.measure.candidate import choice_of_text, text_of
from recompute.measure.ledger import Ledger
from recompute.measure.row import WHOLE_STEP, Outcome, Row
from recompute.measure.seen import notes_on_seen, seen_otherwise
from recompute.measure.types import Measured, RankPeakMeasured, RunGroup

RECOMPUTE_FIELDS: Final = frozenset(
    (
        "model.recompute_granularity",
        "model.recompute_modules",
        "model.recompute_method",
        "model.recompute_num_layers",
        "model.moe_layer_recompute",
    )
)
"""The one thing that candidates differ in: together they are the recompute choice."""
SEVERITY: Final = (Outcome.PASS, Outcome.NONFINITE, Outcome.HANG, Outcome.CRASH, Outcome.OOM)
"""Of the ranks of a run the worst outcome counts: one rank's crash or hang follows another's oom."""


def groups_of(rows: Iterable[Row]) -> tuple[RunGroup, ...]:
    """Gather rows by candidate, in the order in which candidates first appear."""
    runs: dict[str, dict[int, list[Row]]] = {}
    for row in rows:
        runs.setdefault(_key(row), {}).setdefault(row.repeat, []).append(row)
    return tuple(
        RunGroup(
            candidate=name,
            choice=_choice(name),
            runs=tuple(
                tuple(sorted(run, key=lambda r: r.rank)) for _, run in sorted(repeats.items())
            ),
        )
        for name, repeats in runs.items()
    )


def control_of(groups: Sequence[RunGroup]) -> RunGroup | None:
    """Return the control: what rows name as their control, else no recompute, else nothing.

    Raises:
        InputError: ``ledger-differs``: rows name different controls.
    """
    named = {row.control_id for group in groups for row in group.rows if row.control_id}
    found = [group for group in groups if any(row.id in named for row in group.rows)]
    if len(found) > 1:
        names = ", ".join(group.candidate for group in found)
        raise InputError(
            "ledger-differs",
            f"rows name different controls: {names}",
            hint="compare one study at a time: a matched comparison has one control",
            data={"controls": [group.candidate for group in found]},
        )
    if found:
        return found[0]
    return next((group for group in groups if group.choice == NO_RECOMPUTE), None)


def differences(ledger: Ledger, group: RunGroup, control: RunGroup) -> tuple[str, ...]:
    """Name everything other than the recompute choice that differs between two candidates' runs."""
    ours, theirs = _facts(ledger, group), _facts(ledger, control)
    return tuple(
        f"{name}: {', '.join(sorted(theirs.get(name, {'not said'})))} -> {', '.join(sorted(ours.get(name, {'not said'})))}"
        for name in sorted(ours.keys() | theirs.keys())
        if ours.get(name, set()) != theirs.get(name, set())
    )


def measured(group: RunGroup, control: RunGroup | None) -> Measured:
    """Reduce the runs of a candidate to its figures."""
    worst = max(group.rows, key=lambda row: SEVERITY.index(row.outcome))
    against = {} if control is None else _rank_peaks(control)
    ranks = tuple(
        RankPeakMeasured(
            rank=rank,
            peak_bytes=size,
            phase=phase,
            delta_bytes=size - against[rank][0] if rank in against else None,
        )
        for rank, (size, phase) in sorted(_rank_peaks(group).items())
    )
    reserved = [p.reserved_peak_bytes for row in group.rows for p in row.phases]
    times = [median(run) for run in steady_runs(group) if run]
    phases = _phases(group)
    whole = phases.pop(WHOLE_STEP, None)
    return Measured(
        candidate=group.candidate,
        choice=group.choice,
        outcome=worst.outcome,
        stage=worst.stage,
        repeats=len(group.runs),
        steady_steps=min(len(row.steady_seconds) for row in group.rows),
        ranks=ranks,
        reserved_peak_bytes=max((size for size in reserved if size is not None), default=None),
        step_seconds=median(times) if times else None,
        phases=tuple(phases.items()),
        whole_step_bytes=whole,
        kernel_share=kernel_share(group),
        cut_short=any(row.interrupted or not row.final for row in group.rows),
        notes=tuple(_notes(group)),
    )


def steady_runs(group: RunGroup) -> list[list[float]]:
    """Return the steady step times of each run: of its slowest rank, since all wait for it."""
    runs = []
    for run in group.runs:
        timed = [row.steady_seconds for row in run if row.steady_seconds]
        runs.append(list(max(timed, key=median)) if timed else [])
    return runs


def by_seed(group: RunGroup) -> dict[int, RunGroup]:
    """Return the runs of a candidate under each seed of the data."""
    found: dict[int, list[tuple[Row, ...]]] = {}
    for run in group.runs:
        found.setdefault(run[0].data_seed, []).append(run)
    return {seed: replace(group, runs=tuple(runs)) for seed, runs in sorted(found.items())}


def runs_by_seed(group: RunGroup) -> dict[int, list[list[float]]]:
    """Return the steady step times of each run, under each seed of the data."""
    return {seed: steady_runs(part) for seed, part in by_seed(group).items()}


def run_peaks(group: RunGroup) -> list[int]:
    """Return the highest allocation of each run."""
    peaks = [[_peak(row) for row in run] for run in group.runs]
    return [
        max(p for p in run if p is not None) for run in peaks if any(p is not None for p in run)
    ]


def _key(row: Row) -> str:
    """Return the candidate in our own spelling where it is a choice; ``mlp`` and ``[mlp]`` are one."""
    choice = _choice(row.candidate)
    return row.candidate if choice is None else text_of(choice)


def _choice(text: str) -> RecomputeChoice | None:
    try:
        return choice_of_text(text)
    except InputError:
        return None


def _peak(row: Row) -> int | None:
    peak = row.peak
    return None if peak is None else peak.allocated_peak_bytes


def _rank_peaks(group: RunGroup) -> dict[int, tuple[int, str]]:
    """Return each rank's highest allocation over repeats, and its phase."""
    found: dict[int, tuple[int, str]] = {}
    for row in group.rows:
        peak = row.peak
        if peak is not None and peak.allocated_peak_bytes is not None:
            here = (peak.allocated_peak_bytes, peak.phase)
            found[row.rank] = max(found.get(row.rank, (-1, "")), here, key=lambda x: x[0])
    return found


def _phases(group: RunGroup) -> dict[str, int]:
    found: dict[str, int] = {}
    for row in group.rows:
        for phase in row.phases:
            size = phase.allocated_peak_bytes
            if size is not None:
                found[phase.phase] = max(found.get(phase.phase, 0), size)
    return found


def _facts(ledger: Ledger, group: RunGroup) -> dict[str, set[str]]:
    """Return what must be equal for a comparison to be matched, as name -> values."""
    facts: dict[str, set[str]] = {"world_size": set(), "meter": set(), "ranks": set()}
    for run in group.runs:
        facts["ranks"].add(",".join(str(row.rank) for row in run))
    facts["read from"] = {row.imported or "probe" for row in group.rows}
    facts["data_seed"] = {str(row.data_seed) for row in group.rows}
    for row in group.rows:
        facts["world_size"].add(str(row.world_size))
        facts["meter"].add(row.meter)
        if row.job_sha256 is not None:
            facts.setdefault("job", set()).add(row.job_sha256[:12])
        for override in row.overrides:
            name, _, value = override.lstrip("+~").partition("=")
            if name not in RECOMPUTE_FIELDS:
                facts.setdefault(name, set()).add(value)
        for name, value in {**ledger.environment, **(row.environment or {})}.items():
            if isinstance(value, str | int | float) and not name.startswith("host"):
                facts.setdefault(name, set()).add(str(value)[:80])
    return facts


IMPORTED: Final = {
    "log": "imported from a log: the peak is of the whole run, not of a phase, as far as ranks report it; "
    "what the model recomputed and which revisions ran were not read back, and a step may be a mean of several",
    "tensorboard": "imported from event files: they do not say that the run ended well, whose memory it is, "
    "that optimizer states were there, what the model recomputed or which revisions ran",
}
"""What rows that a probe did not write cannot prove."""
GPU_BOUND: Final = 0.95
"""Share of the step in which kernels run, below which its time says something about the host too."""


def kernel_share(group: RunGroup) -> float | None:
    """Return the share of a step in which the GPU was busy, where it was measured: of the idlest row.

    Kernels of the one profiled step over the median of those that were not profiled; at most 1.
    """
    shares = [
        row.kernel_seconds / median(row.steady_seconds)
        for row in group.rows
        if row.kernel_seconds is not None and row.steady_seconds
    ]
    return min(1.0, *shares) if shares else None


def _notes(group: RunGroup) -> Iterator[str]:
    for source in sorted({row.imported for row in group.rows if row.imported}):
        yield IMPORTED.get(source, f"imported from {source[:40]}")
    growth = max(row.growth_bytes_per_step for row in group.rows)
    if growth:
        yield f"allocation grows by {growth} bytes with a steady step: a leak, no steady state"
    skipped = sum(row.skipped_iterations for row in group.rows)
    if skipped:
        yield f"{skipped} skipped iteration(s)"
    if retries := sum(row.alloc_retries for row in group.rows):
        yield f"{retries} allocator retries: the device was full, step times are not those of a job that fits"
    phases = _phases(group)
    whole = phases.pop(WHOLE_STEP, None)
    if whole is not None and whole > (highest := max(phases.values(), default=0)):
        yield (
            f"steps that were looked at once reached {whole - highest} bytes more than any phase was seen to: "
            "the phase named with the peak is the highest that was seen (MemoryProbe(every_phase=True) sees all)"
        )
    share = kernel_share(group)
    if share is not None and share < GPU_BOUND:
        yield f"kernels ran for {share:.0%} of the step: the rest of its time is the host's"
    if other := seen_otherwise(group):
        yield other
    else:
        yield from notes_on_seen(group)
    message = next((row.message for row in group.rows if row.message), None)
    if message:
        yield message[:300]
