"""Write the table of errors into docs/explanation/memory-model.md.

::

    python benchmarks/accuracy_page.py           # write
    python benchmarks/accuracy_page.py --check   # 1 if the page says something else

Every figure is computed from the rows that accuracy.py compares.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
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


def table() -> Iterator[str]:
    """Yield the lines of the table."""
    groups: dict[str, list[Row]] = {}
    for row in study():
        groups.setdefault(row.group, []).append(row)
    for path in sorted(DATA.glob("*.yaml")):
        for row in rows_of_file(path):
            groups.setdefault(row.group, []).append(row)
    yield "| rows | total, % | activation part, % | order of pairs |\n|---|---|---|---|\n"
    for group, title in TITLES.items():
        yield _line(group, title, compared_rows(groups[group])[0])


def _line(group: str, title: str, compared: Sequence[Compared]) -> str:
    _, _, _, total, part = peers_of(group, compared)[0]
    counted = sum(item.measured_activation is not None for item in compared)
    right, every = ordered_pairs(compared)
    order = f"{right} of {every}" if every else "-"
    return f"| {title}, {counted} | {total} | {part} | {order} |\n"


def main(arguments: Sequence[str]) -> int:
    """Write the table, or compare it with the one that is there."""
    text = PAGE.read_text(encoding="utf-8")
    before, _, rest = text.partition(BEGIN)
    _, _, after = rest.partition(END)
    written = before + BEGIN + "".join(table()) + END + after
    if "--check" in arguments:
        return int(written != text)
    PAGE.write_text(written, encoding="utf-8")
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
