from __future__ import annotations

import pytest

from recompute.config.choice import NO_RECOMPUTE
from recompute.errors import ConfigError
from recompute.report.what_if_report import what_if_document, what_if_text
from recompute.search.plan import plan
from recompute.search.types import Status
from recompute.search.what_if import Variant, largest_that_fit, parse_budgets, what_if
from recompute.units import GIB

from .fakes import small_job


def variants(*sizes: int) -> list[Variant]:
    field = "train.micro_batch_size"
    return [Variant(changes=(f"{field}={size}",), job=small_job(**{field: size})) for size in sizes]


def test_every_cell_is_the_plan_of_that_job_and_budget() -> None:
    rows = what_if(variants(1, 4), ["4GiB", "60GiB"], [None])
    assert len(rows) == 4
    for row in rows:
        assert row.plan is not None
        job = small_job(**{"train.micro_batch_size": int(row.changes[0][-1])})
        alone = plan(job, row.plan.budget.limit_bytes)
        assert row.plan.chosen == alone.chosen
        assert row.plan.status is alone.status


def test_a_gpu_list_compares_each_gpus_memory_and_rates() -> None:
    large = small_job(hidden_size=4096, ffn_hidden_size=14336)
    slow, fast = what_if([Variant(changes=(), job=large)], [None], ["a100-80gb", "h200"])
    assert slow.plan is not None
    assert fast.plan is not None
    assert slow.plan.control_seconds > 2 * fast.plan.control_seconds
    assert slow.plan.tokens_per_second is not None
    assert (slow.memory, fast.memory) == ("a100-80gb", "h200")


def test_values_that_do_not_go_together_are_rows_with_the_reason() -> None:
    broken = Variant(changes=("train.micro_batch_size=3",), job=None, problem="3 does not divide 8")
    (row,) = what_if([broken], ["4GiB"], [None])
    assert row.plan is None
    text = what_if_text([row], (), None)
    assert "3 does not divide 8" in text
    document = what_if_document(small_job(), [row], ())
    assert document["schema"] == "recompute.what-if/1"
    assert document["rows"][0]["status"] is None


def test_the_largest_value_is_found_for_each_choice() -> None:
    rows = what_if(variants(1, 2, 4, 8), ["7GiB"], [None])
    largest = {item.choice: item.value for item in largest_that_fit(rows, "train.micro_batch_size")}
    assert largest[NO_RECOMPUTE] < max(largest.values())
    for row in rows:
        assert row.plan is not None
        if row.plan.status is Status.ALREADY_FITS:
            assert largest[NO_RECOMPUTE] >= int(row.changes[0][-1])


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("76GiB", ("76GiB",)),
        ("1GiB, 2GiB", ("1GiB", "2GiB")),
        ("1GiB..3GiB/1GiB", (GIB, 2 * GIB, 3 * GIB)),
        ("1GiB..2.5GiB/1GiB", (GIB, 2 * GIB, 5 * GIB // 2)),
    ],
)
def test_budget_lists_and_ranges(text: str, found: tuple[str | int, ...]) -> None:
    assert parse_budgets(text) == found


@pytest.mark.parametrize(
    "text", ["2GiB..1GiB", "x..2GiB", "1GiB..2GiB/0", "1..9GiB/1", "1GiB..", ".."]
)
def test_bad_ranges_are_refused(text: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_budgets(text)
    assert caught.value.code == "bad-range"
