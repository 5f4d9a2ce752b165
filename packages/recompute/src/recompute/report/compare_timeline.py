"""The peak over one step: what the model predicts, and what each phase reached when it was measured."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from recompute.report.page import new_figure, svg
from recompute.units import GIB

if TYPE_CHECKING:
    from collections.abc import Sequence

    from matplotlib.axes import Axes

    from recompute.measure.types import Comparison, Measured
    from recompute.timeline.moments import Moment

COLORS: Final = ("#1b1b1b", "#2a6f97", "#c8553d", "#7d8597")
SHOWN: Final = 3
"""Candidates drawn beside the control: the first that pass, by step time."""
ABOVE: Final = "steps looked at once,\nabove every phase seen"


def compare_timeline(comparison: Comparison) -> str | None:
    """Draw the control and the cheapest that pass; None where nothing can be predicted.

    Lines are predicted, one point for each layer of the shown micro-batch; a bar over a phase is the
    highest allocation that was measured in it, a dashed line over the step what steps that were looked at once
    reached, where that is above every phase.
    """
    drawn = [
        (figures, moments)
        for figures in _chosen(comparison)
        if (moments := _moments(comparison, figures))
    ]
    if not drawn:
        return None
    figure = new_figure(10.5, 4.6)
    axes = figure.add_subplot()
    for (figures, moments), color in zip(drawn, COLORS, strict=False):
        heights = [moment.bytes / GIB for moment in moments]
        axes.step(
            range(len(moments)),
            heights,
            where="mid",
            color=color,
            lw=1.2,
            label=figures.candidate[:28],
        )
        _measured(axes, figures, moments, color)
    if any(figures.above_phases_bytes is not None for figures, _ in drawn):
        axes.plot([], [], color="#1b1b1b", lw=1.2, linestyle="dashed", label=ABOVE)
    _phases(axes, drawn[0][1])
    axes.set_xticks([])
    axes.set_ylabel("allocated, GiB")
    axes.legend(frameon=False, fontsize=7, loc="upper left", bbox_to_anchor=(1, 1))
    axes.spines[["top", "right"]].set_visible(False)
    return svg(figure)


def _chosen(comparison: Comparison) -> list[Measured]:
    passing = [row for row in comparison.candidates if row.verdict.value == "pass"]
    passing.sort(key=lambda row: row.measured.step_seconds or 0.0)
    control = [] if comparison.control is None else [comparison.control]
    return [*control, *(row.measured for row in passing[:SHOWN])]


def _moments(comparison: Comparison, figures: Measured) -> tuple[Moment, ...]:
    """Predict one step of the pipeline rank that is hot; nothing where that is not modelled."""
    from recompute.errors import UnsupportedError
    from recompute.timeline.predict import Predictor

    known = comparison.job is not None and figures.choice is not None
    if not known or comparison.control_predicted_peak_bytes is None or figures.choice is None:
        return ()
    try:
        predictor = Predictor(comparison.job)
        hot = predictor.predict(figures.choice).hot
        return predictor.moments(figures.choice, dict(hot.rank)["pp"])
    except UnsupportedError:
        return ()


def _measured(axes: Axes, figures: Measured, moments: Sequence[Moment], color: str) -> None:
    for phase, size in figures.phases:
        spots = [index for index, moment in enumerate(moments) if moment.phase.value == phase]
        if spots:
            axes.hlines(size / GIB, spots[0] - 0.4, spots[-1] + 0.4, color=color, lw=4, alpha=0.45)
    if (above := figures.above_phases_bytes) is not None:
        right = len(moments) - 0.6
        axes.hlines(above / GIB, -0.4, right, color=color, lw=1.2, linestyles="dashed")


def _phases(axes: Axes, moments: Sequence[Moment]) -> None:
    """Name the phases along the time axis."""
    start = 0
    for index in range(1, len(moments) + 1):
        if index == len(moments) or moments[index].phase is not moments[start].phase:
            if start:
                axes.axvline(start - 0.5, color="#cccccc", lw=0.6)
            name = moments[start].phase.value.replace("_", " ")
            turned = 90 if index - start < len(moments) / 12 else 0
            middle = (start + index - 1) / 2
            axes.text(
                middle,
                0.02,
                name,
                ha="center",
                va="bottom",
                fontsize=7,
                rotation=turned,
                transform=axes.get_xaxis_transform(),
            )
            start = index
