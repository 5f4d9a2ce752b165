from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from recompute.config.gpus import CONTEXT_BYTES, NCCL_BYTES_PER_GROUP, find_gpu
from recompute.errors import ConfigError
from recompute.search.budget import Compared, allowance_bytes, budget_of
from recompute.search.reserved import CACHING, EXPANDABLE, allocator_of, reserved_range

from .fakes import GIB, small_job


def test_a_stated_budget_is_compared_with_allocated_bytes_and_keeps_nothing_free() -> None:
    budget = budget_of(small_job(), "76GiB")
    assert (budget.compared, budget.limit_bytes, budget.margin_bytes) == (
        Compared.ALLOCATED,
        76 * GIB,
        0,
    )
    assert budget.over(76 * GIB, CACHING) == 0
    assert budget.over(76 * GIB + 1, CACHING) == 1


def test_a_gpu_is_compared_with_reserved_bytes_and_an_allowance() -> None:
    job = small_job()
    budget = budget_of(job, gpu="H200")
    assert budget.compared is Compared.RESERVED
    assert budget.limit_bytes == find_gpu("h200").memory_bytes
    assert budget.margin_bytes == CONTEXT_BYTES
    peak = budget.allowed_peak(CACHING)
    assert budget.over(peak, CACHING) <= 0
    assert budget.over(peak + 2, CACHING) > 0


def test_a_budget_wins_over_a_gpu_and_a_named_gpu_over_the_job() -> None:
    job = small_job(**{"hardware.gpu": "h200", "hardware.memory_bytes": 7 * GIB})
    assert budget_of(job, 5, gpu="b200").limit_bytes == 5
    assert budget_of(job, gpu="b200").limit_bytes == find_gpu("b200").memory_bytes
    assert budget_of(job).limit_bytes == 7 * GIB


def test_the_allowance_grows_with_the_communicators() -> None:
    plain = small_job()
    spread = small_job(
        tensor_model_parallel_size=2,
        pipeline_model_parallel_size=2,
        **{"hardware.num_gpus": 8},
    )
    assert allowance_bytes(spread) - allowance_bytes(plain) == 3 * NCCL_BYTES_PER_GROUP


@pytest.mark.parametrize(
    ("margin", "kept"),
    [("0.05", 5 * 10**8), ("5%", 5 * 10**8), (0.05, 5 * 10**8), ("1GB", 10**9), ("7", 7), (7, 7)],
)
def test_margins(margin: str | float, kept: int) -> None:
    assert budget_of(small_job(), "10GB", margin=margin).margin_bytes == kept


@pytest.mark.parametrize("margin", ["1.5", "120%", "-1", "11GB", "x", "nan", "0.x", "%"])
def test_bad_margins_are_refused(margin: str) -> None:
    with pytest.raises(ConfigError, match="margin"):
        budget_of(small_job(), "10GB", margin=margin)


@pytest.mark.parametrize("budget", ["", "0", "76 GIBS", "-5", "1e99", "9" * 18 + "TiB", 0, -1])
def test_bad_budgets_are_refused(budget: str | int) -> None:
    with pytest.raises(ConfigError) as caught:
        budget_of(small_job(), budget)
    assert caught.value.code == "bad-size"


def test_no_budget_and_no_gpu_gives_a_line_to_paste() -> None:
    with pytest.raises(ConfigError) as caught:
        budget_of(small_job())
    assert caught.value.code == "missing-budget"
    assert "--budget" in caught.value.hint


@pytest.mark.parametrize(
    ("value", "model"),
    [
        ("expandable_segments:True", EXPANDABLE),
        ("max_split_size_mb:128,expandable_segments:True", EXPANDABLE),
        ("expandable_segments:False", CACHING),
        ("", CACHING),
    ],
)
def test_the_allocator_follows_the_environment(value: str, model: object) -> None:
    assert allocator_of({"PYTORCH_CUDA_ALLOC_CONF": value}) is model


@given(st.integers(min_value=0, max_value=1 << 45), st.integers(min_value=0, max_value=1 << 45))
def test_over_grows_with_the_peak(low: int, more: int) -> None:
    budget = budget_of(small_job(), gpu="h200")
    assert budget.over(low, CACHING) <= budget.over(low + more, CACHING)
    assert budget.over(low, EXPANDABLE) <= budget.over(low, CACHING)
    first, last = reserved_range(low, CACHING)
    assert low <= first <= last


@pytest.mark.parametrize(
    ("text", "hint"),
    [
        ("80", "did you mean 80GiB?"),
        ("80MB", "did you mean 76GiB?"),
        ("80G", "write 80GiB (powers of 1024) or 80GB (powers of 1000)"),
        ("80Gi", "write 80GiB (powers of 1024) or 80GB (powers of 1000)"),
    ],
)
def test_a_budget_in_which_nothing_fits_is_a_slip_of_the_pen(text: str, hint: str) -> None:
    with pytest.raises(ConfigError) as caught:
        budget_of(small_job(), text)
    assert caught.value.code == "bad-size"
    assert caught.value.hint.startswith(hint)
    assert caught.value.exit_code == 2


def test_a_gibibyte_is_a_budget() -> None:
    assert budget_of(small_job(), "1GiB").limit_bytes == GIB
