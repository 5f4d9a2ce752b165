"""Predicted against measured: total, static and activation bytes, changes against the control, order.

::

    python benchmarks/accuracy.py                         # the rows of benchmarks/data, our H200 study
    python benchmarks/accuracy.py FILE.yaml               # rows in the same form
    python benchmarks/accuracy.py LEDGER --job JOB.yaml   # a ledger that recompute measure wrote

A total looks right when its static part is; what recompute moves is the activation part, so that is what
the summary judges. A row whose static bytes were not measured takes the predicted ones off its peak.
Rows beyond 12% of their total are listed with the setting that causes it. The last table holds what
Megatron-LM's own formula and SimuMax say of the same rows (peers.py).
"""

from __future__ import annotations

import argparse
import functools
import json
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import yaml

import recompute
from peers import formula, simumax
from recompute.config.choice import LayerSpan, RecomputeChoice, full, selective
from recompute.config.gpus import DEFAULT_GPU, find_gpu
from recompute.config.normalize import normalize
from recompute.config.schema import JobConfig
from recompute.errors import RecomputeError
from recompute.model.shape import DTYPE_BYTES, activation_dtype
from recompute.report.text import table
from recompute.search.cost import CostModel
from recompute.timeline.loads import may_be_uneven
from recompute.timeline.predict import Predictor
from recompute.timeline.static import optimizer_bytes_per_parameter
from recompute.timeline.types import StaticBytes
from recompute.units import GIB
from study_rows import study_rows

DATA: Final = Path(__file__).parent / "data"
GOLDEN: Final = "megatron_golden.yaml"
"""Golden values of Megatron-LM's functional tests (golden_rows.py)."""
FAR: Final = 0.12
"""Relative error of a total from which a row is listed with its cause."""

