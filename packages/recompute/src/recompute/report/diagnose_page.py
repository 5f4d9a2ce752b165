"""``diagnose --html``: one page with the timeline, what is alive at the peak, and quoted evidence."""

from __future__ import annotations

import html
from typing import TYPE_CHECKING

from recompute.diagnose.run import Answer
from recompute.report.diagnose_text import diagnose_text, numbers_line
from recompute.report.page import new_figure, page, preformatted, svg
from recompute.units import GIB

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from recompute.diagnose.snapshot.report import SnapshotReport

_MOST_BARS = 14


def diagnose_page(answer: Answer) -> str:
    """Return the page."""
    found = answer.diagnosis
    sections: list[tuple[str, str]] = [
        ("Verdict", _paragraph(f"{found.verdict}, stage {found.stage}. {found.summary}"))
    ]
    numbers = numbers_line(found.numbers)
    if numbers:
        sections.append(("Numbers", _paragraph(numbers) + _account(answer)))
    if found.evidence:
        sections.append(
            (
                "Evidence",
                "".join(_quote(item.file, item.line, item.text) for item in found.evidence),
            )
        )
    actions = "".join(
        f"<li>{html.escape(item.action)}{_code(item.overrides)}<br><small>{html.escape(item.why)}</small></li>"
        for item in found.next_actions
    )
    sections.append(("Next", f"<ol>{actions}</ol>"))
    timeline = _reported(answer)
    if timeline:
        sections.append(("Reported memory", timeline))
    for shown in answer.snapshots:
        sections += _snapshot(shown)
    sections.append(("As text", preformatted(diagnose_text(answer))))
    return page("recompute diagnose", tuple(sections))


def _paragraph(text: str) -> str:
    return f"<p>{html.escape(text)}</p>"


def _quote(file: str, line: int, text: str) -> str:
    return f"<p><code>{html.escape(file)}:{line}</code></p>{preformatted(text)}"


def _code(overrides: tuple[str, ...]) -> str:
    return preformatted("\n".join(overrides)) if overrides else ""


def _account(answer: Answer) -> str:
    """Draw the card as one bar, where the message gives the whole account."""
    numbers = answer.diagnosis.numbers
    parts = (
        ("allocated", numbers.allocated_bytes),
        ("reserved, unused", numbers.reserved_unallocated_bytes),
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
    axes.set_xlabel("GiB")
    axes.legend(ncols=4, loc="lower center", bbox_to_anchor=(0.5, 1.0), fontsize="small")
    return svg(figure)


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
    axes.legend(fontsize="small")
    return svg(figure)


def _snapshot(shown: SnapshotReport) -> list[tuple[str, str]]:
    name = shown.path.replace("\\", "/").rsplit("/", 1)[-1]
    sections = []
    if shown.curve:
        sections.append((f"Timeline of {name}", svg(_timeline(shown))))
    if shown.alive_at_peak:
        sections.append((f"Alive at the peak of {name}", svg(_bars(shown))))
    return sections


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
    return figure
