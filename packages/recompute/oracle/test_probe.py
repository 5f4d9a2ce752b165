"""The probe around real steps of a real model on the CPU."""

from __future__ import annotations

import json
import math
import signal
import subprocess
import sys
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from recompute.measure.compare import compare
from recompute.measure.ledger import read_ledger
from recompute.measure.row import Outcome, Row
from recompute.megatron import MemoryProbe, apply

sys.path.insert(0, str(Path(__file__).parent))
import cpu_layers
import cpu_model
from cpu_probe import only_row, train


@pytest.fixture(scope="module", autouse=True)
def group(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with cpu_layers.on_cpu(tmp_path_factory.mktemp("group")):
        yield


def test_a_run_is_a_row_with_every_phase(tmp_path: Path) -> None:
    model = cpu_model.build(cpu_model.DENSE)
    with MemoryProbe(str(tmp_path / "l")) as probe, apply(model, "[mlp]"):
        train(probe, model, 5)
    row = only_row(tmp_path / "l")
    assert (row.outcome, row.stage, row.final, row.candidate) == (Outcome.PASS, None, True, "[mlp]")
    assert len(row.step_seconds) == 5
    assert row.warmup_steps == 2
    assert row.optimizer_initialized
    assert row.recompute_seen is not None
    assert row.recompute_seen["per_layer"] == [{"layers": [0, 3], "modules": ["mlp"]}]
    phases = [phase.phase for phase in row.phases]
    assert {"forward", "loss", "backward", "optimizer_init", "optimizer_step"} <= set(phases)
    assert phases.index("optimizer_init") < phases.index("optimizer_step")
    assert all((phase.allocated_peak_bytes or 0) > 1 << 20 for phase in row.phases)
    assert row.environment is not None
    assert row.environment["megatron_core"] == sys.modules["megatron.core"].__version__
    assert 0 < row.probe_seconds < sum(row.step_seconds)
    assert row.probe_steady_seconds is not None
    assert 0 < row.probe_steady_seconds < row.probe_seconds
    assert row.meter == "host-rss"


@pytest.mark.parametrize(
    ("built", "plan", "candidate"),
    [
        ({}, None, "[]"),
        ({"recompute_granularity": "selective", "recompute_modules": ["mlp"]}, None, "[mlp]"),
        (
            {
                "recompute_granularity": "full",
                "recompute_method": "block",
                "recompute_num_layers": 2,
            },
            None,
            "full/block/2",
        ),
        ({}, "full/uniform/1", "full/uniform/1"),
        ({}, "per-layer/0-3=mlp_act", "per-layer/0-3=mlp_act"),
        ({}, "per-layer/1-1=mlp", "per-layer/1-1=mlp"),
        (
            {"recompute_granularity": "selective", "recompute_modules": ["mlp"]},
            "[core_attn]",
            "[core_attn]",
        ),
    ],
)
def test_a_run_without_a_name_is_named_by_its_config_or_by_the_plan_on_it(
    tmp_path: Path, built: dict[str, Any], plan: str | None, candidate: str
) -> None:
    model = cpu_model.build(cpu_model.DENSE, **built)
    if plan is not None:
        apply(model, plan)
    with MemoryProbe(str(tmp_path / "l")) as probe:
        train(probe, model, 2)
    assert only_row(tmp_path / "l").candidate == candidate


def test_ranks_with_other_layers_name_a_run_alike(tmp_path: Path) -> None:
    """Of layers of two kinds, or of a plan over all, a pipeline rank sees its own alone."""
    model = cpu_model.build(
        cpu_model.MOE, recompute_granularity="selective", recompute_modules=["mlp", "moe"]
    )
    for name, first, last in (("dense", 0, 0), ("experts", 1, 2)):
        with MemoryProbe(str(tmp_path / name)) as probe:
            probe.watch(model.decoder.layers[first : last + 1])
        assert only_row(tmp_path / name).candidate == "[mlp,moe]"


@pytest.mark.parametrize(
    ("code", "outcome"), [(0, Outcome.PASS), (None, Outcome.PASS), (1, Outcome.CRASH)]
)
def test_a_loop_that_leaves_with_status_0_has_come_to_its_end(
    tmp_path: Path, code: int | None, outcome: Outcome
) -> None:
    def loop() -> None:
        with MemoryProbe(str(tmp_path / "l")) as probe:
            train(probe, cpu_model.build(cpu_model.DENSE), 2)
            sys.exit(code)

    with pytest.raises(SystemExit):
        loop()
    assert only_row(tmp_path / "l").outcome is outcome


def test_nothing_stays_on_model_and_optimizer(tmp_path: Path) -> None:
    model = cpu_model.build(cpu_model.DENSE)
    calls: list[int] = []

    class MegatronLike:
        """An optimizer with Megatron's interface: a step that says whether it updated."""

        def __init__(self) -> None:
            self.optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)

        def step(self) -> tuple[bool, None, None]:
            calls.append(1)
            self.optimizer.step()
            return len(calls) != 2, None, None

    optimizer = MegatronLike()
    with MemoryProbe(str(tmp_path / "l")) as probe:
        probe.watch(model, optimizer)
        for _ in range(3):
            with probe.step():
                cpu_model.loss_of(model).backward()
                optimizer.step()
    row = only_row(tmp_path / "l")
    assert row.optimizer_initialized
    assert row.skipped_iterations == 1
    assert vars(optimizer).keys() == {"optimizer"}
    hooks = [
        *model._forward_hooks,
        *model._forward_pre_hooks,
        *model.output_layer._forward_pre_hooks,
    ]
    assert hooks == []


