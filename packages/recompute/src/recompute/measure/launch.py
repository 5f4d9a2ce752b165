"""Start runs in process groups of their own, with a time limit, and say how they ended. An edge module."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any, Final

from recompute.errors import WorldError
from recompute.measure.ledger import write_whole, writing
from recompute.measure.log_end import tail_of
from recompute.measure.row import Outcome

TRAINER: Final = "recompute.megatron.trainer"
GRACE_SECONDS: Final = 10.0
"""From SIGTERM to SIGKILL."""
RUN_VARIABLE: Final = "RECOMPUTE_RUN"
"""Environment variable in which a run is told what it is: a JSON object."""
RUNNING: Final = "running.json"
GATE: Final = "RECOMPUTE_GATE"
"""Environment variable with the number of an inherited pipe: a run that is started ahead reads it."""


class Launcher(StrEnum):
    """How the processes of a run are started."""

    LOCAL = "local"
    TORCHRUN = "torchrun"
    SLURM = "slurm"
    NEMO_RUN = "nemo-run"


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """How a run's processes ended."""

    code: int
    timed_out: bool
    seconds: float
    tail: str
    """What the end of its log says; of a run that was ended, before that."""
    outcome: Outcome | None = None
    """Of ranks without a final row, where a scheduler knows better than the exit status."""
    outside: bool = False
    """Ended from outside: says nothing about the candidate."""
    again: bool = False
    """Worth another try at once."""
    said: str | None = None
    """What the scheduler says, in words."""


def target_of(entry: Sequence[str], arguments: Sequence[str]) -> tuple[str, ...]:
    """Return what an interpreter runs: the user's script with its arguments and those of the run, or our own.

    Args:
        entry: The user's script with its arguments; empty for the built-in trainer.
        arguments: Added to the user's.
    """
    return (*entry, *arguments) if entry else ("-m", TRAINER)


