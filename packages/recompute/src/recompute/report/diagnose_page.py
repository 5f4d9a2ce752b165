"""``diagnose --html``: one page with the timeline, what is alive at the peak, and quoted evidence."""

from __future__ import annotations

import html
from typing import TYPE_CHECKING

from recompute.diagnose.run import Answer
from recompute.diagnose.types import Evidence, NextAction
from recompute.report.diagnose_text import (
    MOST_RUNS,
    name_of,
    numbers_line,
    pasted_for,
    runs_part,
    snapshot_parts,
    verdict_line,
)
from recompute.report.page import new_figure, page, picture, svg
from recompute.report.part import Part, markup_of, preformatted
from recompute.units import GIB

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from recompute.diagnose.snapshot.report import SnapshotReport

_MOST_BARS = 14


def diagnose_page(answer: Answer) -> str:
    """Return the page."""
    if not answer.runs:
        return page("recompute diagnose", *_pieces(answer))
    pieces = [runs_part(answer).markup()]
    for run in answer.runs[:MOST_RUNS]:
        named = "".join(_pieces(run)).replace("<h2>", "<h3>").replace("</h2>", "</h3>")
        pieces.append(f"<h2>{html.escape(name_of(run))}</h2>{named}")
    return page("recompute diagnose", *pieces)


def _pieces(answer: Answer) -> list[str]:
    """Return verdict, numbers, actions, evidence, pictures and notes."""
    found = answer.diagnosis
    numbers = numbers_line(found.numbers)
    lines = (verdict_line(answer), numbers) if numbers else (verdict_line(answer),)
    pieces = [Part(lines=lines).markup(), _account(answer)]
    actions = "".join(_action(answer, action) for action in found.next_actions)
    pieces.append(f"<h2>Next</h2><ol>{actions}</ol>")
    if found.evidence:
        pieces.append("<h2>Evidence</h2>" + "".join(map(_quote, found.evidence)))
    pieces.append(_reported(answer))
    for shown in answer.snapshots:
        pieces += _snapshot(shown)
    pieces.append(markup_of(snapshot_parts(answer)))
    if found.notes:
        pieces.append(Part(title="also", points=found.notes).markup())
    return pieces


def _quote(item: Evidence) -> str:
    place, text = html.escape(f"{item.file}:{item.line}"), html.escape(item.text)
    return f'<p><code>{place}</code></p><pre class="said">{text}</pre>'


def _action(answer: Answer, action: NextAction) -> str:
    said = html.escape(action.action)
    overrides = "\n".join(pasted_for(answer, action.overrides))
    code = preformatted(overrides, action.action) if overrides else ""
    why = f"<p><small>{html.escape(action.why)}</small></p>" if action.why else ""
    return f"<li>{said}{code}{why}</li>"


def _account(answer: Answer) -> str:
    """Draw the card as one bar, where the message gives the whole account."""
    numbers = answer.diagnosis.numbers
    parts = (
        ("allocated", numbers.allocated_bytes),
        ("reserved but unused", numbers.reserved_unallocated_bytes),
        ("outside torch", numbers.non_torch_bytes),
        ("free", numbers.free_bytes),
    )
    if numbers.total_bytes is None or numbers.allocated_bytes is None:
        return ""
    figure = new_figure(8, 1.3)
    axes = figure.add_subplot()
    left = 0.0
    for name, value in parts:
        if value:
            axes.barh([0], [value / GIB], left=[left], label=f"{name} {value / GIB:.2f}")
            left += value / GIB
    axes.set_yticks([])
    axes.set_xlim(0, max(left, numbers.total_bytes / GIB))
    axes.set_xlabel("GiB")
    axes.legend(
        frameon=False, ncols=4, loc="lower center", bbox_to_anchor=(0.5, 1.0), fontsize="small"
    )
    axes.spines[["top", "right", "left"]].set_visible(False)
    return picture("The card", svg(figure))


def _reported(answer: Answer) -> str:
    """Draw the memory lines of a log, one line for each rank (the eight hottest)."""
    if answer.seen is None:
        return ""
    series = [
        (
            rank,
            [
                (report.iteration, value)
                for report, _ in points
                if (value := report.max_allocated or report.allocated)
            ],
        )
        for (_, rank), points in answer.seen.memory.items()
    ]
    series = [item for item in series if len(item[1]) >= 2]
    if not series:
        return ""
    series.sort(key=lambda item: -max(value for _, value in item[1]))
    figure = new_figure(8, 3)
    axes = figure.add_subplot()
    for rank, points in series[:8]:
        axes.plot(
            [x for x, _ in points], [y / GIB for _, y in points], marker=".", label=f"rank {rank}"
        )
    axes.set_xlabel("iteration")
    axes.set_ylabel("max allocated, GiB")
    axes.legend(frameon=False, fontsize="small")
    axes.spines[["top", "right"]].set_visible(False)
    return picture("Reported memory", svg(figure))


def _snapshot(shown: SnapshotReport) -> list[str]:
    name = shown.path.replace("\\", "/").rsplit("/", 1)[-1]
    pieces = []
    if shown.curve:
        pieces.append(picture(f"Timeline of {name}", svg(_timeline(shown))))
    if shown.alive_at_peak:
        pieces.append(picture(f"Alive at the peak of {name}", svg(_bars(shown))))
    return pieces


def _timeline(shown: SnapshotReport) -> Figure:
    figure = new_figure(8, 3)
    axes = figure.add_subplot()
    axes.fill_between(
        [x for x, _ in shown.curve], [y / GIB for _, y in shown.curve], step="post", alpha=0.4
    )
    axes.axhline(shown.peak_bytes / GIB, linewidth=0.8, linestyle="--")
    for effect in shown.effects:
        if effect.passes and effect.peak_delta_bytes < 0:
            axes.axhline(effect.peak_bytes / GIB, linewidth=0.6, color="gray")
            axes.text(0, effect.peak_bytes / GIB, effect.label, fontsize=7, va="bottom")
    axes.set_xlabel("allocator event")
    axes.set_ylabel("allocated, GiB")
    axes.spines[["top", "right"]].set_visible(False)
    return figure


def _bars(shown: SnapshotReport) -> Figure:
    rows = shown.alive_at_peak[:_MOST_BARS][::-1]
    figure = new_figure(8, 0.3 * len(rows) + 0.8)
    axes = figure.add_subplot()
    axes.barh(
        [f"{item.owner}: {item.where}"[:60].replace("$", r"\$") for item in rows],
        [item.bytes / GIB for item in rows],
    )
    axes.set_xlabel("GiB")
    axes.spines[["top", "right"]].set_visible(False)
    return figure