def test_gradients_that_are_finalized_are_a_phase_of_their_own(tmp_path: Path) -> None:
    """Megatron-LM sets the function when training begins, after the probe may have been put on."""
    model = cpu_model.build(cpu_model.DENSE)
    calls: list[Any] = []
    with MemoryProbe(str(tmp_path / "l"), candidate="[]") as probe:
        probe.watch(model)
        model.config.finalize_model_grads_func = calls.append
        for _ in range(2):
            with probe.step():
                cpu_model.loss_of(model).backward()
                model.config.finalize_model_grads_func([model])
    assert "grad_sync" in {phase.phase for phase in only_row(tmp_path / "l").phases}
    assert len(calls) == 2
    assert model.config.finalize_model_grads_func == calls.append


def test_an_optimizer_that_never_steps_is_not_initialized(tmp_path: Path) -> None:
    model = cpu_model.build(cpu_model.DENSE)
    with MemoryProbe(str(tmp_path / "l")) as probe:
        probe.watch(model, torch.optim.AdamW(model.parameters()))
        for _ in range(4):
            with probe.step():
                cpu_model.loss_of(model).backward()
    assert not only_row(tmp_path / "l").optimizer_initialized


@pytest.mark.parametrize(
    ("error", "outcome"),
    [
        (torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB"), Outcome.OOM),
        (RuntimeError("NCCL error: out of memory"), Outcome.OOM),
        (MemoryError(), Outcome.OOM),
        (RuntimeError("found NaN in local grad norm"), Outcome.NONFINITE),
        (ValueError("shapes"), Outcome.CRASH),
        (KeyboardInterrupt(), Outcome.CRASH),
    ],
)
def test_a_failure_is_a_result_with_its_stage(
    tmp_path: Path, error: BaseException, outcome: Outcome
) -> None:
    model = cpu_model.build(cpu_model.DENSE)

    def fail(*_: Any) -> None:
        raise error

    def run() -> None:
        with MemoryProbe(str(tmp_path / "l"), candidate="[]") as probe:
            probe.watch(model)
            with probe.step():
                loss = cpu_model.loss_of(model)
                loss.register_hook(fail)
                loss.backward()

    with pytest.raises(type(error)):
        run()
    row = only_row(tmp_path / "l")
    assert (row.outcome, row.stage, row.final) == (outcome, "backward", True)
    assert row.message is not None
    assert row.message.startswith(type(error).__name__)


def test_a_nan_loss_is_not_a_pass(tmp_path: Path) -> None:
    with MemoryProbe(str(tmp_path / "l"), candidate="[]") as probe:
        probe.step_begins()
        probe.step_ends(torch.tensor(math.nan))
        probe.step_begins()
        probe.step_ends((torch.tensor(2.0), torch.tensor(8)))
    row = only_row(tmp_path / "l")
    assert (row.outcome, row.nan_iterations) == (Outcome.NONFINITE, 1)


def test_growth_from_step_to_step_is_seen(tmp_path: Path) -> None:
    def run(name: str, per_step: int) -> Row:
        kept: list[Any] = []
        with MemoryProbe(str(tmp_path / name), candidate="[]") as probe:
            for _ in range(9):
                with probe.step():
                    kept.append(torch.ones(per_step, dtype=torch.uint8))
        return only_row(tmp_path / name)

    assert run("leak", 8 << 20).growth_bytes_per_step >= 7 << 20
    assert run("steady", 16).growth_bytes_per_step == 0


def test_the_callback_of_bridge(tmp_path: Path) -> None:
    """The events, their names and their context are those of Bridge's callbacks.py."""
    model = cpu_model.build(cpu_model.DENSE)
    optimizer = torch.optim.AdamW(model.parameters())
    probe = MemoryProbe(str(tmp_path / "l"))
    context = types.SimpleNamespace(
        model=[model], optimizer=optimizer, loss_dict=None, skipped_iter=False
    )
    probe.on_train_start(context)
    for _ in range(3):
        context.loss_dict = None
        probe.on_train_step_start(context)
        loss = cpu_model.loss_of(model)
        loss.backward()
        optimizer.step()
        context.loss_dict = {"lm loss": loss.detach()}
        probe.on_train_step_end(context)
    probe.on_train_end(context)
    row = only_row(tmp_path / "l")
    assert (row.outcome, row.candidate, len(row.step_seconds)) == (Outcome.PASS, "[]", 3)


def test_a_killed_run_says_where_it_was(tmp_path: Path) -> None:
    code = f"""
import os, signal, torch
from recompute.megatron import MemoryProbe
probe = MemoryProbe({str(tmp_path / "l")!r}, candidate="[]").__enter__()
probe.enter("forward")
keep = torch.ones(1 << 26)
probe.enter("backward")
os.kill(os.getpid(), signal.SIGKILL)
"""
    done = subprocess.run([sys.executable, "-c", code], check=False)
    assert done.returncode == -signal.SIGKILL
    row = only_row(tmp_path / "l")
    assert (row.outcome, row.stage, row.final) == (Outcome.CRASH, "backward", False)
    peaks = {phase.phase: phase.allocated_peak_bytes or 0 for phase in row.phases}
    assert peaks["forward"] > 1 << 28


def test_a_full_disk_does_not_stop_training(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = tmp_path / "l" / "rows"
    rows.mkdir(parents=True)
    (rows / "rank-00000.jsonl").symlink_to("/dev/full")
    with MemoryProbe(str(tmp_path / "l"), candidate="[]") as probe:
        for _ in range(3):
            with probe.step():
                pass
    said = capsys.readouterr().err
    assert said.count("No space left") == 1


def test_the_launcher_names_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    told = {"ledger": str(tmp_path / "l"), "run": "mlp-1", "candidate": "[mlp]", "repeat": 1}
    monkeypatch.setenv("RECOMPUTE_RUN", json.dumps(told | {"control_id": "c-0", "warmup_steps": 1}))
    with MemoryProbe():
        pass
    row = only_row(tmp_path / "l")
    assert (row.id, row.candidate, row.repeat, row.control_id) == ("mlp-1", "[mlp]", 1, "c-0")


def test_probed_runs_are_compared(tmp_path: Path) -> None:
    root = tmp_path / "l"
    for repeat, plan in ((0, "[]"), (1, "[]"), (0, "[mlp]")):
        model = cpu_model.build(cpu_model.DENSE)
        with (
            MemoryProbe(
                str(root), run=f"{plan}-{repeat}", control_id="[]-0", repeat=repeat
            ) as probe,
            apply(model, plan),
        ):
            train(probe, model, 6)
    answer = compare(read_ledger(str(root)))
    assert answer.control is not None
    assert answer.control.candidate == "[]"
    assert answer.noise.repeats == 2
    (only,) = answer.candidates
    assert only.measured.candidate == "[mlp]"
    assert only.step_time is not None
    assert only.measured.steady_steps == 4
