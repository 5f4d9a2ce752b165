"""``MemoryProbe``: what a training loop does to memory and time, as rows of a ledger.

As a callback of Megatron Bridge, or as a context manager around any loop::

    with MemoryProbe("ledger", candidate="[mlp]") as probe:
        probe.watch(model, optimizer)
        for batch in data:
            with probe.step():
                ...

Rows are appended when a phase or step sets a new maximum, and at the end of steps at most once a second, each
with one write, so that they outlive a kill (see :mod:`recompute.megatron.journal`). Which steps are looked at
phase by phase is in :mod:`recompute.megatron.looks`; the others are looked at once, at their end.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final, Self

from recompute.errors import ConfigError
from recompute.measure.candidate import choice_of_read_back, text_of
from recompute.measure.ledger import RowWriter, write_manifest
from recompute.measure.row import WHOLE_STEP, Outcome
from recompute.megatron.boundaries import layers_of, read_back
from recompute.megatron.environment import environment, place
from recompute.megatron.journal import Journal, say
from recompute.megatron.looks import Looks
from recompute.megatron.loops import TrainingLoops
from recompute.megatron.meters import Peaks, meter_of
from recompute.megatron.record import Record, RunName
from recompute.megatron.watch import Hooks, has_states

RUN: Final = "RECOMPUTE_RUN"
"""Environment variable in which ``recompute measure`` names the run: a JSON object."""
UNKNOWN: Final = "?"
"""Candidate of a run that neither said its choice nor showed a model."""
_GOING_ON: Final = "the run was killed, or still goes on"
_BETWEEN: Final = "between_steps"
MAX_PENDING: Final = 64
"""Steps whose end the device has not reported yet, before one is waited for."""


class MemoryProbe(TrainingLoops):
    """Writes what one rank sees of one run.

    Args:
        ledger: The folder; under ``recompute measure`` all of these come from the launcher.
        candidate: The recompute choice as text; read back from the model where it is left out.
        run: Names the run; its ranks share it, and a later run of the same name takes its place. By
            default candidate and repeat.
        control_id: ``run`` of the control.
        repeat: Counts equal runs.
        overrides: ``section.field=value`` by which the run differs from the ledger's job.
        warmup_steps: Leading steps that count in no average.
        snapshots: Write a memory snapshot when the run goes out of memory.
        every_phase: Look at every phase of every step, not of the first and every 17th alone.

    Raises:
        ConfigError: ``probe-needs-ledger``.
        WorldError: ``cannot-write``, when the ledger cannot even be begun.
    """

    def __init__(
        self,
        ledger: str | None = None,
        *,
        candidate: str | None = None,
        run: str | None = None,
        control_id: str | None = None,
        repeat: int = 0,
        overrides: Sequence[str] = (),
        warmup_steps: int = 2,
        snapshots: bool = True,
        every_phase: bool = False,
    ) -> None:
        told = _told()
        self.root = ledger or told.get("ledger")
        if not self.root:
            raise ConfigError(
                "probe-needs-ledger",
                "MemoryProbe was not told where its ledger is",
                hint='MemoryProbe("ledger"), or run under recompute measure',
            )
        self._given_candidate = candidate or told.get("candidate")
        self._name = RunName(
            id=run or told.get("run") or "",
            candidate=self._given_candidate or "",
            control_id=control_id or told.get("control_id"),
            repeat=told.get("repeat", repeat),
            attempt=told.get("attempt", 0),
            order=told.get("order"),
            data_seed=told.get("data_seed", 0),
            rank=0,
            world_size=1,
            overrides=tuple(overrides or told.get("overrides", ())),
        )
        self._warmup = told.get("warmup_steps", warmup_steps)
        self._snapshots = snapshots
        self._looks = Looks(warmup_steps=self._warmup, every_phase=every_phase)
        self._in_step = False
        self._whole = False
        self._hooks = Hooks()
        self._model: Any = ()
        self._optimizer: Any = None
        self._phase = "initialization"
        self._steps = 0
        self._begun: Any = None
        self._pending: list[tuple[Any, Any, Any]] = []
        self._open = False
        self._plan = self._given_candidate if told.get("apply") else None

    # --- around the loop

    def __enter__(self) -> Self:
        torch = sys.modules.get("torch")
        self._torch = torch
        # Only now: a loop may join its processes after it made the probe.
        rank, world = place(torch)
        self._name = replace(self._name, rank=rank, world_size=world)
        self._meter = meter_of(torch)
        seen = environment(torch)
        path = Path(str(self.root), "manifest.json")
        if not path.exists():
            write_manifest(str(self.root), environment=seen)
        self._record = Record(
            name=self._name,
            meter=self._meter.name,
            warmup_steps=self._warmup,
            environment=seen,
            phase_steps=self._looks.phase_steps,
        )
        self._journal = Journal(RowWriter(str(self.root), f"rank-{self._name.rank:05d}"))
        self._meter.start()
        self._open = True
        self._write(Outcome.CRASH, _GOING_ON, final=False)
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        self.close(error)

    def close(self, error: BaseException | None = None) -> None:
        """End the run: as a pass, or as what ``error`` says. A second time does nothing."""
        if not self._open:
            return
        self._open = False
        self._look()
        with contextlib.suppress(Exception):  # a device that failed reports no times
            self._collect(wait=error is None)
        outcome = _outcome_of(error, self._record)
        if outcome is Outcome.OOM and self._snapshots:
            self._snapshot()
        self._hooks.remove()
        self._meter.stop()
        stage = None if outcome is Outcome.PASS else self._phase
        self._write(outcome, None if error is None else _line(error), final=True, stage=stage)
        self._journal.close()

    def watch(self, model: Any, optimizer: Any = None) -> None:
        """Follow the phases of a model (or list of chunks) and of its optimizer, and read the model back."""
        if self._plan is not None:  # of a plan per layer that the user's own script was told
            from recompute.megatron.applied import apply

            apply(model, self._plan)
        with self._timed():
            self._model = model
            if self._meter.move(model):
                self._record.forget_peaks()
                self._looks.forget()
            self._record.environment = environment(self._torch)  # Megatron Core is loaded by now
            self._hooks.on_model(model, self.enter)
            if optimizer is not None:
                self._optimizer = optimizer
                self._hooks.on_optimizer(optimizer, self._before_update, self._after_update)
            if layers_of(model):
                seen = read_back(model)
                self._record.recompute_seen = seen
                if self._given_candidate is None:
                    candidate = text_of(choice_of_read_back(seen))
                    self._record.name = replace(self._name, candidate=candidate)
            self._look()

    def at_close(self, undo: Callable[[], None]) -> None:
        """Have something undone when the run ends."""
        self._hooks.also(undo)

    # --- in the loop

    @contextlib.contextmanager
    def step(self) -> Iterator[None]:
        """Hold one training step."""
        self.step_begins()
        yield
        self.step_ends()

    @contextlib.contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Hold one phase, for loops whose model and optimizer are not watched."""
        before = self._phase
        self.enter(name)
        yield
        self.enter(before)

    def enter(self, phase: str) -> None:
        """Say that a phase begins; the one before ends."""
        if not self._open or phase == self._phase:
            return
        if self._whole:
            self._phase = phase
            return
        with self._timed():
            if self._look():
                self._write(Outcome.CRASH, _GOING_ON, final=False, stage=phase)
            self._phase = phase

    def step_begins(self) -> None:
        """Say that a step begins."""
        self._leave_whole()
        awaits = self._optimizer is not None and not self._record.optimizer_initialized
        by_phase = self._looks.begins(self._steps, awaits_states=awaits)
        if by_phase or self._phase != _BETWEEN:
            self.enter("forward")
        self._phase, self._in_step, self._whole = "forward", True, not by_phase
        with self._timed():
            self._hooks.on_gradients(self._model, self.enter)
            if self._record.optimizer_initialized and self._record.static_bytes is None:
                self._record.static_bytes = self._meter.allocated()
            self._begun = self._meter.stamp()

    def step_ends(self, loss: Any = None, *, skipped: bool = False) -> None:
        """Say that a step ends.

        Args:
            loss: A number or tensor, looked at for being finite once the device has got there.
            skipped: The loop skipped the update.
        """
        self.enter(_BETWEEN)
        with self._timed():
            self._steps += 1
            loss = self._meter.later(loss)
            self._pending.append((self._begun, self._meter.stamp(), loss))
            self._begun = None
            self._record.skipped += bool(skipped)
            peaks = self._meter.take()
            phase = WHOLE_STEP if self._whole else self._phase
            new = self._saw(peaks)
            self._in_step = self._whole = False
            self._collect(wait=len(self._pending) > MAX_PENDING)
            steady = self._steps > max(self._warmup, 1)
            self._record.ended_step(peaks.current, steady=steady)
            self._record.retries, self._record.segments = self._meter.counts()
            if new or self._journal.due:
                if not new:  # other processes may have taken more
                    self._device(phase)
                self._write(Outcome.CRASH, _GOING_ON, final=False, at_once=new)
        if self._steps == self._warmup:
            self._record.warm_probe_seconds = self._record.probe_seconds

    def kernels_took(self, seconds: float | None) -> None:
        """Take how long the device was busy in one step, where the loop has profiled one."""
        self._record.kernel_seconds = seconds

    # --- inside

    def _before_update(self) -> None:
        ready = self._record.optimizer_initialized
        self.enter("optimizer_step" if ready else "optimizer_init")

    def _after_update(self, result: Any) -> None:
        self.enter(_BETWEEN)
        with self._timed():
            if isinstance(result, tuple) and result and result[0] is False:
                self._record.skipped += 1
            elif not self._record.optimizer_initialized:
                self._record.optimizer_initialized = has_states(self._optimizer)

    def _leave_whole(self) -> None:
        """Take the peaks of a step that was to be looked at once and never ended."""
        if not self._whole:
            return
        with self._timed():
            if self._look():
                self._write(Outcome.CRASH, _GOING_ON, final=False)
            self._whole = False

    def _look(self) -> bool:
        return self._saw(self._meter.take())

    def _saw(self, peaks: Peaks) -> bool:
        """Take the peaks since the last look; say whether one is a new maximum."""
        phase = WHOLE_STEP if self._whole else self._phase
        between = phase == _BETWEEN
        if self._whole:
            self._looks.saw_whole(peaks)
        elif between or (self._in_step and phase != "optimizer_init"):  # that comes once
            self._looks.showed(peaks, standing=between)
        new = self._record.saw(phase, peaks)
        if new:
            self._device(phase)
        return new

    def _device(self, phase: str) -> None:
        """Ask the driver how full the device is; not in every phase, since it takes its time."""
        used = None
        with contextlib.suppress(RuntimeError):  # a device that failed answers nothing any more
            used = self._meter.device_used()
        if used is not None:
            self._record.device[phase] = max(used, self._record.device.get(phase, 0))

    def _collect(self, *, wait: bool) -> None:
        while self._pending:
            begun, ended, loss = self._pending[0]
            seconds = self._meter.seconds(begun or ended, ended, wait=wait)
            if seconds is None:
                return
            if begun is not None:
                self._record.step_seconds.append(seconds)
            self._record.nonfinite += loss is not None and not _is_finite(loss)
            del self._pending[0]

    def _snapshot(self) -> None:
        name = "".join(c if c.isalnum() else "-" for c in self._name.id)[:80]
        path = Path(str(self.root), "snapshots", f"{name}.rank{self._name.rank}.pickle")
        try:
            path.parent.mkdir(exist_ok=True)
            self._meter.snapshot(path)
        except (OSError, RuntimeError) as error:
            say(f"no memory snapshot: {error}")

    def _write(
        self,
        outcome: Outcome,
        message: str | None,
        *,
        final: bool,
        stage: str | None = None,
        at_once: bool = True,
    ) -> None:
        named = self._record.name
        if not final and not (named.candidate and self._open):
            return
        candidate = named.candidate or UNKNOWN
        run = named.id or f"{candidate}-{named.repeat}"
        self._record.name = replace(named, id=run, candidate=candidate)
        row = self._record.row(
            outcome, stage or (None if final else self._phase), message, final=final
        )
        if at_once:
            self._journal.append(row)
        else:
            self._journal.hand(row)

    @contextlib.contextmanager
    def _timed(self) -> Iterator[None]:
        began = time.perf_counter()
        yield
        self._record.probe_seconds += time.perf_counter() - began


