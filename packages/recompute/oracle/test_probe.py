"""The probe around real steps of a real model on the CPU, and around a stand-in for CUDA's allocator."""

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
from recompute.megatron.looks import STATES_WITHIN, STEADY_LOOKS
from recompute.megatron.meters import CudaMeter

sys.path.insert(0, str(Path(__file__).parent))
import cpu_layers
import cpu_model


@pytest.fixture(scope="module", autouse=True)
def group(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with cpu_layers.on_cpu(tmp_path_factory.mktemp("group")):
        yield


def train(probe: MemoryProbe, model: Any, steps: int, optimizer: Any = None) -> None:
    optimizer = optimizer or torch.optim.AdamW(model.parameters(), lr=1e-4)
    probe.watch(model, optimizer)
    for _ in range(steps):
        with probe.step():
            optimizer.zero_grad(set_to_none=True)
            loss = cpu_model.loss_of(model)
            loss.backward()
            optimizer.step()


def only_row(root: Path) -> Row:
    (row,) = read_ledger(str(root)).rows
    return row


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


# --- resetting peaks under the eyes of the loop


class Allocator:
    """Stands for torch's CUDA allocator: bytes now, and their peak since the last reset."""

    def __init__(self) -> None:
        self.now = self.peak = 0
        self.looks = 0
        """Resets of the peak: each look ends in one."""

    def set(self, size: int) -> None:
        """Allocate or free up to ``size`` bytes."""
        self.now = size
        self.peak = max(self.peak, size)

    def stats(self, device: int) -> dict[str, Any]:
        """Answer in the shape of ``torch._C._cuda_memoryStats``."""
        values = {"current": self.now, "peak": self.peak, "allocated": 0, "freed": 0}
        pools = {"all": dict(values), "small_pool": dict(values), "large_pool": dict(values)}
        return {
            "allocated_bytes": pools,
            "reserved_bytes": {"all": dict(values)},
            "segment": {"all": dict(values)},
            "oversize_segments": dict(values),
            "num_alloc_retries": 0,
        }

    def reset(self, device: int) -> None:
        """Forget the peak."""
        self.peak = self.now
        self.looks += 1


@pytest.fixture
def allocator(monkeypatch: pytest.MonkeyPatch) -> Allocator:
    stand_in = Allocator()
    monkeypatch.setattr(torch._C, "_cuda_memoryStats", stand_in.stats, raising=False)
    monkeypatch.setattr(torch._C, "_cuda_resetPeakMemoryStats", stand_in.reset, raising=False)
    monkeypatch.setattr(torch.cuda.memory, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda.memory, "_get_device_index", lambda *_, **__: 0)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    return stand_in


def test_the_loop_keeps_seeing_its_own_maximum(allocator: Allocator) -> None:
    allocator.set(50)
    meter = CudaMeter(torch)
    meter.start()
    allocator.set(900)
    allocator.set(100)
    assert meter.take().allocated == 900
    allocator.set(300)
    assert torch.cuda.max_memory_allocated() == 900
    assert torch.cuda.memory_stats()["allocated_bytes.all.peak"] == 900
    assert torch.cuda.memory_stats()["reserved_bytes.all.peak"] == 900
    assert torch.cuda.memory_allocated() == 300
    assert meter.take().allocated == 300
    assert torch.cuda.max_memory_allocated() == 900
    meter.stop()
    assert torch.cuda.max_memory_allocated() == 300


def test_the_loops_own_reset_works_and_hides_nothing_from_the_probe(allocator: Allocator) -> None:
    meter = CudaMeter(torch)
    meter.start()
    allocator.set(900)
    allocator.set(100)
    torch.cuda.reset_peak_memory_stats()
    assert torch.cuda.max_memory_allocated() == 100
    allocator.set(200)
    assert meter.take().allocated == 900
    assert torch.cuda.max_memory_allocated() == 200
    assert meter.take().allocated == 200
    meter.stop()
    assert torch._C._cuda_resetPeakMemoryStats == allocator.reset


# --- which steps are looked at by phase


class Stepping:
    """A probe on a stand-in allocator, and a loop that allocates by plan."""

    PEAKS = (("forward", 300), ("loss", 500), ("backward", 700), ("optimizer_step", 400))

    def __init__(self, root: Path, allocator: Allocator, **options: Any) -> None:
        self.root, self.allocator = root, allocator
        self.probe = MemoryProbe(str(root), candidate="[]", warmup_steps=2, **options)

    def step(self, stands: int = 100, **peaks: int) -> int:
        """Take a step whose phases reach their peaks and that leaves ``stands`` bytes; count its looks."""
        before = self.allocator.looks
        with self.probe.step():
            for phase, peak in (dict(self.PEAKS) | peaks).items():
                self.probe.enter(phase)
                self.allocator.set(peak)
                self.allocator.set(stands)
        return self.allocator.looks - before

    def peaks(self) -> dict[str, int | None]:
        """Return the peaks of the row that stands now."""
        return {p.phase: p.allocated_peak_bytes for p in only_row(self.root).phases}


class NoEvents(CudaMeter):
    """The meter of a GPU, on the host's clock."""

    def stamp(self) -> Any:
        """Return some mark."""
        return 1.0

    def seconds(self, first: Any, last: Any, *, wait: bool) -> float:
        """Return some time."""
        return 0.125

    def device_used(self) -> int | None:
        """Return nothing: there is no driver to ask."""
        return None


@pytest.fixture
def stepping(
    allocator: Allocator, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Stepping]:
    monkeypatch.setattr("recompute.megatron.probe.meter_of", NoEvents)
    monkeypatch.setattr("recompute.megatron.probe.environment", lambda _: {})
    allocator.set(100)
    held = Stepping(tmp_path / "l", allocator)
    with held.probe:
        yield held


def test_a_steady_step_is_looked_at_once_and_its_peak_is_recorded(stepping: Stepping) -> None:
    looks = [stepping.step() for _ in range(36)]
    by_phase = [*range(5), 17, 34]
    assert [index for index, count in enumerate(looks) if count > 1] == by_phase
    assert {looks[index] for index in by_phase} == {6}  # between steps, four phases, the end
    assert {count for index, count in enumerate(looks) if index not in by_phase} == {1}
    stepping.probe.close()
    row = only_row(stepping.root)
    assert row.phase_steps == tuple(by_phase)
    held = stepping.peaks()
    assert {name: held[name] for name, _ in Stepping.PEAKS} == dict(Stepping.PEAKS)
    assert held["whole_step"] == 700
    assert row.peak is not None
    assert row.peak.phase == "backward"
    assert row.growth_bytes_per_step == 0


def test_the_device_is_asked_at_the_ends_of_phases_that_reach_something_new(
    stepping: Stepping, allocator: Allocator, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[int] = []
    held = [5000]

    def used(_: CudaMeter) -> int:
        asked.append(held[0])
        return held[0]

    monkeypatch.setattr(NoEvents, "device_used", used)
    for _ in range(10):
        stepping.step()
    assert len(asked) < 12  # of more than 30 looks
    held[0] = 9000
    allocator.set(2000)
    stepping.probe.enter("evaluation")
    found = {p.phase: p.device_peak_bytes for p in only_row(stepping.root).phases}
    assert found.pop("between_steps") == 9000
    assert set(found.values()) == {5000}


def test_a_device_that_failed_does_not_hide_why(
    stepping: Stepping, allocator: Allocator, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(_: CudaMeter) -> int:
        raise RuntimeError("CUDA error: an illegal memory access was encountered")

    stepping.step()
    monkeypatch.setattr(NoEvents, "device_used", broken)
    stepping.probe.enter("backward")
    allocator.set(9000)
    stepping.probe.close(RuntimeError("CUDA error: an illegal memory access was encountered"))
    row = only_row(stepping.root)
    assert (row.outcome, row.stage, row.final) == (Outcome.CRASH, "backward", True)


def test_every_phase_of_every_step_on_request(
    allocator: Allocator, tmp_path: Path, stepping: Stepping
) -> None:
    stepping.probe.close()
    other = Stepping(tmp_path / "every", allocator, every_phase=True)
    with other.probe:
        assert {other.step() for _ in range(20)} == {6}
    assert "whole_step" not in other.peaks()


def test_a_higher_peak_in_a_step_not_looked_at_is_in_its_row_and_the_next_is_looked_at(
    stepping: Stepping,
) -> None:
    for _ in range(8):
        stepping.step()
    assert stepping.step(forward=900) == 1
    assert stepping.peaks()["whole_step"] == 900  # before the run goes on
    assert torch.cuda.max_memory_allocated() == 900
    assert stepping.step(forward=950) == 6
    assert stepping.peaks()["forward"] == 950
    assert stepping.step(forward=940) == 1
    assert stepping.step() == 1
    assert torch.cuda.max_memory_allocated() == 950
    assert (stepping.peaks()["backward"], stepping.peaks()["whole_step"]) == (700, 940)


def test_an_optimizer_without_states_is_waited_for_no_longer_than_64_steps(
    stepping: Stepping,
) -> None:
    stepping.probe.watch((), SGD())
    looks = [stepping.step() for _ in range(STATES_WITHIN + 22)]
    by_phase = [index for index, count in enumerate(looks) if count > 1]
    assert by_phase == [*range(STATES_WITHIN + STEADY_LOOKS), 68, 85]  # every 17th from there
    assert [stepping.step(200) for _ in range(3)] == [1, 6, 1]  # states come after all
    stepping.probe.close()
    assert not only_row(stepping.root).optimizer_initialized


class SGD:
    """An optimizer as the probe sees it, that never has states."""

    def __init__(self) -> None:
        self.state: dict[object, object] = {}

    def step(self) -> None:
        """Do nothing."""


def test_what_steps_leave_behind_has_them_looked_at(stepping: Stepping) -> None:
    for _ in range(8):
        stepping.step()
    leak = 1 << 17
    looks = [stepping.step(100 + leak * (1 + index)) for index in range(6)]
    assert looks == [1, 6, 1, 6, 1, 6]
    stepping.probe.close()
    assert only_row(stepping.root).growth_bytes_per_step == leak


def test_an_evaluation_is_kept_out_of_the_steps(stepping: Stepping, allocator: Allocator) -> None:
    for _ in range(8):
        stepping.step()
    stepping.probe.enter("evaluation")
    allocator.set(5000)
    allocator.set(100)
    stepping.probe.enter("between_steps")
    assert stepping.step() == 1
    stepping.probe.enter("evaluation")
    allocator.set(4000)
    allocator.set(100)
    stepping.step()  # the loop does not say that it ended
    held = stepping.peaks()
    assert (held["evaluation"], held["whole_step"]) == (5000, 700)


def test_running_out_of_memory_in_a_step_not_looked_at_names_its_phase(
    stepping: Stepping, allocator: Allocator
) -> None:
    for _ in range(8):
        stepping.step()
    stepping.probe._snapshots = False
    stepping.probe.step_begins()
    allocator.set(800)
    stepping.probe.enter("loss")
    stepping.probe.close(torch.OutOfMemoryError("CUDA out of memory"))
    row = only_row(stepping.root)
    assert (row.outcome, row.stage) == (Outcome.OOM, "loss")
    assert stepping.peaks()["whole_step"] == 800
    assert stepping.peaks()["loss"] == 500


def test_a_loop_that_outlives_its_probe_goes_on_and_is_not_recorded(stepping: Stepping) -> None:
    for _ in range(8):
        stepping.step()
    stepping.probe.close()
    before = only_row(stepping.root)
    for _ in range(3):
        stepping.step(200, forward=9000)
    assert only_row(stepping.root) == before
    assert before.final


def test_a_step_that_never_ended_is_no_part_of_the_next(
    stepping: Stepping, allocator: Allocator
) -> None:
    for _ in range(8):
        stepping.step()
    stepping.probe.step_begins()
    allocator.set(800)
    allocator.set(100)
    stepping.probe.enter("loss")  # an error that the loop survives
    assert stepping.step() > 1
    held = stepping.peaks()
    assert (held["whole_step"], held["loss"], held["forward"]) == (800, 500, 300)


# --- the loops of Bridge and Megatron-LM


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
