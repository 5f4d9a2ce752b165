"""Read blobs out of git, hash them, stage them and audit them, on every core.

Processes, because hashing small files and auditing hold Python's lock. Each piece of work opens its own
``git cat-file --batch``. Staged blobs get their names only after one barrier for all of them.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, TypeVar

from mdr.artifact.types import Kind
from mdr.digest import Sha256, sha256
from mdr.errors import StoreError
from mdr.registry.stores import chunks
from mdr.registry.telling import Told, tell
from mdr.store.files import Staged, new_token
from mdr.store.rows import Grade

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from concurrent.futures import Executor

    from mdr.source.types import Oid, Source
    from mdr.store.blobs import BlobPlace, StagingStore

    Progress = Callable[[str, int, int], None]

Result = TypeVar("Result")
SMALL: Final = 200
"""Blobs below which starting processes costs more than it saves."""
PIECES_PER_PROCESS: Final = 6
"""Few enough that git's cache of delta bases pays, many enough that no process ends much later."""
PIECE_BYTES: Final = 64 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Read:
    """One blob after it was read."""

    oid: Oid
    sha256: Sha256
    size: int
    staged: Staged | None
    """``None`` when the store had it."""
    grades: tuple[Grade, ...]
    told: Told | None
    """Of the newest version of an artifact."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """What to read, and how each file that is an artifact's own is to be audited."""

    sizes: dict[Oid, int]
    """Blobs to read, in the order in which to read them, with their size."""
    kinds: Mapping[Oid, frozenset[Kind]]
    described: frozenset[Oid]
    """Files that readers find their artifact by."""
    ruleset: str


def harvest(
    source: Source, place: BlobPlace, work: Work, *, workers: int, progress: Progress
) -> dict[Oid, Read]:
    """Read, hash, store and audit.

    Args:
        source: Where the blobs are.
        place: Where the blobs go.
        work: What to read.
        workers: Processes; 0 means one per core.
        progress: Called with (stage, done, total).

    Returns:
        What was read, every blob of it durable under its name.

    Raises:
        mdr.errors.SourceError: source-unreadable.
        mdr.errors.StoreError: store-unwritable, store-readback.
    """
    if not work.sizes:
        return {}
    blobs, number = place.open(token := new_token()), workers or os.cpu_count() or 1
    try:
        found = _read(source, place, work, token, number, progress)
        _publish(blobs, place, [each.staged for each in found.values() if each.staged], number)
    except BaseException:
        blobs.take_back()
        raise
    finally:
        blobs.close()
    return found


def _read(  # noqa: PLR0917 - the arguments of harvest, and the run's token
    source: Source, place: BlobPlace, work: Work, token: str, number: int, progress: Progress
) -> dict[Oid, Read]:
    names = list(work.sizes)
    found: dict[Oid, Read] = {}
    with executor(len(names), number) as pool:
        files = max(SMALL, len(names) // (number * PIECES_PER_PROCESS))
        pieces = list(chunks(names, work.sizes, files=files, total=PIECE_BYTES))
        jobs = [(source, place, token, piece, _share(piece, work)) for piece in pieces]
        for reads in each_result(pool, _read_piece, jobs):
            found |= {read.oid: read for read in reads}
            progress("reading and auditing", len(found), len(names))
    return found


def _publish(blobs: StagingStore, place: BlobPlace, staged: Sequence[Staged], number: int) -> None:
    """Give what is staged its names, between two barriers for all of it."""
    if not staged:
        return
    blobs.settle_content(staged)
    shares = [staged[start : start + 2048] for start in range(0, len(staged), 2048)]
    folders: set[str] = set()
    with executor(len(staged), number) as pool:
        for each in each_result(pool, _rename_piece, [(place, share) for share in shares]):
            folders |= each
    blobs.settle_names(folders)


def _read_piece(
    source: Source, place: BlobPlace, token: str, piece: Sequence[Oid], work: Work
) -> list[Read]:
    blobs = place.open(token)
    try:
        return _read_into(blobs, source, piece, work)
    finally:
        blobs.close()


def _read_into(blobs: StagingStore, source: Source, piece: Sequence[Oid], work: Work) -> list[Read]:
    reads = []
    for oid, data in source.read(piece):
        digest = sha256(data)
        staged = blobs.offer(digest, data)
        wanted = work.kinds.get(oid, frozenset())
        reads.append(
            Read(
                oid=oid,
                sha256=digest,
                size=len(data),
                staged=staged,
                grades=tuple(grade(data, digest, kind, work.ruleset) for kind in sorted(wanted)),
                told=tell(data) if oid in work.described else None,
            )
        )
    blobs.flush()
    return reads


def grade(data: bytes, digest: Sha256, kind: Kind, ruleset: str) -> Grade:
    """Audit one file and keep what the index keeps of it."""
    from mdr.audit.run import audit

    result = audit(data, kind=kind, ruleset=ruleset)
    return Grade(
        sha256=digest, kind=kind.value, ruleset=ruleset, grade=result.grade, penalty=result.penalty
    )


def _rename_piece(place: BlobPlace, staged: Sequence[Staged]) -> set[str]:
    return place.open().rename(staged)


def _share(piece: Sequence[Oid], work: Work) -> Work:
    """Cut the work to one piece, so that little travels to the process that does it."""
    return Work(
        sizes={},
        kinds={oid: work.kinds[oid] for oid in piece if oid in work.kinds},
        described=work.described.intersection(piece),
        ruleset=work.ruleset,
    )


@contextmanager
def executor(count: int, number: int) -> Iterator[Executor | None]:
    """Start ``number`` processes for ``count`` pieces of work, or none where that costs more."""
    if number < 2 or count < SMALL:
        yield None
        return
    method = "fork" if "fork" in multiprocessing.get_all_start_methods() else "spawn"
    context = multiprocessing.get_context(method)
    with ProcessPoolExecutor(number, mp_context=context, initializer=_quiet) as pool:
        try:
            yield pool
        except BrokenProcessPool:
            raise StoreError(
                "worker-died",
                "a process that reads and audits ended without an answer",
                hint="most often the system was out of memory; nothing was published, run it again",
            ) from None
        except BaseException:
            for child in multiprocessing.active_children():
                child.terminate()  # a person who pressed Ctrl-C does not wait for a piece of work
            pool.shutdown(cancel_futures=True)  # when it returns, nobody stages any more
            raise


def _quiet() -> None:
    """Leave Ctrl-C to the parent, which ends its workers in order."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def each_result(
    pool: Executor | None, function: Callable[..., Result], jobs: Sequence[tuple[object, ...]]
) -> Iterator[Result]:
    """Yield results as they come."""
    if pool is None:
        for job in jobs:
            yield function(*job)
        return
    futures = [pool.submit(function, *job) for job in jobs]
    for future in as_completed(futures):
        yield future.result()
