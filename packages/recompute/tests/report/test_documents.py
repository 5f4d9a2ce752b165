"""The JSON documents hold what the contract names, and hold together."""

from __future__ import annotations

import json
from typing import Any

import pytest

from recompute.config.choice import LayerSpan, RecomputeChoice
from recompute.report.document import dump
from recompute.report.explain_document import explain_document
from recompute.report.plan_document import choice_document, plan_document
from recompute.search.explain import explain
from recompute.search.plan import plan

from ..search.fakes import small_job
from ..timeline.jobs import job as h200_job

PLAN_FIELDS = {
    "schema",
    "job",
    "changes",
    "assumptions",
    "status",
    "budget_bytes",
    "choice",
    "predicted",
    "alternatives",
    "cheaper_first",
    "why",
    "overrides",
    "closest",
}
CHOICE_FIELDS = {
    "recompute_granularity",
    "recompute_modules",
    "recompute_method",
    "recompute_num_layers",
    "per_layer",
}
RANK_FIELDS = {
    "rank",
    "global_ranks",
    "peak_bytes",
    "peak_range_bytes",
    "peak_phase",
    "static_bytes",
    "activation_bytes_at_peak",
    "activation_bytes_after_forward",
    "phases",
    "alive_at_peak",
}
LABEL_FIELDS = {
    "label",
    "active_layers",
    "peak_delta_bytes",
    "saved_after_forward_bytes",
    "replay_flops",
    "replay_comm_bytes",
    "step_time_overhead",
    "note",
}
PHASES = ["forward", "loss", "backward", "grad_sync", "optimizer_init", "optimizer_step"]


def planned(budget: str, **more: Any) -> dict[str, Any]:
    document: dict[str, Any] = json.loads(dump(plan_document(plan(h200_job(), budget, **more))))
    return document


@pytest.mark.parametrize("budget", ["100GiB", "18GiB", "1GiB"])
def test_plan_documents_have_every_field_of_the_contract(budget: str) -> None:
    document = planned(budget)
    assert next(iter(document)) == "schema"
    assert document["schema"] == "recompute.plan/1"
    assert set(document) >= PLAN_FIELDS
    for alternative in document["alternatives"]:
        assert set(alternative["choice"]) == CHOICE_FIELDS
        assert alternative["fits"] == (alternative["breaks"] is None)
        assert alternative["fits"] == (
            alternative["predicted"]["peak_bytes"] <= document["budget_bytes"]
        )
        low, high = alternative["predicted"]["reserved_range_bytes"]
        assert alternative["predicted"]["peak_bytes"] <= low <= high
        if not alternative["fits"]:
            assert set(alternative["breaks"]) == {"rank", "phase", "over_bytes"}


def test_a_plan_that_already_fits_chooses_no_recompute_in_so_many_words() -> None:
    document = planned("100GiB")
    assert document["status"] == "already_fits"
    assert document["choice"] == {
        "recompute_granularity": "selective",
        "recompute_modules": [],
        "recompute_method": None,
        "recompute_num_layers": None,
        "per_layer": None,
    }
    assert document["closest"] is None
    assert set(document["overrides"]) == {"bridge_python", "hydra", "megatron_lm", "yaml"}


def test_an_infeasible_plan_has_no_choice_and_names_the_closest() -> None:
    document = planned("1GiB")
    assert document["status"] == "infeasible"
    assert document["choice"] is None
    assert document["predicted"] is None
    assert document["overrides"] == {}
    assert set(document["closest"]) >= {"choice", "predicted", "fits", "breaks"}


def test_top_cuts_the_list_and_nothing_else() -> None:
    answer = plan(h200_job(), "18GiB")
    whole, cut = plan_document(answer), plan_document(answer, top=3)
    assert cut["alternatives"] == whole["alternatives"][:3]
    assert {k: v for k, v in cut.items() if k != "alternatives"} == {
        k: v for k, v in whole.items() if k != "alternatives"
    }


def test_a_per_layer_plan_lists_spans_and_no_setting_to_paste() -> None:
    document = planned("20GiB", per_layer=True)
    spans = document["choice"]["per_layer"]
    assert spans
    assert all(set(span) == {"layers", "modules"} for span in spans)
    assert "apply" in document["overrides"]["bridge_python"]
    assert document["stock"]["choice"]["per_layer"] is None


def test_multi_token_prediction_layers_have_their_own_names() -> None:
    choice = RecomputeChoice(per_layer=(LayerSpan(first=2, last=5, modules=("mlp",)),))
    document = choice_document(choice, small_job(num_layers=4))
    assert document["per_layer"] == [
        {"layers": [2, 3], "modules": ["mlp"]},
        {"layers": ["mtp.0", "mtp.1"], "modules": ["mlp"]},
    ]


def test_explain_documents_have_every_field_of_the_contract() -> None:
    job = small_job(pipeline_model_parallel_size=2, **{"hardware.num_gpus": 2})
    document = json.loads(dump(explain_document(explain(job))))
    assert document["schema"] == "recompute.explain/1"
    assert {"job", "changes", "assumptions", "hot_rank", "ranks", "labels"} <= set(document)
    assert document["hot_rank"] in [row["rank"] for row in document["ranks"]]
    for row in document["ranks"]:
        assert set(row) == RANK_FIELDS
        assert next(iter(row["rank"])) == "pp"
        names = [phase["phase"] for phase in row["phases"]]
        assert names == [name for name in PHASES if name in names]
        assert row["peak_bytes"] == max(phase["peak_bytes"] for phase in row["phases"])
        static = sum(row["static_bytes"].values())
        assert row["activation_bytes_at_peak"] == row["peak_bytes"] - static
        low, high = row["peak_range_bytes"]
        assert low <= row["peak_bytes"] <= high
    assert all(set(label) == LABEL_FIELDS for label in document["labels"])


def test_documents_name_each_assumption_once() -> None:
    ids = [item["id"] for item in planned("18GiB")["assumptions"]]
    assert len(ids) == len(set(ids))
