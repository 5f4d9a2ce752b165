"""The interval covers what it should, and grows with what makes runs differ."""

from __future__ import annotations

import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from recompute.measure.stats import overhead, overhead_by_seed, spread, t_quantile

TABLE = {
    1: 12.706,
    2: 4.303,
    3: 3.182,
    4: 2.776,
    5: 2.571,
    8: 2.306,
    10: 2.228,
    30: 2.042,
    120: 1.980,
}
"""Two-sided 95% points of Student's t, from any statistics text."""


@pytest.mark.parametrize(("degrees", "value"), TABLE.items())
def test_quantiles(degrees: int, value: float) -> None:
    assert t_quantile(degrees) == pytest.approx(value, rel=0.005)


def test_exact_times_give_the_exact_ratio() -> None:
    ratio = overhead([[1.25] * 4], [[1.0] * 4])
    assert ratio is not None
    assert ratio.overhead == pytest.approx(0.25)
    assert ratio.low == ratio.high == pytest.approx(0.25)


def test_one_slow_step_moves_nothing() -> None:
    steady, jolted = [1.0, 1.01, 0.99, 1.0, 1.0], [1.0, 1.01, 0.99, 1.0, 9.0]
    one, other = overhead([steady], [steady]), overhead([jolted], [steady])
    assert one is not None
    assert other is not None
    assert other.overhead == pytest.approx(one.overhead, abs=0.02)


def test_runs_that_differ_widen_the_interval() -> None:
    narrow = overhead([[1.1] * 9], [[1.0] * 9, [1.0] * 9])
    wide = overhead([[1.1] * 9], [[1.0] * 9, [1.04] * 9])
    assert narrow is not None
    assert wide is not None
    assert wide.high - wide.low > 10 * max(narrow.high - narrow.low, 0.01)


@given(st.lists(st.floats(0.01, 10), min_size=3, max_size=8), st.floats(0.5, 2))
def test_scaling_both_sides_changes_nothing(run: list[float], factor: float) -> None:
    one = overhead([run], [run[::-1]])
    other = overhead([[s * factor for s in run]], [[s * factor for s in run]])
    assert one is not None
    assert other is not None
    assert one.overhead == pytest.approx(other.overhead, abs=1e-9)
    assert one.low <= one.overhead <= one.high


def test_coverage_of_equal_runs() -> None:
    """Equal runs that scatter between and within: the interval holds 0 in most of them."""
    source = random.Random(7)  # noqa: S311 - a fixed sample

    def run() -> list[float]:
        level = source.gauss(0, 0.01)
        return [math.exp(level + source.gauss(0, 0.01)) for _ in range(10)]

    held = 0
    for _ in range(300):
        ratio = overhead([run(), run()], [run(), run(), run()])
        assert ratio is not None
        held += ratio.low <= 0 <= ratio.high
    assert held / 300 > 0.9


def test_nothing_to_compare() -> None:
    assert overhead([], [[1.0]]) is None
    assert overhead([[0.0]], [[1.0]]) is None
    assert spread([[1.0, 1.0]]) is None
    assert spread([[1.0], [1.1]]) == pytest.approx(0.1)


@given(st.lists(st.tuples(st.floats(0.1, 10), st.floats(-0.5, 2)), min_size=1, max_size=5))
def test_an_overhead_that_all_seeds_share_is_found_whatever_the_seeds_do(
    seeds: list[tuple[float, float]],
) -> None:
    share = seeds[0][1]
    control = {n: [[base] * 4] for n, (base, _) in enumerate(seeds)}
    candidate = {n: [[base * (1 + share)] * 4] for n, (base, _) in enumerate(seeds)}
    found = overhead_by_seed(candidate, control)
    assert found is not None
    assert found.overhead == pytest.approx(share, abs=1e-9)
    assert found.high - found.low == pytest.approx(0, abs=1e-6)


def test_seeds_that_disagree_widen_the_interval() -> None:
    control = {n: [[1.0] * 4] for n in range(3)}
    candidate = {n: [[value] * 4] for n, value in enumerate((1.0, 1.1, 1.2))}
    found = overhead_by_seed(candidate, control)
    assert found is not None
    assert found.low < 0.0 < found.overhead < 0.2 < found.high


def test_no_seed_in_common_is_no_comparison() -> None:
    assert overhead_by_seed({1: [[1.0]]}, {2: [[1.0]]}) is None
