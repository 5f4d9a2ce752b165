"""An explanation as a page: the tables, and what is alive when on the hot rank."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from recompute.report.explain_text import explain_parts
from recompute.report.page import new_figure, page, picture, svg
from recompute.report.part import assumption_part, markup_of
from recompute.report.text import job_words
from recompute.timeline.predict import Predictor
from recompute.units import GIB, format_gib

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from recompute.search.budget import Budget
    from recompute.search.explain import Explanation
    from recompute.timeline.calibrate import Pictured
    from recompute.timeline.moments import Moment

BANDS = 11
"""Owners with a band of their own; the rest is one band."""

NEAR = 1.6
"""The memory line is drawn when it is at most this many times the peak."""

COLORS = (
    "#33415c",
    "#5c677d",
    "#7d8597",
    "#b0b7c3",
    "#2a6f97",
    "#61a5c2",
    "#a9d6e5",
    "#c8553d",
    "#e9a178",
    "#8a9a5b",
    "#c9cba3",
    "#d9d9d3",
)


def explain_page(
    explanation: Explanation, predictor: Pictured | None = None, budget: Budget | None = None
) -> str:
    """Return the page of an explanation.

    Args:
        explanation: The answer.
        predictor: What made it, whose picture is drawn; the plain one by default.
        budget: What the peak is held against, where the reader asked for it.
    """
    hot = explanation.prediction.hot
    pp = dict(explanation.shown[0].rank if explanation.rank is not None else hot.rank)["pp"]
    moments = (predictor or Predictor(explanation.job)).moments(explanation.choice, pp)
    first, *others = explain_parts(explanation, budget)
    return page(
        " ".join(("recompute explain", *job_words(explanation.job))),
        first.markup(),
        picture(f"What is alive when, pipeline rank {pp}", timeline_svg(moments, explanation)),
        markup_of((*others, assumption_part(explanation.assumptions, whole=True))),
    )


def timeline_svg(moments: Sequence[Moment], explanation: Explanation) -> str:
    """Draw one micro-batch forward and backward while most others are in flight, then the step."""
    moments = (*moments, moments[-1])  # gives the optimizer step a width
    figure = new_figure(10.5, 5.4)
    axes = figure.add_subplot()
    bands = _bands(moments)
    xs = range(len(moments))
    heights = [[_held(moment, band, bands) / GIB for moment in moments] for band in bands]
    axes.stackplot(xs, heights, labels=bands, colors=COLORS, step="mid", linewidth=0)
    top = max(moment.bytes for moment in moments)
    _phases(axes, moments, top / GIB)
    at = max(xs, key=lambda i: moments[i].bytes)
    axes.annotate(
        f"peak {format_gib(top)}",
        (at, top / GIB),
        xytext=(0, 8),
        textcoords="offset points",
        ha="center",
        fontsize=8,
    )
    _memory_line(axes, explanation, top)
    axes.set_xlim(-0.5, len(moments) - 0.5)
    axes.set_xticks([])
    axes.set_ylabel("allocated, GiB")
    handles, labels = axes.get_legend_handles_labels()
    axes.legend(
        handles[::-1],
        labels[::-1],
        fontsize=7,
        frameon=False,
        loc="upper left",
        bbox_to_anchor=(1, 1),
    )
    axes.spines[["top", "right"]].set_visible(False)
    return svg(figure)


def _bands(moments: Sequence[Moment]) -> list[str]:
    """Return owners by their highest figure, what is there all the time first."""
    highest: dict[str, int] = {}
    order: dict[str, int] = {}
    for moment in moments:
        for owned in moment.alive:
            highest[owned.owner] = max(highest.get(owned.owner, 0), owned.bytes)
            order.setdefault(owned.owner, len(order))
    static = [owner for owner in order if all(_has(moment, owner) for moment in moments)]
    others = sorted((o for o in highest if o not in static), key=lambda o: -highest[o])
    return [*static, *others[: BANDS - len(static)], "others"]


def _has(moment: Moment, owner: str) -> bool:
    return any(owned.owner == owner for owned in moment.alive)


def _held(moment: Moment, band: str, bands: Sequence[str]) -> int:
    if band == "others":
        return sum(owned.bytes for owned in moment.alive if owned.owner not in bands)
    return sum(owned.bytes for owned in moment.alive if owned.owner == band)


def _phases(axes: Axes, moments: Sequence[Moment], top: float) -> None:
    """Mark where each phase begins and name it."""
    start = 0
    for index in range(1, len(moments) + 1):
        if index == len(moments) or moments[index].phase is not moments[start].phase:
            if start:
                axes.axvline(start - 0.5, color="#1b1b1b", linewidth=0.6, linestyle=":")
            middle = (start + index - 1) / 2
            name = moments[start].phase.value.replace("_", " ")
            rotate = 90 if index - start < len(moments) / 12 else 0
            axes.text(
                middle,
                top * 0.02,
                name,
                ha="center",
                va="bottom",
                fontsize=8,
                rotation=rotate,
                color="white",
            )
            start = index


def _memory_line(axes: Axes, explanation: Explanation, top: int) -> None:
    """Draw the GPU's memory when the job names one and it is near enough to be seen."""
    from recompute.config.gpus import find_gpu

    hardware = explanation.job.hardware
    if hardware.memory_bytes is None and hardware.gpu is None:
        return
    limit = hardware.memory_bytes or find_gpu(str(hardware.gpu)).memory_bytes
    if limit > NEAR * top:
        return
    name = hardware.gpu or "hardware.memory_bytes"
    axes.axhline(limit / GIB, color="#c8553d", linewidth=1, linestyle="--")
    axes.text(
        0, limit / GIB, f"{name}: {format_gib(limit)}", color="#c8553d", fontsize=8, va="bottom"
    )
