"""Public reports get the verdict that their maintainers or arithmetic gave."""

from __future__ import annotations

import pytest

from recompute.diagnose.conclude import conclude
from recompute.diagnose.logs import read_text

from .reported_cases import CASES, Case

TEXTS = {
    "report first": "{report}\n{error}\n",
    "error first": "{error}\n\n{report}\n",
    "labelled": "symptom: {report}\nerror: {error}",
}


@pytest.mark.parametrize("form", TEXTS)
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.url.split("github.com/")[-1])
def test_verdict_stage_and_first_action(case: Case, form: str) -> None:
    found = conclude(read_text(TEXTS[form].format(report=case.report, error=case.error)))
    assert (str(found.verdict), str(found.stage)) == (case.verdict, case.stage)
    assert case.action in found.next_actions[0].action


def test_unknown_only_where_nothing_can_be_known() -> None:
    unknown = {case.url for case in CASES if case.verdict == "unknown"}
    answered = {
        case.url
        for case in CASES
        if str(conclude(read_text(f"{case.report}\n{case.error}")).verdict) == "unknown"
    }
    assert answered == unknown
