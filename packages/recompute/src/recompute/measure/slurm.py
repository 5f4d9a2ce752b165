"""Runs as Slurm jobs: submit, wait, cancel, find again, and what the end of a job means. An edge module.

Slurm's own programs are asked, in the forms that Slurm 22.05 to 25.05 share; nothing needs accounting. A
controller that does not answer for a while is waited for, up to a limit: the job goes on without it, and the
ledger remembers it.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import subprocess
import time
import uuid
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from recompute.errors import WorldError
from recompute.measure.launch import Ended
from recompute.measure.ledger import write_whole, writing
from recompute.measure.log_end import end_of, tail_of
from recompute.measure.row import Outcome

RUNNING_JOB: Final = "running-job.json"
FIRST_PAUSE: Final = 0.5
LONGEST_PAUSE: Final = 15.0
"""Between two questions to the controller; large clusters ask for patience."""
PROGRAM_SECONDS: Final = 120.0
SILENCE_SECONDS: Final = 1800.0
"""How long a controller may fail to answer while a job is waited for: a restart takes minutes."""
SHORT_SILENCE_SECONDS: Final = 60.0
"""The same, where the question is only what an earlier study left behind."""
SILENT: Final = "slurm-silent"
NO_SLURM: Final = "launcher-failed"
_FIELD: Final = re.compile(r"(?:^| )(JobName|JobState|RunTime|ExitCode|Reason)=(\S*)")
_TIME: Final = re.compile(r"(?:(\d+)-)?(\d+):(\d\d):(\d\d)")
_HOST_MEMORY: Final = re.compile(r"exceeded (?:job )?memory limit|oom.kill event", re.IGNORECASE)
"""What slurmstepd writes into the log (slurm-22.05 src/slurmd/slurmstepd/req.c, task/cgroup)."""
_UNKNOWN_JOB: Final = "Invalid job id"


@dataclass(frozen=True, slots=True, kw_only=True)
class EndState:
    """What it means that a job ended in a state."""

    outcome: Outcome | None
    """Of ranks without a final row; None: the exit status says."""
    outside: bool
    """Ended from outside: says nothing about the candidate, and is repeated."""
    text: str
    again: bool = False
    """Worth another job at once: nobody wanted it to end."""


STATES: Final[Mapping[str, EndState]] = {
    "COMPLETED": EndState(outcome=None, outside=False, text="completed"),
    "FAILED": EndState(outcome=None, outside=False, text="failed"),
    "TIMEOUT": EndState(outcome=Outcome.HANG, outside=False, text="reached its time limit"),
    "OUT_OF_MEMORY": EndState(
        outcome=Outcome.OOM,
        outside=False,
        text="was killed for using more host memory than it was given (--sbatch=--mem=0 gives all)",
    ),
    "NODE_FAIL": EndState(outcome=Outcome.CRASH, outside=True, again=True, text="lost a node"),
    "BOOT_FAIL": EndState(
        outcome=Outcome.CRASH, outside=True, again=True, text="got a node that does not boot"
    ),
    "PREEMPTED": EndState(outcome=Outcome.CRASH, outside=True, again=True, text="was preempted"),
    "CANCELLED": EndState(outcome=Outcome.CRASH, outside=True, text="was cancelled"),
    "DEADLINE": EndState(outcome=Outcome.CRASH, outside=True, text="met its deadline"),
    "REVOKED": EndState(outcome=Outcome.CRASH, outside=True, text="was revoked"),
}
"""Every state in which a job stays (squeue(1), JOB STATE CODES) -> what it means."""
GOING: Final = frozenset(
    [
        "PENDING",
        "RUNNING",
        "CONFIGURING",
        "COMPLETING",
        "SUSPENDED",
        "REQUEUED",
        "RESIZING",
        "SIGNALING",
        "STAGE_OUT",
        "STOPPED",
        "SPECIAL_EXIT",
        "REQUEUE_HOLD",
        "REQUEUE_FED",
        "RESV_DEL_HOLD",
    ]
)
"""States that a job leaves again."""
FORGOTTEN: Final = EndState(
    outcome=Outcome.CRASH, outside=True, text="is no longer known to Slurm, and left no final row"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Submitted:
    """A job in Slurm's hands."""

    job: str
    """Its number, with the cluster's name after ``;`` where there are several."""
    name: str
    log: Path


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """What Slurm says about a job now."""

    name: str
    state: str
    run_seconds: float
    code: int
    reason: str

    @property
    def going(self) -> bool:
        """Whether it has not ended."""
        return self.state in GOING


