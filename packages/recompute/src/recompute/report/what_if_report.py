"""A what-if table for people and as a document."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from recompute.report.document import envelope
from recompute.report.part import Part, Table, text_of
from recompute.report.plan_document import choice_document, outcome_document
from recompute.report.text import gib, percent
from recompute.search.what_if import Largest, WhatIfRow

if TYPE_CHECKING:
    from recompute.config.schema import JobConfig


def what_if_document(
    job: JobConfig, rows: Sequence[WhatIfRow], largest: Sequence[Largest]
) -> dict[str, Any]:
    """Return the document ``recompute.what-if/1``."""
    return envelope("what-if", job) | {
        "rows": [_row(row) for row in rows],
        "largest": [
            {
                "choice": choice_document(item.choice, job),
                "value": item.value,
                "memory": item.memory,
            }
            for item in largest
        ],
    }


def _row(row: WhatIfRow) -> dict[str, Any]:
    answer = row.plan
    shown = None if answer is None else answer.chosen or answer.closest
    return {
        "changes": list(row.changes),
        "memory": row.memory,
        "status": None if answer is None else answer.status.value,
        "budget_bytes": None if answer is None else answer.budget.limit_bytes,
        "answer": None if answer is None or shown is None else outcome_document(shown, answer.job),
        "stock": None
        if answer is None or answer.stock is None
        else outcome_document(answer.stock, answer.job),
        "gain": row.gain,
        "control_seconds": None if answer is None else answer.control_seconds,
        "tokens_per_second_per_gpu": None if answer is None else answer.tokens_per_second,
        "problem": row.problem or None,
    }


def what_if_text(rows: Sequence[WhatIfRow], largest: Sequence[Largest], field: str | None) -> str:
    """Return one table of answers, and for a sweep over one field the largest value of each choice."""
    return text_of(what_if_parts(rows, largest, field))


def what_if_parts(
    rows: Sequence[WhatIfRow], largest: Sequence[Largest], field: str | None
) -> tuple[Part | None, ...]:
    """Return the tables of :func:`what_if_text`, whose arguments these are."""
    header: tuple[str, ...] = ("change", "memory|", "answer|", "peak GiB", "step time")
    compared = any(row.is_per_layer for row in rows)
    if compared:
        header = (*header, "best stock choice|", "its step time", "gain")
    header = (*header, "tokens/s/GPU", "remark|")
    answers = Table(header=header, rows=tuple(_line(row, compared=compared) for row in rows))
    return (
        Part(table=answers),
        Part(lines=(gains_text(rows),)) if compared else None,
        _largest(largest, field) if largest and field is not None else None,
    )


def _largest(largest: Sequence[Largest], field: str) -> Part:
    names: dict[tuple[str, int], list[str]] = {}
    for item in largest:
        names.setdefault((item.memory, item.value), []).append(item.choice.label())
    ordered = sorted(names.items(), key=lambda entry: (entry[0][0], -entry[0][1]))
    lines = tuple((memory, str(value), _some(labels)) for (memory, value), labels in ordered)
    return Part(
        title=f"largest {field} that fits, by choice",
        table=Table(header=("memory", "value", "choices|"), rows=lines),
    )


def gains_text(rows: Sequence[WhatIfRow]) -> str:
    """Say at how many budgets a per-layer plan is cheaper than the best stock choice, and by how much."""
    counted = [row for row in rows if row.is_per_layer and row.plan is not None]
    needed = [row for row in counted if row.plan is not None and not row.plan.control.fits]
    gains = [row.gain for row in needed if row.gain is not None and row.gain > 0]
    alone = sum(row.only_per_layer for row in needed)
    text = f"per layer is cheaper at {len(gains)} of {len(needed)} budgets that need recompute"
    if gains:
        text += f", by {min(gains):.1%} to {max(gains):.1%} of the step"
    return text + (f"; at {alone} nothing else fits" if alone else "")


def _line(row: WhatIfRow, *, compared: bool) -> tuple[str, ...]:
    change = " ".join(row.changes) or "as it is"
    answer = row.plan
    blank = ("-", "-", "-") if compared else ()
    if answer is None:
        return (change, row.memory, "-", "-", "-", *blank, "-", row.problem)
    shown = answer.chosen or answer.closest
    assert shown is not None
    rate = answer.tokens_per_second
    if compared and answer.stock is not None:
        gain = "-" if row.gain is None else f"{row.gain:.1%}"
        blank = (answer.stock.choice.label(), percent(answer.stock.step_time_overhead), gain)
    return (
        change,
        row.memory,
        shown.choice.label() if shown.fits else f"nothing fits ({shown.choice.label()})",
        gib(shown.peak_bytes),
        percent(shown.step_time_overhead),
        *blank,
        "-" if rate is None else f"{rate:,.0f}",
        "",
    )


def _some(labels: Sequence[str], count: int = 6) -> str:
    shown = ", ".join(labels[:count])
    return shown if len(labels) <= count else f"{shown} and {len(labels) - count} more"
