"""Prediction beside measurement for the studies in ``benchmarks/studies``, as a page, a summary and a figure.

::

    python benchmarks/study_report.py            # print the tables
    python benchmarks/study_report.py --write    # renew docs/explanation/measured-studies.md, its figure, README.md
    python benchmarks/study_report.py --check    # 1 if the page or README.md says something else

The figures are those of study_figures.py.
"""

from __future__ import annotations

import argparse
import json
import re
import statistics
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from recompute.units import GIB
from study_figures import (
    BOUND,
    FEATURES,
    FEWEST,
    MAIN,
    STUDIES,
    Planned,
    Study,
    gains,
    planned,
    study_of,
)

ROOT: Final = Path(__file__).resolve().parent
PAGE: Final = ROOT.parent / "docs" / "explanation" / "measured-studies.md"
FIGURE: Final = PAGE.with_suffix(".svg")
README: Final = ROOT.parent / "README.md"
README_ROW: Final = re.compile(
    r"(?P<title>\| H200, `recompute measure` on twelve models[^|]*) \| [^|]* \| [^|]* \| [^|]* \|"
)
README_STUDIES: Final = 12
"""Its line says "on twelve models"."""


def _percent(value: float | None, digits: int = 1) -> str:
    return "" if value is None else f"{value * 100:+.{digits}f}%"


def table_of(study: Study) -> str:
    """Return the table of a study, as measured, the prediction beside it."""
    head = (
        "| choice | peak, GiB | predicted | activations, GiB | predicted | after forward | step, ms | kernels "
        "| overhead | predicted |\n|---|--:|--:|--:|--:|--:|--:|--:|--:|--:|"
    )
    lines = [
        f"| `{r.candidate}` | {r.peak / GIB:.2f} | {_percent(r.peak_error, 2)} "
        f"| {(r.peak - r.static) / GIB:.2f} | {_percent(r.activation_error)} | {_percent(r.after_error)} "
        f"| {r.step * 1e3:.1f} | {min(r.busy, 1):.0%} | {_percent(r.overhead)} "
        f"| {_percent(r.predicted_overhead)} |"
        for r in sorted(study.rows, key=lambda r: -r.peak)
    ]
    return "\n".join((head, *lines))


def spread(values: Sequence[float], unit: float = 100, digits: int = 2) -> str:
    """Write median, 95th percentile and worst of some absolute errors."""
    ordered = sorted(abs(value) * unit for value in values)
    high = ordered[min(len(ordered) - 1, int(0.95 * len(ordered)))]
    return " / ".join(f"{x:.{digits}f}" for x in (statistics.median(ordered), high, ordered[-1]))


def summary(studies: Sequence[Study]) -> str:
    """Return the errors of every study, and of all of one kind together."""
    lines = [
        "| study | rows | peak, % | activations, % | overhead, points (rows bound by the GPU) | order | sign |",
        "|---|--:|--:|--:|--:|--:|--:|",
    ]
    named: list[tuple[str, Sequence[Study]]] = [(s.name, (s,)) for s in studies]
    for name, members in (*named, ("all", studies)):
        rows = [row for study in members for row in study.rows]
        bound = [
            r.overhead_error
            for study in members
            for r in study.rows
            if study.name in MAIN and r.busy >= BOUND and r.candidate != "[]"
        ]
        times = f"{spread(bound)} ({len(bound)})" if bound else ""
        lines.append(
            f"| {name} | {len(rows)} | {spread([r.peak_error for r in rows])} "
            f"| {spread([r.activation_error for r in rows])} | {times} | {_order(members)} | {_signs(members)} |"
        )
    return "\n".join(lines)


def readme_of(text: str, studies: Sequence[Study]) -> str:
    """Return README.md with the rows and errors of all studies in its table, to one digit as there.

    Raises:
        SystemExit: README.md has no such line, or names another number of studies.
    """
    rows = [row for study in studies for row in study.rows]
    peaks = spread([row.peak_error for row in rows], digits=1)
    parts = spread([row.activation_error for row in rows], digits=1)
    changed, count = README_ROW.subn(rf"\g<title> | {len(rows)} | {peaks} | {parts} |", text)
    if count != 1 or len(studies) != README_STUDIES:
        raise SystemExit(f"{README} has no line for {len(studies)} studies")
    return changed


