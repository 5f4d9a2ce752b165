"""A what-if table for people and as a document."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from recompute.report.document import envelope
from recompute.report.plan_document import choice_document, outcome_document
from recompute.report.text import gib, percent, table
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
        "control_seconds": None if answer is None else answer.control_seconds,
        "tokens_per_second_per_gpu": None if answer is None else answer.tokens_per_second,
        "problem": row.problem or None,
    }


def what_if_text(rows: Sequence[WhatIfRow], largest: Sequence[Largest], field: str | None) -> str:
    """Return one table of answers, and for a sweep over one field the largest value of each choice."""
    header = ("change", "memory|", "answer|", "peak GiB", "step time", "tokens/s/GPU", "|")
    parts = [table(header, [_line(row) for row in rows])]
    if largest and field is not None:
        names: dict[tuple[str, int], list[str]] = {}
        for item in largest:
            names.setdefault((item.memory, item.value), []).append(item.choice.label())
        ordered = sorted(names.items(), key=lambda entry: (entry[0][0], -entry[0][1]))
        lines = [(memory, str(value), _some(labels)) for (memory, value), labels in ordered]
        parts.append(
            f"largest {field} that fits, by choice\n"
            + table(("memory", "value", "choices|"), lines)
        )
    return "\n\n".join(parts)


def _line(row: WhatIfRow) -> tuple[str, ...]:
    change = " ".join(row.changes) or "as it is"
    answer = row.plan
    if answer is None:
        return (change, row.memory, "-", "-", "-", "-", row.problem)
    shown = answer.chosen or answer.closest
    assert shown is not None
    rate = answer.tokens_per_second
    return (
        change,
        row.memory,
        shown.choice.label() if shown.fits else f"nothing fits ({shown.choice.label()})",
        gib(shown.peak_bytes),
        percent(shown.step_time_overhead),
        "-" if rate is None else f"{rate:,.0f}",
        "",
    )


def _some(labels: Sequence[str], count: int = 6) -> str:
    shown = ", ".join(labels[:count])
    return shown if len(labels) <= count else f"{shown} and {len(labels) - count} more"
