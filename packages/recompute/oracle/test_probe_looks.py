"""The probe around a stand-in for CUDA's allocator: what it resets, and which steps it looks at by phase."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from recompute.measure.row import Outcome
from recompute.megatron import MemoryProbe
from recompute.megatron.looks import STATES_WITHIN, STEADY_LOOKS
from recompute.megatron.meters import CudaMeter

sys.path.insert(0, str(Path(__file__).parent))
import cpu_layers
from cpu_probe import only_row


@pytest.fixture(scope="module", autouse=True)
def group(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with cpu_layers.on_cpu(tmp_path_factory.mktemp("group")):
        yield


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
