"""``diagnose``: paths in, one answer out. An edge module: it reads files."""

from __future__ import annotations

import dataclasses
import functools
from pathlib import Path
from typing import TYPE_CHECKING

from recompute.diagnose.conclude import Predict, conclude
from recompute.diagnose.inputs import Format, Source, expand
from recompute.diagnose.logs import Progress, read_logs
from recompute.diagnose.types import Diagnosis, Verdict
from recompute.errors import InputError

if TYPE_CHECKING:
    from recompute.config.revision import Revision
    from recompute.config.schema import JobConfig
    from recompute.diagnose.observation import Observation

SNAPSHOTS = frozenset({Format.PICKLE, Format.JSON_SNAPSHOT})


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """A diagnosis with what it was made from."""

    diagnosis: Diagnosis
    sources: tuple[Source, ...]
    job: JobConfig | None = None
    """Given, or recovered from the log."""
    snapshots: tuple[SnapshotReport, ...] = ()
    comparison: Comparison | None = None
    """Of two snapshots."""
    seen: Observation | None = None
    runs: tuple[Answer, ...] = ()
    """One for each run where the input holds several; the diagnosis is then that of the first that went
    out of memory."""


def diagnose(
    paths: tuple[str, ...],
    *,
    job: JobConfig | None = None,
    revision: Revision | None = None,
    predict: Predict | None = None,
    progress: Progress | None = None,
) -> Answer:
    """Find why a run went out of memory, and what to do next.

    Args:
        paths: Logs, folders of logs, memory snapshots, ledgers; ``-`` is standard input.
        job: The job, when the caller knows it better than the log.
        revision: Megatron Core revision that decides which actions are legal; the job's by default.
        predict: Hook that gives actions of the plan for a job.
        progress: Told how far the reading is.

    Raises:
        InputError: A path is missing or unreadable, or a snapshot holds what it must not.
        WorldError: The disk failed.
    """
    if not paths:
        raise InputError("no-input", "nothing to read", hint="recompute diagnose train.log")
    sources = expand(paths)
    logs = tuple(source for source in sources if _is_log(source))
    seen = read_logs(logs, progress)
    ask = functools.partial(
        _of_one_run, job=job, revision=revision, predict=predict, progress=progress
    )
    runs = _runs(sources, seen)
    if len(runs) == 1:
        return ask(sources, seen)
    answers = _compared(tuple(ask(run, read_logs(run, progress)) for run in runs))
    first = next((one for one in answers if one.seen and one.seen.speaks_of_oom), answers[0])
    return dataclasses.replace(first, sources=sources, runs=answers)


def _is_log(source: Source) -> bool:
    return source.format not in SNAPSHOTS and source.format is not Format.LEDGER


def _runs(sources: tuple[Source, ...], seen: Observation) -> tuple[tuple[Source, ...], ...]:
    """Return the logs of each run, however they were named; a pipe is read only once."""
    again = all(_is_log(source) and Path(source.path).is_file() for source in sources)
    if not again or len(sources) < 2:
        return (sources,)
    from recompute.diagnose.runs import runs_of

    return runs_of(sources, seen)


def _compared(runs: tuple[Answer, ...]) -> tuple[Answer, ...]:
    """Say of both runs of a comparison where the second one only got further."""
    from recompute.diagnose.wall import moved_between

    moved = moved_between(runs)
    return runs if moved is None else tuple(_with_note(run, moved) for run in runs)


def _with_note(answer: Answer, note: str) -> Answer:
    notes = (*answer.diagnosis.notes, note)
    return dataclasses.replace(answer, diagnosis=dataclasses.replace(answer.diagnosis, notes=notes))


def _of_one_run(
    sources: tuple[Source, ...],
    seen: Observation,
    *,
    job: JobConfig | None,
    revision: Revision | None,
    predict: Predict | None,
    progress: Progress | None,
) -> Answer:
    snapshots = tuple(source for source in sources if source.format in SNAPSHOTS)
    ledgers = tuple(source for source in sources if source.format is Format.LEDGER)
    has_logs = any(_is_log(source) for source in sources)
    note = None if job is None else f"job used: {job.identity.path}"
    if job is None and (has_logs or not snapshots):
        from recompute.diagnose.recover import recovered_job

        job, note = recovered_job(seen)
    answer = Answer(
        diagnosis=_diagnosis(seen, job, revision, predict), sources=sources, job=job, seen=seen
    )
    if snapshots:
        from recompute.diagnose.snapshot.run import with_snapshots

        answer = with_snapshots(answer, snapshots, has_logs=has_logs, progress=progress)
    if ledgers and not has_logs and not snapshots:
        from recompute.diagnose.ledger import diagnose_ledger

        answer = dataclasses.replace(answer, diagnosis=diagnose_ledger(ledgers[0].path))
    return answer if note is None else _with_note(answer, note)


def _diagnosis(
    seen: Observation, job: JobConfig | None, revision: Revision | None, predict: Predict | None
) -> Diagnosis:
    from recompute.diagnose.legality import revision_for, why_illegal

    if seen.files and all(file.binary for file in seen.files):
        return Diagnosis(
            verdict=Verdict.UNKNOWN,
            rules=("binary-input",),
            summary="the input is binary and no snapshot",
            next_actions=conclude(type(seen)()).next_actions,
        )
    checked = revision if revision is not None else (revision_for(job) if job is not None else None)

    def legal(candidate: JobConfig, overrides: tuple[str, ...]) -> str | None:
        return why_illegal(candidate, overrides, checked) if checked is not None else None

    return conclude(seen, job=job, legal=legal, predict=predict)


if TYPE_CHECKING:
    from recompute.diagnose.snapshot.compare import Comparison
    from recompute.diagnose.snapshot.report import SnapshotReport
