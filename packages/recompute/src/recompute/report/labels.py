"""Names beside the points of a picture, none over another."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

from recompute.report.page import any_signs

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Named = tuple[str, float, float]
"""Name, and the point that it belongs to."""
SIZE: Final = 7
"""Points of the type."""
ROOM: Final = 0.25
"""Share of the axes by which a name may stand away from its point."""


def name_points(
    axes: Axes,
    named: Sequence[Named],
    *,
    dots: Sequence[tuple[float, float]] = (),
    lines: Sequence[Sequence[tuple[float, float]]] = (),
) -> None:
    """Write each name near its point, where it covers no other name, and a line to the point if needed.

    Args:
        axes: Everything else is drawn already; its limits stay.
        named: What is named, the most important first: it gets the best place.
        dots: Further points that no name may cover.
        lines: Lines that no name should cover, each as its points.
    """
    if not named:
        return
    import textalloc

    points = [*((x, y) for _, x, y in named), *dots]
    axes.set_xlim(axes.get_xlim())
    axes.set_ylim(axes.get_ylim())
    with any_signs():
        textalloc.allocate(
            axes,
            [x for _, x, _ in named],
            [y for _, _, y in named],
            [name for name, _, _ in named],
            x_scatter=[x for x, _ in points],
            y_scatter=[y for _, y in points],
            **_lines(lines),
            textsize=SIZE,
            max_distance=ROOM,
            linecolor="#9a9a94",
            linewidth=0.5,
            avoid_crossing_label_lines=True,
            in_layout=False,
        )


def _lines(lines: Sequence[Sequence[tuple[float, float]]]) -> dict[str, Any]:
    """Return the lines as textalloc takes them; none at all where there are none."""
    if not lines:
        return {}
    return {
        "x_lines": [[x for x, _ in line] for line in lines],
        "y_lines": [[y for _, y in line] for line in lines],
    }
