from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Any

import pytest

from recompute.config.geometry import check_geometry
from recompute.config.normalize import revision_of
from recompute.config.schema import JobConfig
from recompute.errors import ConfigError
from recompute.report.joint_report import joint_document, joint_text
from recompute.report.plan_text import limit_words
from recompute.report.text import SHORT, gib
from recompute.rules.check import has_error
from recompute.search.budget import allowance_bytes
from recompute.search.joint import Layout, at_layout, joint
from recompute.search.plan import plan
from recompute.units import GIB, format_gib

from .fakes import small_job

JOB = small_job(
    num_layers=8,
    hidden_size=4096,
    num_attention_heads=32,
    ffn_hidden_size=14336,
    **{"hardware.num_gpus": 8, "train.global_batch_size": 32},
)
EVERYTHING = 100_000


@pytest.mark.parametrize("budget", [5 * GIB, 12 * GIB, 60 * GIB])
def test_pruned_and_unpruned_searches_agree(budget: int) -> None:
    whole = joint(JOB, budget, top=EVERYTHING)
    pruned = joint(JOB, budget, top=5)
    assert pruned.rows == whole.rows[:5]
    assert pruned.layouts == whole.layouts
    assert pruned.predicted <= whole.predicted


MIXED = small_job(
    num_layers=4,
    hidden_size=2048,
    num_attention_heads=16,
    num_moe_experts=4,
    moe_grouped_gemm=True,
    moe_ffn_hidden_size=4096,
    moe_layer_freq=(0, 1, 1, 1),
    moe_token_dispatcher_type="alltoall",
    **{"hardware.num_gpus": 4, "train.global_batch_size": 8},
)
"""Layers of two kinds: with more chunks a stage has other ones."""


def by_planning_everything(job: JobConfig, budget: int) -> list[tuple[float, Layout]]:
    """Plan every layout of the axes on its own: step time and layout, fastest first."""
    powers = (1, 2, 4)
    axes = itertools.product(powers, powers, range(1, 5), powers, powers, (1, 2, 4, 8))
    found = []
    for tp, pp, vpp, cp, ep, mbs in axes:
        layout = Layout(tp=tp, pp=pp, vpp=vpp, cp=cp, ep=ep, mbs=mbs)
        replicas = 4 // (tp * pp * cp)
        count = 8 // (mbs * replicas) if replicas and 8 % (mbs * replicas) == 0 else 0
        if not count or (vpp > 1 and (pp == 1 or count % pp)):
            continue
        try:
            at = at_layout(job, layout)
            check_geometry(at)
            answer = plan(at, budget, gpu="h200", details=False)
            if has_error(at, revision_of(at)[0]):
                continue
        except ConfigError:
            continue
        if answer.chosen is not None:
            step = answer.control_seconds * (1.0 + answer.chosen.step_time_overhead)
            found.append((step, layout))
    return sorted(found)


@pytest.mark.parametrize("budget", [3 * GIB, 4 * GIB, 9 * GIB])
def test_the_rows_are_those_of_planning_every_layout(budget: int) -> None:
    expected = by_planning_everything(MIXED, budget)
    rows = joint(MIXED, budget, gpu="h200", top=12).rows
    assert rows
    assert [row.layout for row in rows] == [layout for _, layout in expected[: len(rows)]]
    assert len(rows) == min(12, len(expected))


def test_pruning_leaves_layouts_out() -> None:
    assert joint(JOB, 60 * GIB, top=3).predicted < joint(JOB, 60 * GIB, top=EVERYTHING).predicted


def test_each_row_is_what_plan_says_of_that_layout() -> None:
    for row in joint(JOB, 12 * GIB, top=5).rows:
        answer = plan(at_layout(JOB, row.layout), 12 * GIB)
        assert answer.chosen is not None
        assert answer.chosen.choice == row.outcome.choice
        assert answer.tokens_per_second == pytest.approx(row.tokens_per_second)


def test_rows_are_fastest_first_and_fit() -> None:
    rows = joint(JOB, 12 * GIB).rows
    assert rows
    seconds = [row.step_seconds for row in rows]
    assert seconds == sorted(seconds)
    assert all(row.outcome.peak_bytes <= 12 * GIB for row in rows)