def job_name(root: str) -> str:
    """Return a name for a job that no other job has."""
    return f"recompute-{Path(root).resolve().name[:24]}-{uuid.uuid4().hex[:8]}"


def submit(root: str, stem: str, name: str, script: str, told: Mapping[str, Any]) -> Submitted:
    """Give a script to Slurm; the ledger remembers the job before it exists.

    Args:
        root: The ledger; the script is kept in ``logs/STEM.sbatch``.
        stem: Names script and log.
        name: As :func:`job_name` returned it, and as the script says it.
        script: As :func:`recompute.measure.slurm_script.script_of` returns it.
        told: What the run is told; a later ``recompute measure`` adopts the job when it would say the same.

    Raises:
        WorldError: ``launcher-failed``: there is no Slurm; ``slurm-refused``: it takes no such job.
    """
    path = Path(root, "logs", f"{stem}.sbatch")
    with writing(path):
        path.parent.mkdir(exist_ok=True)
        path.write_text(script, encoding="utf-8")
    memory: dict[str, Any] = {"name": name, "job": None, "stem": stem, "told": dict(told)}
    _remember(root, memory)
    done = _call("sbatch", "--parsable", str(path))
    job = done.stdout.strip().splitlines()[-1:] or [""]
    if done.returncode or not job[0].partition(";")[0].isdigit():
        forget(root)
        raise _refused(done, path)
    _remember(root, {**memory, "job": job[0]})
    return Submitted(job=job[0], name=name, log=Path(root, "logs", f"{stem}.log"))


def adopt(
    root: str, told: Mapping[str, Any], volatile: Collection[str]
) -> tuple[Submitted, dict[str, Any]] | None:
    """Return the job that an earlier ``recompute measure`` left behind, if it is the run that ``told`` asks for.

    A job that does something else is cancelled.

    Args:
        root: The ledger.
        told: What the run would be told now.
        volatile: Names in it that may differ; the job's own count.

    Returns:
        The job and what it was told, or None.

    Raises:
        WorldError: ``slurm-silent``.
    """
    memory = _memory(root)
    if memory is None:
        return None
    job = memory.get("job") or _find(str(memory.get("name")))
    held = memory.get("told")
    if not isinstance(job, str) or not isinstance(held, dict):
        forget(root)
        return None
    seen = look(job, patience=SHORT_SILENCE_SECONDS)
    if seen is None or seen.name != memory.get(
        "name"
    ):  # ended long ago; the number may be another's
        forget(root)
        return None
    if _but(held, volatile) != _but(told, volatile):
        if seen.going:
            cancel(job)
        forget(root)
        return None
    log = Path(root, "logs", f"{memory.get('stem')}.log")
    return Submitted(job=job, name=seen.name, log=log), held


def wait_for_job(
    submitted: Submitted,
    root: str,
    *,
    limit: float,
    say: Callable[[str], None],
    patience: float = SILENCE_SECONDS,
) -> Ended:
    """Wait for a job's end; end it when it has run for longer than its limit, and when this is interrupted.

    Args:
        submitted: The job.
        root: The ledger.
        limit: Seconds that it may run; time in the queue does not count.
        say: Takes lines of progress.
        patience: Seconds that the controller may be silent.

    Raises:
        WorldError: ``slurm-silent``: the job is left as it is, and the same command takes it on.
    """
    too_long = False
    pause, told = FIRST_PAUSE, ""
    try:
        while True:
            seen = look(submitted.job, say, patience=patience)
            if seen is None or not seen.going:
                break
            if seen.run_seconds > limit and not too_long:
                too_long = True
                cancel(submitted.job)
            if seen.state == "PENDING" and seen.reason not in {told, "None", ""}:
                told = seen.reason
                say(f"  job {submitted.job} waits: {told}")
            time.sleep(pause)
            pause = min(pause * 1.3, LONGEST_PAUSE)
    except (
        BaseException
    ) as error:  # Ctrl-C, SIGTERM: a job that nobody waits for would keep its nodes
        if getattr(error, "code", None) != SILENT:  # who does not answer cancels nothing either
            cancel(submitted.job)
            forget(root)
        raise
    forget(root)
    return _ended(submitted, seen, too_long=too_long)


