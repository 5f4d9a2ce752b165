"""The client's own judgement of bytes: grade, findings, what they touch. No registry is believed."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from mdr.artifact.types import Kind
from mdr.errors import MdrError
from mdr.install.installer import grade_mismatch

if TYPE_CHECKING:
    from collections.abc import Callable

    from mdr.audit.types import AuditResult
    from mdr.digest import Sha256
    from mdr.install.lock import Entry


def judge(entry: Entry, data: bytes) -> AuditResult:
    """Audit the named file of an entry by the newest ruleset."""
    from mdr.audit.run import audit

    return audit(data, kind=entry.kind)


def regrade(entry: Entry, data: bytes) -> MdrError | None:
    """Recompute the grade that the lock states, by the ruleset that the lock names.

    Returns:
        grade-mismatch, or unknown-ruleset when this mdr does not have the ruleset; else ``None``.
    """
    from mdr.audit.run import audit

    try:
        result = audit(data, kind=entry.kind, ruleset=entry.ruleset)
    except MdrError as error:
        return error
    return None if result.grade == entry.grade else grade_mismatch(entry, result.grade)


def graded(entry: Entry, result: AuditResult) -> Entry:
    """Put our own verdict into an entry.

    Raises:
        mdr.errors.IntegrityError: grade-mismatch when the registry claimed another grade by the same
            ruleset.
    """
    if entry.ruleset == result.ruleset and entry.grade != result.grade:
        raise grade_mismatch(entry, result.grade)
    return replace(entry, grade=result.grade, ruleset=result.ruleset)


def document(entry: Entry, result: AuditResult, read: Callable[[Sha256], bytes]) -> dict[str, Any]:
    """Write the AUDIT document, with specification and folder where the artifact is a skill.

    Args:
        entry: What was judged.
        result: Its verdict.
        read: Gives the bytes of every file of the entry.
    """
    if entry.kind is not Kind.SKILL:
        return result.to_document()
    from mdr.audit.bundle import bundle_audit
    from mdr.audit.spec import spec_conformance

    folder = entry.path.rpartition("/")[0].rpartition("/")[2] or None
    files = ((file.path, file.mode.value, read(file.sha256)) for file in entry.files)
    spec = spec_conformance(read(entry.sha256), folder)
    return result.to_document(spec=spec, bundle=bundle_audit(files))


def hosts(data: bytes) -> tuple[str, ...]:
    """Return the hosts that a file mentions."""
    from mdr.audit.semantics import semantics

    return semantics(data).hosts
