"""What changes for a job, or for every job, between two revisions."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from recompute.config.choice import LABELS
from recompute.rules.allowed import FIELD_SINCE, LABELS_OF, OFFLOAD_OF, has_field
from recompute.rules.check import check
from recompute.rules.table import RULES
from recompute.rules.types import Finding, Rule

if TYPE_CHECKING:
    from recompute.config.revision import Revision
    from recompute.config.schema import JobConfig

Kind = Literal["stops being legal", "becomes legal", "changes meaning", "starts", "ends"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """One rule whose answer differs between two revisions."""

    kind: Kind
    rule: str
    severity: str
    text: str
    fields: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class RevisionDiff:
    """What differs between two revisions."""

    labels_added: tuple[str, ...]
    labels_removed: tuple[str, ...]
    offload_added: tuple[str, ...]
    offload_removed: tuple[str, ...]
    fields_added: tuple[str, ...]
    fields_removed: tuple[str, ...]
    changes: tuple[Change, ...]


def diff(before: Revision, after: Revision, job: JobConfig | None = None) -> RevisionDiff:
    """Compare two revisions.

    Args:
        before: The revision that is left.
        after: The revision that is gone to.
        job: Only what concerns this job; every rule when left out.
    """
    first, second = before.name, after.name
    names = (*FIELD_SINCE, "enable_hyper_connections")
    return RevisionDiff(
        labels_added=_in_order(LABELS_OF[second] - LABELS_OF[first]),
        labels_removed=_in_order(LABELS_OF[first] - LABELS_OF[second]),
        offload_added=_sorted(_offload(second) - _offload(first)),
        offload_removed=_sorted(_offload(first) - _offload(second)),
        fields_added=tuple(n for n in names if has_field(second, n) and not has_field(first, n)),
        fields_removed=tuple(n for n in names if has_field(first, n) and not has_field(second, n)),
        changes=_of_rules(first, second) if job is None else _of_job(before, after, job),
    )


def _of_rules(first: str, second: str) -> tuple[Change, ...]:
    """Return the rules that start or end between two revisions, errors first."""
    changes = [
        Change(
            kind="starts" if second in rule.revisions else "ends",
            rule=rule.id,
            severity=rule.severity,
            text=rule.title,
            fields=rule.fields,
        )
        for rule in RULES
        if (first in rule.revisions) != (second in rule.revisions)
    ]
    return tuple(sorted(changes, key=_urgency))


def _of_job(before: Revision, after: Revision, job: JobConfig) -> tuple[Change, ...]:
    """Return what the job's own settings are told on one revision and not on the other."""
    old = {finding.rule: finding for finding in check(job, before, fixes=False)}
    new = {finding.rule: finding for finding in check(job, after, fixes=False)}
    changes = [
        *(_change(new[name], appears=True) for name in new if name not in old),
        *(_change(old[name], appears=False) for name in old if name not in new),
    ]
    return tuple(sorted(changes, key=_urgency))


def _change(finding: Finding, *, appears: bool) -> Change:
    kind: Kind = "changes meaning"
    if finding.severity == "error":
        kind = "stops being legal" if appears else "becomes legal"
    text = finding.message if appears else f"no longer said: {finding.message}"
    return Change(
        kind=kind,
        rule=finding.rule,
        severity=finding.severity,
        text=text,
        fields=finding.fields,
    )


def _urgency(change: Change) -> tuple[int, bool]:
    rank = ("error", "warning", "note").index(change.severity)
    return rank, change.kind in ("becomes legal", "ends")


def _offload(name: str) -> frozenset[str]:
    return OFFLOAD_OF.get(name, frozenset())


def _in_order(labels: frozenset[str]) -> tuple[str, ...]:
    return tuple(label for label in LABELS if label in labels)


def _sorted(labels: frozenset[str]) -> tuple[str, ...]:
    return tuple(sorted(labels))


def rules_of(revision: str) -> tuple[Rule, ...]:
    """Return the rules of one revision, in table order."""
    return tuple(rule for rule in RULES if revision in rule.revisions)
