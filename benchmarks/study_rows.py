"""The rows that ``gpu_study.py`` measured on one H200, as rows of ``accuracy.py``.

They are the regression data of the tests as well (packages/recompute/tests/data/h200_study.json and
h200_planning.json); no constant of the model was fitted to them.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any, Final

from recompute.config.choice import LayerSpan, RecomputeChoice, full, selective
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

STUDIES: Final = (
    Path(__file__).resolve().parent.parent / "packages" / "recompute" / "tests" / "data"
)
FILES: Final = ("h200_study.json", "h200_planning.json")
KNOWN: Final = {field.name for field in fields(ModelConfig)}
TIED: Final = ("gpt3", "qwen3")


def study_rows() -> Iterator[tuple[str, str, JobConfig, RecomputeChoice, dict[str, Any]]]:
    """Yield id, group, job, choice and measured bytes of every row."""
    for name in FILES:
        path = STUDIES / name
        if path.is_file():
            for row in json.loads(path.read_text(encoding="utf-8"))["rows"]:
                if _quantizes_once(row):
                    continue
                yield _row(row, "h200 planning" if "planning" in name else "h200 study")


def _quantizes_once(row: Mapping[str, Any]) -> bool:
    """Say whether a row ran as no training does: its weights were quantized in the first step alone.

    The study calls the model without Megatron's schedule, which has weights quantized in every step; then
    a block-scaled linear that is fused with its norm frees a copy in the forward under a checkpoint
    (packages/recompute/tests/timeline/test_study.py compares these rows with that copy added).
    """
    blocks = row["fields"].get("fp8_recipe") == "blockwise" and not row["fields"].get(
        "num_moe_experts"
    )
    given = row["recompute"]
    replays = given["recompute_granularity"] == "full" or "mlp" in given["recompute_modules"]
    return blocks and replays


def _row(
    row: Mapping[str, Any], group: str
) -> tuple[str, str, JobConfig, RecomputeChoice, dict[str, Any]]:
    choice = _choice(row)
    recipe = row["fields"].get("fp8_recipe", "")
    states = " ".join(str(value) for value in dict.fromkeys(row.get("optimizer", {}).values()))
    parts = (
        row["model"],
        recipe,
        choice.label(),
        row["wrapper"],
        states.replace("True", "aware"),
        f"x{row['microbatches']}",
    )
    seen = row["measured"]
    highest = max(seen["forward_peak"], seen["backward_peak"])
    if row["wrapper"] != "plain":
        highest = max(highest, seen["optimizer_peak"])
    measured = {"peak_over_static": highest}
    if row["wrapper"] != "plain" or row["microbatches"] == 1:
        measured["after_forward"] = seen["after_forward"]
    if row["wrapper"] != "plain":
        measured["static"] = seen["static"]
    return " ".join(part for part in parts if part), group, _job(row), choice, measured


def _choice(row: Mapping[str, Any]) -> RecomputeChoice:
    given = row["recompute"]
    if given["recompute_granularity"] == "full":
        return full(given["recompute_method"], given["recompute_num_layers"])
    modules = tuple(given["recompute_modules"])
    if row.get("mlp_layers"):
        span = LayerSpan(first=0, last=row["mlp_layers"] - 1, modules=modules)
        return RecomputeChoice(per_layer=(span,))
    return selective(*modules)


def _job(row: Mapping[str, Any]) -> JobConfig:
    given = {
        name: tuple(value) if isinstance(value, list) else value
        for name, value in row["fields"].items()
        if name in KNOWN
    }
    model = ModelConfig(
        **given,
        bf16=True,
        params_dtype="bf16",
        vocab_size=row["inputs"]["vocab_size"],
        should_pad_vocab=False,
        seq_length=row["inputs"]["seq_length"],
        position_embedding_type="learned_absolute" if row["model"] == "gpt3" else "rope",
        share_embeddings_and_output_weights=row["model"] in TIED,
        transformer_impl="local" if row["model"].endswith("_local") else "transformer_engine",
    )
    batch, plain = row["inputs"]["micro_batch_size"], row["wrapper"] == "plain"
    optimizer = None
    if not plain:
        optimizer = OptimizerConfig(use_distributed_optimizer=True, **row["optimizer"])
    return JobConfig(
        identity=JobIdentity(path="study", sha256="0" * 64, format="bridge-yaml"),
        model=model,
        train=TrainConfig(micro_batch_size=batch, global_batch_size=batch * row["microbatches"]),
        optimizer=optimizer,
        ddp=None if plain else DdpConfig(**row["ddp"]),
        hardware=HardwareConfig(num_gpus=1, gpu="h200"),
        framework=FrameworkConfig(megatron_core="0.19.2", transformer_engine="2.20.2"),
    )
