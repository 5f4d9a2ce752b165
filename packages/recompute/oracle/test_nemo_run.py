"""``recompute measure --launcher nemo-run`` with the real NeMo-Run: its local executor, torchrun, gloo."""

from __future__ import annotations

import importlib.util
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

sys.path.insert(0, str(Path(__file__).parent))
from test_measure import HERE, MODEL, PLAIN

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("nemo_run") is None,
    reason="NeMo-Run is not installed; tools/oracle_env.sh brings it",
)
EXECUTOR = """
import nemo_run

def two():
    return nemo_run.LocalExecutor(ntasks_per_node=2, launcher="torchrun")

def three():
    return nemo_run.LocalExecutor(ntasks_per_node=3, launcher="torchrun")
"""


@pytest.fixture
def job(tmp_path: Path) -> Path:
    path = tmp_path / "job.yaml"
    model = {**MODEL, "tensor_model_parallel_size": 2}
    path.write_text(json.dumps({**PLAIN, "model": model, "hardware": {"num_gpus": 2}}))
    return path


def command(job: Path, *more: str) -> list[str]:
    words = [sys.executable, "-m", "recompute", "measure", str(job), "--out"]
    words += [str(job.with_suffix("")), "--launcher", "nemo-run", "--candidates", "mlp"]
    words += ["--repeats", "1", "--steps", "5", "--limit", "240", "--json"]
    return [*words, "--entry", str(HERE / "cpu_trainer.py"), *more]


def environment(tmp_path: Path, **more: str) -> dict[str, str]:
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    home = str(tmp_path / "nemo")
    return {**os.environ, "PATH": path, "NEMORUN_HOME": home, "OMP_NUM_THREADS": "1", **more}


def measure(job: Path, *more: str, **variables: str) -> tuple[int, dict[str, Any], str]:
    done = subprocess.run(
        command(job, *more),
        capture_output=True,
        text=True,
        check=False,
        env=environment(job.parent, **variables),
    )
    logs = "\n".join(log.read_text()[-2500:] for log in job.parent.glob("job/logs/*.log"))
    return done.returncode, json.loads(done.stdout or "{}"), done.stderr + logs


def test_a_study_through_an_executor_of_the_users_with_a_rank_that_dies(job: Path) -> None:
    (job.parent / "mine.py").write_text(EXECUTOR)
    options = ("--executor", f"{job.parent / 'mine.py'}:two")
    code, document, said = measure(job, *options, TEST_FAULT="kill:1:[mlp]")
    assert code == 0, said
    assert [run["outcomes"] for run in document["runs"]] == [["pass"], ["crash"]], said
    rows = read_ledger(str(job.with_suffix(""))).rows
    assert {(row.id, row.rank) for row in rows} == {
        (name, rank) for name in ("control-0", "[mlp]-0") for rank in (0, 1)
    }
    control = [row for row in rows if row.candidate == "[]"]
    assert all(row.optimizer_initialized and len(row.step_seconds) == 5 for row in control)
    dead = [row for row in rows if row.candidate == "[mlp]"]
    assert {row.outcome for row in dead} == {Outcome.CRASH}
    # rank 1 cannot speak any more; rank 0 may tell itself that its peer is gone
    (killed,) = [row for row in dead if row.rank == 1]
    assert "rank 1 failed first, exit code -9" in str(killed.message), dead


def test_an_executor_that_does_not_fit_the_job_is_said(job: Path) -> None:
    (job.parent / "mine.py").write_text(EXECUTOR)
    code, _, said = measure(job, "--executor", f"{job.parent / 'mine.py'}:three")
    assert code == 0, said
    rows = read_ledger(str(job.with_suffix(""))).rows
    assert all("starts 3 ranks, the job has 2" in str(row.message) for row in rows)


def test_a_hang_is_ended_with_all_its_ranks(job: Path) -> None:
    """NeMo-Run gives the ranks a session of their own; ending the study must reach them all the same."""
    process = subprocess.Popen(
        command(job),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment(job.parent, TEST_FAULT="hang:1:[mlp]"),
    )
    rows = job.with_suffix("") / "rows" / "rank-00001.jsonl"
    while not (rows.exists() and '"[mlp]"' in rows.read_text() and _steps(rows) >= 2):
        assert process.poll() is None, process.communicate()
    process.send_signal(signal.SIGTERM)
    out, _ = process.communicate(timeout=120)
    assert process.returncode == 3
    assert json.loads(out)["code"] == "interrupted"
    assert _alive(str(job.with_suffix(""))) == []


def _steps(rows: Path) -> int:
    lines = [json.loads(line) for line in rows.read_text().splitlines() if line.endswith("}")]
    return max(len(line["step_seconds"]) for line in lines if line["candidate"] == "[mlp]")


def _alive(ledger: str) -> list[str]:
    """Return the processes whose environment names the ledger's runs."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            told = (folder / "environ").read_bytes()
        except OSError:
            continue
        if b"RECOMPUTE_RUN=" in told and ledger.encode() in told:
            found.append(folder.name)
    return found
