"""The values of the audit: findings, one result per check, the grade, and their documents.

The shape of :meth:`AuditResult.to_document` is the interface of ``mdr audit --json`` and of the
audit endpoint: every field at the top level, unknown is ``null``.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import IntEnum, StrEnum
from functools import cached_property
from typing import Any, Final

from mdr.artifact.types import Kind
from mdr.digest import Sha256

SCHEMA: Final = "mdr.audit/1"
GRADES: Final = ("A", "B", "C", "D", "F")
"""Best first."""


class Status(StrEnum):
    """What a check says about one file."""

    PASS = "pass"
    WARN = "warn"
    """Matched, and quoted, negated or on a short list of well-known installers."""
    FAIL = "fail"
    CRIT = "crit"
    """Matched in a form that has no innocent reading."""
    NA = "na"
    """The kind of file has nothing that this check could look at."""
    SKIPPED = "skipped"
    """The file cannot be read as text, so nothing was looked at."""

    @cached_property
    def rank(self) -> int:
        """Order of badness; ``na`` and ``skipped`` rank with ``pass``."""
        return {"warn": 1, "fail": 2, "crit": 3}.get(self.value, 0)


class Severity(IntEnum):
    """Penalty points of a failed check."""

    LOW = 1
    MEDIUM = 2
    HIGH = 4
    CRITICAL = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One place in the file and why it matters."""

    check: str
    status: Status
    """What this finding alone would make of the check: warn, fail or crit."""
    line: int
    """1-based line of the original text; LF, CRLF and a lone CR each end a line."""
    column: int
    """1-based, in code points of the original line, a byte order mark not counted."""
    shown: str
    """The bytes, harmless: escaped, shortened, credentials masked."""
    why: str

    def to_document(self) -> dict[str, Any]:
        """Return the finding as JSON types."""
        return {
            "line": self.line,
            "column": self.column,
            "status": self.status.value,
            "shown": self.shown,
            "why": self.why,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckResult:
    """What one check says."""

    id: str
    title: str
    """As the seed page prints it."""
    severity: Severity
    status: Status
    detail: str | None = None
    """The parenthesis after the title (``18915 bytes``), or how many places were found."""
    findings: tuple[Finding, ...] = ()
    """In file order; at most :data:`mdr.audit.run.MAX_SHOWN`, ``detail`` says when there are more."""

    @property
    def line(self) -> str:
        """The line of the page: ``pass: Title (detail)``."""
        return f"{self.status}: {self.title}" + (f" ({self.detail})" if self.detail else "")

    def to_document(self) -> dict[str, Any]:
        """Return the check as JSON types."""
        return {
            "id": self.id,
            "title": self.title,
            "severity": self.severity.name.lower(),
            "detail": self.detail,
            "status": self.status.value,
            "findings": [finding.to_document() for finding in self.findings],
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditError:
    """Why a file cannot be audited at all; its grade is then F."""

    code: str
    """``not-utf8`` or ``nul-byte``."""
    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditResult:
    """The verdict on one file: a pure function of its bytes, its kind and the ruleset."""

    sha256: Sha256
    size: int
    """Bytes."""
    kind: Kind
    ruleset: str
    grade: str
    penalty: int | None
    """Sum of points, ``None`` when the file cannot be audited."""
    error: AuditError | None
    checks: tuple[CheckResult, ...]

    @property
    def findings(self) -> tuple[Finding, ...]:
        """All findings, in the order of the checks."""
        return tuple(finding for check in self.checks for finding in check.findings)

    def to_document(
        self, *, spec: Iterable[SpecFinding] = (), bundle: BundleResult | None = None
    ) -> dict[str, Any]:
        """Return the Audit document.

        Args:
            spec: Departures from the SKILL.md specification; never part of the grade.
            bundle: The audit of the folder around the file; ``None`` (``null``) when not done.
        """
        error = self.error and {"code": self.error.code, "message": self.error.message}
        return {
            "schema": SCHEMA,
            "sha256": self.sha256,
            "size": self.size,
            "kind": self.kind.value,
            "ruleset": self.ruleset,
            "grade": self.grade,
            "penalty": self.penalty,
            "error": error,
            "checks": [check.to_document() for check in self.checks],
            "spec": [finding.to_document() for finding in spec],
            "bundle": None if bundle is None else bundle.to_document(),
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class SpecFinding:
    """One departure from the SKILL.md specification."""

    code: str
    """Stable kebab-case name."""
    field: str | None
    """The frontmatter key it is about, ``None`` for the file as a whole."""
    message: str
    advice: bool = False
    """True for a budget the specification recommends and its validator does not enforce."""

    def to_document(self) -> dict[str, Any]:
        """Return the finding as JSON types."""
        return {
            "code": self.code,
            "field": self.field,
            "message": self.message,
            "advice": self.advice,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class BundleFinding:
    """Something in the folder that a reader should know before an agent runs it."""

    path: str
    rule: str
    """A row of :data:`mdr.audit.bundle.RULES`, or the id of a text check."""
    status: Status
    """``warn`` to look at, ``fail`` for what should not be there, ``crit`` for what has no innocent reading."""
    why: str
    line: int | None = None
    column: int | None = None
    shown: str = ""

    def to_document(self) -> dict[str, Any]:
        """Return the finding as JSON types."""
        return {
            "path": self.path,
            "rule": self.rule,
            "status": self.status.value,
            "line": self.line,
            "column": self.column,
            "shown": self.shown,
            "why": self.why,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class BundleResult:
    """The audit of all files of a folder. Shown beside the grade and never part of it."""

    status: Status
    """The worst of the findings; ``pass`` without one."""
    files: int
    bytes: int
    read: int
    """Files whose bytes were read by the text checks."""
    scripts: tuple[str, ...]
    """Files that an agent may run: by mode, by ``#!`` or by extension."""
    unread: tuple[str, ...]
    """Files whose content nothing here can read; each has a finding (fail closed)."""
    findings: tuple[BundleFinding, ...]

    def to_document(self) -> dict[str, Any]:
        """Return the bundle audit as JSON types."""
        return {
            "status": self.status.value,
            "files": self.files,
            "bytes": self.bytes,
            "read": self.read,
            "scripts": list(self.scripts),
            "unread": list(self.unread),
            "findings": [finding.to_document() for finding in self.findings],
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Semantics:
    """What a file can make an agent touch. Sorted, without duplicates."""

    hosts: tuple[str, ...]
    commands: tuple[str, ...]
    """Programs that its shell blocks and inline commands start."""
    tools: tuple[str, ...]
    """Tools that its frontmatter asks for."""
    credential_paths: tuple[str, ...]
    tokens: int
    """An estimate: four UTF-8 bytes a token, rounded up."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """What one list gained and lost."""

    added: tuple[str, ...]
    removed: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class SemanticDiff:
    """What changes for an agent between two versions."""

    hosts: Change
    commands: Change
    tools: Change
    credential_paths: Change
    tokens: tuple[int, int]
    grade: tuple[str | None, str | None]

    @property
    def adds_capability(self) -> bool:
        """Whether the newer version touches a host, command, tool or path the older one did not."""
        return any(c.added for c in (self.hosts, self.commands, self.tools, self.credential_paths))

    def to_document(self) -> dict[str, Any]:
        """Return the ``semantic`` object of the diff and update documents."""
        lists = {
            name: {"added": list(change.added), "removed": list(change.removed)}
            for name, change in (
                ("hosts", self.hosts),
                ("commands", self.commands),
                ("tools", self.tools),
                ("credential_paths", self.credential_paths),
            )
        }
        return {**lists, "tokens": list(self.tokens), "grade": list(self.grade)}
