"""The published vectors, and that the table, the vectors and the documentation name the same checks."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from mdr.audit.rulesets import R1, RULESETS
from mdr.audit.run import audit
from mdr.audit.types import Status
from mdr.audit.vectors import Vector, vectors_of

SEED_TITLES = (
    "Frontmatter block present",
    "Frontmatter declares a name",
    "Frontmatter declares a description",
    "Size between 200 bytes and 200 KB",
    "No zero-width or bidi control characters",
    "No instruction hidden inside an HTML comment",
    "No link to an exfiltration or paste host",
    "No credential-shaped string",
    "No instruction to send local credentials anywhere",
    "No text hidden with inline styles",
    "No prompt-injection phrasing",
    "No curl or wget piped into a shell",
    "No recursive delete of root, home or parent",
    "No instruction to read or print local credentials",
    "No base64 blob over 200 characters",
    "No link to a raw IP address",
    "No script tag",
)
IDS = (
    "frontmatter name description size invisible html-comment exfil-host credential send-credentials "
    "hidden-style injection pipe-shell rm-rf read-credentials base64 raw-ip script"
)
VECTORS = vectors_of("r1")
DOCS = Path(__file__).resolve().parents[4] / "docs" / "reference" / "audit-checks.md"


@pytest.mark.parametrize("vector", VECTORS, ids=lambda vector: vector.id)
def test_vector(vector: Vector) -> None:
    results = {check.id: check for check in audit(vector.data).checks}
    found = results[vector.check]
    assert found.status is vector.expect, (vector.why, found.findings)


def test_titles_and_order_are_those_of_the_seed_page() -> None:
    assert tuple(check.title for check in R1) == SEED_TITLES
    assert " ".join(check.id for check in R1) == IDS


@pytest.mark.parametrize("ruleset", RULESETS)
def test_every_check_has_a_passing_and_a_failing_vector(ruleset: str) -> None:
    seen = Counter((vector.check, vector.expect is Status.PASS) for vector in vectors_of(ruleset))
    for check in RULESETS[ruleset]:
        assert seen[check.id, True], check.id
        assert seen[check.id, False], check.id


def test_vectors_have_distinct_ids_and_texts() -> None:
    assert len({vector.id for vector in VECTORS}) == len(VECTORS)
    assert len({(vector.check, vector.data) for vector in VECTORS}) == len(VECTORS)


def test_the_reference_has_a_heading_for_every_check() -> None:
    headings = [line for line in DOCS.read_text("utf-8").splitlines() if line.startswith("## ")]
    for check in R1:
        assert any(f"`{check.id}`" in heading for heading in headings), check.id


def test_a_finding_never_shows_a_whole_credential() -> None:
    for vector in VECTORS:
        result = audit(vector.data)
        for check in result.checks:
            if check.id != "credential":
                continue
            for finding in check.findings:
                assert "masked" in finding.shown, vector.id
                assert len(finding.shown) < 40, vector.id
