"""kill -9 of the study and of one rank, with the real torchrun and four processes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from recompute.measure.ledger import read_ledger
from recompute.measure.row import Outcome

JOB = """\
model: {num_layers: 4, hidden_size: 64, num_attention_heads: 4, ffn_hidden_size: 128, vocab_size: 128,
  seq_length: 32, gated_linear_unit: true, activation_func: silu, add_bias_linear: false,
  hidden_dropout: 0.0, attention_dropout: 0.0, pipeline_model_parallel_size: 4}
train: {micro_batch_size: 1, global_batch_size: 4}
hardware: {num_gpus: 4}
framework: {megatron_core: 0.16.1}
"""
SCRIPT = '''
"""One rank of a run: the probe around steps of nothing; what a test asks of [mlp] at its first start."""
import json, os, signal, sys
from recompute.megatron import MemoryProbe

told = json.loads(os.environ["RECOMPUTE_RUN"])
first = told["candidate"] == "[mlp]" and told["attempt"] == 0
fault = os.environ.get("FAULT", "") if first else ""
with MemoryProbe(snapshots=False) as probe:
    for number in range(told["steps"]):
        with probe.step():
            probe.enter("backward")
        if number == 3 and fault == "hang":
            with open(os.path.join(told["ledger"], "pids.txt"), "a") as pids:
                pids.write(f"{os.getpid()}\\n")
            signal.pause()
        if number == 3 and fault == "rank":
            open(os.path.join(told["ledger"], f"there.{os.environ['RANK']}"), "w").close()
        if number == 3 and fault == "rank" and os.environ["RANK"] == "2":
            while sum(name.startswith("there.") for name in os.listdir(told["ledger"])) < 4:
                pass
            os.kill(os.getpid(), signal.SIGKILL)
        if number == 3 and fault == "rank":
            signal.pause()  # a collective that waits for the rank that died
'''


@pytest.fixture
def study(tmp_path: Path) -> list[str]:
    (tmp_path / "job.yaml").write_text(JOB)
    (tmp_path / "train.py").write_text(SCRIPT)
    words = [sys.executable, "-m", "recompute", "measure", str(tmp_path / "job.yaml")]
    words += ["--out", str(tmp_path / "l"), "--entry", str(tmp_path / "train.py"), "--json"]
    return [*words, "--candidates", "mlp", "--repeats", "1", "--steps", "6", "--limit", "120"]


def run(study: list[str], fault: str = "") -> dict[str, Any]:
    environment = {**os.environ, "FAULT": fault, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(study, capture_output=True, text=True, check=False, env=environment)
    assert done.returncode == 0, done.stderr
    document: dict[str, Any] = json.loads(done.stdout)
    return document


def test_workers_that_outlive_a_killed_study_are_ended_before_it_goes_on(
    study: list[str], tmp_path: Path
) -> None:
    """Workers of torchrun are in sessions of their own: killing its group alone would leave them their GPUs."""
    out = tmp_path / "l"
    process = subprocess.Popen(
        study,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env={**os.environ, "FAULT": "hang", "OMP_NUM_THREADS": "1"},
    )
    pids = out / "pids.txt"
    while not (pids.exists() and len(pids.read_text().split()) == 4):
        assert process.poll() is None
    agent = json.loads((out / "running.json").read_text())["pid"]
    process.kill()
    os.kill(agent, signal.SIGKILL)  # the worst case: nothing is left that knows the workers
    process.wait()
    workers = [int(pid) for pid in pids.read_text().split()]
    for pid in workers:
        os.kill(pid, 0)  # they live on
    document = run(study)
    assert [item["skipped"] for item in document["runs"]] == [True, False]
    assert [item["outcomes"] for item in document["runs"]] == [["pass"], ["pass"]]
    for pid in workers:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)
    rows = read_ledger(str(out)).rows
    assert sorted((row.id, row.rank) for row in rows) == [
        (name, rank) for name in ("[mlp]-0", "control-0") for rank in range(4)
    ]
    assert {row.attempt for row in rows if row.candidate == "[mlp]"} == {1}


def test_one_rank_that_is_killed_fails_the_run_and_nothing_is_lost(
    study: list[str], tmp_path: Path
) -> None:
    document = run(study, "rank")
    assert [item["outcomes"] for item in document["runs"]] == [["pass"], ["crash"]]
    rows = [row for row in read_ledger(str(tmp_path / "l")).rows if row.candidate == "[mlp]"]
    assert {row.rank for row in rows} == {0, 1, 2, 3}
    for row in rows:
        assert (row.outcome, row.final) == (Outcome.CRASH, True)
        assert row.stage in {"forward", "backward", "between_steps"}
        assert {"forward", "backward"} <= {phase.phase for phase in row.phases}
        assert "rank 2 failed first, exit code -9" in str(row.message)
