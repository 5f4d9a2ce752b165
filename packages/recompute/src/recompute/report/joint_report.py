"""The joint search for people and as a document."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from recompute.report.document import envelope
from recompute.report.part import assumption_part
from recompute.report.plan_document import assumption_list, outcome_document
from recompute.report.plan_text import limit_words
from recompute.report.text import gib, percent, table
from recompute.search.joint import Joint, JointRow

if TYPE_CHECKING:
    from recompute.config.schema import JobConfig

NOTE = "; the others cannot be faster. Step times are estimates: measure the first few."


def joint_document(job: JobConfig, answer: Joint) -> dict[str, Any]:
    """Return the document ``recompute.joint/1``."""
    return envelope("joint", job) | {
        "assumptions": assumption_list(answer.assumptions),
        "budget_bytes": answer.budget.limit_bytes,
        "layouts": answer.layouts,
        "too_large": answer.too_large,
        "predicted": answer.predicted,
        "rows": [_row(row, job) for row in answer.rows],
    }


def _row(row: JointRow, job: JobConfig) -> dict[str, Any]:
    return {
        "changes": list(row.layout.changes()),
        "outcome": outcome_document(row.outcome, job),
        "step_seconds": row.step_seconds,
        "tokens_per_second_per_gpu": row.tokens_per_second,
    }


def joint_text(answer: Joint) -> str:
    """Return the fastest layouts as a table, the first one to paste, and what all rests on."""
    limit = limit_words(
        *(row.budget for row in answer.rows), *(() if answer.rows else (answer.budget,))
    )
    rests = assumption_part(answer.assumptions, whole=False)
    below = () if rests is None else (rests.text(),)
    if not answer.rows:
        said = (
            f"no layout fits {limit}: {answer.too_large} of {answer.layouts} are too large for "
            "parameters and states alone"
        )
        return "\n\n".join((said, *below))
    layout = ("TP", "PP", "VPP", "CP", "EP", "micro-batch")
    header = (*layout, "recompute|", "peak GiB", "step time", "s/step", "tokens/s/GPU")
    rows = [
        (
            str(row.layout.tp),
            f"{row.layout.pp}" + (f" (last {row.layout.last})" if row.layout.last else ""),
            str(row.layout.vpp),
            str(row.layout.cp),
            str(row.layout.ep),
            str(row.layout.mbs),
            row.outcome.choice.label(),
            gib(row.outcome.peak_bytes),
            percent(row.outcome.step_time_overhead),
            f"{row.step_seconds:.2f}",
            f"{row.tokens_per_second:,.0f}",
        )
        for row in answer.rows
    ]
    paste = " ".join(answer.rows[0].layout.changes())
    return "\n\n".join(
        (
            f"fastest layouts that fit {limit}\n" + table(header, rows),
            "paste the first one, then plan again for the recompute fields\n  " + paste,
            f"{answer.layouts} valid layouts, {answer.too_large} too large, {answer.predicted} predicted"
            + NOTE,
            *below,
        )
    )
