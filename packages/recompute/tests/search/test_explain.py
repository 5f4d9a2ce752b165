from __future__ import annotations

import pytest

from recompute.config.choice import NO_RECOMPUTE, selective
from recompute.errors import ConfigError
from recompute.search.explain import explain
from recompute.timeline.predict import Predictor

from ..timeline.jobs import job as h200_job
from .fakes import small_job


def test_labels_are_predicted_alone_against_no_recompute() -> None:
    effects = {e.label: e for e in explain(h200_job()).labels}
    predictor = Predictor(h200_job())
    none, mlp = (predictor.predict(c).hot for c in (NO_RECOMPUTE, selective("mlp")))
    assert effects["mlp"].peak_delta_bytes == mlp.peak.peak_bytes - none.peak.peak_bytes
    assert effects["mlp"].saved_after_forward_bytes == (
        none.activation_bytes_after_forward - mlp.activation_bytes_after_forward
    )
    assert effects["mlp"].replay_flops == sum(amount for _, amount in mlp.replay.flops)
    assert effects["mlp"].active_layers == 8


def test_core_attention_is_said_to_be_worse_than_none() -> None:
    effect = next(e for e in explain(h200_job()).labels if e.label == "core_attn")
    assert effect.peak_delta_bytes == 662_695_936
    assert effect.saved_after_forward_bytes < 0
    assert effect.note.startswith("worse than none")


def test_a_label_that_acts_nowhere_changes_nothing_and_says_why() -> None:
    effect = next(e for e in explain(h200_job()).labels if e.label == "layernorm")
    assert (effect.active_layers, effect.peak_delta_bytes, effect.step_time_overhead) == (0, 0, 0)
    assert "no layer of this job has this boundary" in effect.note


def test_illegal_labels_are_not_listed() -> None:
    labels = {e.label for e in explain(h200_job()).labels}
    assert "mla_up_proj" not in labels
    assert "gdp_qkv" not in labels


def test_ranks_are_those_of_the_jobs_own_choice() -> None:
    job = h200_job(recompute_granularity="full", recompute_method="block", recompute_num_layers=2)
    answer = explain(job)
    assert answer.choice.label() == "full/block/2"
    assert answer.prediction.hot.peak.peak_bytes < answer.control.hot.peak.peak_bytes
    assert answer.prediction.hot.alive_at_peak


def test_a_global_rank_selects_its_row() -> None:
    job = small_job(pipeline_model_parallel_size=2, **{"hardware.num_gpus": 4})
    rows = explain(job, rank=3).shown
    assert [dict(row.rank)["pp"] for row in rows] == [1]
    with pytest.raises(ConfigError) as caught:
        explain(job, rank=4)
    assert caught.value.code == "unknown-rank"


def test_what_is_alive_sums_to_the_peak() -> None:
    hot = explain(h200_job()).prediction.hot
    total = sum(owned.bytes for owned in hot.alive_at_peak)
    assert total == hot.peak.peak_bytes
