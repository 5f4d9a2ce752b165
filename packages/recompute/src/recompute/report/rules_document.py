"""The rule table and the difference between revisions, as documents and as text."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from typing import Any

from recompute.config.choice import LABELS
from recompute.config.revision import NAMES
from recompute.rules.allowed import LABELS_OF
from recompute.rules.diff import RevisionDiff
from recompute.rules.types import Rule

WIDTH = 100


def rule_document(rule: Rule, revision: str | None) -> dict[str, Any]:
    """Return one row."""
    source = rule.source.at(revision or next(n for n in reversed(NAMES) if n in rule.revisions))
    return {
        "rule": rule.id,
        "severity": rule.severity,
        "raised": rule.raised,
        "title": rule.title,
        "revisions": [name for name in NAMES if name in rule.revisions],
        "entry_points": sorted(rule.entries),
        "fields": list(rule.fields),
        "advice": rule.advice,
        "basis": rule.basis,
        "has_fix": rule.fix is not None,
        "source": {
            "repository": source.repository,
            "revision": source.revision,
            "path": source.path,
            "where": source.where,
        },
    }


def rules_document(rules: Sequence[Rule], revision: str | None) -> dict[str, Any]:
    """Return the document ``recompute.rules/1``."""
    return {
        "schema": "recompute.rules/1",
        "job": None,
        "changes": [],
        "assumptions": [],
        "mcore": revision,
        "labels": None if revision is None else _labels(revision),
        "rules": [rule_document(rule, revision) for rule in rules],
    }


def diff_document(
    answer: RevisionDiff, before: str, after: str, job: dict[str, Any] | None
) -> dict[str, Any]:
    """Return the document of a difference; ``job`` is the identity of the job that was asked about."""
    return {
        "schema": "recompute.rules/1",
        "job": job,
        "changes": [],
        "assumptions": [],
        "before": before,
        "after": after,
        "labels": {"added": list(answer.labels_added), "removed": list(answer.labels_removed)},
        "offload_modules": {
            "added": list(answer.offload_added),
            "removed": list(answer.offload_removed),
        },
        "fields": {"added": list(answer.fields_added), "removed": list(answer.fields_removed)},
        "diff": [
            {
                "kind": change.kind,
                "rule": change.rule,
                "severity": change.severity,
                "text": change.text,
                "fields": list(change.fields),
            }
            for change in answer.changes
        ],
    }


def rules_text(rules: Sequence[Rule], revision: str | None) -> str:
    """Return the table for people, one rule a paragraph."""
    lines = [f"{len(rules)} rules" + (f" for Megatron Core {revision}" if revision else "")]
    if revision is not None:
        lines.append("labels: " + ", ".join(_labels(revision)))
    for severity in ("error", "warning", "note"):
        rows = [rule for rule in rules if rule.severity == severity]
        if not rows:
            continue
        lines += ["", f"{severity}s"]
        for rule in rows:
            lines += textwrap.wrap(
                f"{rule.id} ({span(rule)}): {rule.title}",
                width=WIDTH,
                initial_indent="  ",
                subsequent_indent="      ",
                break_on_hyphens=False,
            )
    return "\n".join(lines)


def diff_text(answer: RevisionDiff, before: str, after: str, job: str | None) -> str:
    """Return the difference for people."""
    lines = [f"Megatron Core {before} -> {after}" + (f", for {job}" if job else "")]
    for name, added, removed in (
        ("labels", answer.labels_added, answer.labels_removed),
        ("offload labels", answer.offload_added, answer.offload_removed),
        ("fields", answer.fields_added, answer.fields_removed),
    ):
        if added:
            lines.append(f"{name} added: " + ", ".join(added))
        if removed:
            lines.append(f"{name} removed: " + ", ".join(removed))
    if not answer.changes:
        lines.append("no rule answers differently")
    kind = ""
    for change in sorted(answer.changes, key=lambda change: change.kind):
        if change.kind != kind:
            kind = change.kind
            lines += ["", kind]
        lines += textwrap.wrap(
            f"{change.severity} {change.rule}: {change.text}",
            width=WIDTH,
            initial_indent="  ",
            subsequent_indent="      ",
            break_on_hyphens=False,
        )
    return "\n".join(lines)


def span(rule: Rule) -> str:
    """Write the revisions of a rule: ``0.12 to main, dev``."""
    line = [name for name in NAMES if name in rule.revisions and name != "dev"]
    parts = []
    if line:
        together = NAMES.index(line[-1]) - NAMES.index(line[0]) + 1 == len(line)
        parts.append(
            (line[0] if len(line) == 1 else f"{line[0]} to {line[-1]}")
            if together
            else ", ".join(line)
        )
    if "dev" in rule.revisions:
        parts.append("dev")
    return ", ".join(parts)


def _labels(revision: str) -> list[str]:
    return [label for label in LABELS if label in LABELS_OF[revision]]
