from __future__ import annotations

from recompute.report.explain_text import explain_text
from recompute.report.plan_text import plan_text
from recompute.report.text import percent, quantity, signed_gib, table
from recompute.search.explain import explain
from recompute.search.plan import plan

from ..search.fakes import small_job
from ..timeline.jobs import job as h200_job


def test_columns_align() -> None:
    lines = table(("name", "n", "note|"), [("a", "1", "x"), ("bcd", "200", "yy")]).splitlines()
    assert lines == ["  name    n  note", "  a       1  x", "  bcd   200  yy"]


def test_amounts() -> None:
    assert quantity(2.7e15, "FLOP") == "2.70 PFLOP"
    assert quantity(0, "B") == "0"
    assert signed_gib(-(1 << 30)) == "-1.00"
    assert percent(0.0) == "0"


def test_the_verdict_comes_first_and_the_overrides_can_be_pasted() -> None:
    text = plan_text(plan(h200_job(), "18GiB"))
    first = text.splitlines()[0]
    assert first == "plan: full/block/5 is the cheapest that fits 18.00 GiB"
    assert "model.recompute_method=block model.recompute_num_layers=5" in text
    assert text.index("why") < text.index("paste") < text.index("choices, best first")


def test_an_infeasible_plan_says_what_is_closest_and_pastes_nothing() -> None:
    text = plan_text(plan(h200_job(), "1GiB"))
    assert text.startswith("infeasible: no recompute choice fits 1.00 GiB")
    assert "closest" in text
    assert "paste" not in text


def test_a_job_that_says_so_already_has_nothing_to_paste() -> None:
    job = small_job(recompute_granularity="selective", recompute_modules=())
    assert "nothing: the job says so already" in plan_text(plan(job, "70GiB"))


def test_a_long_ranking_is_cut_and_says_how_to_see_all() -> None:
    answer = plan(h200_job(num_layers=48), "60GiB")
    short = plan_text(answer)
    whole = plan_text(answer, top=len(answer.alternatives))
    assert f"--top {len(answer.alternatives)} lists all" in short
    assert whole.count("full/uniform/") == 48
    assert "lists all" not in whole


def test_a_per_layer_plan_prints_layers_and_the_gain() -> None:
    text = plan_text(plan(h200_job(), "20GiB", per_layer=True))
    assert "per-layer is the cheapest" in text
    assert "  layers     0 to " in text
    assert "the best stock choice" in text


def test_explain_shows_ranks_owners_and_labels() -> None:
    text = explain_text(explain(h200_job()))
    assert text.startswith("[]: peak ")
    assert "alive at the peak of pp 0" in text
    assert "core_attn" in text
    assert "+0.62" in text
