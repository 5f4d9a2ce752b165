"""A ledger on disk: ``manifest.json``, ``job.yaml`` and append-only ``rows/*.jsonl``. An edge module.

A kill at any moment leaves at most one torn last line per file, which readers pass over and the next
writer cuts off. Ledgers of one job are merged by copying their row files together.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from recompute.errors import InputError, WorldError
from recompute.ledger import (
    SCHEMA,
    Line,
    bad_ledger,
    lines_of,
    lines_of_file,
    manifest_of,
    standing,
)
from recompute.measure.row import BadRowError, Row, row_of

JOB_FILE: Final = "job.yaml"


@dataclass(frozen=True, slots=True, kw_only=True)
class Ledger:
    """What a ledger holds: for each run and rank the row that stands."""

    root: str
    manifest: Mapping[str, Any]
    rows: tuple[Row, ...]
    job_path: str | None = None
    """The job file inside the ledger, where there is one."""
    notes: tuple[str, ...] = ()
    environment: Mapping[str, Any] = field(default_factory=dict)


def read_ledger(root: str) -> Ledger:
    """Read a ledger.

    Raises:
        InputError: ``not-a-ledger``, ``bad-ledger`` (file and line named), ``cannot-read``,
            ``ledger-conflict``: two files hold different final rows of the same run and rank.
    """
    manifest = manifest_of(Path(root))
    notes: list[str] = []
    rows = _standing(lines_of(Path(root, "rows"), notes))
    environment = manifest.get("environment")
    job = Path(root, JOB_FILE)
    return Ledger(
        root=root,
        manifest=manifest,
        rows=rows,
        job_path=str(job) if _job_is_intact(job, manifest) else None,
        notes=tuple(notes),
        environment=environment if isinstance(environment, dict) else {},
    )


def read_rows(path: str) -> tuple[Row, ...]:
    """Read one of the ``rows/*.jsonl`` of a ledger, or a file like it, without the ledger around it.

    Raises:
        InputError: ``cannot-read``, ``bad-ledger`` (the line is named).
    """
    return _standing(lines_of_file(Path(path)))


def write_manifest(
    root: str, *, environment: Mapping[str, Any], job_yaml: str | None = None, **more: Any
) -> None:
    """Make a ledger, or leave one alone that has the same job.

    Args:
        root: The folder.
        environment: Revisions and devices, as far as they are known when the ledger is made.
        job_yaml: The job as a job file.
        more: Further fields of the manifest, JSON types.

    Raises:
        InputError: ``ledger-of-another-job``.
        WorldError: ``cannot-write``.
    """
    digest = None if job_yaml is None else hashlib.sha256(job_yaml.encode()).hexdigest()
    job = None if digest is None else {"file": JOB_FILE, "sha256": digest}
    path = Path(root, "manifest.json")
    if path.exists():
        held = manifest_of(Path(root)).get("job")
        if held != job:
            raise InputError(
                "ledger-of-another-job",
                f"{root} is the ledger of another job",
                hint="give --out a new folder",
                data={"path": root},
            )
        return
    document = {"schema": SCHEMA, "environment": dict(environment), "job": job, **more}
    with writing(path):
        Path(root, "rows").mkdir(parents=True, exist_ok=True)
        if job_yaml is not None:
            Path(root, JOB_FILE).write_text(job_yaml, encoding="utf-8")
        write_whole(path, json.dumps(document, indent=2, sort_keys=False) + "\n")


def note_environment(root: str, environment: Mapping[str, Any]) -> None:
    """Fill in a manifest's environment, where it was made on a machine that could not know it.

    Raises:
        WorldError: ``cannot-write``.
    """
    path = Path(root, "manifest.json")
    document = manifest_of(Path(root))
    if document.get("environment"):
        return
    with writing(path):
        text = json.dumps({**document, "environment": dict(environment)}, indent=2)
        write_whole(path, text + "\n")


class RowWriter:
    """Appends rows to one file of a ledger; each row is one write.

    Args:
        root: The ledger.
        name: The file's stem under ``rows``: one writer per file at a time.

    Raises:
        WorldError: ``cannot-write``.
    """

    def __init__(self, root: str, name: str) -> None:
        self.path = Path(root, "rows", f"{name}.jsonl")
        with writing(self.path):
            self.path.parent.mkdir(parents=True, exist_ok=True)
            flags = os.O_RDWR | os.O_CREAT | os.O_APPEND | getattr(os, "O_CLOEXEC", 0)
            self._file: int | None = os.open(self.path, flags, 0o644)
            _cut_torn_line(self._file)

    def append(self, row: Row) -> None:
        """Append a row: safe from this process's death at once, from the machine's after a sync.

        Raises:
            WorldError: ``cannot-write``, for example when the disk is full; what was written of the row
                is cut off again.
        """
        assert self._file is not None
        text = json.dumps(row.to_document(), ensure_ascii=False, allow_nan=False) + "\n"
        data = text.encode()
        with writing(self.path):
            before = os.lseek(self._file, 0, os.SEEK_END)
            written = 0
            try:
                while written < len(data):
                    written += os.write(self._file, data[written:])
            except OSError:
                with contextlib.suppress(OSError):
                    os.ftruncate(self._file, before)
                raise

    def sync(self) -> None:
        """Bring what was appended to the disk itself."""
        if self._file is not None:
            with writing(self.path):
                os.fsync(self._file)

    def close(self) -> None:
        """Sync and close; a second time does nothing."""
        if self._file is not None:
            try:
                self.sync()
            finally:
                os.close(self._file)
                self._file = None


def _standing(lines: Iterable[Line]) -> tuple[Row, ...]:
    return tuple(row for _, row in standing((line, _row(line)) for line in lines))


def _row(line: Line) -> Row:
    try:
        return row_of(line.value)
    except BadRowError as error:
        raise bad_ledger(line.path, line.number, str(error)) from error


def _job_is_intact(job: Path, manifest: Mapping[str, Any]) -> bool:
    """Say whether the ledger holds its job.

    Raises:
        InputError: ``bad-ledger``: the job file is not the one that was measured.
    """
    said = manifest.get("job")
    if not isinstance(said, dict):
        return False
    try:
        digest = hashlib.sha256(job.read_bytes()).hexdigest()
    except OSError:
        digest = None
    if digest != said.get("sha256"):
        raise bad_ledger(
            job, 1, "not the job that the manifest names: it was changed or is missing"
        )
    return True


def _cut_torn_line(file: int) -> None:
    """Cut off what a killed writer left of a last line: no reader ever counted it."""
    end = os.lseek(file, 0, os.SEEK_END)
    keep = end
    while keep:
        start = max(0, keep - 65536)
        block = os.pread(file, keep - start, start)
        at = block.rfind(b"\n")
        if at >= 0:
            keep = start + at + 1
            break
        keep = start
    if keep < end:
        os.ftruncate(file, keep)


def write_whole(path: Path, text: str) -> None:
    """Write a file so that a kill at any moment leaves it as it was, or whole."""
    # Ranks of several nodes write one folder, and in containers their process ids are alike.
    draft = path.with_suffix(f".{os.getpid()}-{os.urandom(4).hex()}.tmp")
    try:
        draft.write_text(text, encoding="utf-8")
        draft.replace(path)
    except OSError:
        draft.unlink(missing_ok=True)
        raise


@contextlib.contextmanager
def held_alone(root: str) -> Iterator[None]:
    """Hold a ledger that has a job against a second study, which would end the runs of the first as left behind.

    The system lets go of it when the process dies. A file system without locks is taken as it is.

    Args:
        root: The ledger.

    Raises:
        WorldError: ``ledger-in-use``; ``cannot-write``.
    """
    import fcntl

    path = Path(root, JOB_FILE)
    with writing(path):
        file = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    try:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise WorldError(
                "ledger-in-use",
                f"another recompute measure is at work on {root}",
                hint="wait for its end, or give --out a folder of its own",
                data={"path": root},
            ) from error
        except OSError:
            pass
        yield
    finally:
        os.close(file)


def same_study(root: str, terms: Mapping[str, Any]) -> None:
    """Refuse to go on with a study under other terms than it was begun with: its rows would not be matched.

    Args:
        root: The ledger.
        terms: What the manifest holds as ``study``, where it was made by a study.

    Raises:
        InputError: ``ledger-of-another-study``.
    """
    held = manifest_of(Path(root)).get("study")
    if not isinstance(held, dict):
        return
    other = [name for name, value in terms.items() if held.get(name, value) != value]
    if other:
        name = other[0]
        raise another_study(
            root, f"{name} was {json.dumps(held[name])[:120]}, now {json.dumps(terms[name])[:120]}"
        )


def another_study(root: str, difference: str) -> InputError:
    """Return the error that names in what a study differs from the one that a ledger holds."""
    return InputError(
        "ledger-of-another-study",
        f"{root} was begun otherwise: {difference}",
        hint="give the same options again, or give --out a new folder",
        data={"path": root},
    )


@contextlib.contextmanager
def writing(path: Path) -> Iterator[None]:
    """Say of a failure which file of the ledger could not be written.

    Raises:
        WorldError: ``cannot-write``.
    """
    try:
        yield
    except OSError as error:
        raise WorldError(
            "cannot-write",
            f"cannot write {path}: {error.strerror or error}",
            hint="free the disk or give another folder; rows written so far are kept",
            data={"path": str(path)},
        ) from error
