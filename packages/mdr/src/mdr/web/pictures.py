"""Pictures of an artifact's history, drawn as SVG by the server, each with its text alternative.

They carry no inline style, so that the strict content security policy stands; colours come from classes.
Text inside is small on purpose: axes are labelled in HTML, which scales with the reader's font.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final

from markupsafe import Markup, escape

from mdr.audit.types import GRADES

if TYPE_CHECKING:
    from collections.abc import Sequence

WIDTH: Final = 480
LEFT: Final = 26
RIGHT: Final = 12
LANE: Final = 18
"""Height of one grade's lane."""
TALL: Final = 110
MAX_POINTS: Final = 400


@dataclass(frozen=True, slots=True, kw_only=True)
class Picture:
    """A figure: its drawing and the words that say the same."""

    title: str
    words: str
    """The text alternative, complete in itself."""
    svg: Markup
    first: str
    """What stands under the left end of the axis."""
    last: str


def pictures_of(versions: Sequence[dict[str, Any]]) -> tuple[Picture, ...]:
    """Draw the history of an artifact with two versions or more.

    Args:
        versions: Documents V, newest first.
    """
    points = list(reversed(versions[:MAX_POINTS]))
    if len(points) < 2:
        return ()
    return grade_history(points), size_history(points)


def grade_history(points: Sequence[dict[str, Any]]) -> Picture:
    """Draw when versions came and how each was graded, one lane a grade.

    Args:
        points: Documents V, oldest first.
    """
    places = _places(points)
    lanes = [grade for grade in GRADES if grade in {each["grade"] for each in points}] or ["A"]
    low, high = GRADES.index(lanes[0]), GRADES.index(lanes[-1])
    used = GRADES[low : high + 1]
    height = LANE * len(used) + 8
    rows = []
    for number, grade in enumerate(used):
        y = 4 + LANE * number + LANE / 2
        rows.append(
            f'<line class="rule" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y:g}" y2="{y:g}"/>'
            f'<text class="axis" x="8" y="{y + 4:g}">{grade}</text>'
        )
    marks = []
    for x, each in zip(places, points, strict=True):
        if each["grade"] not in used:
            continue
        y = 4 + LANE * used.index(each["grade"]) + LANE / 2
        name = f"{each['label']}: {each['grade']}"
        marks.append(
            f'<circle class="dot grade-{each["grade"]}" cx="{x:g}" cy="{y:g}" r="5.5">'
            f"<title>{escape(name)}</title></circle>"
        )
    return Picture(
        title="Versions and their grades",
        words=_grade_words(points),
        svg=_svg("Versions and their grades", _grade_words(points), height, rows + marks),
        first=_day(points[0]),
        last=_day(points[-1]),
    )


def size_history(points: Sequence[dict[str, Any]]) -> Picture:
    """Draw the size of the file over its versions as steps."""
    places = _places(points)
    largest: int = max(1, *(each["size"] for each in points))
    height, top = TALL, 10
    base = height - 6

    def level(size: int) -> float:
        return base - (base - top) * (size / largest)

    steps = [f"M{places[0]:g} {level(points[0]['size']):.1f}"]
    for x, each in zip(places[1:], points[1:], strict=True):
        steps.append(f"H{x:g}V{level(each['size']):.1f}")
    end = WIDTH - RIGHT
    line = "".join(steps) + f"H{end}"
    area = f"{line}V{base}H{places[0]:g}Z"
    dots = [
        f'<circle class="dot" cx="{x:g}" cy="{level(each["size"]):.1f}" r="3.5">'
        f"<title>{escape(each['label'])}: {each['size']:,} bytes</title></circle>"
        for x, each in zip(places, points, strict=True)
    ]
    words = (
        f"The file grew from {points[0]['size']:,} to {points[-1]['size']:,} bytes"
        if points[-1]["size"] >= points[0]["size"]
        else f"The file shrank from {points[0]['size']:,} to {points[-1]['size']:,} bytes"
    )
    words += f" over {len(points)} versions; the largest had {largest:,}."
    body = [
        f'<line class="rule" x1="{LEFT}" x2="{end}" y1="{base}" y2="{base}"/>',
        f'<path class="area" d="{area}"/>',
        f'<path class="step" d="{line}"/>',
        *dots,
    ]
    return Picture(
        title="Size over versions",
        words=words,
        svg=_svg("Size over versions", words, height, body),
        first=f"{points[0]['size']:,} B",
        last=f"{points[-1]['size']:,} B",
    )


def _places(points: Sequence[dict[str, Any]]) -> list[float]:
    """Return where each version stands on the axis of time, at least a dot's width apart."""
    times = [datetime.fromisoformat(each["committed"]).timestamp() for each in points]
    low, span = min(times), max(times) - min(times)
    room = WIDTH - RIGHT - LEFT - 16
    if not span:
        return [round(LEFT + 8 + room * i / max(len(points) - 1, 1), 1) for i in range(len(points))]
    return [round(LEFT + 8 + room * (time - low) / span, 1) for time in times]


def _grade_words(points: Sequence[dict[str, Any]]) -> str:
    counts = {grade: sum(each["grade"] == grade for each in points) for grade in GRADES}
    parts = [f"{count} graded {grade}" for grade, count in counts.items() if count]
    return (
        f"{len(points)} versions from {_day(points[0])} to {_day(points[-1])}: "
        f"{', '.join(parts) or 'none graded'}. The newest is {points[-1]['grade'] or 'not graded'}."
    )


def _day(version: dict[str, Any]) -> str:
    return str(version["committed"])[:10]


def _svg(title: str, words: str, height: float, body: Sequence[str]) -> Markup:
    """Wrap a drawing; whoever cannot see it hears ``words``."""
    label = escape(f"{title}. {words}")
    return Markup(  # noqa: S704 - numbers, grades and escaped labels only
        f'<svg class="picture" viewBox="0 0 {WIDTH} {height:g}" role="img" aria-label="{label}">'
        f"{''.join(body)}</svg>"
    )
