"""``recompute measure`` with real processes: torchrun, gloo, Megatron's schedules, DDP and optimizer."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any, Final

import pytest

from recompute.measure.ledger import read_ledger
from recompute.measure.row import Outcome, Row

HERE: Final = Path(__file__).parent
MODEL: Final[dict[str, Any]] = {
    "num_layers": 4,
    "hidden_size": 64,
    "num_attention_heads": 4,
    "num_query_groups": 4,
    "ffn_hidden_size": 128,
    "vocab_size": 128,
    "seq_length": 32,
    "normalization": "LayerNorm",
    "gated_linear_unit": True,
    "activation_func": "silu",
    "add_bias_linear": False,
    "hidden_dropout": 0.0,
    "attention_dropout": 0.0,
    "position_embedding_type": "rope",
    "share_embeddings_and_output_weights": False,
    "transformer_impl": "local",
}
PLAIN: Final[dict[str, Any]] = {
    "train": {"micro_batch_size": 2, "global_batch_size": 4},
    "optimizer": None,
    "ddp": None,
    "framework": {"megatron_core": "0.16.1"},
}
SHARDED: Final[dict[str, Any]] = {
    **PLAIN,
    "train": {"micro_batch_size": 2, "global_batch_size": 8},
    "optimizer": {"use_distributed_optimizer": True},
    "ddp": {"use_distributed_optimizer": True, "grad_reduce_in_fp32": True},
}


def measure(
    out: Path, gpus: int, sections: dict[str, Any], candidates: str, **more: Any
) -> tuple[dict[str, Any], list[Row]]:
    """Run a study and return its document and rows."""
    fault = more.pop("fault", "")
    job = {**sections, "model": {**MODEL, **more}, "hardware": {"num_gpus": gpus}}
    path = out.with_suffix(".yaml")
    path.write_text(json.dumps(job))
    options = ["--candidates", candidates, "--repeats", "1", "--steps", "6", "--limit", "240"]
    options += ["--json", "--entry", str(HERE / "cpu_trainer.py")]
    done = subprocess.run(
        [sys.executable, "-m", "recompute", "measure", str(path), "--out", str(out), *options],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "TEST_FAULT": fault, "OMP_NUM_THREADS": "1"},
    )
    logs = "\n".join(log.read_text()[-1500:] for log in out.glob("logs/*"))
    assert done.returncode == 0, done.stderr + logs
    return json.loads(done.stdout), list(read_ledger(str(out)).rows)


def test_pipeline_and_data_parallel_over_four_processes(tmp_path: Path) -> None:
    document, rows = measure(
        tmp_path / "l",
        4,
        SHARDED,
        "per-layer/0-0=full/3-3=mlp+core_attn",
        pipeline_model_parallel_size=2,
    )
    assert [run["outcomes"] for run in document["runs"]] == [["pass"], ["pass"]], rows
    assert {(row.id, row.rank) for row in rows} == {
        (run["id"], rank) for run in document["runs"] for rank in range(4)
    }
    for row in rows:
        phases = {phase.phase for phase in row.phases}
        assert {"forward", "backward", "grad_sync", "optimizer_init", "optimizer_step"} <= phases
        assert ("loss" in phases) == (row.rank >= 2)  # the last stage has the head
        assert row.optimizer_initialized
        assert len(row.step_seconds) == 6
        assert row.world_size == 4
    planned = {row.rank: row.recompute_seen for row in rows if row.candidate != "[]"}
    first = [{"layers": [0, 0], "modules": ["full"]}]
    last = [{"layers": [3, 3], "modules": ["core_attn", "mlp"]}]
    spans = [seen["per_layer"] for _, seen in sorted(planned.items()) if seen is not None]
    assert spans == [first, first, last, last]


def test_multi_token_prediction_is_built_and_recomputed(tmp_path: Path) -> None:
    _, rows = measure(tmp_path / "l", 1, SHARDED, "mlp", mtp_num_layers=1)
    control, mlp = rows
    assert {row.outcome for row in rows} == {Outcome.PASS}
    assert control.recompute_seen is not None
    assert mlp.recompute_seen is not None
    assert control.recompute_seen["layers_seen"] == MODEL["num_layers"] + 1
    assert mlp.recompute_seen["per_layer"] == [{"layers": [0, 4], "modules": ["mlp"]}]


@pytest.mark.parametrize(
    ("fault", "outcomes"),
    [("oom", {Outcome.OOM, Outcome.CRASH}), ("kill", {Outcome.CRASH})],
)
def test_one_rank_fails_under_tensor_parallelism(
    tmp_path: Path, fault: str, outcomes: set[Outcome]
) -> None:
    document, rows = measure(
        tmp_path / "l",
        2,
        PLAIN,
        "mlp",
        fault=f"{fault}:1:[mlp]",
        tensor_model_parallel_size=2,
    )
    assert document["runs"][0]["outcomes"] == ["pass"]
    failed = {row.rank: row for row in rows if row.candidate == "[mlp]"}
    assert set(failed) == {0, 1}
    assert {row.outcome for row in failed.values()} == outcomes
    assert all(row.final and len(row.step_seconds) <= 4 for row in failed.values())
    compared = subprocess.run(
        [sys.executable, "-m", "recompute", "compare", str(tmp_path / "l"), "--json"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert compared.returncode == 1
    (candidate,) = json.loads(compared.stdout)["candidates"]
    assert candidate["verdict"] == ("oom" if fault == "oom" else "crash")
