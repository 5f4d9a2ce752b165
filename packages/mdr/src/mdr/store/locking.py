"""One writer at a time for one thing: advisory locks on files, released by the system on a kill."""

from __future__ import annotations

import os
from contextlib import contextmanager
from typing import TYPE_CHECKING

from mdr.errors import StoreError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@contextmanager
def hold(path: Path, *, shared: bool = False, wait: bool = True) -> Iterator[None]:
    """Hold the lock ``path`` inside the block, waiting for whoever has it.

    Args:
        path: A file that is created and stays; its content means nothing.
        shared: Whether others who ask so too may hold it at the same time.
        wait: Whether to wait; else a lock that another holds is an error at once.

    Raises:
        mdr.errors.StoreError: store-unwritable, lock-taken.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
    except OSError as error:
        raise StoreError(
            "store-unwritable",
            f"the data folder cannot be written: {error.strerror or error}",
            hint="check permissions, or name another folder with --data",
            data={"folder": str(path.parent)},
        ) from error
    try:
        if not _lock(descriptor, shared=shared, wait=wait):
            raise StoreError(
                "lock-taken",
                f"another process holds {path.name} of the data folder",
                hint="one is enough; wait for it, or stop it",
                data={"lock": str(path)},
            )
        yield
    finally:
        os.close(descriptor)  # closing releases the lock


if os.name == "posix":
    import fcntl

    def _lock(descriptor: int, *, shared: bool, wait: bool) -> bool:
        """Take the lock; say whether it was had."""
        flags = fcntl.LOCK_SH if shared else fcntl.LOCK_EX
        try:
            fcntl.flock(descriptor, flags if wait else flags | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True

else:
    import msvcrt

    def _lock(descriptor: int, *, shared: bool, wait: bool) -> bool:  # noqa: ARG001 - no shared locks there # type: ignore[misc,unused-ignore]
        while True:
            try:
                msvcrt.locking(descriptor, msvcrt.LK_LOCK if wait else msvcrt.LK_NBLCK, 1)  # type: ignore[attr-defined,unused-ignore]
            except OSError:
                if not wait:
                    return False
                continue  # LK_LOCK gives up after ten tries; whoever holds it still works
            return True
