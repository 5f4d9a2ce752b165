"""Two ranks as one job of a real Slurm: srun starts torchrun, gloo joins them."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from recompute.measure.ledger import read_ledger

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "measure"))
import slurm_cluster

JOB = """\
model: {num_layers: 4, hidden_size: 64, num_attention_heads: 4, ffn_hidden_size: 128, vocab_size: 128,
  seq_length: 32, gated_linear_unit: true, activation_func: silu, add_bias_linear: false,
  hidden_dropout: 0.0, attention_dropout: 0.0, pipeline_model_parallel_size: 2}
train: {micro_batch_size: 1, global_batch_size: 4}
hardware: {num_gpus: 2}
framework: {megatron_core: 0.16.1}
"""
SCRIPT = """
import torch.distributed as ranks
from recompute.megatron import MemoryProbe

ranks.init_process_group("gloo")
with MemoryProbe(snapshots=False) as probe:
    for number in range(4):
        with probe.step():
            ranks.barrier()
ranks.destroy_process_group()
"""


@pytest.mark.skipif(slurm_cluster.missing() is not None, reason=slurm_cluster.missing() or "")
def test_ranks_of_a_job_meet(tmp_path: Path) -> None:
    (tmp_path / "job.yaml").write_text(JOB)
    (tmp_path / "train.py").write_text(SCRIPT)
    words = [sys.executable, "-m", "recompute", "measure", str(tmp_path / "job.yaml"), "--json"]
    words += ["--out", str(tmp_path / "l"), "--entry", str(tmp_path / "train.py"), "--steps", "4"]
    words += ["--launcher", "slurm", "--sbatch=--mem=6000", "--candidates", "mlp", "--repeats", "1"]
    with slurm_cluster.cluster(tmp_path / "slurm") as cluster:
        done = subprocess.run(
            words, capture_output=True, text=True, check=False, env=cluster.environment
        )
    assert done.returncode == 0, done.stderr
    assert [run["outcomes"] for run in json.loads(done.stdout)["runs"]] == [["pass"], ["pass"]]
    rows = read_ledger(str(tmp_path / "l")).rows
    assert sorted((row.id, row.rank, row.world_size) for row in rows) == [
        (name, rank, 2) for name in ("[mlp]-0", "control-0") for rank in (0, 1)
    ]
    assert all(len(row.step_seconds) == 4 for row in rows)
