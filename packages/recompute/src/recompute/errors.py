"""The errors of recompute, by whose fault they are.

::

    RecomputeError
    ├── InputError          exit 2   what was given cannot be read or meant
    │   ├── ConfigError     exit 2   a job file, override or option is wrong
    │   └── UnsupportedError exit 2  the job is valid but holds something we do not model
    └── WorldError          exit 3   disk, launcher, another program failed

Every class is raised with a stable kebab-case ``code``, a message, a hint that says what to do next
(a line to paste where there is one), and data for programs. Findings, infeasible plans and
out-of-memory results are values, not errors.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar


class RecomputeError(Exception):
    """Base of every error that recompute raises on purpose.

    Attributes:
        code: Stable kebab-case name, documented in docs/reference/recompute-errors.md.
        message: One sentence about what is wrong.
        hint: What to do next.
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
        """Carry all four parts when the error comes from another process."""
        return _again, (type(self), self.code, self.message, self.hint, self.data)


class InputError(RecomputeError):
    """What was given cannot be read or meant."""

    exit_code = 2


class ConfigError(InputError):
    """A job file, an override or an option is wrong."""


class UnsupportedError(InputError):
    """The job is valid but holds something that is not modelled; it is named, never guessed."""


class WorldError(RecomputeError):
    """Disk, launcher or another program failed."""

    exit_code = 3


def _again(
    kind: type[RecomputeError], code: str, message: str, hint: str, data: Mapping[str, Any]
) -> RecomputeError:
    return kind(code, message, hint=hint, data=data)