def _order(studies: Sequence[Study]) -> str:
    """Count pairs of one study that are ordered as measured, of those that differ by 0.2%."""
    right = every = 0
    for study in studies:
        for index, one in enumerate(study.rows):
            for other in study.rows[index + 1 :]:
                if abs(one.peak / other.peak - 1) > 0.002:
                    every += 1
                    right += (one.peak > other.peak) == (one.predicted_peak > other.predicted_peak)
    return f"{right} of {every}"


def _signs(studies: Sequence[Study]) -> str:
    """Count changes against the control that have the measured sign, of those beyond 0.2%."""
    right = every = 0
    for study in studies:
        base = next(row for row in study.rows if row.candidate == "[]")
        for row in study.rows:
            if abs(row.peak / base.peak - 1) > 0.002:
                every += 1
                foreseen = row.predicted_peak > base.predicted_peak
                right += (row.peak > base.peak) == foreseen
    return f"{right} of {every}"


def budgets(studies: Sequence[Study]) -> str:
    """Return, for each study, how far the plan is from the best measured choice over all budgets."""
    lines = [
        "| study | noise | budgets | stock within 2% | worst | all within 2% | worst | per-layer wins at | by up to |",
        "|---|--:|--:|--:|--:|--:|--:|--:|--:|",
    ]
    for study in studies:
        bound = [row for row in study.rows if row.busy >= BOUND]
        if len(bound) < FEWEST:
            continue
        stock = list(planned([row for row in bound if row.stock]))
        every = list(planned(bound))
        grid = gains(bound, study.unmeasured)
        wins = [a - b for _, a, b in grid if a - b > 0.002]
        best = f"{max(wins, default=0) * 100:.1f} points"
        lines.append(
            f"| {study.name} | {study.noise:.1%} | {len(stock)} | {_within(stock, study.noise)} "
            f"| {_worst(stock)} | {_within(every, study.noise)} | {_worst(every)} "
            f"| {len(wins)} of {len(grid)} budgets | {best} |"
        )
    return "\n".join(lines)


def _within(answers: Sequence[Planned], noise: float) -> str:
    near = sum(a.loss is not None and a.loss <= max(0.02, noise) for a in answers)
    return f"{near} of {len(answers)}"


def _worst(answers: Sequence[Planned]) -> str:
    return _percent(max((a.loss for a in answers if a.loss is not None), default=None))


def probe_cost(studies: Sequence[Study]) -> str:
    """Return what the probe cost in the studies that it did not wait in."""
    lines = ["| study | step, ms | inside the probe, ms a step | share |", "|---|--:|--:|--:|"]
    for study in studies:
        if study.probe is not None:
            step = statistics.median(row.step for row in study.rows)
            lines.append(
                f"| {study.name} | {step * 1e3:.0f} | {study.probe * 1e3:.2f} | {study.probe / step:.2%} |"
            )
    return "\n".join(lines)


def blocks(main: Sequence[Study], others: Sequence[Study]) -> dict[str, str]:
    """Return every generated part of the page by name."""
    parts = {
        "summary": summary([*main, *others]),
        "budgets": budgets(main),
        "probe": probe_cost(main),
        "gradients": gradients(),
    }
    titles = {**MAIN, **FEATURES}
    parts["studies"] = "\n\n".join(
        f"`{study.name}`: {titles[study.name]}\n\n{table_of(study)}" for study in (*main, *others)
    )
    return parts


def gradients() -> str:
    """Return what gradients.py measured."""
    found = json.loads((STUDIES / "gradients.json").read_text(encoding="utf-8"))
    lines = ["| study | plan | difference | equal runs |", "|---|---|--:|--:|"]
    for name, plans in found.items():
        equal = plans["equal runs"]
        lines += [
            f"| {name} | `{plan}` | {value:.2%} | {equal:.2%} |"
            for plan, value in plans.items()
            if plan != "equal runs"
        ]
    return "\n".join(lines)


