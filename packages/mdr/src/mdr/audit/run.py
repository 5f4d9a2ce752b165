"""The audit of one file: bytes, kind and ruleset in; 17 results and a grade out.

Pure: no clock, no locale, no network, no hash order. RE2 is imported on the first match, so that
importing this module costs a command that does not audit nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from mdr.artifact.types import Kind
from mdr.audit import grade as grading
from mdr.audit.rulesets import LATEST, ruleset_of
from mdr.audit.shown import harmless
from mdr.audit.text import Text
from mdr.audit.types import AuditError, AuditResult, CheckResult, Finding, Status
from mdr.digest import sha256

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from mdr.audit.checks.row import Check, Hit

MAX_HITS: Final = 1_000
"""Places of a check's worst status after which looking stops."""
MAX_SHOWN: Final = 20
"""Findings kept for one check; the status and the grade never depend on this."""


def audit(data: bytes, *, kind: Kind = Kind.SKILL, ruleset: str = LATEST) -> AuditResult:
    """Grade one file.

    Args:
        data: The bytes as git stores them.
        kind: What the file is to an agent; kinds other than skill need no frontmatter.
        ruleset: Id of a row of :data:`mdr.audit.rulesets.RULESETS`.

    Returns:
        The verdict; the same for the same three arguments on every machine. Never raises for data.

    Raises:
        mdr.errors.UsageError: ``unknown-ruleset``.
    """
    checks = ruleset_of(ruleset)
    error = unreadable(data)
    if error is not None:
        results: tuple[CheckResult, ...] = tuple(skipped(check) for check in checks)
        total, letter = None, "F"
    else:
        text = Text(data, kind)
        results = tuple(run_check(check, text) for check in checks)
        total = grading.penalty((result.severity, result.status) for result in results)
        letter = grading.grade(total)
    return AuditResult(
        sha256=sha256(data),
        size=len(data),
        kind=kind,
        ruleset=ruleset,
        grade=letter,
        penalty=total,
        error=error,
        checks=results,
    )


def unreadable(data: bytes) -> AuditError | None:
    """Say why bytes are not text: a NUL byte or invalid UTF-8."""
    nul = data.find(b"\0")
    if nul >= 0:
        return AuditError(code="nul-byte", message=f"NUL byte at offset {nul}: not a text file")
    if data.isascii():
        return None
    try:
        data.decode("utf-8")
    except UnicodeDecodeError as problem:
        message = f"invalid UTF-8 at offset {problem.start}: {problem.reason}"
        return AuditError(code="not-utf8", message=message)
    return None


def skipped(check: Check) -> CheckResult:
    """Return the result of a check on a file that is not text."""
    return CheckResult(
        id=check.id, title=check.title, severity=check.severity, status=Status.SKIPPED
    )


def run_check(check: Check, text: Text) -> CheckResult:
    """Run one row of the table over one text."""
    if check.applies is not None and not check.applies(text):
        return CheckResult(
            id=check.id, title=check.title, severity=check.severity, status=Status.NA
        )
    hits = distinct(enough(check.find(text), check.worst))
    worst = sorted(hits, key=lambda hit: -hit.status.rank)
    return CheckResult(
        id=check.id,
        title=check.title,
        severity=check.severity,
        status=worst[0].status if worst else Status.PASS,
        detail=check.detail(text) if check.detail else counted(hits),
        findings=findings(check.id, text, worst[:MAX_SHOWN]),
    )


def enough(hits: Iterable[Hit], worst: Status) -> Iterable[Hit]:
    """Stop after many hits of the worst status: nothing that follows can change the verdict."""
    count = 0
    for hit in hits:
        yield hit
        count += hit.status is worst
        if count >= MAX_HITS:
            return


def distinct(hits: Iterable[Hit]) -> tuple[Hit, ...]:
    """Keep one of hits that overlap, the worst; in file order."""
    kept: list[Hit] = []
    free = 0
    for hit in sorted(hits, key=lambda item: (item.start, -item.status.rank, item.end)):
        if hit.start >= free:
            kept.append(hit)
        elif hit.status.rank > kept[-1].status.rank:
            kept[-1] = hit
        else:
            continue
        free = hit.end if hit.end > hit.start else hit.start + 1
    return tuple(kept)


def counted(hits: Sequence[Hit]) -> str | None:
    """Say how many places were found, and when not all of them are shown."""
    if not hits:
        return None
    places = f"{len(hits)} place" + ("s" if len(hits) > 1 else "")
    if len(hits) >= MAX_HITS:
        places = f"at least {MAX_HITS} places"
    return f"{places}, the worst {MAX_SHOWN} shown" if len(hits) > MAX_SHOWN else places


def findings(check: str, text: Text, hits: Iterable[Hit]) -> tuple[Finding, ...]:
    """Turn hits into findings with place and harmless bytes, in file order."""
    return tuple(
        Finding(
            check=check,
            status=hit.status,
            line=line,
            column=column,
            shown=harmless(text.source[hit.start : hit.end], secret=hit.secret),
            why=hit.why,
        )
        for hit in sorted(hits, key=lambda hit: (hit.start, hit.end))
        for line, column in (text.position(hit.start),)
    )
