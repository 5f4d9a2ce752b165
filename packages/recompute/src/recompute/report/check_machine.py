"""``check`` for machines: SARIF 2.1.0, and the annotation lines of GitHub Actions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final
from urllib.parse import quote

from recompute import __version__
from recompute.report.check_document import Checked
from recompute.rules.table import BY_ID
from recompute.rules.types import Finding, Rule

SCHEMA: Final = "https://json.schemastore.org/sarif-2.1.0.json"
LEVELS: Final = {"error": "error", "warning": "warning", "note": "note"}
COMMANDS: Final = {"error": "error", "warning": "warning", "note": "notice"}


def sarif(answers: Sequence[Checked]) -> dict[str, Any]:
    """Return one SARIF log with one run over all jobs."""
    ids = list(dict.fromkeys(f.rule for answer in answers for f in answer.findings))
    return {
        "$schema": SCHEMA,
        "version": "2.1.0",
        "runs": [
            {
                "tool": {
                    "driver": {
                        "name": "recompute",
                        "version": __version__,
                        "rules": [_descriptor(BY_ID[name]) for name in ids],
                    }
                },
                "columnKind": "unicodeCodePoints",
                "results": [
                    _result(answer, finding, ids)
                    for answer in answers
                    for finding in answer.findings
                ],
            }
        ],
    }


def github(answers: Sequence[Checked]) -> str:
    """Return one workflow command for each finding."""
    return "\n".join(
        _annotation(answer, finding) for answer in answers for finding in answer.findings
    )


def line_of(answer: Checked, finding: Finding) -> int:
    """Return the line of the job file that gave the finding's first field, 1 when none did."""
    for name in finding.fields:
        where = answer.job.given.get(name, "")
        number = where.rpartition(":")[2]
        if where.startswith(answer.job.identity.path + ":") and number.isdigit():
            return max(int(number), 1)
    return 1


def _descriptor(rule: Rule) -> dict[str, Any]:
    return {
        "id": rule.id,
        "shortDescription": {"text": rule.title},
        "defaultConfiguration": {"level": LEVELS[rule.severity]},
        "properties": {"raised": rule.raised, "basis": rule.basis},
    }


def _result(answer: Checked, finding: Finding, ids: Sequence[str]) -> dict[str, Any]:
    source = finding.source
    return {
        "ruleId": finding.rule,
        "ruleIndex": ids.index(finding.rule),
        "level": LEVELS[finding.severity],
        "message": {"text": _told(finding)},
        "locations": [
            {
                "physicalLocation": {
                    "artifactLocation": {"uri": quote(answer.job.identity.path)},
                    "region": {"startLine": line_of(answer, finding)},
                }
            }
        ],
        "properties": {
            "mcore": answer.mcore,
            "fields": list(finding.fields),
            "overrides": list(finding.overrides),
            "confirmed": finding.confirmed,
            "source": f"{source.repository} {source.revision} {source.path} {source.where}",
        },
    }


def _told(finding: Finding) -> str:
    parts = [finding.message]
    if finding.overrides:
        parts.append("Change: " + " ".join(finding.overrides))
    if finding.advice:
        parts.append("Do: " + finding.advice)
    return ". ".join(parts)


def _annotation(answer: Checked, finding: Finding) -> str:
    where = f"file={_property(answer.job.identity.path)},line={line_of(answer, finding)}"
    title = _property(f"recompute {finding.rule}")
    return f"::{COMMANDS[finding.severity]} {where},title={title}::{_data(_told(finding))}"


def _data(text: str) -> str:
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(text: str) -> str:
    return _data(text).replace(":", "%3A").replace(",", "%2C")
