"""Write the errors into docs/explanation/memory-model.md; errors and numbers of rows into README.md's table.

::

    python benchmarks/accuracy_page.py           # write
    python benchmarks/accuracy_page.py --check   # 1 if the page says something else

Every figure is computed from the rows that accuracy.py compares.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

from accuracy import DATA, Compared, Row, compared_rows, ordered_pairs, peers_of, rows_of_file
from accuracy import rows_of_study as study

PAGE: Final = Path(__file__).parents[1] / "docs" / "explanation" / "memory-model.md"
BEGIN: Final = "<!-- accuracy: begin, written by benchmarks/accuracy_page.py -->\n"
END: Final = "<!-- accuracy: end -->"

TITLES: Final = {
    "h200 study": "H200, seven architectures",
    "h200 planning": "H200, one dense model, every stock choice",
    "h200-dense": "H200, dense, per-layer plans",
    "h200-mla-moe": "H200, MLA with experts",
    "b200-dense": "SimuMax's B200 rows, dense",
    "b200-mla-moe": "SimuMax's B200 row, MLA with experts",
    "Megatron golden, dense": "Megatron-LM golden values, dense",
    "Megatron golden, experts, MLA, hybrid": "Megatron-LM golden values, experts, MLA, hybrid",
    "nemotron-3-nano": "Nemotron 3 Nano, 16 H100",
    "moonlight": "Moonlight 16B, 8 H100",
}
"""Group of rows -> how the page calls it, in the page's order."""

README: Final = Path(__file__).parents[1] / "README.md"
ROWS: Final = {
    "| H200, seven architectures": "h200 study",
    "| H200, one dense model": "h200 planning",
    "| H200, dense GQA": "h200-dense",
    "| H200, MLA with experts": "h200-mla-moe",
    "| B200, cuts of Llama 3": "b200-dense",
    "| Megatron-LM's golden values, dense": "Megatron golden, dense",
    "| Megatron-LM's golden values, experts": "Megatron golden, experts, MLA, hybrid",
    "| Moonlight 16B": "moonlight",
    "| Nemotron 3 Nano": "nemotron-3-nano",
}
"""Start of a line of README.md's table -> group of rows."""

ERRORS: Final = re.compile(r"\d+\.\d / \d+\.\d / \d+\.\d(?: \(\d+ rows\))?")
COUNT: Final = re.compile(r"\| \d+ \|")


def groups() -> dict[str, list[Compared]]:
    """Return every group of rows, predicted."""
    found: dict[str, list[Row]] = {}
    for row in study():
        found.setdefault(row.group, []).append(row)
    for path in sorted(DATA.glob("*.yaml")):
        for row in rows_of_file(path):
            found.setdefault(row.group, []).append(row)
    return {name: compared_rows(rows)[0] for name, rows in found.items()}


def table(found: Mapping[str, Sequence[Compared]]) -> Iterator[str]:
    """Yield the lines of the table."""
    yield "| rows | total, % | activation part, % | order of pairs |\n|---|---|---|---|\n"
    for group, title in TITLES.items():
        yield _line(group, title, found[group])


def readme_line(line: str, found: Mapping[str, Sequence[Compared]]) -> str:
    """Return a line of README.md with the number of rows and the errors of its group, if it is about one."""
    group = next((name for start, name in ROWS.items() if line.startswith(start)), None)
    if group is None:
        return line
    compared = found[group]
    counted = _counted(compared)
    totals = sum(bool(item.measured_total) for item in compared)
    _, _, _, total, part = peers_of(group, compared)[0]
    if 0 < totals < counted:
        total += f" ({totals} rows)"
    errors = (text for text in (total, part) if text != "-")
    line = COUNT.sub(f"| {counted} |", line, count=1)
    return ERRORS.sub(lambda _: next(errors), line)


def _line(group: str, title: str, compared: Sequence[Compared]) -> str:
    _, _, _, total, part = peers_of(group, compared)[0]
    right, every = ordered_pairs(compared)
    order = f"{right} of {every}" if every else "-"
    return f"| {title}, {_counted(compared)} | {total} | {part} | {order} |\n"


def _counted(compared: Sequence[Compared]) -> int:
    """Return how many rows say what their activations are."""
    return sum(item.measured_activation is not None for item in compared)


def main(arguments: Sequence[str]) -> int:
    """Write the figures, or compare them with those that are there."""
    found = groups()
    text = PAGE.read_text(encoding="utf-8")
    before, _, rest = text.partition(BEGIN)
    _, _, after = rest.partition(END)
    readme = README.read_text(encoding="utf-8")
    written = {
        PAGE: before + BEGIN + "".join(table(found)) + END + after,
        README: "".join(readme_line(line, found) for line in readme.splitlines(keepends=True)),
    }
    if "--check" in arguments:
        return int(written != {PAGE: text, README: readme})
    for path, changed in written.items():
        path.write_text(changed, encoding="utf-8")
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
