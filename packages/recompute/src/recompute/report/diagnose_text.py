"""``diagnose`` for a tired reader: verdict, numbers, evidence, what to paste."""

from __future__ import annotations

from recompute.diagnose.run import Answer
from recompute.diagnose.snapshot.report import SnapshotReport
from recompute.diagnose.types import Numbers
from recompute.report.part import Part, Table, text_of
from recompute.report.text import folded, gib, pasted, signed_gib
from recompute.units import GIB, MIB

_SHOWN_LINE = 160
_NAMES = (
    ("requested_bytes", "asked for"),
    ("total_bytes", "card"),
    ("free_bytes", "free"),
    ("allocated_bytes", "allocated"),
    ("reserved_unallocated_bytes", "reserved but unused"),
    ("private_pool_bytes", "graph pools"),
    ("non_torch_bytes", "outside torch"),
)


def diagnose_text(answer: Answer) -> str:
    """Return the answer as text."""
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
            lines.append("       " + " ".join(pasted(action.overrides, answer.job)))
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
