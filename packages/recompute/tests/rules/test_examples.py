"""Every row of the table holds on its failing example and not on its passing one."""

from __future__ import annotations

import pytest

from recompute.config.revision import Revision
from recompute.rules.check import check, has_error, repair
from recompute.rules.examples import BASE, job_of
from recompute.rules.table import RULES
from recompute.rules.types import Rule

ROWS = [pytest.param(rule, id=rule.id) for rule in RULES]


def found(rule: Rule, side: str) -> set[str]:
    example = getattr(rule, side)
    findings = check(job_of(example), Revision(example.revision))
    return {finding.rule for finding in findings}


@pytest.mark.parametrize("rule", ROWS)
def test_the_failing_example_is_reported(rule: Rule) -> None:
    assert rule.id in found(rule, "bad")


@pytest.mark.parametrize("rule", ROWS)
def test_the_passing_example_is_not(rule: Rule) -> None:
    assert rule.id not in found(rule, "good")


@pytest.mark.parametrize("rule", ROWS)
def test_the_passing_example_has_no_other_error(rule: Rule) -> None:
    findings = check(job_of(rule.good), Revision(rule.good.revision))
    assert [finding for finding in findings if finding.severity == "error"] == []


@pytest.mark.parametrize("rule", [row for row in ROWS if row.values[0].fix is not None])
def test_the_fix_ends_the_finding(rule: Rule) -> None:
    revision = Revision(rule.bad.revision)
    job = job_of(rule.bad)
    repaired = repair(job, revision)
    assert repaired != job
    assert rule.id not in {finding.rule for finding in check(repaired, revision)}
    assert not has_error(repaired, revision)


@pytest.mark.parametrize("rule", ROWS)
def test_messages_are_sentences_with_their_values_filled_in(rule: Rule) -> None:
    revision = Revision(rule.bad.revision)
    finding = next(f for f in check(job_of(rule.bad), revision) if f.rule == rule.id)
    assert len(finding.message) > 30
    assert "{" not in finding.message.replace("{}", "")
    assert finding.source.revision


@pytest.mark.parametrize("revision", ["0.8", "0.12", "0.16", "0.19", "pin", "main", "dev"])
def test_the_base_job_is_clean(revision: str) -> None:
    assert check(BASE, Revision(revision)) == ()


def test_ids_are_unique() -> None:
    ids = [rule.id for rule in RULES]
    assert sorted(set(ids)) == sorted(ids)
