"""Measured plans per layer against measured stock settings, over budgets (benchmarks/per_layer_curve.py)."""

from __future__ import annotations

import pytest

import per_layer_curve


def test_plans_per_layer_win_at_half_of_the_budgets_or_more(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert per_layer_curve.main() == 0
    assert "per layer is faster at 14 of 17 budgets" in capsys.readouterr().out


def test_the_best_run_is_the_fastest_that_fits() -> None:
    def run(
        name: str, peak: int, overhead: float, *, per_layer: bool = False
    ) -> per_layer_curve.Run:
        return per_layer_curve.Run(name=name, per_layer=per_layer, peak=peak, overhead=overhead)

    runs = [run("low", 5, 0.3), run("high", 9, 0.1), run("mixed", 7, 0.2, per_layer=True)]
    assert per_layer_curve.best(runs, 8, per_layer=False) == runs[0]
    assert per_layer_curve.best(runs, 8, per_layer=True) == runs[2]
    assert per_layer_curve.best(runs, 9, per_layer=True) == runs[1]
    assert per_layer_curve.best(runs, 4, per_layer=True) is None
