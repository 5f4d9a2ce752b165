from __future__ import annotations

from itertools import combinations

import pytest

from recompute.config.choice import LABELS, NO_RECOMPUTE, RecomputeChoice, full, selective
from recompute.config.override_writers import overrides_for
from recompute.config.revision import Revision
from recompute.errors import UnsupportedError
from recompute.rules.check import legal
from recompute.search.space import candidates, known_errors

from .fakes import small_job

V19 = Revision("0.19")


def test_a_dense_job_has_its_labels_and_every_count_up_to_the_longest_chunk() -> None:
    found = candidates(small_job(), V19, {"core_attn": 4, "mlp": 4, "layernorm": 0})
    assert found[0] == NO_RECOMPUTE
    assert set(found) == {
        NO_RECOMPUTE,
        selective("core_attn"),
        selective("mlp"),
        selective("core_attn", "mlp"),
        *(full(method, count) for method in ("block", "uniform") for count in range(1, 5)),
    }
    assert len(set(found)) == len(found)


def test_labels_without_an_active_layer_make_no_candidates() -> None:
    labels = {
        label for c in candidates(small_job(), V19, {"mlp": 4}) for label in c.recompute_modules
    }
    assert labels == {"mlp"}


def test_counts_stop_at_the_longest_chunk_of_an_uneven_split() -> None:
    job = small_job(
        num_layers=10,
        pipeline_model_parallel_size=3,
        num_layers_in_first_pipeline_stage=2,
        **{"hardware.num_gpus": 3},
    )
    blocks = [c for c in candidates(job, V19, {}) if c.recompute_method == "block"]
    assert [c.recompute_num_layers for c in blocks] == [1, 2, 3, 4]


def test_uniform_counts_that_do_not_divide_are_left_out_where_megatron_fails() -> None:
    old = {
        c for c in candidates(small_job(), Revision("0.16"), {}) if c.recompute_method == "uniform"
    }
    new = {c for c in candidates(small_job(), V19, {}) if c.recompute_method == "uniform"}
    assert {c.recompute_num_layers for c in old} == {1, 2, 4}
    assert {c.recompute_num_layers for c in new} == {1, 2, 3, 4}


@pytest.mark.parametrize("revision", ["0.12", "0.14", "0.16", "0.19", "main", "dev"])
def test_the_space_is_every_legal_subset(revision: str) -> None:
    job = small_job(num_moe_experts=8, moe_grouped_gemm=True, moe_ffn_hidden_size=512)
    active = {"core_attn": 4, "moe": 4, "moe_act": 4, "layernorm": 4, "shared_experts": 4}
    found = {
        choice
        for choice in candidates(job, Revision(revision), active)
        if choice.recompute_granularity == "selective"
    }
    brute = {NO_RECOMPUTE} | {
        choice
        for size in range(1, len(LABELS) + 1)
        for labels in combinations(active, size)
        if legal(job, choice := selective(*labels), Revision(revision))
    }
    assert found == brute


def test_labels_that_the_revision_does_not_know_are_left_out() -> None:
    active = {"shared_experts": 4, "core_attn": 4}
    job = small_job(num_moe_experts=8)
    old, new = (
        {c.recompute_modules for c in candidates(job, Revision(name), active)}
        for name in ("0.13", "0.14")
    )
    assert ("shared_experts",) not in old
    assert ("shared_experts",) in new


def test_no_recompute_stays_when_the_job_breaks_a_rule_of_its_own() -> None:
    job = small_job(fp8="hybrid", fp4="e2m1")
    found = candidates(job, V19, {"mlp": 4})
    assert found[0] == NO_RECOMPUTE


def test_layers_offloaded_whole_leave_no_recompute_and_its_settings_are_legal() -> None:
    job = small_job(cpu_offloading=True, cpu_offloading_num_layers=2)
    assert candidates(job, V19, {"mlp": 4, "core_attn": 4}) == (NO_RECOMPUTE,)
    assert known_errors(job, V19) == frozenset()
    texts = overrides_for(NO_RECOMPUTE, job)
    assert "model.recompute_granularity=null model.recompute_modules=null" in texts["hydra"]
    assert legal(job, NO_RECOMPUTE, V19)


def test_split_activations_do_not_forbid_selective_choices() -> None:
    job = small_job(
        distribute_saved_activations=True,
        tensor_model_parallel_size=2,
        recompute_granularity="full",
        recompute_method="block",
        recompute_num_layers=1,
    )
    assert selective("mlp") in candidates(job, V19, {"mlp": 4})


@pytest.mark.parametrize("revision", ["0.12", "0.16", "0.19", "main", "dev"])
def test_mlp_is_never_proposed_where_its_bias_would_be_an_output(revision: str) -> None:
    job, active = small_job(add_bias_linear=True), {"core_attn": 4, "mlp": 4}
    assert {
        c.recompute_modules
        for c in candidates(job, Revision(revision), active)
        if c.recompute_modules
    } == {("core_attn",)}
    mixed = small_job(add_bias_linear=True, num_moe_experts=8, moe_layer_freq=1)
    assert selective("mlp") in candidates(mixed, Revision(revision), {"mlp": 4})


def test_choices_are_hashable_and_explicit() -> None:
    for choice in candidates(small_job(), V19, {"mlp": 4}):
        assert isinstance(choice, RecomputeChoice)
        assert choice.per_layer is None
        assert choice.to_document()["recompute_modules"] is not None


def test_a_chunk_that_would_take_for_ever_is_refused() -> None:
    with pytest.raises(UnsupportedError) as caught:
        candidates(small_job(num_layers=513), V19, {})
    assert caught.value.code == "chunk-too-long"