GROWN: Final = 0.02
"""Growth of a peak after the second step from which it is told."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One measured run."""

    id: str
    group: str
    job: JobConfig
    choice: RecomputeChoice
    control: str | None
    pp: int | None
    """Pipeline rank that was measured; the highest one when not said."""
    measured: Mapping[str, Any]
    why: str = "not explained"
    """What is behind a prediction that is far off."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Refused:
    """A row that the model refuses, and why."""

    row: Row
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Compared:
    """One run, predicted and measured; bytes, and seconds."""

    row: Row
    total: int
    static: int
    activation: int
    after_forward: int
    step_seconds: float
    phase: str

    @property
    def measured_static(self) -> int | None:
        """Static bytes, where they were measured."""
        value = self.row.measured.get("static")
        return None if value is None else int(value)

    @property
    def measured_activation(self) -> int | None:
        """Peak over static; with predicted static bytes where those were not measured."""
        measured = self.row.measured
        if "peak_over_static" in measured:
            return int(measured["peak_over_static"])
        return int(measured["peak"]) - self.static if "peak" in measured else None

    @property
    def measured_total(self) -> int | None:
        """Peak of the rank."""
        measured = self.row.measured
        if "peak" in measured:
            return int(measured["peak"])
        if "peak_over_static" in measured and "static" in measured:
            return int(measured["peak_over_static"]) + int(measured["static"])
        return None


def choice_of(fields: Mapping[str, Any] | str) -> RecomputeChoice:
    """Read a choice: our rows' short form, the documents' long form, or a label list."""
    if isinstance(fields, str):
        names = fields.strip().removeprefix("[").removesuffix("]")
        return selective(*(name.strip() for name in names.split(",") if name.strip()))
    layers = fields.get("layers")
    if layers is None and fields.get("per_layer") is not None:
        layers = [[*span["layers"], span["modules"]] for span in fields["per_layer"]]
    if layers is not None:
        spans = (LayerSpan(first=a, last=b, modules=tuple(names)) for a, b, names in layers)
        return RecomputeChoice(per_layer=tuple(spans))
    granularity = fields.get("granularity", fields.get("recompute_granularity"))
    if granularity == "full":
        method = fields.get("method", fields.get("recompute_method"))
        return full(str(method), int(fields.get("num_layers", fields.get("recompute_num_layers"))))
    return selective(*(fields.get("modules", fields.get("recompute_modules")) or ()))


def rows_of_file(path: Path) -> Iterator[Row]:
    """Read a file of jobs and rows."""
    data = yaml.safe_load(path.read_text(encoding="utf-8"))
    texts = {name: yaml.safe_dump(job).encode() for name, job in data["jobs"].items()}
    for item in data["rows"]:
        environment = tuple((item.get("environment") or {}).items())
        job = _job(texts[item["job"]], tuple(item.get("overrides") or ()), environment)
        yield Row(
            id=item["id"],
            group=item["group"],
            job=job,
            choice=choice_of(item["choice"]),
            control=item.get("control"),
            pp=item.get("pp"),
            measured=item["measured"],
            why=item.get("why", "not explained"),
        )


def rows_of_study() -> Iterator[Row]:
    """Read the rows measured by ``gpu_study.py``."""
    jobs: dict[str, JobConfig] = {}
    for name, group, job, choice, measured in study_rows():
        same = jobs.setdefault(repr(job), job)
        yield Row(
            id=name, group=group, job=same, choice=choice, control=None, pp=None, measured=measured
        )


@functools.cache
def _job(
    text: bytes, overrides: tuple[str, ...], environment: tuple[tuple[str, str], ...]
) -> JobConfig:
    job = normalize(recompute.load("-", *overrides, stdin=text))
    return replace(job, environment={**job.environment, **dict(environment)})


def rows_of_ledger(path: Path, job: str) -> Iterator[Row]:
    """Read a ledger: one row for each candidate, over its ranks and repeats."""
    found: dict[str, list[Mapping[str, Any]]] = {}
    for file in sorted((path / "rows").glob("*.jsonl")):
        for line in file.read_text(encoding="utf-8").splitlines():
            item = json.loads(line)
            found.setdefault(json.dumps(item["candidate"], sort_keys=True), []).append(item)
    config = normalize(recompute.load(job))
    names = {item["id"]: key for key, items in found.items() for item in items}
    for key, items in found.items():
        passed = [item for item in items if item["outcome"] == "pass"]
        peaks = [p["allocated_peak_bytes"] for item in passed for p in item["phases"]]
        steps = [s for item in passed for s in item["step_seconds"]]
        measured: dict[str, Any] = {"peak": max(peaks)} if peaks else {}
        if steps:
            measured["step"] = statistics.median(steps)
        control = names.get(items[0]["control_id"])
        yield Row(
            id=key,
            group=path.name,
            job=config,
            choice=choice_of(json.loads(key)),
            control=None if control == key else control,
            pp=None,
            measured=measured,
        )


def compare(row: Row, predictors: dict[int, Predictor]) -> Compared:
    """Predict one row; jobs that are one and the same share a predictor."""
    predictor = predictors.get(id(row.job))
    if predictor is None:
        predictor = predictors[id(row.job)] = Predictor(row.job)
    prediction = predictor.predict(row.choice)
    rank = prediction.hot if row.pp is None else prediction.ranks[row.pp]
    cost = CostModel(row.job, find_gpu(row.job.hardware.gpu or DEFAULT_GPU))
    later = moments_bytes(row.job, rank.static) if row.measured.get("first_step") else 0
    return Compared(
        row=row,
        total=rank.peak.peak_bytes - later,
        static=rank.static.total - later,
        activation=rank.activation_bytes_at_peak,
        after_forward=rank.growth_after_forward,
        step_seconds=cost.step_seconds(prediction),
        phase=rank.peak.phase.value,
    )


def moments_bytes(job: JobConfig, static: StaticBytes) -> int:
    """Return what the first optimizer step allocates for good: FP32 moments, not master copies."""
    assert job.optimizer is not None
    assert not job.optimizer.use_precision_aware_optimizer
    each = optimizer_bytes_per_parameter(job.optimizer, DTYPE_BYTES[activation_dtype(job.model)])
    return static.optimizer * 8 // each


def main(arguments: Sequence[str] | None = None) -> int:
    """Print one table and one summary for each group."""
    parser = argparse.ArgumentParser(description=str(__doc__).split("\n", maxsplit=1)[0])
    parser.add_argument("path", nargs="*", type=Path, help="files of rows, or ledgers")
    parser.add_argument("--job", help="the job that a ledger measured")
    given = parser.parse_args(arguments)
    groups: dict[str, list[Row]] = {}
    for row in () if given.path else rows_of_study():
        groups.setdefault(row.group, []).append(row)
    for path in given.path or sorted(DATA.glob("*.yaml")):
        if path.is_dir() and given.job is None:
            parser.error("a ledger needs --job")
        rows = rows_of_ledger(path, given.job) if path.is_dir() else rows_of_file(path)
        for row in rows:
            groups.setdefault(row.group, []).append(row)
    beside = []
    for group, members in groups.items():
        compared, refused = compared_rows(members)
        print(f"\n{group}")
        print(report(compared, refused))
        beside += peers_of(group, compared)
    print("\nabsolute error, median / 95th percentile / worst, %")
    print(table(("group", "by|", "rows", "total", "activation part"), beside))
    return 0


def compared_rows(rows: Sequence[Row]) -> tuple[list[Compared], list[Refused]]:
    """Predict the rows of a group; those that are not modelled are named."""
    predictors: dict[int, Predictor] = {}
    compared: list[Compared] = []
    refused: list[Refused] = []
    for row in rows:
        try:
            compared.append(compare(row, predictors))
        except RecomputeError as error:
            refused.append(Refused(row=row, reason=error.message))
    return compared, refused


def report(compared: Sequence[Compared], refused: Sequence[Refused]) -> str:
    """Return the table of a group, its summary, its far rows, and what is not modelled."""
    by_id = {item.row.id: item for item in compared}
    header = ("run", "phase|", "static %", "act GiB", "act %", "after %", "total %")
    header += ("delta GiB", "measured", "step %", "measured")
    body = [_line(item, by_id.get(item.row.control or "")) for item in compared]
    lines = [table(header, body), summary(compared, by_id)]
    far = [c for c in compared if c.measured_total and abs(c.total / c.measured_total - 1) > FAR]
    lines += [f"  beyond {FAR:.0%}: {c.row.id}: {c.row.why}" for c in far]
    lines += [line for c in compared for line in grown(c)]
    lines += [f"  not modelled: {item.row.id}: {item.reason}" for item in refused]
    return "\n".join(line for line in lines if line)


def grown(item: Compared) -> Iterator[str]:
    """Say how far a run's peak grew after its second step, the first one with optimizer states.

    Shapes stay the same from then on: what grows is the hot rank's share of the routed tokens. With a
    dynamic loss scale the first steps are skipped, and states come later.
    """
    if not may_be_uneven(item.row.job) or item.row.job.model.fp16:
        return
    measured = item.row.measured
    more = measured["peak"] / measured["second"] - 1 if "second" in measured else 0.0
    if more > GROWN:
        off = item.total / measured["second"] - 1
        yield f"  grew {more:.1%} with its routing: {item.row.id}: {off:+.1%} of the peak before that"


def peers_of(group: str, compared: Sequence[Compared]) -> list[tuple[str, ...]]:
    """Return the errors of this model and of others on the same rows."""
    said: dict[str, list[tuple[Compared, int, int]]] = {"recompute": [], "Megatron-LM": []}
    for item in compared:
        said["recompute"].append((item, item.static, item.activation))
        said["Megatron-LM"].append((item, *formula(item.row.job)))
        other = simumax(item.row.id)
        if other is not None:
            said.setdefault("SimuMax", []).append((item, item.static, other - item.static))
    rows = []
    for name, figures in said.items():
        total = [
            abs((static + activation) / item.measured_total - 1) * 100
            for item, static, activation in figures
            if item.measured_total
        ]
        part = [
            abs(activation / item.measured_activation - 1) * 100
            for item, _, activation in figures
            if item.measured_activation
        ]
        rows.append((group, name, str(len(figures)), _three(total), _three(part)))
    return rows


def _three(errors: Sequence[float]) -> str:
    if not errors:
        return "-"
    return " / ".join(f"{e:.1f}" for e in (statistics.median(errors), high(errors), max(errors)))


def high(errors: Sequence[float]) -> float:
    """Return the 95th percentile."""
    ordered = sorted(errors)
    return ordered[min(len(ordered) - 1, int(0.95 * len(ordered)))]


def _line(item: Compared, control: Compared | None) -> tuple[str, ...]:
    return (
        item.row.id,
        item.phase,
        _off(item.static, item.measured_static),
        f"{item.activation / GIB:.2f}",
        _off(item.activation, item.measured_activation),
        _off(item.after_forward, item.row.measured.get("after_forward")),
        _off(item.total, item.measured_total),
        *_deltas(item, control),
    )


def _off(predicted: float, measured: float | None) -> str:
    return "-" if not measured else f"{(predicted / measured - 1) * 100:+.2f}"


def _deltas(item: Compared, control: Compared | None) -> tuple[str, str, str, str]:
    bytes_, steps = byte_delta(item, control), step_delta(item, control)
    shown = ("-", "-") if bytes_ is None else tuple(f"{d / GIB:+.2f}" for d in bytes_)
    timed = ("-", "-") if steps is None else tuple(f"{d * 100:+.1f}" for d in steps)
    return shown[0], shown[1], timed[0], timed[1]


def byte_delta(item: Compared, control: Compared | None) -> tuple[int, int] | None:
    """Return the change of the activation part against the control: predicted, measured."""
    if control is None or item.measured_activation is None or control.measured_activation is None:
        return None
    return (
        item.activation - control.activation,
        item.measured_activation - control.measured_activation,
    )


def step_delta(item: Compared, control: Compared | None) -> tuple[float, float] | None:
    """Return the step-time overhead over the control: predicted, measured."""
    if control is None or not {"step"} <= set(item.row.measured) & set(control.row.measured):
        return None
    measured = item.row.measured["step"] / control.row.measured["step"] - 1
    return item.step_seconds / control.step_seconds - 1, measured


def summary(compared: Sequence[Compared], by_id: Mapping[str, Compared]) -> str:
    """Return the errors of a group: median and 95th percentile, signs, and order."""
    pairs = [(c, by_id.get(c.row.control or "")) for c in compared]
    activation = [
        abs(c.activation / c.measured_activation - 1) * 100
        for c in compared
        if c.measured_activation
    ]
    total = [abs(c.total / c.measured_total - 1) * 100 for c in compared if c.measured_total]
    steps = [
        abs(d[0] - d[1]) * 100
        for c, control in pairs
        if not c.row.measured.get("host_bound") and (d := step_delta(c, control)) is not None
    ]
    moved = [d for c, control in pairs if (d := byte_delta(c, control)) is not None and d[1]]
    whole = [
        abs(c.step_seconds / c.row.measured["step"] - 1) * 100
        for c in compared
        if "step" in c.row.measured and not c.row.measured.get("host_bound")
    ]
    signs = sum((a > 0) == (b > 0) for a, b in moved)
    lines = [
        f"activation {spread(activation, '%')}; total {spread(total, '%')}",
        f"step-time overhead {spread(steps, ' points')}",
        f"step time itself {spread(whole, '%')}",
        f"sign of the change {_share(signs, len(moved))}",
        f"pairs in the right order {_share(*ordered_pairs(compared))}",
    ]
    return "\n".join(f"  {line}" for line in lines if "none" not in line and "0 of 0" not in line)


def spread(errors: Sequence[float], unit: str) -> str:
    """Write the median and the 95th percentile of some errors."""
    if not errors:
        return "none"
    return (
        f"error median {statistics.median(errors):.2f}{unit}, 95th percentile {high(errors):.2f}{unit}, "
        f"worst {max(errors):.2f}{unit} ({len(errors)} runs)"
    )


def ordered_pairs(compared: Sequence[Compared]) -> tuple[int, int]:
    """Count the pairs of one job whose peaks are ordered as measured, of those that differ by 0.1 %.

    Rows of one choice are the same run twice, on other machines: nothing to order.
    """
    right = every = 0
    for index, left in enumerate(compared):
        for other in compared[index + 1 :]:
            first, second = left.measured_activation, other.measured_activation
            if left.row.job is not other.row.job or first is None or second is None:
                continue
            if left.row.choice == other.row.choice:
                continue
            if abs(first - second) <= 0.001 * max(first, second):
                continue
            every += 1
            right += (left.activation > other.activation) == (first > second)
    return right, every


def _share(right: int, every: int) -> str:
    return f"{right} of {every}"


if __name__ == "__main__":
    raise SystemExit(main())
