"""A plan as a page: the answer, and every choice as peak against step time."""

from __future__ import annotations

from typing import TYPE_CHECKING

from recompute.report.labels import name_points
from recompute.report.page import new_figure, page, picture, svg
from recompute.report.part import assumption_part, markup_of
from recompute.report.plan_text import command_of, plan_parts
from recompute.search.reserved import allocator_of
from recompute.units import GIB, format_gib

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from recompute.search.types import Outcome, Plan

NAMES_SHOWN = 14
"""Choices named in the picture at most."""


def plan_page(plan: Plan) -> str:
    """Return the page of a plan."""
    verdict, why, *others = plan_parts(plan)
    return page(
        command_of(plan),
        markup_of((verdict, why)),
        picture("Peak against step time", pareto_svg(plan)),
        markup_of((*others, assumption_part(plan.assumptions, whole=True))),
    )


def pareto_svg(plan: Plan) -> str:
    """Draw every choice: dominated ones grey, the budget as a line, the chosen one ringed."""
    figure = new_figure(9.5, 5.2)
    axes = figure.add_subplot()
    grey = [o for o in plan.alternatives if o.dominated]
    front = sorted(
        (o for o in plan.alternatives if not o.dominated), key=lambda o: o.step_time_overhead
    )
    _dots(axes, grey, color="#b9b9b4", label="another choice needs no more of either")
    _dots(axes, [o for o in front if not o.fits], color="#c8553d", label="does not fit")
    _dots(axes, [o for o in front if o.fits], color="#2a6f97", label="fits")
    axes.plot(
        [o.step_time_overhead * 100 for o in front],
        [o.peak_bytes / GIB for o in front],
        color="#2a6f97",
        alpha=0.35,
        linewidth=1,
        zorder=1,
    )
    allowed = plan.budget.allowed_peak(
        allocator_of(plan.job.environment), plan.control.graph_pool_bytes
    )
    axes.axhline(allowed / GIB, color="#c8553d", linewidth=1, linestyle="--")
    axes.annotate(
        f"highest peak that fits {plan.budget.name}: {format_gib(allowed)}",
        (1, allowed / GIB),
        xycoords=("axes fraction", "data"),
        ha="right",
        va="bottom",
        color="#c8553d",
        fontsize=8,
    )
    axes.set_xlabel("step time over no recompute, %")
    axes.set_ylabel("highest allocated peak, GiB")
    axes.legend(frameon=False, fontsize=8, loc="upper right")
    axes.spines[["top", "right"]].set_visible(False)
    _names(axes, plan, front, allowed / GIB)
    return svg(figure)


def _dots(axes: Axes, outcomes: list[Outcome], *, color: str, label: str) -> None:
    if outcomes:
        axes.scatter(
            [o.step_time_overhead * 100 for o in outcomes],
            [o.peak_bytes / GIB for o in outcomes],
            s=22,
            color=color,
            label=label,
            zorder=2,
        )


def _names(axes: Axes, plan: Plan, front: list[Outcome], allowed: float) -> None:
    """Name the chosen choice, single labels and some of the front, clear of the line at ``allowed`` GiB."""
    stride = max(1, -(-len(front) // NAMES_SHOWN))
    named = {o.choice.label(): o for o in front[::stride]}
    for outcome in plan.alternatives:
        if len(outcome.choice.recompute_modules) == 1 or outcome == plan.chosen:
            named[outcome.choice.label()] = outcome
    chosen = plan.chosen
    if chosen is not None:
        spot = _spot(chosen)
        axes.scatter(*spot, s=110, facecolors="none", edgecolors="#1b1b1b", zorder=3)
    left, right = axes.get_xlim()
    ordered = sorted(named.items(), key=lambda item: item[1] != chosen)
    name_points(
        axes,
        [(name, *_spot(outcome)) for name, outcome in ordered],
        dots=[_spot(outcome) for outcome in plan.alternatives],
        lines=[[_spot(outcome) for outcome in front], [(left, allowed), (right, allowed)]],
    )


def _spot(outcome: Outcome) -> tuple[float, float]:
    return outcome.step_time_overhead * 100, outcome.peak_bytes / GIB