def renewed(text: str, parts: Mapping[str, str]) -> str:
    """Return a page with its generated parts, each between two comments, made anew."""
    for name, part in parts.items():
        start, end = f"<!-- {name} -->\n", f"<!-- /{name} -->"
        if start not in text or end not in text:
            raise SystemExit(f"{PAGE} has no part {name}")
        before, _, rest = text.partition(start)
        text = before + start + part + "\n" + end + rest.partition(end)[2]
    return text


def draw(path: Path) -> None:
    """Draw peak against step time: stock choices, per-layer plans, their fronts, and the predictions."""
    import matplotlib as mpl

    mpl.use("Agg")
    mpl.rcParams["svg.hashsalt"] = "recompute"
    from matplotlib import pyplot as plt

    names = [name for name in MAIN if name != "dense-fp8"]
    figure, axes = plt.subplots(2, 2, figsize=(10, 7), layout="constrained")
    for axis, name in zip(axes.flat, names, strict=True):
        study = study_of(name)
        for stock, colour, label in ((True, "#888888", "stock"), (False, "#1f77b4", "per layer")):
            rows = [row for row in study.rows if row.stock is stock]
            x = [row.peak / GIB for row in rows]
            axis.scatter(x, [r.overhead * 100 for r in rows], color=colour, s=26, label=label)
            axis.scatter(
                [row.predicted_peak / GIB for row in rows],
                [row.predicted_overhead * 100 for row in rows],
                facecolors="none", edgecolors="#d62728", s=48, linewidths=0.8,
                label="predicted" if stock else None,
            )  # fmt: skip
        axis.scatter(
            [peak / GIB for peak, _ in study.unmeasured],
            [overhead * 100 for _, overhead in study.unmeasured],
            color="#888888", marker="x", s=14, linewidths=0.7, label="stock, not run: predicted",
        )  # fmt: skip
        axis.set_xlim(left=min(r.peak for r in study.rows) / GIB - 0.5)
        stock_rows = [(r.peak, r.overhead) for r in study.rows if r.stock]
        layered = [(r.peak, r.overhead) for r in study.rows]
        for points, colour in ((stock_rows, "#888888"), (layered, "#1f77b4")):
            front = _front([*points, *study.unmeasured])
            axis.step(
                [p / GIB for p, _ in front],
                [o * 100 for _, o in front],
                where="post",
                color=colour,
                lw=1,
            )
        axis.set_title(f"{name}: {MAIN[name]}", fontsize=10)
        axis.set_xlabel("peak allocated, GiB")
        axis.set_ylabel("step time over no recompute, %")
    axes.flat[0].legend()
    figure.savefig(path, metadata={"Date": None})


def _front(points: Sequence[tuple[int, float]]) -> list[tuple[int, float]]:
    """Return what nothing beats in both bytes and time, from the lowest peak on."""
    front: list[tuple[int, float]] = []
    for peak, overhead in sorted(points):
        if not front or overhead < front[-1][1]:
            front.append((peak, overhead))
    return front


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the parts, or write them."""
    parser = argparse.ArgumentParser(description=str(__doc__).split("\n", maxsplit=1)[0])
    action = parser.add_mutually_exclusive_group()
    action.add_argument(
        "--write", action="store_true", help="renew the page, its figure, and its line in README.md"
    )
    action.add_argument("--check", action="store_true", help="1 if the page or README.md differs")
    given = parser.parse_args(arguments)
    main = [study_of(name) for name in MAIN]
    others = [study_of(name) for name in FEATURES]
    parts = blocks(main, others)
    stands = {path: path.read_text(encoding="utf-8") for path in (PAGE, README)}
    made = {
        PAGE: renewed(stands[PAGE], parts),
        README: readme_of(stands[README], [*main, *others]),
    }
    if given.check:
        return int(made != stands)
    if given.write:
        for path, text in made.items():
            path.write_text(text, encoding="utf-8")
        draw(FIGURE)
    else:
        sys.stdout.write("\n\n".join(parts.values()) + "\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
