"""A comparison for people: a table for the terminal, and one for a pull request."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from recompute.report.part import Part, Table, text_of
from recompute.report.text import gib, percent, printable, signed_gib
from recompute.units import format_gib

if TYPE_CHECKING:
    from recompute.measure.stats import Ratio
    from recompute.measure.types import Compared, Comparison, Measured

HEADER: Final = ("candidate", "verdict|", "peak GiB", "delta", "step", "95% interval", "peak error")
NAME: Final = 44
"""Characters of a candidate's name that a table shows."""


def compare_text(comparison: Comparison) -> str:
    """Return the comparison as text."""
    return text_of(compare_parts(comparison))


def compare_parts(comparison: Comparison) -> tuple[Part | None, ...]:
    """Return the control, the candidates, the notes and the answer."""
    found = Part(table=Table(header=HEADER, rows=tuple(_rows(comparison))))
    if not comparison.candidates:
        found = Part(lines=("  no candidates: only the control was measured",))
    notes = tuple(printable(note) for note in _notes(comparison))
    return (
        Part(lines=(_control(comparison),)),
        found,
        Part(title="Notes", points=notes) if notes else None,
        Part(lines=(_answer(comparison),)),
    )


def compare_markdown(comparison: Comparison) -> str:
    """Return the comparison as Markdown that can be pasted into a pull request."""
    control = comparison.control
    lines = ["### Activation recompute, measured", ""]
    if control is not None:
        lines += [f"{_escape(_control(comparison))}", ""]
    lines += [
        "| candidate | verdict | peak, GiB | against control | step time | 95% interval | predicted peak |",
        "|---|---|---:|---:|---:|---:|---:|",
    ]
    if control is not None:
        name = f"`{_code(_name(control.candidate))}`"
        lines.append(
            f"| {name} | control | {_peak(control)} | | {_milliseconds(control)} | | {_error_of_control(comparison)} |"
        )
    for name, verdict, peak, delta, step, interval, predicted in _rows(comparison):
        shown = "**pass**" if verdict == "pass" else _escape(verdict)
        lines.append(
            f"| `{_code(name)}` | {shown} | {peak} | {delta} | {step} | {interval} | {predicted} |"
        )
    lines.append("")
    if environment := _environment(comparison):
        lines += [f"Environment: {_escape(environment)}.", ""]
    lines += [f"- {_escape(note)}" for note in _notes(comparison)]
    return "\n".join(lines).rstrip()


def _control(comparison: Comparison) -> str:
    control = comparison.control
    if control is None:
        return "Control: none was measured"
    text = f"Control {_name(control.candidate)}: {control.outcome}"
    if control.stage:
        text += f" in {_name(control.stage).replace('_', ' ')}"
    if control.hot is not None:
        text += f", peak {format_gib(control.hot.peak_bytes)} in {_name(control.hot.phase)} on rank {control.hot.rank}"
    if control.step_seconds is not None:
        text += f", {control.step_seconds * 1000:.1f} ms a step"
    if comparison.reference is not None:
        text += f"; figures are against {_name(comparison.reference.candidate)}"
    noise = comparison.noise
    if noise.bytes is None and noise.fraction is None:
        return f"{text}; noise floor unknown ({noise.repeats} run)"
    floor = [] if noise.bytes is None else [format_gib(noise.bytes)]
    floor += [] if noise.fraction is None else [f"{noise.fraction:.1%} of the step"]
    return f"{text}; noise floor of {noise.repeats} equal runs: {', '.join(floor)}"


def _rows(comparison: Comparison) -> Iterator[tuple[str, ...]]:
    for row in comparison.candidates:
        yield (
            _name(row.measured.candidate),
            row.verdict.value,
            _peak(row.measured),
            "" if row.peak_delta_bytes is None else signed_gib(row.peak_delta_bytes),
            "" if row.step_time is None else percent(row.step_time.overhead),
            _interval(row.step_time),
            _error(row),
        )


def _notes(comparison: Comparison) -> Iterator[str]:
    yield from comparison.notes
    if comparison.control is not None:
        for note in comparison.control.notes:
            yield f"control: {note}"
    for row in comparison.candidates:
        name = _name(row.measured.candidate)
        if row.verdict.value not in {"pass", "within noise"}:
            yield f"{name}: {row.reason}"
        for note in (*row.measured.notes, *(f"differs in {d}" for d in row.differences)):
            yield f"{name}: {note}"


def _answer(comparison: Comparison) -> str:
    passing = [row for row in comparison.candidates if row.verdict.value == "pass"]
    if not passing:
        return "No candidate passes."
    timed = [row for row in passing if row.step_time is not None]
    if not timed:
        return f"{len(passing)} candidate(s) pass."
    best = min(timed, key=lambda row: 0.0 if row.step_time is None else row.step_time.overhead)
    assert best.step_time is not None
    lowest = min(
        passing, key=lambda row: 0 if row.measured.hot is None else row.measured.hot.peak_bytes
    )
    text = f"{len(passing)} candidate(s) pass. Cheapest: {_name(best.measured.candidate)} ({percent(best.step_time.overhead)}"
    if best.peak_delta_bytes is not None:
        text += f", {signed_gib(best.peak_delta_bytes)} GiB"
    return (
        f"{text}). Lowest peak: {_name(lowest.measured.candidate)} ({_peak(lowest.measured)} GiB)."
    )


def _peak(figures: Measured) -> str:
    return "" if figures.hot is None else gib(figures.hot.peak_bytes)


def _milliseconds(figures: Measured) -> str:
    return "" if figures.step_seconds is None else f"{figures.step_seconds * 1000:.1f} ms"


def _interval(ratio: Ratio | None) -> str:
    return "" if ratio is None else f"{ratio.low:+.1%} .. {ratio.high:+.1%}"


def _error(row: Compared) -> str:
    return _percent(row.prediction_error)


def _error_of_control(comparison: Comparison) -> str:
    return _percent(comparison.control_prediction_error)


def _percent(value: float | None) -> str:
    return "" if value is None else f"{value:+.1%}"


def _environment(comparison: Comparison) -> str:
    known = ((k, v) for k, v in comparison.environment.items() if isinstance(v, str | int | float))
    return ", ".join(f"{name} {value}" for name, value in known)


def _name(candidate: str) -> str:
    shown = printable(candidate)
    return shown if len(shown) <= NAME else shown[: NAME - 3] + "..."


def _code(text: str) -> str:
    return text.replace("`", "'").replace("|", "\\|").replace("\n", " ")


def _escape(text: str) -> str:
    """Escape what Markdown and HTML would act on; names come from files."""
    one_line = " ".join(text.split())
    for char in ("\\", "|", "*", "_", "`", "[", "]", "@", "#"):
        one_line = one_line.replace(char, f"\\{char}")
    return one_line.replace("<", "&lt;").replace(">", "&gt;")
