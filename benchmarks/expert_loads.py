"""How uneven routing must have been for the golden rows' peaks: where timeline/loads.py's figures come from.

::

    python benchmarks/expert_loads.py

For each golden row with expert parallelism: the load of the hot rank at which the predicted peak is the
measured one. 1 where the balanced prediction is not below it. Rows where something else moves the peak as much
are left out: CUDA graphs' pools are not modelled, and activations of experts that leave for the host hardly count.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator

from accuracy import DATA, GOLDEN, Row, rows_of_file
from recompute.errors import RecomputeError
from recompute.report.text import table
from recompute.timeline.loads import may_be_uneven
from recompute.timeline.predict import Predictor

STEPS = 10
"""Halvings: the load is found to a thousandth of its range."""


def loads() -> Iterator[tuple[Row, float]]:
    """Yield rows with the load that gives their peak."""
    for row in rows_of_file(DATA / GOLDEN):
        model = row.job.model
        hidden = model.cuda_graph_impl != "none" or model.fine_grained_activation_offloading
        if may_be_uneven(row.job) and not hidden:
            try:
                yield row, load_of(row)
            except RecomputeError:
                continue  # not modelled: accuracy.py names it


def load_of(row: Row) -> float:
    """Return the load at which a row's predicted peak is the measured one."""
    low, high = 1.0, float(row.job.model.expert_model_parallel_size)
    if peak(row, low) >= row.measured["peak"]:
        return low
    for _ in range(STEPS):
        middle = (low + high) / 2
        low, high = (middle, high) if peak(row, middle) < row.measured["peak"] else (low, middle)
    return high


def peak(row: Row, load: float) -> int:
    """Predict a row's peak at a load."""
    prediction = Predictor(row.job, expert_load=load).predict(row.choice)
    rank = prediction.hot if row.pp is None else prediction.ranks[row.pp]
    return rank.peak.peak_bytes


def main() -> int:
    """Print every row's load, the median and the 99th percentile."""
    found = list(loads())
    print(table(("run", "load"), [(row.id, f"{load:.2f}") for row, load in found]))
    values = sorted(load for _, load in found)
    top = values[min(len(values) - 1, int(0.99 * len(values)))]
    print(f"{len(values)} runs: median {statistics.median(values):.2f}, 99th percentile {top:.2f}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
