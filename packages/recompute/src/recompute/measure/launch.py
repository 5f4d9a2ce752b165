"""Start one run in its own process group, with a time limit, and say how it ended. An edge module."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any, Final

from recompute.errors import WorldError

TRAINER: Final = "recompute.megatron.trainer"
GRACE_SECONDS: Final = 10.0
"""From SIGTERM to SIGKILL."""
RUNNING: Final = "running.json"
TAIL_BYTES: Final = 4096


class Launcher(StrEnum):
    """How the processes of a run are started."""

    LOCAL = "local"
    TORCHRUN = "torchrun"


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """How a run's processes ended."""

    code: int
    timed_out: bool
    seconds: float
    tail: str
    """Last line of its log that is not empty."""


def command_of(
    launcher: Launcher, *, python: str, world: int, entry: Sequence[str], overrides: Sequence[str]
) -> list[str]:
    """Return the command of one run.

    Args:
        launcher: Which one.
        python: The interpreter that has torch and Megatron Core.
        world: Processes.
        entry: The user's script with its arguments; empty for the built-in trainer.
        overrides: Added to the user's arguments.
    """
    target = [*entry, *overrides] if entry else ["-m", TRAINER]
    if launcher is Launcher.LOCAL:
        return [python, *target]
    elastic = [python, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={world}"]
    return [*elastic, *target]


def run_process(
    root: str, name: str, command: Sequence[str], environment: Mapping[str, str], *, limit: float
) -> Ended:
    """Run a command to its end, or to its time limit.

    Args:
        root: The ledger; output goes to ``logs/NAME.log`` in it.
        name: Names the log.
        command: As :func:`command_of` returns it.
        environment: Added to this process's own.
        limit: Seconds.

    Raises:
        WorldError: ``launcher-failed``: the command cannot even be started.
    """
    log = Path(root, "logs", f"{name}.log")
    began = time.monotonic()
    try:
        log.parent.mkdir(exist_ok=True)
        with log.open("ab") as sink:
            process = subprocess.Popen(  # noqa: S603 - the user's own interpreter and script
                list(command),
                stdin=subprocess.DEVNULL,
                stdout=sink,
                stderr=subprocess.STDOUT,
                env={**os.environ, **environment},
                start_new_session=True,
            )
    except OSError as error:
        raise WorldError(
            "launcher-failed",
            f"cannot start {command[0]}: {error.strerror or error}",
            hint="--python names the interpreter that has torch and Megatron Core",
            data={"command": list(command)},
        ) from error
    running = Path(root, RUNNING)
    timed_out = False
    try:
        running.write_text(json.dumps({"pid": process.pid, "started": _started(process.pid)}))
        code = process.wait(timeout=limit)
    except subprocess.TimeoutExpired:
        timed_out = True
        code = _end(process)
    except BaseException:  # Ctrl-C, a full disk: leave nothing behind
        _end(process)
        raise
    _kill_group(process.pid, signal.SIGKILL)  # what a dead launcher left of its group
    running.unlink(missing_ok=True)
    return Ended(code=code, timed_out=timed_out, seconds=time.monotonic() - began, tail=_tail(log))


def end_leftovers(root: str) -> bool:
    """Kill the run that a killed ``recompute measure`` left behind; say whether there was one."""
    path = Path(root, RUNNING)
    try:
        document: dict[str, Any] = json.loads(path.read_text("utf-8"))
        pid, started = int(document["pid"]), document["started"]
    except (OSError, ValueError, KeyError, TypeError):
        return False
    alive = pid > 1 and started is not None and _started(pid) == started
    if alive:
        _kill_group(pid, signal.SIGKILL)
    path.unlink(missing_ok=True)
    return alive


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
    """Return when a process began, in clock ticks since boot: with the id it names the process."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text("ascii", errors="replace")
    except OSError:
        return None
    return text.rpartition(")")[2].split()[19]


def _tail(log: Path) -> str:
    with contextlib.suppress(OSError), log.open("rb") as stream:
        stream.seek(0, os.SEEK_END)
        stream.seek(max(0, stream.tell() - TAIL_BYTES))
        lines = stream.read().decode("utf-8", "replace").splitlines()
        return next((line.strip()[:300] for line in reversed(lines) if line.strip()), "")
    return ""
