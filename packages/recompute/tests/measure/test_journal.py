"""Rows on their way to a disk that fails, and that has room again."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from recompute.measure.ledger import RowWriter, read_ledger, write_manifest
from recompute.measure.row import Outcome
from recompute.megatron.journal import Journal

from .rows import row


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Holds whether the disk is full; empty when it is not."""
    write, full = os.write, []

    def limited(file: int, data: bytes) -> int:
        if full:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return write(file, data)

    monkeypatch.setattr(os, "write", limited)
    return full


@pytest.mark.parametrize("freed", [True, False])
def test_the_end_of_a_run_is_tried_again(
    tmp_path: Path, disk: list[bool], capsys: pytest.CaptureFixture[str], *, freed: bool
) -> None:
    write_manifest(str(tmp_path), environment={})
    journal = Journal(RowWriter(str(tmp_path), "rank-00000"))
    journal.append(row("[]", final=False, outcome=Outcome.CRASH))
    disk.append(True)
    for _ in range(3):
        journal.append(row("[]", final=False, outcome=Outcome.CRASH))
    assert not journal.due
    if freed:
        disk.clear()
    journal.append(row("[]"))
    journal.close()
    disk.clear()
    (kept,) = read_ledger(str(tmp_path)).rows
    assert kept.final is freed
    assert capsys.readouterr().err.count("No space left on device") == 1