def cancel_leftover(root: str, *, patience: float = SHORT_SILENCE_SECONDS) -> str | None:
    """Cancel the job that a killed ``recompute measure`` left behind; say what became of it, if there was one.

    Where Slurm cannot be asked the job stays remembered: a study through Slurm will find it.
    """
    memory = _memory(root)
    if memory is None:
        return None
    job = memory.get("job")
    try:
        job = job or _find(str(memory.get("name")))
        seen = look(job, patience=patience) if isinstance(job, str) else None
    except WorldError as error:
        if error.code not in {NO_SLURM, SILENT}:
            raise
        named = f"job {job}" if job else f"the job {memory.get('name')}"
        return f"{named} of an earlier recompute measure may still run: {error.message}"
    going = seen is not None and seen.going and seen.name == memory.get("name")
    if going:
        cancel(str(job))
    forget(root)
    return (
        f"cancelled job {job}, which an earlier recompute measure had left behind"
        if going
        else None
    )


def cancel(job: str) -> None:
    """Cancel a job; one that has ended is no fault."""
    number, _, cluster = job.partition(";")
    with contextlib.suppress(WorldError):
        _call("scancel", *_of(cluster), number)


def look(
    job: str, say: Callable[[str], None] = lambda _: None, *, patience: float = SILENCE_SECONDS
) -> Seen | None:
    """Return what Slurm says about a job; None when it knows no such job any more.

    Args:
        job: Its number, with its cluster.
        say: Takes lines of progress.
        patience: Seconds that the controller may be silent.

    Raises:
        WorldError: ``launcher-failed``: there is no Slurm; ``slurm-silent``: it does not answer.
    """
    number, _, cluster = job.partition(";")
    silent_since: float | None = None
    while True:
        done = _call("scontrol", *_of(cluster), "show", "job", "--oneliner", number)
        if not done.returncode:
            return _seen(done.stdout)
        if _UNKNOWN_JOB in done.stderr:
            return _accounted(number, cluster)
        if silent_since is None:
            silent_since = time.monotonic()
            say(f"  Slurm does not answer, waiting for it: {_last(done.stderr)}")
        left = silent_since + patience - time.monotonic()
        if left <= 0:
            raise _silent(job, patience, _last(done.stderr))
        time.sleep(min(left, LONGEST_PAUSE))


def forget(root: str) -> None:
    """Say that no job is under way."""
    Path(root, RUNNING_JOB).unlink(missing_ok=True)


def _ended(submitted: Submitted, seen: Seen | None, *, too_long: bool) -> Ended:
    meaning = FORGOTTEN if seen is None else STATES.get(seen.state)
    if meaning is None:
        assert seen is not None
        text = f"ended in state {seen.state[:40]}"
        meaning = EndState(outcome=Outcome.CRASH, outside=True, text=text)
    elif too_long:
        meaning = STATES["TIMEOUT"]
    elif meaning is STATES["FAILED"] and _HOST_MEMORY.search(end_of(submitted.log)):
        meaning = STATES["OUT_OF_MEMORY"]  # a step was killed for it, the script only failed then
    return Ended(
        code=0 if seen is None else seen.code,
        timed_out=meaning.outcome is Outcome.HANG,
        seconds=0.0 if seen is None else seen.run_seconds,
        tail=tail_of(submitted.log),
        outcome=meaning.outcome,
        outside=meaning.outside,
        again=meaning.again,
        said=None if meaning.outcome is None else f"job {submitted.job} {meaning.text}",
    )


