"""Overrides as flags of Megatron-LM: what a script's reader can paste."""

from __future__ import annotations

import pytest

from recompute.config.load import load
from recompute.config.megatron_writer import flags_for


@pytest.mark.parametrize(
    ("override", "line"),
    [
        ("train.micro_batch_size=2", "--micro-batch-size 2"),
        ("model.sequence_parallel=true", "--sequence-parallel"),
        ("model.recompute_modules=[mlp,moe_act]", "--recompute-modules mlp moe_act"),
        ("model.recompute_modules=[]", "drop --recompute-modules"),
        ("model.recompute_method=null", "drop --recompute-method"),
        ("model.recompute_granularity=full", "--recompute-granularity full"),
        ("model.bias_activation_fusion=false", "--no-bias-swiglu-fusion"),
        ("export NCCL_GRAPH_REGISTER=0", "export NCCL_GRAPH_REGISTER=0"),
        ("model.cross_entropy_loss_fusion=true", "--cross-entropy-loss-fusion"),
        ("optimizer.exp_avg_dtype=bf16", "--exp-avg-dtype bf16"),
        ("mixed_precision.fp8=null", "mixed_precision.fp8=null  # no flag"),
    ],
)
def test_an_override_as_a_flag(override: str, line: str) -> None:
    assert flags_for([override]) == (line,)


def test_two_fields_with_one_flag_give_it_once() -> None:
    both = ["ddp.use_distributed_optimizer=true", "optimizer.use_distributed_optimizer=true"]
    assert flags_for(both) == ("--use-distributed-optimizer",)


@pytest.mark.parametrize(
    "override",
    [
        "train.micro_batch_size=2",
        "model.sequence_parallel=true",
        "model.bias_activation_fusion=false",
        "model.recompute_num_layers=3",
        "model.pipeline_model_parallel_size=2",
        "optimizer.use_precision_aware_optimizer=true",
    ],
)
def test_a_flag_reads_back_as_the_override(override: str) -> None:
    (flag,) = flags_for([override])
    script = (
        "--num-layers 8 --hidden-size 512 --num-attention-heads 8 --bf16 --swiglu "
        "--tensor-model-parallel-size 2 --recompute-granularity full --recompute-method block "
        "--recompute-num-layers 1 --use-distributed-optimizer "
    )
    plain, flagged = (load("-", stdin=text.encode()) for text in (script, script + flag))
    overridden = load("-", override, stdin=script.encode())
    section, _, field = override.partition("=")[0].partition(".")
    value = getattr(getattr(overridden, section), field)
    assert getattr(getattr(flagged, section), field) == value
    assert getattr(getattr(plain, section), field) != value
