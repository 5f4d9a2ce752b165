"""Tables and lines for people: plain text, stable when piped."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from recompute.config.normalize import GPU_COUNT
from recompute.config.provider import UNKNOWN_PROVIDER
from recompute.config.schema import Assumption, JobConfig
from recompute.rules.edits import overrides_of, value_of
from recompute.units import GIB

WIDTH: Final = 100
"""Characters of a line of prose at most."""


def printable(text: str) -> str:
    """Return text of a file with blanks for what a terminal would act on."""
    return "".join(char if char.isprintable() else " " for char in text)


def table(header: Sequence[str], rows: Iterable[Sequence[str]], *, indent: str = "  ") -> str:
    """Return :func:`columns` as one text."""
    return "\n".join(columns(header, rows, indent=indent))


def columns(
    header: Sequence[str], rows: Iterable[Sequence[str]], *, indent: str = "  "
) -> list[str]:
    """Align rows under a header, the first column to the left and numbers to the right.

    Args:
        header: Column titles; one that ends with ``|`` aligns its column to the left.
        rows: One text for each column.
        indent: Put before every line.

    Returns:
        One line for the header and one for each row.
    """
    body = [[str(cell) for cell in row] for row in rows]
    left = [index == 0 or title.endswith("|") for index, title in enumerate(header)]
    titles = [title.rstrip("|") for title in header]
    widths = [max(len(row[i]) for row in [titles, *body]) for i in range(len(titles))]
    lines = []
    for row in [titles, *body]:
        cells = (
            cell.ljust(width) if to_left else cell.rjust(width)
            for cell, width, to_left in zip(row, widths, left, strict=True)
        )
        lines.append((indent + "  ".join(cells)).rstrip())
    return lines


def gib(size: int) -> str:
    """Write GiB without the unit, for columns whose title has it."""
    return f"{size / GIB:.2f}"


def signed_gib(size: int) -> str:
    """Write a difference in GiB without the unit."""
    return "0" if size == 0 else f"{size / GIB:+.2f}"


def percent(fraction: float) -> str:
    """Write a step-time overhead."""
    return f"{fraction:+.1%}" if fraction else "0"


def quantity(amount: float, unit: str) -> str:
    """Write a large amount with a decimal prefix: ``2.70 PFLOP``."""
    for factor, prefix in ((1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M")):
        if abs(amount) >= factor:
            return f"{amount / factor:.2f} {prefix}{unit}"
    return f"{amount:.0f} {unit}" if amount else "0"


def bullets(lines: Iterable[str]) -> str:
    """Write one line a bullet, wrapped."""
    return "\n".join(folded(line, "    ", first="  - ") for line in lines)


def folded(line: str, indent: str, *, first: str | None = None) -> str:
    """Break one line of prose at :data:`WIDTH`.

    Args:
        line: The prose.
        indent: Put before every line.
        first: Put before the first line instead.
    """
    import textwrap

    start = indent if first is None else first
    return textwrap.fill(line, width=WIDTH, initial_indent=start, subsequent_indent=indent)


SHORT: Final = 160
"""Characters up to which an assumption stands in the text itself."""


def job_words(job: JobConfig) -> tuple[str, ...]:
    """Return the path of a job and its overrides, as on a command line."""
    given = {
        name: value_of(job, name)
        for name, where in job.given.items()
        if where == "override" and "." in name
    }
    return (job.identity.path, *overrides_of(given))


def pasted(overrides: Sequence[str], job: JobConfig | None) -> tuple[str, ...]:
    """Return overrides in the job's own form: flags for Megatron-LM scripts, Hydra for the rest."""
    if job is None or job.identity.entry_point != "megatron-lm":
        return tuple(overrides)
    from recompute.config.megatron_writer import flags_for

    return flags_for(overrides)


def notices(assumptions: Iterable[Assumption]) -> tuple[str, ...]:
    """Return the assumptions that belong beside the verdict: an unknown provider, the GPU count."""
    wanted = (UNKNOWN_PROVIDER, GPU_COUNT)
    texts = {a.id: a.text for a in assumptions}
    return tuple(texts[name] for name in wanted if name in texts)


def corrections_of(assumptions: Iterable[Assumption]) -> tuple[str, ...]:
    """Return what the reader asked for in the prediction: calibration and expert load, once each."""
    wanted = {"calibration", "expert-load", "step-calibration"}
    asked = {a.id: a.text for a in assumptions if a.id in wanted}
    if asked.get("expert-load", "").startswith("every rank"):
        del asked["expert-load"]
    return tuple(asked.values())
