"""The pages say what the program does, and their commands run."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from recompute.diagnose.run import diagnose

ROOT = Path(__file__).parents[4]
HOW_TO = ROOT / "docs" / "how-to" / "diagnose-an-oom.md"
EXAMPLES = {
    "megatron-lm-activations.log": ("activation", "forward", 6),
    "srun-fragmentation.log": ("fragmentation", "optimizer_step", 0),
    "bridge-second-step.log": ("optimizer_state", "forward", 2),
    "ray-colocated-engine.log": ("other_process", "forward", None),
    "healthy.log": ("not_oom", "unknown", None),
}


def test_every_example_log_is_known_and_shown() -> None:
    names = {path.name for path in (ROOT / "examples" / "logs").glob("*.log")}
    assert names == set(EXAMPLES)
    assert all(name in HOW_TO.read_text(encoding="utf-8") for name in names)


@pytest.mark.parametrize("name", EXAMPLES)
def test_example_logs(name: str) -> None:
    found = diagnose((str(ROOT / "examples" / "logs" / name),)).diagnosis
    assert (str(found.verdict), str(found.stage), found.rank) == EXAMPLES[name]


def test_the_example_with_a_job_has_a_prediction_first() -> None:
    words = ["recompute", "diagnose", "examples/logs/megatron-lm-activations.log"]
    done = subprocess.run(
        [sys.executable, "-m", *words], cwd=ROOT, capture_output=True, text=True, check=True
    )
    first = done.stdout.split("next\n")[1].splitlines()[0]
    assert "is predicted to bring the hottest rank" in first


def test_the_reference_is_what_the_tables_say() -> None:
    script = ROOT / "tools" / "verdict_reference.py"
    assert subprocess.run([sys.executable, str(script), "--check"], check=False).returncode == 0
