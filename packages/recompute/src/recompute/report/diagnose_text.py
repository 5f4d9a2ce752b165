"""``diagnose`` for a tired reader: verdict, numbers, evidence, what to paste."""

from __future__ import annotations

import re

from recompute.diagnose.run import Answer
from recompute.diagnose.snapshot.report import SnapshotReport
from recompute.diagnose.types import Numbers
from recompute.report.part import Part, Table, text_of
from recompute.report.text import folded, gib, pasted, signed_gib
from recompute.units import GIB, MIB

_SHOWN_LINE = 160
_SCRIPT = re.compile(r"(?:^|/)pretrain_[a-z0-9_]{1,40}\.py$")
"""Megatron-LM's entry points."""
_NAMES = (
    ("requested_bytes", "asked for"),
    ("total_bytes", "card"),
    ("free_bytes", "free"),
    ("allocated_bytes", "allocated"),
    ("reserved_unallocated_bytes", "reserved but unused"),
    ("private_pool_bytes", "graph pools"),
    ("non_torch_bytes", "outside torch"),
)


MOST_RUNS = 8
"""Runs whose answer is printed in full."""


def diagnose_text(answer: Answer) -> str:
    """Return the answer as text, that of each run where there are several."""
    if not answer.runs:
        return _of_one(answer)
    each = [f"== {name_of(run)}\n{_of_one(run)}" for run in answer.runs[:MOST_RUNS]]
    return "\n\n".join((runs_part(answer).text(), *each))


def runs_part(answer: Answer) -> Part:
    """Return one row for each run."""
    count, shown = len(answer.runs), min(len(answer.runs), MOST_RUNS)
    rows = tuple(
        (
            name_of(run),
            str(run.diagnosis.verdict),
            "" if str(run.diagnosis.stage) == "unknown" else str(run.diagnosis.stage),
            "" if run.diagnosis.rank is None else str(run.diagnosis.rank),
        )
        for run in answer.runs
    )
    below = (
        f"each by itself below; the first {shown} of them"
        if shown < count
        else "each by itself below"
    )
    return Part(
        title=f"{count} runs, told apart by the progress and the failures that they print",
        table=Table(header=("run", "verdict|", "stage|", "rank"), rows=rows),
        after=(below,),
    )


def name_of(run: Answer) -> str:
    """Return the first log of a run, and how many more there are."""
    more = len(run.sources) - 1
    return run.sources[0].path + (f" and {more} more" if more else "")


def _of_one(answer: Answer) -> str:
    found = answer.diagnosis
    lines = [verdict_line(answer)]
    numbers = numbers_line(found.numbers)
    if numbers:
        lines.append(f"  {numbers}")
    if found.evidence:
        lines += ["", "evidence"]
        for item in found.evidence[:3]:
            lines += [f"  {item.file}:{item.line}", f"    {_cut(item.text)}"]
    lines += ["", "next"]
    for position, action in enumerate(found.next_actions, 1):
        lines.append(folded(action.action, "     ", first=f"  {position}. "))
        if action.overrides:
            lines.append("       " + " ".join(pasted_for(answer, action.overrides)))
        if action.why:
            lines.append(folded(f"why: {action.why}", "       ", first="     "))
    further = (*snapshot_parts(answer), _notes(answer))
    return text_of((Part(lines=("\n".join(lines),)), *further))


def verdict_line(answer: Answer) -> str:
    """Return verdict, stage, rank and the sentence that says why."""
    found = answer.diagnosis
    rank = "" if found.rank is None else f", rank {found.rank}"
    where = "" if str(found.stage) == "unknown" else f" in {found.stage}"
    return f"{found.verdict}{where}{rank}: {found.summary}".rstrip(": ")


def pasted_for(answer: Answer, overrides: tuple[str, ...]) -> tuple[str, ...]:
    """Return overrides in the job's own form; without a job the stack says which script ran."""
    if answer.job is not None or answer.seen is None or not overrides:
        return pasted(overrides, answer.job)
    files = [frame.file for oom in answer.seen.ooms for frame in oom.frames]
    bridge = any("megatron/bridge/" in file for file in files)
    if bridge or not any(_SCRIPT.search(file) for file in files):
        return overrides
    from recompute.config.megatron_writer import flags_for

    return flags_for(overrides)


def _notes(answer: Answer) -> Part | None:
    notes = answer.diagnosis.notes
    return Part(title="also", points=notes) if notes else None


def snapshot_parts(answer: Answer) -> tuple[Part, ...]:
    """Return what the memory snapshots hold, and how two of them differ."""
    parts = [part for shown in answer.snapshots for part in _snapshot(shown)]
    compared = answer.comparison
    if compared is not None:
        rows = tuple(
            (item.owner, signed_gib(item.delta_bytes), item.where)
            for item in compared.differences[:8]
        )
        change = signed_gib(compared.peak_delta_bytes)
        title = f"{compared.after} against {compared.before}: peak {change} GiB"
        table = Table(header=("owner", "change, GiB", "place|"), rows=rows)
        parts.append(Part(title=title, table=table))
    return tuple(parts)


def numbers_line(numbers: Numbers) -> str:
    """Return the known numbers on one line."""
    parts = [
        f"{name} {_size(value)}"
        for field, name in _NAMES
        if (value := getattr(numbers, field)) is not None
    ]
    return ", ".join(parts)


def _snapshot(shown: SnapshotReport) -> list[Part]:
    head = (
        f"{shown.path}: peak {_size(shown.peak_bytes)} in {shown.peak_stage}, {shown.events} events"
    )
    alive = tuple((item.owner, _size(item.bytes), item.where) for item in shown.alive_at_peak[:8])
    parts = [Part(title=head, table=Table(header=("owner", "alive", "place|"), rows=alive))]
    rows = tuple(
        (
            effect.label,
            gib(effect.peak_bytes),
            signed_gib(effect.peak_delta_bytes),
            str(effect.passes),
        )
        for effect in shown.effects
        if effect.passes
    )
    if rows:
        header = ("label", "peak GiB", "change", "passes")
        title = "the peak that this run would have had"
        parts.append(Part(title=title, table=Table(header=header, rows=rows)))
    return parts


def _size(value: int) -> str:
    return f"{value / GIB:.2f} GiB" if value >= GIB // 10 else f"{value / MIB:.2f} MiB"


def _cut(text: str) -> str:
    return text if len(text) <= _SHOWN_LINE else text[: _SHOWN_LINE - 1] + "…"
