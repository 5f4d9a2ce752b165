"""The published recipes of Megatron Bridge are legal on the Megatron Core that it pins.

The DeepSeek-V4 recipes are the exception: they list a label that the pinned revision does not have.
"""

from __future__ import annotations

import contextlib
from collections import Counter

import pytest

from recompute.config.load import load
from recompute.config.recipe import recipe_names
from recompute.config.revision import Revision
from recompute.config.schema import JobConfig
from recompute.errors import ConfigError
from recompute.rules.check import check


@pytest.fixture(scope="module")
def recipes() -> dict[str, JobConfig]:
    jobs = {}
    for name in recipe_names():
        with contextlib.suppress(ConfigError):  # recipes whose own layout contradicts itself
            jobs[name] = load(f"recipe:{name}")
    assert len(jobs) >= len(recipe_names()) - 2
    return jobs


def test_no_recipe_has_an_error_at_its_own_pin(recipes: dict[str, JobConfig]) -> None:
    wrong = {
        (name, finding.rule)
        for name, job in recipes.items()
        for finding in check(job, Revision("pin"), bridge="head")
        if finding.severity == "error"
    }
    assert {rule for _, rule in wrong} == {"unknown-label"}
    assert all("deepseek_v4" in name for name, _ in wrong)
    assert all("mhc" in (recipes[name].model.recompute_modules or ()) for name, _ in wrong)


def test_the_exception_is_legal_on_the_branch_that_it_needs(
    recipes: dict[str, JobConfig],
) -> None:
    asked = {
        name: job for name, job in recipes.items() if "mhc" in (job.model.recompute_modules or ())
    }
    assert len(asked) >= 10
    for name, job in asked.items():
        rules = {f.rule for f in check(job, Revision("dev")) if f.severity == "error"}
        assert "unknown-label" not in rules, name


def test_the_catalogue_holds_what_was_counted(recipes: dict[str, JobConfig]) -> None:
    counts = Counter(job.model.recompute_granularity for job in recipes.values())
    assert counts["selective"] >= 110
    assert counts["full"] >= 37
