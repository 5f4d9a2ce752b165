"""The model against a study of seven architectures on an H200 (benchmarks/gpu_study.py).

The rows were measured after the model was written, and no constant was fitted to them.
"""

from __future__ import annotations

import json
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

from recompute.config.choice import RecomputeChoice, full, selective
from recompute.config.schema import (
    DdpConfig,
    FrameworkConfig,
    HardwareConfig,
    JobConfig,
    JobIdentity,
    ModelConfig,
    OptimizerConfig,
    TrainConfig,
)
from recompute.timeline.predict import Predictor

STUDY = json.loads((Path(__file__).parent.parent / "data" / "h200_study.json").read_text("utf-8"))
KNOWN = {field.name for field in fields(ModelConfig)}
TIED = ("gpt3", "qwen3")


def job_of(row: dict[str, Any]) -> JobConfig:
    given = {
        name: tuple(value) if isinstance(value, list) else value
        for name, value in row["fields"].items()
        if name in KNOWN
    }
    learned, local = row["model"] == "gpt3", row["model"].endswith("_local")
    model = ModelConfig(
        **given,
        bf16=True,
        params_dtype="bf16",
        vocab_size=row["inputs"]["vocab_size"],
        should_pad_vocab=False,
        seq_length=row["inputs"]["seq_length"],
        position_embedding_type="learned_absolute" if learned else "rope",
        share_embeddings_and_output_weights=row["model"] in TIED,
        transformer_impl="local" if local else "transformer_engine",
    )
    batch = row["inputs"]["micro_batch_size"]
    plain = row["wrapper"] == "plain"
    return JobConfig(
        identity=JobIdentity(path="study", sha256="0" * 64, format="bridge-yaml"),
        model=model,
        train=TrainConfig(micro_batch_size=batch, global_batch_size=batch * row["microbatches"]),
        optimizer=None
        if plain
        else OptimizerConfig(use_distributed_optimizer=True, **row["optimizer"]),
        ddp=None if plain else DdpConfig(**row["ddp"]),
        hardware=HardwareConfig(num_gpus=1, gpu="h200"),
        framework=FrameworkConfig(megatron_core="0.19.2", transformer_engine="2.20.2"),
    )


def choice_of_row(row: dict[str, Any]) -> RecomputeChoice:
    given = row["recompute"]
    if given["recompute_granularity"] == "full":
        return full(given["recompute_method"], given["recompute_num_layers"])
    return selective(*given["recompute_modules"])


def name_of(row: dict[str, Any]) -> str:
    fp8 = f"-{row['fields']['fp8_recipe']}" if "fp8_recipe" in row["fields"] else ""
    parts = (row["model"], choice_of_row(row).label(), row["wrapper"], str(row["microbatches"]))
    return "-".join(parts) + fp8


def quantizes_once(row: dict[str, Any]) -> bool:
    """Say whether a row misses what Megatron's schedule would have had freed.

    The study calls the model itself. The schedule alone tells the linears that a step's first micro-batch
    runs (``set_is_first_microbatch``); without it their weights are quantized in the first step only, and
    the forward under a checkpoint frees no copy of them.
    """
    blocks = row["fields"].get("fp8_recipe") == "blockwise" and row["model"] == "dense_gqa"
    choice = choice_of_row(row)
    return blocks and (choice.recompute_granularity == "full" or "mlp" in choice.recompute_modules)


@pytest.mark.parametrize("row", [r for r in STUDY["rows"] if quantizes_once(r)], ids=name_of)
def test_block_scaled_copies_stay_where_no_schedule_has_weights_quantized_again(
    row: dict[str, Any],
) -> None:
    predictor = Predictor(job_of(row))
    hot, layers = predictor.predict(choice_of_row(row)).hot, row["fields"]["num_layers"]
    tape = predictor._book.tape("attention+mlp")
    full = choice_of_row(row).recompute_granularity == "full"
    freed = sum(op.remade for op in tape.ops if full or op.name.startswith("mlp."))
    assert freed
    measured = row["measured"]
    kept = hot.growth_after_forward + layers * freed
    assert kept == pytest.approx(measured["after_forward"], rel=0.02)
    peak = (
        hot.activation_bytes_at_peak + freed
    )  # that of the first layer, whose backward comes last
    assert peak == pytest.approx(measured["backward_peak"], rel=0.005)


@pytest.mark.parametrize("row", [r for r in STUDY["rows"] if not quantizes_once(r)], ids=name_of)
def test_activation_bytes(row: dict[str, Any]) -> None:
    hot = Predictor(job_of(row)).predict(choice_of_row(row)).hot
    measured = row["measured"]
    highest = max(measured["forward_peak"], measured["backward_peak"])
    phases = [p.peak_bytes for p in hot.phases if not p.phase.value.startswith("optimizer")]
    assert max(phases) - hot.static.total == pytest.approx(highest, rel=0.02)
    if row["wrapper"] != "plain" or row["microbatches"] == 1:
        assert hot.growth_after_forward == pytest.approx(measured["after_forward"], rel=0.02)


def test_static_bytes_under_the_distributed_optimizer() -> None:
    rows = [row for row in STUDY["rows"] if row["wrapper"] == "megatron"]
    assert len(rows) == 14
    for row in rows:
        hot = Predictor(job_of(row)).predict(choice_of_row(row)).hot
        assert hot.static.total == pytest.approx(row["measured"]["static"], rel=1e-3)
        step = max(p.peak_bytes for p in hot.phases if p.phase.value == "optimizer_step")
        copied = row["measured"]["optimizer_peak"]
        assert step - hot.static.total == pytest.approx(copied, rel=1e-3, abs=1e4)