def _told() -> dict[str, Any]:
    """Return what the launcher said about this run.

    Raises:
        ConfigError: ``bad-run-variable``.
    """
    text = os.environ.get(RUN)
    if not text:
        return {}
    try:
        document = json.loads(text)
    except ValueError:
        document = None
    if not isinstance(document, dict):
        raise ConfigError(
            "bad-run-variable",
            f"{RUN} is no JSON object",
            hint="it is set by recompute measure; unset it elsewhere",
        )
    return document


def _outcome_of(error: BaseException | None, record: Record) -> Outcome:
    left_well = isinstance(error, SystemExit) and not error.code and bool(record.step_seconds)
    if error is None or left_well:
        return Outcome.NONFINITE if record.nonfinite else Outcome.PASS
    if isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError":
        return Outcome.OOM
    text = str(error).lower()
    if isinstance(error, RuntimeError) and "out of memory" in text:
        return Outcome.OOM
    if record.nonfinite or "found nan in" in text or "found inf in" in text:
        return Outcome.NONFINITE
    return Outcome.CRASH


def _line(error: BaseException) -> str:
    lines = f"{type(error).__name__}: {error}".splitlines()
    return lines[0][:400]


def _is_finite(value: Any) -> bool:
    if isinstance(value, tuple | list):  # Megatron also reduces (sum, number of tokens)
        return all(_is_finite(item) for item in value)
    if hasattr(value, "numel"):
        return math.isfinite(value.item()) if value.numel() == 1 else bool(value.isfinite().all())
    return math.isfinite(value)
