"""Rows on their way to a ledger's file: at once where they must outlive a kill, else beside the training.

A row of a new maximum is appended before the run goes on. What only repeats how far the run got is handed
to a thread, which encodes it, appends it and brings everything to the disk itself, at most once a second.
A disk that fails never stops training: it is said once on standard error, and tried once more with the last
row, for which there may be room again.
"""

from __future__ import annotations

import contextlib
import sys
import threading
import time
from typing import Final

from recompute.errors import RecomputeError
from recompute.measure.ledger import RowWriter
from recompute.measure.row import Row

WRITE_SECONDS: Final = 1.0
"""Between two rows that only say how far a run got, and between two syncs."""
SHARE: Final = 1000
"""Such a row is written no more often than its writing takes one part in so many of the time: a row holds
the time of every step, so it grows with the run."""


class Journal:
    """The rows of one rank of one run.

    Args:
        writer: Appends them.
    """

    def __init__(self, writer: RowWriter) -> None:
        self._writer = writer
        self._failed = False
        self._waiting: Row | None = None
        self._appending = threading.Lock()
        self._wake = threading.Event()
        self._ended = threading.Event()
        self._due = time.monotonic() + WRITE_SECONDS
        self._thread = threading.Thread(target=self._run, name="recompute-journal", daemon=True)
        self._thread.start()

    @property
    def due(self) -> bool:
        """Whether it is time to say how far the run got."""
        return not self._failed and time.monotonic() > self._due

    def append(self, row: Row) -> None:
        """Append a row at once; one that still waits is older, and not written any more."""
        with self._appending:
            self._waiting = None
            self._append(row)
        self._wake.set()

    def hand(self, row: Row) -> None:
        """Have the thread append a row."""
        self._waiting = row
        self._due = time.monotonic() + WRITE_SECONDS
        self._wake.set()

    def close(self) -> None:
        """End the thread, sync and close."""
        self._ended.set()
        self._wake.set()
        self._thread.join()
        with contextlib.suppress(RecomputeError):
            self._writer.close()

    def _append(self, row: Row) -> None:
        if self._failed and not row.final:
            return
        began = time.monotonic()
        try:
            self._writer.append(row)
        except RecomputeError as error:
            if not self._failed:
                say(f"{error.message}; of this run only its end is tried to be recorded")
            self._failed = True
        ended = time.monotonic()
        self._due = ended + max(WRITE_SECONDS, SHARE * (ended - began))

    def _run(self) -> None:
        while True:
            self._wake.wait()
            if self._ended.is_set():
                return
            self._wake.clear()
            with self._appending:
                row, self._waiting = self._waiting, None
                if row is not None:
                    self._append(row)
            with contextlib.suppress(RecomputeError):  # the next append says it
                self._writer.sync()
            self._ended.wait(WRITE_SECONDS)


def say(text: str) -> None:
    """Say something on standard error."""
    sys.stderr.write(f"recompute MemoryProbe: {text}\n")