def command_of(launcher: Launcher, *, python: str, world: int, target: Sequence[str]) -> list[str]:
    """Return the command of one run that starts on this machine.

    Args:
        launcher: Local or torchrun.
        python: The interpreter that has torch and Megatron Core.
        world: Processes.
        target: As :func:`target_of` returns it.
    """
    if launcher is Launcher.LOCAL:
        return [python, *target]
    elastic = [python, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={world}"]
    return [*elastic, *target]


@dataclass(slots=True, kw_only=True)
class Started:
    """A run whose processes are there; behind a gate, they wait for their turn."""

    process: subprocess.Popen[bytes]
    log: Path
    mark: str = ""
    """What its environment says of the run: by this its processes are known."""
    gate: int | None = None
    """Write end of the pipe that the run waits at; closing it unopened ends the run."""

    def open_gate(self) -> None:
        """Say that it is the run's turn."""
        if self.gate is not None:
            with contextlib.suppress(OSError):  # it may have ended already
                os.write(self.gate, b"1")
            self._close()

    def abandon(self) -> None:
        """End a run whose turn never came."""
        self._close()
        _end(self.process)
        end_strays(self.mark)

    def _close(self) -> None:
        if self.gate is not None:
            os.close(self.gate)
            self.gate = None


def start_process(
    root: str,
    name: str,
    command: Sequence[str],
    environment: Mapping[str, str],
    *,
    gated: bool = False,
) -> Started:
    """Start a command in a process group of its own.

    Args:
        root: The ledger; output goes to ``logs/NAME.log`` in it.
        name: Names the log.
        command: As :func:`command_of` returns it.
        environment: Added to this process's own.
        gated: Have it wait, with everything loaded, until :meth:`Started.open_gate`.

    Raises:
        WorldError: ``launcher-failed``: the command cannot even be started; ``cannot-write``.
    """
    mark = environment.get(RUN_VARIABLE, "")
    if not gated:  # a kill between here and the run's start must leave something to find the run by
        _note_running(root, {"mark": mark})
    log = Path(root, "logs", f"{name}.log")
    with writing(log):
        log.parent.mkdir(exist_ok=True)
        sink = log.open("ab")
    inner, outer = os.pipe() if gated else (None, None)
    told = {} if inner is None else {GATE: str(inner)}
    try:
        with sink:
            process = subprocess.Popen(  # noqa: S603 - the user's own interpreter and script
                list(command),
                stdin=subprocess.DEVNULL,
                stdout=sink,
                stderr=subprocess.STDOUT,
                env={**os.environ, **environment, **told},
                start_new_session=True,
                pass_fds=() if inner is None else (inner,),
            )
    except OSError as error:
        if outer is not None:
            os.close(outer)
        raise WorldError(
            "launcher-failed",
            f"cannot start {command[0]}: {error.strerror or error}",
            hint="--python names the interpreter that has torch and Megatron Core",
            data={"command": list(command)},
        ) from error
    finally:
        if inner is not None:
            os.close(inner)
    return Started(process=process, log=log, mark=mark, gate=outer)


def wait_for(started: Started, root: str, *, limit: float) -> Ended:
    """Let a run go, and wait for its end or its time limit.

    Args:
        started: As :func:`start_process` returns it.
        root: The ledger.
        limit: Seconds.
    """
    began = time.monotonic()
    process = started.process
    running = Path(root, RUNNING)
    last = None
    try:
        held = {"pid": process.pid, "started": _started(process.pid), "mark": started.mark}
        _note_running(root, held)
        started.open_gate()
        code = process.wait(timeout=limit)
    except subprocess.TimeoutExpired:
        last = tail_of(started.log)  # before anything is said about being ended
        code = _end(process)
    except BaseException:  # Ctrl-C, a full disk: leave nothing behind
        started.abandon()
        raise
    _kill_group(process.pid, signal.SIGKILL)  # what a dead launcher left of its group
    end_strays(started.mark)
    running.unlink(missing_ok=True)
    seconds = time.monotonic() - began
    tail = tail_of(started.log) if last is None else last
    return Ended(code=code, timed_out=last is not None, seconds=seconds, tail=tail)


def _note_running(root: str, held: Mapping[str, Any]) -> None:
    """Write down by what the run that is under way is found."""
    path = Path(root, RUNNING)
    with writing(path):
        write_whole(path, json.dumps(held))


def run_process(
    root: str, name: str, command: Sequence[str], environment: Mapping[str, str], *, limit: float
) -> Ended:
    """Run a command to its end, or to its time limit; see :func:`start_process` and :func:`wait_for`."""
    return wait_for(start_process(root, name, command, environment), root, limit=limit)


def end_leftovers(root: str) -> bool:
    """End the run that a killed ``recompute measure`` left behind; say whether there was one.

    The launcher of the run is asked first, since it alone may know where its workers are.
    """
    path = Path(root, RUNNING)
    try:
        document: dict[str, Any] = json.loads(path.read_text("utf-8"))
        pid, started = int(document.get("pid", 0)), str(document.get("started") or "")
        mark = str(document.get("mark", ""))
    except (OSError, ValueError, AttributeError, TypeError):
        return False
    alive = pid > 1 and started != "" and _started(pid) == started
    if alive:
        _kill_group(pid, signal.SIGTERM)
        _await_end(pid, started)
        _kill_group(pid, signal.SIGKILL)
    strays = end_strays(mark)
    path.unlink(missing_ok=True)
    return alive or bool(strays)


def end_strays(mark: str) -> int:
    """Kill what is left of a run, wherever it went; return how many processes that were.

    torchrun and torchx give each worker a session of its own: a launcher that dies of SIGKILL leaves them
    running, with the memory of the GPU in their hands. They are known by their environment.
    """
    killed: set[int] = set()
    for _ in range(5):  # one may have been starting another
        here = _marked(mark) - killed if mark else set()
        if not here:
            break
        for pid in here:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        killed |= here
    return len(killed)


def _marked(mark: str) -> set[int]:
    wanted = f"{RUN_VARIABLE}={mark}".encode()
    found = set()
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if wanted in (folder / "environ").read_bytes().split(b"\0"):
                found.add(int(folder.name))
    return found - {os.getpid()}


def _await_end(pid: int, started: str) -> None:
    until = time.monotonic() + GRACE_SECONDS
    while _started(pid) == started and time.monotonic() < until:
        time.sleep(0.05)


@contextlib.contextmanager
def signals_interrupt() -> Iterator[None]:
    """Have SIGTERM and SIGHUP do what Ctrl-C does: end what runs, then this.

    Raises:
        WorldError: ``interrupted``.
    """
    came: list[str] = []

    def interrupt(number: int, _: object) -> None:
        if not came:  # a second one must not disturb the tidying up
            came.append(signal.Signals(number).name)
            raise KeyboardInterrupt

    numbers = (signal.SIGTERM, signal.SIGHUP, signal.SIGINT)
    before = [signal.signal(number, interrupt) for number in numbers]
    try:
        yield
    except KeyboardInterrupt as error:
        raise WorldError(
            "interrupted",
            f"{came[0] if came else 'SIGINT'} came: the run that was under way was ended",
            hint="give the same command again: what has ended is not repeated",
        ) from error
    finally:
        for number, handler in zip(numbers, before, strict=True):
            signal.signal(number, handler)


def _end(process: subprocess.Popen[bytes]) -> int:
    """End a process group: politely first."""
    _kill_group(process.pid, signal.SIGTERM)
    try:
        return process.wait(timeout=GRACE_SECONDS)
    except subprocess.TimeoutExpired:
        _kill_group(process.pid, signal.SIGKILL)
        return process.wait()


def _kill_group(pid: int, sign: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, sign)


def _started(pid: int) -> str | None:
    """Return when a process began, in clock ticks since boot: with the id it names the process.

    None when it has ended.
    """
    try:
        text = Path(f"/proc/{pid}/stat").read_text("ascii", errors="replace")
    except OSError:
        return None
    words = text.rpartition(")")[2].split()
    return None if words[0] == "Z" else words[19]
