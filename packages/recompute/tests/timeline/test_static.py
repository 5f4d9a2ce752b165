"""Static bytes per parameter, as each optimizer holds them."""

from __future__ import annotations

from dataclasses import replace

import pytest

from recompute.config.schema import DdpConfig, FrameworkConfig, OptimizerConfig
from recompute.timeline.static import (
    ParameterCount,
    microbatches_of,
    optimizer_bytes_per_parameter,
    state_bytes,
)

from .jobs import job, megatron_job

COUNT = ParameterCount(dense=1_000_000, expert=0)


def per_parameter(ddp: DdpConfig | None, optimizer: OptimizerConfig | None, gpus: int) -> float:
    given = replace(megatron_job(gpus=gpus, batch=2 * gpus), ddp=ddp, optimizer=optimizer)
    static = state_bytes(given, COUNT).static
    return (static.total - static.other) / COUNT.total


@pytest.mark.parametrize(
    ("ddp", "optimizer", "gpus", "expected"),
    [
        (None, None, 1, 6),
        (DdpConfig(grad_reduce_in_fp32=True), OptimizerConfig(), 1, 18),
        (DdpConfig(grad_reduce_in_fp32=True), OptimizerConfig(), 8, 18),
        (
            DdpConfig(use_distributed_optimizer=True, grad_reduce_in_fp32=True),
            OptimizerConfig(),
            8,
            7.5,
        ),
        (DdpConfig(use_distributed_optimizer=True), OptimizerConfig(), 8, 5.5),
        (
            DdpConfig(use_distributed_optimizer=True),
            OptimizerConfig(
                use_precision_aware_optimizer=True,
                main_grads_dtype="bf16",
                exp_avg_dtype="bf16",
                exp_avg_sq_dtype="bf16",
            ),
            8,
            4.75,
        ),
    ],
)
def test_bytes_of_one_parameter(
    ddp: DdpConfig | None, optimizer: OptimizerConfig | None, gpus: int, expected: float
) -> None:
    assert per_parameter(ddp, optimizer, gpus) == pytest.approx(expected)


def test_a_16_bit_buffer_is_copied_to_fp32_for_the_step_unless_precision_aware() -> None:
    half = replace(megatron_job(), ddp=DdpConfig(use_distributed_optimizer=True))
    assert state_bytes(half, COUNT).step_transient == 4 * COUNT.total
    aware = replace(half, optimizer=OptimizerConfig(use_precision_aware_optimizer=True))
    assert state_bytes(aware, COUNT).step_transient == 0


def test_master_remainders_are_kept_only_for_bf16_parameters() -> None:
    aware = OptimizerConfig(use_precision_aware_optimizer=True)
    assert optimizer_bytes_per_parameter(aware, 2) == 2 + 8
    assert optimizer_bytes_per_parameter(replace(aware, store_param_remainders=False), 2) == 4 + 8


@pytest.mark.parametrize(
    ("recipe", "changed", "masters", "copied"),
    [
        (None, {}, 2, 0),
        ("delayed", {}, 2, 0),
        ("tensorwise", {}, 4, 4),
        ("blockwise", {"use_precision_aware_optimizer": False}, 4, 4),
        ("mxfp8", {"main_params_dtype": "fp16"}, 2, 0),
        ("tensorwise", {"optimizer_cpu_offload": True}, 2, 0),
    ],
)
def test_an_fp8_recipe_in_the_optimizer_makes_core_keep_masters_though_nothing_is_fp8(
    recipe: str | None, changed: dict[str, object], masters: int, copied: int
) -> None:
    options: dict[str, object] = {"use_precision_aware_optimizer": True, **changed}
    optimizer = OptimizerConfig(fp8_recipe=recipe, **options)  # type: ignore[arg-type]
    assert optimizer_bytes_per_parameter(optimizer, 2) == masters + 8
    half = replace(
        megatron_job(), ddp=DdpConfig(use_distributed_optimizer=True), optimizer=optimizer
    )
    assert state_bytes(half, COUNT).step_transient == copied * COUNT.total


def test_gradients_appear_in_backward_without_ddp() -> None:
    assert state_bytes(job(), COUNT).gradients_in_backward == 2 * COUNT.total
    assert state_bytes(megatron_job(), COUNT).gradients_in_backward == 0


def test_experts_are_sharded_by_their_own_group() -> None:
    given = megatron_job(gpus=8, batch=16, expert_model_parallel_size=8)
    dense = state_bytes(given, ParameterCount(dense=800, expert=0)).static.optimizer
    expert = state_bytes(given, ParameterCount(dense=0, expert=800)).static.optimizer
    assert expert == 8 * dense


def test_microbatches_of_a_step() -> None:
    assert microbatches_of(megatron_job(gpus=2, batch=32)) == 8


def test_narrow_moments_are_copied_before_the_kernel_reads_them() -> None:
    aware = OptimizerConfig(
        use_precision_aware_optimizer=True, exp_avg_dtype="bf16", exp_avg_sq_dtype="bf16"
    )
    given = replace(megatron_job(), optimizer=aware)
    old = replace(given, framework=FrameworkConfig(transformer_engine="2.13"))
    assert state_bytes(old, COUNT).step_transient == 8 * COUNT.total
    new = replace(given, framework=FrameworkConfig(transformer_engine="2.14.0"))
    assert state_bytes(new, COUNT).step_transient == 0
    by_core = replace(given, framework=FrameworkConfig(megatron_core="0.16"))
    assert state_bytes(by_core, COUNT).step_transient == 8 * COUNT.total


def test_frozen_parameters_have_neither_gradient_nor_state() -> None:
    count = ParameterCount(dense=10, expert=0, frozen=1000)
    static = state_bytes(megatron_job(), count).static
    assert (static.parameters, static.gradients, static.optimizer) == (2020, 40, 120)


def test_fp8_parameters_take_one_byte() -> None:
    count = ParameterCount(dense=1000, expert=0, one_byte=900)
    assert state_bytes(megatron_job(), count).static.parameters == 1100
