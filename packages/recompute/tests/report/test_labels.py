"""Names of points: all there, none over another."""

from __future__ import annotations

from itertools import combinations

import pytest
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg

from recompute.report.labels import Named, name_points
from recompute.report.page import new_figure

CROWD = [
    (f"per-layer/0-{index}=mlp", float(index // 3), 20.0 - index * 0.11) for index in range(20)
]


def axes_of(named: list[Named]) -> Axes:
    figure = new_figure(9.5, 6)
    FigureCanvasAgg(figure)
    axes: Axes = figure.add_subplot()
    axes.scatter([x for _, x, _ in named], [y for _, _, y in named])
    axes.set_xlim(-2, 30)
    axes.set_ylim(12, 22)
    return axes


@pytest.mark.parametrize(
    "named",
    [CROWD, [("one", 1.0, 15.0), ("two", 1.0, 15.0), ("three", 1.0, 15.0)], [("alone", 0.0, 20.0)]],
    ids=["crowd", "one place", "alone"],
)
def test_names_of_near_points_do_not_cover_each_other(named: list[Named]) -> None:
    axes = axes_of(named)
    name_points(axes, named)
    axes.figure.canvas.draw()
    assert sorted(text.get_text() for text in axes.texts) == sorted(name for name, _, _ in named)
    boxes = [(text.get_text(), text.get_window_extent()) for text in axes.texts]
    over = [(a, b) for (a, left), (b, right) in combinations(boxes, 2) if left.overlaps(right)]
    assert over == []
    window = axes.get_window_extent()
    assert all(window.contains(box.x0, box.y0) for _, box in boxes)


def test_names_move_neither_the_limits_nor_fail_where_there_are_none() -> None:
    axes = axes_of(CROWD)
    before = axes.get_xlim(), axes.get_ylim()
    name_points(axes, [])
    assert not axes.texts
    name_points(axes, CROWD)
    assert (axes.get_xlim(), axes.get_ylim()) == before
