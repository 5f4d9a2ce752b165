"""``diagnose`` for a tired reader: verdict, numbers, evidence, what to paste."""

from __future__ import annotations

from recompute.diagnose.run import Answer
from recompute.diagnose.snapshot.report import SnapshotReport
from recompute.diagnose.types import Numbers
from recompute.report.text import pasted, signed_gib, table
from recompute.units import GIB, MIB

_SHOWN_LINE = 160
_NAMES = (
    ("requested_bytes", "asked for"),
    ("total_bytes", "card"),
    ("free_bytes", "free"),
    ("allocated_bytes", "allocated"),
    ("reserved_unallocated_bytes", "reserved, unused"),
    ("private_pool_bytes", "graph pools"),
    ("non_torch_bytes", "outside torch"),
)


def diagnose_text(answer: Answer) -> str:
    """Return the answer as text."""
    found = answer.diagnosis
    rank = "" if found.rank is None else f", rank {found.rank}"
    where = "" if str(found.stage) == "unknown" else f" in {found.stage}"
    lines = [f"{found.verdict}{where}{rank}: {found.summary}".rstrip(": ")]
    numbers = numbers_line(found.numbers)
    if numbers:
        lines.append(f"  {numbers}")
    if found.evidence:
        lines += ["", "evidence"]
        for item in found.evidence[:3]:
            lines += [f"  {item.file}:{item.line}", f"    {_cut(item.text)}"]
    lines += ["", "next"]
    for position, action in enumerate(found.next_actions, 1):
        lines.append(f"  {position}. {action.action}")
        if action.overrides:
            lines.append("       " + " ".join(pasted(action.overrides, answer.job)))
        if action.why:
            lines.append(f"     why: {action.why}")
    for shown in answer.snapshots:
        lines += ["", *snapshot_lines(shown)]
    if answer.comparison is not None:
        lines += [
            "",
            f"{answer.comparison.after} against {answer.comparison.before}: peak {signed_gib(answer.comparison.peak_delta_bytes)} GiB",
        ]
        lines += [
            f"  {signed_gib(item.delta_bytes):>8} GiB  {item.owner}  {item.where}"
            for item in answer.comparison.differences[:8]
        ]
    if found.notes:
        lines += ["", "also"]
        lines += [f"  - {note}" for note in found.notes]
    return "\n".join(lines)


def numbers_line(numbers: Numbers) -> str:
    """Return the known numbers on one line."""
    parts = [
        f"{name} {_size(value)}"
        for field, name in _NAMES
        if (value := getattr(numbers, field)) is not None
    ]
    return ", ".join(parts)


def snapshot_lines(shown: SnapshotReport) -> list[str]:
    """Return one snapshot's account."""
    lines = [
        f"{shown.path}: peak {_size(shown.peak_bytes)} in {shown.peak_stage}, {shown.events} events"
    ]
    lines += [
        f"  {_size(item.bytes):>11}  {item.owner:<16} {item.where}"
        for item in shown.alive_at_peak[:8]
    ]
    rows = [
        (
            effect.label,
            f"{effect.peak_bytes / GIB:.2f}",
            signed_gib(effect.peak_delta_bytes),
            str(effect.passes),
        )
        for effect in shown.effects
        if effect.passes
    ]
    if rows:
        lines += [
            "  the peak this run would have had:",
            table(("label", "peak GiB", "change", "passes"), rows, indent="    "),
        ]
    return lines


def _size(value: int) -> str:
    return f"{value / GIB:.2f} GiB" if value >= GIB // 10 else f"{value / MIB:.2f} MiB"


def _cut(text: str) -> str:
    return text if len(text) <= _SHOWN_LINE else text[: _SHOWN_LINE - 1] + "…"
