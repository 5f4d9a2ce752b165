"""Rulesets as rows: an id and its table of checks.

A published ruleset never changes; a new one is a new row, and old grades stay what they were.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from mdr.audit import newest
from mdr.audit.checks.blob import BASE64
from mdr.audit.checks.comments import HTML_COMMENT
from mdr.audit.checks.credentials import CREDENTIAL
from mdr.audit.checks.hosts import EXFIL_HOST, RAW_IP
from mdr.audit.checks.injection import INJECTION
from mdr.audit.checks.invisible import INVISIBLE_CHARACTERS
from mdr.audit.checks.markup import HIDDEN_STYLE, SCRIPT
from mdr.audit.checks.secrets import READ_CREDENTIALS, SEND_CREDENTIALS
from mdr.audit.checks.shape import DESCRIPTION, FRONTMATTER, NAME, SIZE
from mdr.audit.checks.shell import PIPE_SHELL, RM_RF
from mdr.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from mdr.audit.checks.row import Check

R1: Final[tuple[Check, ...]] = (
    FRONTMATTER,
    NAME,
    DESCRIPTION,
    SIZE,
    INVISIBLE_CHARACTERS,
    HTML_COMMENT,
    EXFIL_HOST,
    CREDENTIAL,
    SEND_CREDENTIALS,
    HIDDEN_STYLE,
    INJECTION,
    PIPE_SHELL,
    RM_RF,
    READ_CREDENTIALS,
    BASE64,
    RAW_IP,
    SCRIPT,
)
"""The 17 checks of the seed page, in its order."""

RULESETS: Final[Mapping[str, tuple[Check, ...]]] = {"r1": R1}
LATEST: Final = newest.LATEST


def ruleset_of(name: str) -> tuple[Check, ...]:
    """Return the checks of a ruleset.

    Raises:
        mdr.errors.UsageError: ``unknown-ruleset``.
    """
    if name not in RULESETS:
        known = ", ".join(RULESETS)
        raise UsageError("unknown-ruleset", f"no ruleset {name!r}", hint=f"known rulesets: {known}")
    return RULESETS[name]
