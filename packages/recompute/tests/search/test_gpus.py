from __future__ import annotations

import pytest

from recompute.config.gpus import GPUS, Gpu, find_gpu, gpu_names
from recompute.errors import ConfigError
from recompute.search.efficiency import EFFICIENCIES
from recompute.units import GIB

NAMES = "a100-40gb a100-80gb h100-80gb h200 b200 b300 gb200 gb300 mi300x"

MARKETED_GB = {
    "a100-40gb": 40,
    "a100-80gb": 80,
    "h100-80gb": 80,
    "h200": 141,
    "b200": 192,
    "b300": 288,
    "gb200": 192,
    "gb300": 288,
    "mi300x": 192,
}
"""One example a row: what the vendor sells it as, GiB for the older ones and GB for the others."""


def test_the_table_holds_the_names_of_the_contract_in_order() -> None:
    assert " ".join(gpu_names()) == NAMES
    assert set(MARKETED_GB) == set(gpu_names())


@pytest.mark.parametrize("gpu", GPUS, ids=lambda gpu: gpu.name)
def test_usable_memory_is_below_what_is_sold_and_not_by_much(gpu: Gpu) -> None:
    sold = MARKETED_GB[gpu.name]
    assert 0.90 * sold * 10**9 < gpu.memory_bytes < sold * GIB


@pytest.mark.parametrize("gpu", GPUS, ids=lambda gpu: gpu.name)
def test_rows_say_where_their_figures_come_from(gpu: Gpu) -> None:
    assert gpu.source
    assert gpu.memory_source
    assert gpu.architecture in EFFICIENCIES
    assert gpu.nvlink > gpu.network


@pytest.mark.parametrize("gpu", GPUS, ids=lambda gpu: gpu.name)
def test_narrower_dtypes_are_never_slower(gpu: Gpu) -> None:
    rates = [gpu.flops(dtype) for dtype in ("fp32", "bf16", "fp8", "fp4")]
    assert rates == sorted(rates)
    assert gpu.flops("fp16") == gpu.flops("bf16")


def test_case_does_not_matter() -> None:
    assert find_gpu(" H100-80GB ") is find_gpu("h100-80gb")


def test_an_unknown_name_is_refused_with_the_nearest() -> None:
    with pytest.raises(ConfigError) as caught:
        find_gpu("h100")
    assert caught.value.code == "unknown-gpu"
    assert "h100-80gb" in caught.value.hint


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        ("h100", "did you mean h100-80gb? "),
        ("A100", "did you mean a100-40gb or a100-80gb? "),
        ("NVIDIA H100 80GB HBM3", "did you mean h100-80gb? "),
        ("H200 141GB", "did you mean h200? "),
        ("mi300", "did you mean mi300x? "),
        ("v100", ""),
        ("h300" * 40, ""),
    ],
)
def test_a_wrong_name_is_answered_with_what_it_may_stand_for(written: str, meant: str) -> None:
    with pytest.raises(ConfigError) as caught:
        find_gpu(written)
    assert caught.value.hint.startswith(meant + "known: a100-40gb")
