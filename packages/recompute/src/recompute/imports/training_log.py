"""A run from the log that Megatron-LM or Megatron Bridge printed: every step, not only what explains a failure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from recompute.diagnose.inputs import (
    Expander,
    Source,
    chunks,
    close,
    expand,
    open_stream,
    read_error,
)
from recompute.diagnose.logs import TEXT_FORMATS
from recompute.diagnose.prefixes import strip_ansi
from recompute.diagnose.run import diagnose
from recompute.diagnose.training_lines import (
    IterationLine,
    MemoryReport,
    read_iteration,
    read_memory,
)
from recompute.diagnose.types import Stage
from recompute.errors import InputError
from recompute.imports.series import RankMemory, Series, highest
from recompute.measure.row import Outcome

MAX_LINE: Final = 64 << 10
BLOCK: Final = 1 << 20


def series_of_logs(paths: Sequence[str]) -> Series:
    """Read the logs of one run: one file, or one for each rank or node.

    Raises:
        InputError: A file cannot be read, or is no text.
    """
    series = Series(source="log", skipped=0, nan=0)
    for source in expand(tuple(paths)):
        if source.format not in TEXT_FORMATS:
            raise InputError(
                "not-a-log",
                f"{source.path} is no text: {source.format}",
                hint="give training logs, or event files of TensorBoard",
                data={"path": source.path},
            )
        _read(source, series)
    if series.total is None or series.last < series.total:
        _say_why_it_ended(paths, series)
    return series


def _read(source: Source, series: Series) -> None:
    stream = open_stream(source)
    try:
        for line in _lines(chunks(stream, BLOCK)):
            if b"iteration" not in line:
                continue
            text = strip_ansi(line.decode("utf-8", "replace"))
            if (step := read_iteration(text)) is not None:
                _step(step, series)
            if (report := read_memory(text)) is not None:
                _memory(report, series)
    except OSError as error:
        raise read_error(source.path, error) from error
    finally:
        close(stream)
    if isinstance(stream, Expander) and stream.cut:
        raise InputError(
            "corrupt-archive",
            f"{source.path} ends in the middle of its compressed data",
            hint="copy it again, or expand what there is and import that",
            data={"path": source.path},
        )


def _lines(blocks: Iterator[bytes]) -> Iterator[bytes]:
    """Yield lines; of a line longer than any that Megatron prints only its beginning."""
    rest = b""
    for block in blocks:
        *whole, rest = (rest + block.replace(b"\r", b"\n")).split(b"\n")
        yield from whole
        rest = rest[:MAX_LINE]
    yield rest


def _step(step: IterationLine, series: Series) -> None:
    if step.milliseconds is not None:
        series.timed(step.iteration, step.milliseconds / 1000)
    series.last = max(series.last, step.iteration)
    series.total = highest(series.total, step.total)
    series.skipped = (series.skipped or 0) + step.skipped
    series.nan = (series.nan or 0) + step.nan


def _memory(report: MemoryReport, series: Series) -> None:
    memory = series.memory.setdefault(report.rank, RankMemory())
    memory.max_allocated = highest(memory.max_allocated, report.max_allocated)
    memory.max_reserved = highest(memory.max_reserved, report.max_reserved or report.reserved)
    memory.allocated = report.allocated if report.allocated is not None else memory.allocated
    memory.device_used = highest(memory.device_used, report.device_used)
    memory.retries = max(memory.retries, report.retries or 0)
    series.last = max(series.last, report.iteration)


def _say_why_it_ended(paths: Sequence[str], series: Series) -> None:
    """Ask the diagnosis why a log ends before its last iteration."""
    answer = diagnose(tuple(paths))
    found = answer.diagnosis
    if answer.seen is not None and answer.seen.ooms:
        series.outcome = Outcome.OOM
        series.stage = None if found.stage is Stage.UNKNOWN else found.stage.value
        series.message = found.summary[:300] or "out of memory"
    elif answer.seen is not None and answer.seen.crashes:
        series.outcome = Outcome.CRASH
        series.message = found.summary[:300] or answer.seen.crashes[0].exception[:300]
    elif series.total is not None:
        ends = f"the log ends at iteration {series.last} of {series.total}, with no failure in it"
        series.notes.append(ends)
        series.message = ends
