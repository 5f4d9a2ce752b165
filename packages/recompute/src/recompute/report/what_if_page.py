"""A what-if table as a page; over several budgets also as curves of cost against memory."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from recompute.report.page import new_figure, page, picture, svg
from recompute.report.part import assumption_part, markup_of
from recompute.report.text import job_words
from recompute.report.what_if_report import what_if_parts
from recompute.units import GIB

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from recompute.config.schema import JobConfig
    from recompute.search.types import Outcome
    from recompute.search.what_if import Largest, WhatIfRow

LEAST_POINTS = 3
"""Budgets from which a curve says more than the table."""


def what_if_page(
    job: JobConfig, rows: Sequence[WhatIfRow], largest: Sequence[Largest], field: str | None
) -> str:
    """Return the page of a table.

    Args:
        job: As given, without the changes of a sweep.
        rows: The table.
        largest: As :func:`recompute.report.what_if_report.what_if_text` takes it.
        field: Likewise.
    """
    plans = [row.plan for row in rows if row.plan is not None]
    curves = curves_of(rows)
    drawn = picture("Cost of recompute against the budget", budgets_svg(curves)) if curves else ""
    assumptions = [item for plan in plans for item in plan.assumptions]
    return page(
        " ".join(("recompute plan", *job_words(job))),
        markup_of(what_if_parts(rows, largest, field)),
        drawn,
        markup_of([assumption_part(assumptions, whole=True)]),
    )


Curve = tuple[str, list[tuple[float, float]]]
"""Name, and budget in GiB with the step time over no recompute."""


def curves_of(rows: Sequence[WhatIfRow]) -> list[Curve]:
    """Return a curve for each job and GPU with enough budgets, and one of the best stock choice beside it.

    Budgets at which nothing fits are no points of a curve.
    """
    found: dict[str, list[tuple[float, float]]] = {}
    for row in rows:
        if row.plan is None or row.plan.chosen is None:
            continue
        name = " ".join((*row.changes, row.on)) or "cheapest that fits"
        limit = row.plan.budget.limit_bytes / GIB
        pairs: list[tuple[str, Outcome | None]] = [(name, row.plan.chosen)]
        if row.is_per_layer:
            pairs = [(f"{name}, per layer", row.plan.chosen), (f"{name}, stock", row.plan.stock)]
        for label, outcome in pairs:
            if outcome is not None:
                found.setdefault(label, []).append((limit, outcome.step_time_overhead))
    return [(name, sorted(points)) for name, points in found.items() if len(points) >= LEAST_POINTS]


def budgets_svg(curves: Sequence[Curve]) -> str:
    """Draw step time over no recompute against the budget; at a budget a choice holds until the next."""
    figure = new_figure(9.5, 4.6)
    axes: Axes = figure.add_subplot()
    colors = ("#2a6f97", "#c8553d", "#4f772d", "#7b2d8b", "#8a6d00", "#3d3d3d")
    for index, (name, points) in enumerate(curves):
        axes.step(
            [budget for budget, _ in points],
            [overhead * 100 for _, overhead in points],
            where="post",
            marker="o",
            markersize=3,
            linewidth=1.3,
            color=colors[index % len(colors)],
            label=name,
        )
    axes.set_xlabel("budget, GiB")
    axes.set_ylabel("step time over no recompute, %")
    axes.legend(frameon=False, fontsize=8)
    axes.spines[["top", "right"]].set_visible(False)
    return svg(figure)