def test_nothing_fits_is_an_answer() -> None:
    answer = joint(JOB, GIB // 4)
    assert not answer.rows
    assert answer.too_large == answer.layouts
    told = joint_text(answer)
    assert told.startswith("no layout fits 0.25 GiB: ")
    assert "step times use the rates of" in told


@pytest.mark.parametrize("asked", [{"budget": 60 * GIB}, {"gpu": "h200"}, {"gpu": "b200"}])
def test_it_rests_on_what_plans_at_its_layouts_rest_on_and_says_so(asked: dict[str, Any]) -> None:
    answer = joint(JOB, **asked, top=6)
    plans = [plan(at_layout(JOB, row.layout), **asked) for row in answer.rows]
    assert [each.budget for each in plans] == [row.budget for row in answer.rows]
    ids = {said.id for each in plans for said in each.assumptions}
    assert {said.id for said in answer.assumptions} == ids
    assert len(answer.assumptions) == len(ids)
    told, document = joint_text(answer), joint_document(JOB, answer)
    assert told.startswith(f"fastest layouts that fit {limit_words(*(p.budget for p in plans))}\n")
    assert document["budget_bytes"] == answer.budget.limit_bytes
    texts = {each["text"] for each in document["assumptions"]}
    assert texts == {each.text for each in answer.assumptions}
    for text in texts:
        assert (" ".join(text.split()) in " ".join(told.split())) == (len(text) <= SHORT)


def test_each_layout_keeps_free_what_its_own_communicators_take() -> None:
    """Communicators of more families take more of the device, outside torch."""
    answer = joint(JOB, gpu="h200", top=EVERYTHING)
    kept = {row.budget.margin_bytes for row in answer.rows}
    assert len(kept) > 2
    for row in answer.rows:
        assert row.budget.margin_bytes == allowance_bytes(at_layout(JOB, row.layout))
    said = {each.id: each.text for each in answer.assumptions}["outside-torch"]
    assert said.startswith(f"{format_gib(min(kept))} to {format_gib(max(kept))} are kept")
    assert f"{gib(min(kept))} to {gib(max(kept))} kept outside torch" in joint_text(answer)


def test_a_layout_that_a_plan_refuses_is_not_offered() -> None:
    """The tightest memory into which a layout with the fewest communicators goes; others keep more free."""
    whole = joint(JOB, gpu="h200", top=EVERYTHING).rows
    tight = min(row.outcome.reserved_range_bytes[1] + row.budget.margin_bytes for row in whole)
    for more in (0, GIB // 4, GIB // 2):
        job = replace(JOB, hardware=replace(JOB.hardware, gpu="h200", memory_bytes=tight + more))
        for row in joint(job, top=EVERYTHING).rows:
            assert plan(at_layout(job, row.layout), details=False).chosen is not None


def test_layers_that_do_not_divide_get_a_short_last_stage() -> None:
    job = replace(JOB, model=replace(JOB.model, num_layers=7))
    found = joint(job, 60 * GIB, top=EVERYTHING).rows
    assert {row.layout.last for row in found if row.layout.pp == 2} == {3}
    assert {row.layout.last for row in found if row.layout.pp == 1} == {0}


def test_what_is_needed_is_said() -> None:
    for section, field in (("hardware", "num_gpus"), ("train", "global_batch_size")):
        job = small_job(**{"hardware.num_gpus": 8, f"{section}.{field}": None})
        with pytest.raises(ConfigError) as caught:
            joint(job, GIB)
        assert f"{section}.{field}" in caught.value.hint


def test_the_document_can_be_pasted() -> None:
    document = joint_document(JOB, joint(JOB, 60 * GIB, top=2))
    assert document["schema"] == "recompute.joint/1"
    assert len(document["rows"]) == 2
    layout = Layout(tp=2, pp=4, vpp=2, cp=1, ep=1, mbs=1)
    assert "model.sequence_parallel=true" in layout.changes()
    assert "model.virtual_pipeline_model_parallel_size=2" in layout.changes()