def _seen(text: str) -> Seen:
    found: dict[str, str] = {}
    for name, value in _FIELD.findall(text):
        found.setdefault(name, value)
    code, _, sign = found.get("ExitCode", "0:0").partition(":")
    return Seen(
        name=found.get("JobName", ""),
        state=found.get("JobState", ""),
        run_seconds=_seconds(found.get("RunTime", "")),
        code=-int(sign) if sign.isdigit() and int(sign) else int(code) if code.isdigit() else 0,
        reason=found.get("Reason", ""),
    )


def _accounted(number: str, cluster: str) -> Seen | None:
    """Ask Slurm's accounting, where there is one, about a job that the controller has forgotten."""
    columns = "--format=JobName,State,Elapsed,ExitCode"
    try:
        words = ("--allocations", "--noheader", "--parsable2", columns, f"--jobs={number}")
        done = _call("sacct", *_of(cluster), *words)
    except WorldError:
        return None
    cells = done.stdout.strip().splitlines()[-1:] or [""]
    row = cells[0].split("|")
    if done.returncode or len(row) != 4:
        return None
    state = row[1].split()[0].rstrip("+") if row[1].split() else ""
    text = f"JobName={row[0]} JobState={state} RunTime={row[2]} ExitCode={row[3]}"
    return _seen(text)


def _find(name: str) -> str | None:
    """Return the number of the job with a name, also of one that ended a moment ago."""
    if not name.startswith("recompute-"):
        return None
    done = _call("squeue", "--noheader", "--states=all", f"--name={name}", "--format=%i")
    numbers = done.stdout.split()
    return numbers[-1] if not done.returncode and numbers and numbers[-1].isdigit() else None


def _seconds(text: str) -> float:
    match = _TIME.fullmatch(text)
    if match is None:
        return 0.0
    days, hours, minutes, seconds = (int(part or 0) for part in match.groups())
    return float(((days * 24 + hours) * 60 + minutes) * 60 + seconds)


def _call(program: str, *words: str) -> subprocess.CompletedProcess[str]:
    try:
        return subprocess.run(  # noqa: S603 - Slurm's own programs, found on PATH
            [program, *words],
            capture_output=True,
            text=True,
            errors="replace",
            check=False,
            timeout=PROGRAM_SECONDS,
            stdin=subprocess.DEVNULL,
            env={**os.environ, "LC_ALL": "C", "SLURM_TIME_FORMAT": "standard"},
        )
    except subprocess.TimeoutExpired:
        return subprocess.CompletedProcess((program,), 1, "", "timed out")
    except OSError as error:
        raise WorldError(
            "launcher-failed",
            f"cannot start {program}: {error.strerror or error}",
            hint="--launcher slurm runs where sbatch, scontrol and scancel are: on a login node",
            data={"command": [program, *words]},
        ) from error


def _but(told: Mapping[str, Any], names: Collection[str]) -> dict[str, Any]:
    return {name: value for name, value in told.items() if name not in names}


def _silent(job: str, seconds: float, said: str) -> WorldError:
    return WorldError(
        SILENT,
        f"Slurm's controller has not answered for {seconds:.0f} s about job {job}: {said}",
        hint="the job goes on without it; give the same command again when scontrol ping answers",
        data={"job": job},
    )


def _refused(done: subprocess.CompletedProcess[str], script: Path) -> WorldError:
    return WorldError(
        "slurm-refused",
        f"sbatch: {_last(done.stderr) or _last(done.stdout) or f'exit status {done.returncode}'}",
        hint="see --partition, --account, --gpus-per-node and --sbatch; the script is kept",
        data={"script": str(script), "stderr": done.stderr[-2000:]},
    )


def _last(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1][:300] if lines else ""


def _of(cluster: str) -> tuple[str, ...]:
    return (f"--clusters={cluster}",) if cluster else ()


def _remember(root: str, document: Mapping[str, Any]) -> None:
    path = Path(root, RUNNING_JOB)
    with writing(path):
        write_whole(path, json.dumps(document) + "\n")


def _memory(root: str) -> dict[str, Any] | None:
    try:
        document = json.loads(Path(root, RUNNING_JOB).read_text("utf-8"))
    except (OSError, ValueError):
        return None
    return document if isinstance(document, dict) else None
