"""The probe in the loops of Bridge and Megatron-LM, and in a user's own script."""

from __future__ import annotations

import json
import math
import subprocess
import sys
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from recompute.measure.row import Outcome
from recompute.megatron import MemoryProbe

sys.path.insert(0, str(Path(__file__).parent))
import cpu_layers
import cpu_model
from cpu_probe import only_row, train


@pytest.fixture(scope="module", autouse=True)
def group(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with cpu_layers.on_cpu(tmp_path_factory.mktemp("group")):
        yield


def run_script(tmp_path: Path, text: str) -> subprocess.CompletedProcess[str]:
    """Run a training script on the CPU in a process of its own."""
    here = str(Path(__file__).parent)
    head = f"""
import sys, pathlib, types
sys.path.insert(0, {here!r})
import torch, cpu_layers, cpu_model
from recompute.megatron import MemoryProbe
ROOT = {str(tmp_path / "l")!r}
"""
    path = tmp_path / "script.py"
    path.write_text(head + text)
    return subprocess.run([sys.executable, str(path)], capture_output=True, text=True, check=False)


BRIDGE = """
class Context:
    def __init__(self, model, optimizer):
        self.model, self.optimizer, self.loss_dict, self.skipped_iter = [model], optimizer, None, False

probe = MemoryProbe(ROOT, candidate="[]")
group = pathlib.Path(ROOT + "-group")
group.mkdir()
with cpu_layers.on_cpu(group):
    model = cpu_model.build(cpu_model.DENSE)
    context = Context(model, torch.optim.AdamW(model.parameters()))
    probe.on_train_start(context)
    for number in range(4):
        probe.on_train_step_start(context)
        loss = cpu_model.loss_of(model)
        loss.backward()
        if number == 2:
            END
        context.optimizer.step()
        context.loss_dict = {"lm loss": (loss.detach(), torch.tensor(8))}
        probe.on_train_step_end(context)
        if number == 1:
            probe.on_eval_start(context)
            probe.on_eval_end(context)
"""


@pytest.mark.parametrize(
    ("end", "outcome", "said"),
    [
        ("raise torch.OutOfMemoryError('CUDA out of memory')", Outcome.OOM, "OutOfMemoryError"),
        ("raise ValueError('shapes')", Outcome.CRASH, "ValueError: shapes"),
        ("sys.exit(0)", Outcome.CRASH, "the process ended before training did"),
    ],
)
def test_a_run_under_the_callback_ends_as_it_ends(
    tmp_path: Path, end: str, outcome: Outcome, said: str
) -> None:
    """Bridge calls no callback when training fails; the probe sees the error all the same."""
    done = run_script(tmp_path, BRIDGE.replace("END", end))
    assert (done.returncode == 0) == ("exit" in end), done.stderr
    assert ("Traceback" in done.stderr) == ("exit" not in end)
    row = only_row(tmp_path / "l")
    assert (row.outcome, row.final, len(row.step_seconds)) == (outcome, True, 2)
    assert said in str(row.message)
    assert row.stage == "backward"
    assert "evaluation" in {phase.phase for phase in row.phases}


def test_megatron_lms_own_loop_is_followed(tmp_path: Path) -> None:
    """The module has the shape of megatron/training/training.py: its loop looks both functions up in it."""
    training = types.ModuleType("training")
    model = cpu_model.build(cpu_model.DENSE)
    losses = [1.0, 1.0, math.nan, 1.0]

    def setup_model_and_optimizer(*_: Any) -> Any:
        return [model], torch.optim.AdamW(model.parameters()), None

    def train_step(number: int, models: Any, optimizer: Any) -> Any:
        cpu_model.loss_of(models[0]).backward()
        optimizer.step()
        return {"lm loss": torch.tensor(losses[number])}, 0, False, False, 0, 1.0, None, 0

    def pretrain() -> None:
        models, optimizer, _ = vars(training)["setup_model_and_optimizer"]()
        for number in range(4):
            vars(training)["train_step"](number, models, optimizer)

    vars(training).update(
        setup_model_and_optimizer=setup_model_and_optimizer, train_step=train_step
    )
    probe = MemoryProbe(str(tmp_path / "l"))
    probe.follow(training)
    pretrain()
    probe.close()
    row = only_row(tmp_path / "l")
    assert (row.outcome, row.nan_iterations, len(row.step_seconds)) == (Outcome.NONFINITE, 1, 4)
    assert row.optimizer_initialized
    assert {"model_build", "forward", "loss", "backward", "optimizer_init", "optimizer_step"} <= {
        phase.phase for phase in row.phases
    }
    assert vars(training)["train_step"] is train_step
    assert sys.excepthook is sys.__excepthook__ or "recompute" not in repr(sys.excepthook)


def test_a_plan_per_layer_reaches_the_users_own_script(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told = {"ledger": str(tmp_path / "l"), "run": "p-0", "candidate": "per-layer/1-1=mlp"}
    monkeypatch.setenv("RECOMPUTE_RUN", json.dumps(told | {"apply": True}))
    model = cpu_model.build(cpu_model.DENSE)
    with MemoryProbe() as probe:
        train(probe, model, 2)
    row = only_row(tmp_path / "l")
    assert row.recompute_seen is not None
    assert row.recompute_seen["per_layer"] == [{"layers": [1, 1], "modules": ["mlp"]}]
