"""Public reports on recompute settings, in our own words, and the verdict each deserves.

A row is one configuration that somebody ran, or that follows from the source named; ``None`` for the rule
means that nothing may be said beyond notes.
"""

from __future__ import annotations

from typing import Any

import pytest

from recompute.config.revision import Revision
from recompute.rules.check import check
from recompute.rules.examples import job_of
from recompute.rules.types import Example

from . import megatron_reports, other_reports
from .report_row import FULL, Report

REPORTS = [*megatron_reports.REPORTS, *other_reports.REPORTS]
(ABSORBED,) = (one for one in REPORTS if one.name == "absorbed attention with fp8")

GATES = [
    Report("no own error after the MTP fix", "", "0.19", {**FULL, "mtp_num_layers": 1}, None),
    Report("absorbed attention on dev", "", "dev", ABSORBED.fields, None),
    Report(
        "two rotary embeddings, fixed",
        "",
        "0.19",
        {**FULL, "unmodelled": {"model.model_type": "gemma4"}},
        None,
        entry="core",
    ),
    Report(
        "FSDP version 2, fixed",
        "",
        "pin",
        {**FULL, "ddp.use_megatron_fsdp": True, "unmodelled": {"ddp.megatron_fsdp_version": "v2"}},
        None,
    ),
]
"""The other side of each version gate that the reports above do not show themselves."""


def told(report: Report) -> dict[str, Any]:
    job = job_of(Example(revision=report.revision, entry=report.entry, fields=report.fields))
    return {finding.rule: finding for finding in check(job, Revision(report.revision))}


@pytest.mark.parametrize("report", [pytest.param(r, id=r.name) for r in REPORTS])
def test_the_verdict_is_the_one_the_report_deserves(report: Report) -> None:
    findings = told(report)
    if report.rule is None:
        assert [f for f in findings.values() if f.severity != "note"] == []
        return
    assert report.rule in findings, sorted(findings)
    finding = findings[report.rule]
    assert finding.severity == report.severity
    if report.field:
        assert report.field in finding.fields


@pytest.mark.parametrize("report", [pytest.param(r, id=r.name) for r in GATES])
def test_the_other_side_of_a_gate_is_quiet(report: Report) -> None:
    assert [f for f in told(report).values() if f.severity == "error"] == []
