"""One mdr at a time in one root, without leaving a file there."""

from __future__ import annotations

import os
import sys
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING

from mdr.digest import sha256
from mdr.errors import StoreError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path


@contextmanager
def exclusive(roots: Iterable[Path], data: Path) -> Iterator[None]:
    """Hold the roots until the block ends; another mdr waits.

    POSIX locks the folder itself, which the system releases when the process dies. Windows cannot, so
    there a file in the data folder stands for the root.

    Args:
        roots: Folders that will be written, each locked once, in one fixed order.
        data: The data folder.

    Raises:
        mdr.errors.StoreError: root-not-locked.
    """
    with ExitStack() as held:
        for root in sorted(set(roots)):
            held.enter_context(_one(root, data))
        yield


@contextmanager
def _one(root: Path, data: Path) -> Iterator[None]:
    try:
        descriptor = _open(root, data)
    except OSError as error:
        raise StoreError(
            "root-not-locked", f"cannot lock {root}: {error.strerror}", hint="check its permissions"
        ) from error
    try:
        yield
    finally:
        os.close(descriptor)


if sys.platform != "win32":
    import fcntl

    def _open(root: Path, data: Path) -> int:  # noqa: ARG001 - the other system needs it
        descriptor = os.open(root, os.O_RDONLY | os.O_CLOEXEC)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        except OSError:
            os.close(descriptor)
            raise
        return descriptor

else:
    import msvcrt

    def _open(root: Path, data: Path) -> int:
        folder = data / "locks"
        folder.mkdir(parents=True, exist_ok=True)
        name = sha256(os.fsencode(root))[:32]
        descriptor = os.open(folder / name, os.O_RDWR | os.O_CREAT)
        msvcrt.locking(descriptor, msvcrt.LK_LOCK, 1)
        return descriptor
