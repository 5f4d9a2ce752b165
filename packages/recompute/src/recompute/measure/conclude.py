"""How runs stand in a ledger: what they wrote themselves, and what is written for those that could not."""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from recompute.measure.launch import Ended
from recompute.measure.ledger import RowWriter, another_study, read_ledger, writing
from recompute.measure.row import Outcome, Row
from recompute.measure.runs import PlannedRun

FULL_BYTES: Final = 64 << 10
"""A disk with less is full: rows, logs and drafts no longer fit."""
WRITER: Final = "launcher"
"""Stem of the file of rows that ranks could not write."""


def rows_of(root: str, run: PlannedRun) -> tuple[Row, ...]:
    """Return the standing rows of a run."""
    rows = read_ledger(root).rows
    return tuple(row for row in rows if row.id == run.name and row.repeat == run.repeat)


def ended_before(root: str, run: PlannedRun) -> tuple[Row, ...] | None:
    """Return the rows of a run that has ended; None when it is still to be run.

    Raises:
        InputError: ``ledger-of-another-study``: it ran with another seed of the data.
    """
    held = rows_of(root, run)
    if other := next((row for row in held if row.data_seed != run.data_seed), None):
        text = f"run {run.name} has data seed {other.data_seed}, now {run.data_seed}"
        raise another_study(root, text)
    return held if _are_complete(held) else None


def conclude(
    run: PlannedRun, told: Mapping[str, Any], ended: Ended, root: str, world: int
) -> tuple[Row, ...]:
    """Give a row to every rank that could not write a final one itself, and return all of them."""
    held = {row.rank: row for row in rows_of(root, run) if row.attempt == told["attempt"]}
    missing = [rank for rank in range(world) if rank not in held or not held[rank].final]
    if missing:
        _refuse_full_disk(root)
        writer = RowWriter(root, WRITER)
        for rank in missing:
            writer.append(_ended_row(held.get(rank), rank, told, ended, world))
        writer.close()
    return rows_of(root, run)


def _refuse_full_disk(root: str) -> None:
    """Stop a study whose disk is full: that a run could not write its rows says nothing about it.

    Raises:
        WorldError: ``cannot-write``.
    """
    with writing(Path(root)):
        disk = os.statvfs(root)
        if disk.f_bavail * disk.f_frsize < FULL_BYTES:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def settle(root: str, run: PlannedRun, seconds: float) -> None:
    """Wait until the rows of a run that has ended well are seen, as a shared file system may take its time."""
    until = time.monotonic() + seconds
    while ended_before(root, run) is None and time.monotonic() < until:
        time.sleep(0.5)


def _ended_row(
    partial: Row | None, rank: int, told: Mapping[str, Any], ended: Ended, world: int
) -> Row:
    silent = partial is None
    outcome = ended.outcome or (Outcome.HANG if ended.timed_out else Outcome.CRASH)
    if partial is None:
        partial = Row(
            id=told["run"],
            candidate=told["candidate"],
            control_id=told["control_id"],
            repeat=told["repeat"],
            attempt=told["attempt"],
            order=told["order"],
            data_seed=told["data_seed"],
            rank=rank,
            world_size=world,
            outcome=outcome,
            stage="initialization",
            overrides=tuple(told["overrides"]),
        )
    return replace(
        partial,
        outcome=outcome,
        final=not ended.outside,
        interrupted=ended.outside,
        message=_message(ended, silent=silent)[:400],
    )


def _message(ended: Ended, *, silent: bool) -> str:
    tail = ended.tail or "it printed nothing"
    if ended.timed_out:
        return f"still ran after {ended.seconds:.0f} s and was ended: {tail}"
    if ended.said is not None:
        return f"{ended.said}: {tail}"
    if silent and ended.code == 0:
        return f"ended with status 0 and wrote no row: does the script hold a MemoryProbe? {tail}"
    return f"exit status {ended.code}: {tail}"


def _are_complete(rows: Sequence[Row]) -> bool:
    """Say whether every rank has a final row."""
    ranks = {row.rank for row in rows if row.final}
    return bool(rows) and len(ranks) >= max(row.world_size for row in rows)
