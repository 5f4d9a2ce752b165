"""Exchange two paths in one system call, where the system has such a call.

Linux: ``renameat2(2)`` with ``RENAME_EXCHANGE`` (kernel 3.15, glibc 2.28). macOS: ``renamex_np(2)`` with
``RENAME_SWAP`` (10.12, APFS).
"""

from __future__ import annotations

import errno
import os
import sys
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from pathlib import Path

_AT_FDCWD: Final = -100
_LINUX_RENAME_EXCHANGE: Final = 2
_MACOS_RENAME_SWAP: Final = 2
_UNSUPPORTED: Final = frozenset({errno.ENOSYS, errno.EINVAL, errno.ENOTSUP, errno.EOPNOTSUPP})


def exchange(left: Path, right: Path) -> bool:
    """Swap what two paths name.

    Returns:
        ``False``, with nothing changed, when this system or file system cannot do it in one step.

    Raises:
        OSError: The system can, and failed.
    """
    if sys.platform not in {"linux", "darwin"}:
        return False
    import ctypes

    library = ctypes.CDLL(None, use_errno=True)
    one, two = os.fsencode(left), os.fsencode(right)
    try:
        if sys.platform == "linux":
            status = library.renameat2(_AT_FDCWD, one, _AT_FDCWD, two, _LINUX_RENAME_EXCHANGE)
        else:
            status = library.renamex_np(one, two, _MACOS_RENAME_SWAP)
    except AttributeError:
        return False
    if status == 0:
        return True
    code = ctypes.get_errno()
    if code in _UNSUPPORTED:
        return False
    raise OSError(code, os.strerror(code), os.fspath(right))
