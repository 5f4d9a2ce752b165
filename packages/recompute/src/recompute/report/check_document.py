"""The document ``recompute.check/1``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from recompute.config.schema import Assumption, JobConfig
from recompute.report.document import envelope
from recompute.rules.types import Finding


@dataclass(frozen=True, slots=True, kw_only=True)
class Checked:
    """The answer to ``check`` for one job."""

    job: JobConfig
    """As given, with what was assumed."""
    mcore: str
    """Name of the revision that was checked against."""
    findings: tuple[Finding, ...]
    source: str | None = None
    """Path of the user's own Megatron Core, when one was read."""
    version: str | None = None
    """Version that the user asked for, or that the source states."""

    @property
    def ok(self) -> bool:
        """Whether there is no error."""
        return all(finding.severity != "error" for finding in self.findings)


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """Findings that one change answers."""

    overrides: tuple[str, ...]
    findings: tuple[Finding, ...]


def check_document(answer: Checked) -> dict[str, Any]:
    """Return the document for one job."""
    return {
        **envelope("check", answer.job),
        "ok": answer.ok,
        "mcore": answer.mcore,
        "version": answer.version,
        "source_path": answer.source,
        "findings": [finding.to_document() for finding in answer.findings],
        "overrides": list(all_overrides(answer.findings)),
    }


def many_document(answers: Sequence[Checked]) -> dict[str, Any]:
    """Return one document for several jobs: ``ok`` over all, one ``results`` entry each."""
    return {
        "schema": "recompute.check/1",
        "ok": all(answer.ok for answer in answers),
        "results": [check_document(answer) for answer in answers],
    }


def all_overrides(findings: Sequence[Finding]) -> tuple[str, ...]:
    """Return every override once, in the order of the findings."""
    return tuple(dict.fromkeys(line for finding in findings for line in finding.overrides))


def grouped(findings: Sequence[Finding]) -> tuple[Group, ...]:
    """Group findings by what to paste; the most urgent group first, those without a fix last."""
    groups: dict[tuple[str, ...], list[Finding]] = {}
    for finding in findings:
        groups.setdefault(finding.overrides, []).append(finding)
    ordered = [
        Group(overrides=overrides, findings=tuple(members)) for overrides, members in groups.items()
    ]
    return tuple(sorted(ordered, key=lambda group: (_rank(group.findings[0]), not group.overrides)))


def with_assumptions(job: JobConfig, *texts: tuple[str, str]) -> tuple[Assumption, ...]:
    """Return the job's assumptions and the given ``(id, text)`` ones, once per id."""
    known = {item.id for item in job.assumptions}
    extra = (Assumption(id=name, text=text) for name, text in texts if name not in known)
    return (*job.assumptions, *extra)


def _rank(finding: Finding) -> int:
    return ("error", "warning", "note").index(finding.severity)
