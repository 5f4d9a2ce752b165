"""The errors of mdr, by whose fault they are.

::

    MdrError
    ├── UsageError          exit 2   the caller asked for something that cannot be read or meant
    │   ├── BadReference   exit 2   a reference does not parse, is too short or is ambiguous
    │   └── LockError       exit 2   mdr.lock is unreadable, newer, or contradicts itself
    ├── Refusal             exit 1   the answer is no: policy, hash mismatch, bytes we did not write
    │   ├── IntegrityError  exit 1   bytes do not have the hash they must have
    │   └── PolicyError     exit 1   grade, owner or license below the bar
    └── WorldError          exit 3   network, disk, git or another program failed
        ├── SourceError     exit 3   a git source cannot be read
        └── StoreError      exit 3   the data folder cannot be read or written

Every class is raised with a stable kebab-case ``code``, a message, a hint that says what to do next,
and data for programs. "Not found" and "skipped" are values where a caller may want to go on.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar


class MdrError(Exception):
    """Base of every error that mdr raises on purpose.

    Attributes:
        code: Stable kebab-case name, documented in docs/reference/mdr-errors.md.
        message: One sentence about what is wrong.
        hint: What to do next, possibly a command to paste.
        data: Values for programs; JSON types only.
    """

    exit_code: ClassVar[int] = 3

    def __init__(
        self, code: str, message: str, *, hint: str = "", data: Mapping[str, Any] | None = None
    ) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.hint = hint
        self.data: dict[str, Any] = dict(data or {})

    def __reduce__(self) -> tuple[Any, ...]:
        """Let the error cross from one process to another as it is."""
        return _again, (type(self), self.code, self.message, self.hint, self.data)


def _again(
    kind: type[MdrError], code: str, message: str, hint: str, data: Mapping[str, Any]
) -> MdrError:
    return kind(code, message, hint=hint, data=data)


class UsageError(MdrError):
    """The caller asked for something that cannot be read or meant."""

    exit_code = 2


class BadReference(UsageError):
    """A reference does not parse, is too short, is ambiguous, or names nothing."""


class LockError(UsageError):
    """mdr.lock is unreadable, newer than this program, or contradicts itself."""


class Refusal(MdrError):
    """The answer is no."""

    exit_code = 1


class IntegrityError(Refusal):
    """Bytes do not have the hash they must have."""


class PolicyError(Refusal):
    """Grade, owner or license is below the bar."""


class WorldError(MdrError):
    """Network, disk, git or another program failed."""

    exit_code = 3


class SourceError(WorldError):
    """A git source cannot be read."""


class StoreError(WorldError):
    """The data folder cannot be read or written."""
