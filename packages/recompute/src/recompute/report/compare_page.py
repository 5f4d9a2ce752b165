"""A comparison as a page: the table, measured against predicted, phases, and ranks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from recompute.report.compare_text import compare_parts
from recompute.report.compare_timeline import ABOVE, compare_timeline
from recompute.report.labels import Named, name_points
from recompute.report.page import new_figure, page, picture, svg
from recompute.report.part import markup_of
from recompute.units import GIB

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from recompute.measure.types import Compared, Comparison, Measured

COLORS: Final = {"pass": "#2a6f97", "within noise": "#7d8597"}
OTHER: Final = "#c8553d"
BARS: Final = 24
"""Candidates drawn at most."""
MOST_BARS: Final = 400


def compare_page(comparison: Comparison) -> str:
    """Return the page of a comparison."""
    pieces = [markup_of(compare_parts(comparison))]
    if any(row.step_time is not None and row.measured.hot for row in comparison.candidates):
        pieces.append(picture("Peak against step time", pareto_svg(comparison)))
    if (timeline := compare_timeline(comparison)) is not None:
        title = "One step: predicted (lines), measured in each phase (bars)"
        pieces.append(picture(title, timeline))
    if shown := _shown(comparison):
        pieces.append(picture("Highest allocation of each phase", phases_svg(shown)))
        if any(len(figures.ranks) > 1 for figures in shown):
            pieces.append(picture("Peak of each rank", ranks_svg(shown)))
    return page(f"Measured recompute: {comparison.root}", *pieces)


def pareto_svg(comparison: Comparison) -> str:
    """Draw every candidate with its interval; a ring where the prediction puts its peak."""
    figure = new_figure(9.5, 6)
    axes = figure.add_subplot()
    control = comparison.control
    named: list[Named] = []
    if control is not None and control.hot is not None:
        peak = control.hot.peak_bytes / GIB
        axes.scatter([0], [peak], color="#1b1b1b", s=30, label="control")
        named.append((control.candidate, 0.0, peak))
    points = [point for row in comparison.candidates if (point := _point(axes, row)) is not None]
    named += [(name[:24], x, y) for (name, x, y), _ in points]
    axes.set_xlabel("step time over the control, % (95% interval); ring: predicted peak")
    axes.set_ylabel("highest allocated peak, GiB")
    axes.spines[["top", "right"]].set_visible(False)
    name_points(axes, named, lines=[((low, y), (high, y)) for (_, _, y), (low, high) in points])
    return svg(figure)


def _point(axes: Axes, row: Compared) -> tuple[Named, tuple[float, float]] | None:
    """Draw one candidate and return its name, its place and the ends of its interval."""
    hot, ratio = row.measured.hot, row.step_time
    if hot is None or ratio is None:
        return None
    x, y = ratio.overhead * 100, hot.peak_bytes / GIB
    low, high = ratio.low * 100, ratio.high * 100
    color = COLORS.get(row.verdict.value, OTHER)
    axes.errorbar([x], [y], xerr=[[x - low], [high - x]], fmt="o", color=color, ms=4, lw=1)
    if row.predicted_peak_bytes is not None and row.prediction_error is not None:
        spot = row.predicted_peak_bytes / GIB
        axes.scatter([x], [spot], s=50, facecolors="none", edgecolors="#1b1b1b", lw=0.7)
    return (row.measured.candidate, x, y), (low, high)


def phases_svg(shown: list[Measured]) -> str:
    """Draw the highest allocation of each phase, one row of bars for each candidate.

    A line over a row is what its steps that were looked at once reached, where that is above every phase.
    """
    figure = new_figure(9.5, 0.7 + 0.42 * len(shown))
    axes = figure.add_subplot()
    names = list(dict.fromkeys(name for figures in shown for name, _ in figures.phases))
    height = 0.8 / max(1, len(names))
    for index, name in enumerate(names):
        sizes = [dict(figures.phases).get(name, 0) / GIB for figures in shown]
        spots = [row + (index - (len(names) - 1) / 2) * height for row in range(len(shown))]
        axes.barh(spots, sizes, height=height, label=name.replace("_", " "))
    above = [(row, figures.above_phases_bytes) for row, figures in enumerate(shown)]
    marks = [(row, size / GIB) for row, size in above if size is not None]
    if marks:
        rows, ends = zip(*marks, strict=True)
        low, high = [row - 0.4 for row in rows], [row + 0.4 for row in rows]
        axes.vlines(ends, low, high, color="#1b1b1b", lw=1.4, label=ABOVE)
    axes.set_yticks(range(len(shown)), [figures.candidate[:28] for figures in shown], fontsize=7)
    axes.invert_yaxis()
    axes.set_xlabel("GiB")
    axes.legend(frameon=False, fontsize=7, loc="upper left", bbox_to_anchor=(1, 1))
    axes.spines[["top", "right"]].set_visible(False)
    return svg(figure)


def ranks_svg(shown: list[Measured]) -> str:
    """Draw the peak of every rank: bars, and lines where there are too many for them."""
    figure = new_figure(9.5, 4.2)
    axes = figure.add_subplot()
    names = sorted({rank.rank for figures in shown for rank in figures.ranks})
    drawn = shown[:BARS]
    many = len(names) * len(drawn) > MOST_BARS
    width = 0.8 / max(1, len(drawn))
    for index, figures in enumerate(drawn):
        peaks = {rank.rank: rank.peak_bytes / GIB for rank in figures.ranks}
        label = figures.candidate[:28]
        if many:
            axes.plot(list(peaks), list(peaks.values()), marker="o", ms=3, lw=1, label=label)
            continue
        shift = (index - (len(drawn) - 1) / 2) * width
        spots = [names.index(rank) + shift for rank in peaks]
        axes.bar(spots, list(peaks.values()), width=width, label=label)
    if not many:
        axes.set_xticks(range(len(names)), [str(name) for name in names], fontsize=7)
    axes.set_xlabel("rank")
    axes.set_ylabel("highest allocated peak, GiB")
    axes.legend(frameon=False, fontsize=7, loc="upper left", bbox_to_anchor=(1, 1))
    axes.spines[["top", "right"]].set_visible(False)
    return svg(figure)


def _shown(comparison: Comparison) -> list[Measured]:
    every = [] if comparison.control is None else [comparison.control]
    every += [row.measured for row in comparison.candidates]
    return [figures for figures in every if figures.ranks][:BARS]
