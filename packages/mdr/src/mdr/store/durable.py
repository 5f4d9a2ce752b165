"""Make bytes survive a loss of power: one barrier for many files, or one for each where it must be.

Linux has ``syncfs``: it returns when everything written to the file system is on the disk. For a
thousand small files that is hundreds of times cheaper than ``fsync`` on each. Elsewhere each file and
folder is synced alone (``F_FULLFSYNC`` where the system has it, since its ``fsync`` leaves data in the
drive's cache). Folders cannot be synced on Windows, where the file system orders renames itself.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import sys
from typing import TYPE_CHECKING

from mdr.errors import StoreError

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path


def barrier(root: Path, files: Iterable[Path], folders: Iterable[Path]) -> None:
    """Return when ``files`` and the names in ``folders`` are on the disk.

    Args:
        root: A folder on the same file system as the rest.
        files: Files whose content must be durable.
        folders: Folders whose entries must be durable.

    Raises:
        mdr.errors.StoreError: store-unwritable.
    """
    try:
        if _syncfs(root):
            return
        for file in files:
            _sync_path(file, os.O_RDONLY)
        if os.name == "posix":
            for folder in folders:
                _sync_path(folder, os.O_RDONLY | getattr(os, "O_DIRECTORY", 0))
    except OSError as error:
        raise StoreError(
            "store-unwritable",
            f"the data folder could not be written durably: {error.strerror}",
            hint="check free space and the disk's health",
            data={"folder": str(root)},
        ) from error


def _syncfs(root: Path) -> bool:
    """Call ``syncfs`` where the C library has it; say whether it did the work."""
    if not sys.platform.startswith("linux"):
        return False
    try:
        function = ctypes.CDLL(None, use_errno=True).syncfs
    except (OSError, AttributeError):
        return False
    descriptor = os.open(root, os.O_RDONLY | os.O_DIRECTORY)
    try:
        if function(descriptor) == 0:
            return True
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    finally:
        os.close(descriptor)


def _sync_path(path: Path, flags: int) -> None:
    descriptor = os.open(path, flags)
    try:
        if sys.platform == "darwin":
            import fcntl

            with contextlib.suppress(OSError):
                fcntl.fcntl(descriptor, fcntl.F_FULLFSYNC)
                return
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
