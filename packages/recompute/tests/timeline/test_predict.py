"""Laws that every prediction keeps."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from recompute.config.choice import LayerSpan, RecomputeChoice, full, selective
from recompute.config.schema import PeftConfig
from recompute.errors import UnsupportedError
from recompute.timeline.predict import Predictor
from recompute.timeline.types import Phase

from .jobs import job, megatron_job

CHOICES = st.sampled_from(
    [
        selective(),
        selective("mlp"),
        selective("core_attn"),
        selective("core_attn", "mlp"),
        full("uniform", 1),
        full("uniform", 3),
        full("block", 2),
    ]
)
SMALL = {"num_layers": 6, "hidden_size": 512, "num_attention_heads": 8, "num_query_groups": 4}


@given(CHOICES, st.sampled_from([64, 128, 256]), st.booleans())
def test_a_longer_sequence_never_lowers_the_peak(
    choice: RecomputeChoice, seq: int, local: bool
) -> None:
    fields = {**SMALL, "transformer_impl": "local" if local else "transformer_engine"}
    short = Predictor(job(seq_length=seq, **fields)).predict(choice).hot.peak.peak_bytes
    long = Predictor(job(seq_length=2 * seq, **fields)).predict(choice).hot.peak.peak_bytes
    assert long > short


@given(CHOICES)
def test_a_plan_per_layer_that_names_every_layer_is_the_stock_choice(
    choice: RecomputeChoice,
) -> None:
    if choice.recompute_granularity == "full":
        return
    spans = (LayerSpan(first=0, last=5, modules=choice.recompute_modules),)
    predictor = Predictor(job(**SMALL))
    stock = predictor.predict(choice).hot
    per_layer = predictor.predict(RecomputeChoice(per_layer=spans)).hot
    assert (per_layer.phases, per_layer.replay) == (stock.phases, stock.replay)


@given(CHOICES)
def test_block_over_all_layers_is_uniform_one(choice: RecomputeChoice) -> None:
    predictor = Predictor(job(**SMALL))
    block, uniform = predictor.predict(full("block", 99)), predictor.predict(full("uniform", 1))
    assert block.ranks[0].phases == uniform.ranks[0].phases
    assert block.ranks[0].replay == uniform.ranks[0].replay


@given(st.integers(1, 4), st.integers(1, 2), CHOICES)
def test_every_pipeline_rank_has_its_own_row(
    ranks: int, chunks: int, choice: RecomputeChoice
) -> None:
    given_job = megatron_job(
        gpus=ranks,
        batch=4 * ranks * 2,
        num_layers=8 * 3,
        hidden_size=512,
        num_attention_heads=8,
        num_query_groups=4,
        pipeline_model_parallel_size=ranks,
        virtual_pipeline_model_parallel_size=chunks if ranks > 1 and chunks > 1 else None,
    )
    rows = Predictor(given_job).predict(choice).ranks
    assert [dict(row.rank)["pp"] for row in rows] == list(range(ranks))
    assert sorted(r for row in rows for r in row.global_ranks) == list(range(ranks))
    for row in rows:
        phases = [p.phase for p in row.phases]
        assert len(set(phases)) == len(phases)
        assert (Phase.LOSS in phases) == (row is rows[-1])


def test_without_recompute_nothing_is_replayed() -> None:
    assert Predictor(job()).predict(selective()).hot.replay.flops == ()


def test_full_recompute_replays_every_layer_once() -> None:
    hot = Predictor(job()).predict(full("uniform", 2)).hot
    replayed, once = dict(hot.replay.flops), dict(hot.step_work.flops)
    head = 2 * 8192 * 4096 * 32768
    assert replayed["gemm"] == once["gemm"] - head
    assert replayed["attention"] == once["attention"]


def test_saved_shards_shrink_the_checkpoints() -> None:
    fields = {"tensor_model_parallel_size": 4, "distribute_saved_activations": True}
    sharded = Predictor(megatron_job(gpus=4, **fields)).predict(full("uniform", 1)).hot
    whole = (
        Predictor(megatron_job(gpus=4, tensor_model_parallel_size=4))
        .predict(full("uniform", 1))
        .hot
    )
    stream = 8192 * 4096 * 2
    difference = whole.activation_bytes_after_forward - sharded.activation_bytes_after_forward
    assert difference == 8 * stream * 3 // 4


MOE = {
    **SMALL,
    "num_moe_experts": 8,
    "moe_router_topk": 2,
    "moe_ffn_hidden_size": 256,
    "moe_grouped_gemm": True,
    "moe_token_dispatcher_type": "alltoall",
    "moe_permute_fusion": True,
    "seq_length": 256,
}


def test_a_hot_rank_holds_more() -> None:
    spread = {**MOE, "expert_model_parallel_size": 4}
    even = Predictor(job(**spread)).predict(selective())
    hot = Predictor(job(**spread), expert_load=2.0).predict(selective())
    assert hot.hot.peak.peak_bytes > even.hot.peak.peak_bytes
    texts = [a.text for p in (even, hot) for a in p.assumptions if a.id == "expert-load"]
    assert texts[0].startswith(
        "every rank gets an equal share of the routed tokens; the hot rank of"
    )
    assert texts[1] == "the hot rank gets 2 times its share of the routed tokens"


def test_mtp_depths_stand_on_the_last_rank_and_are_labelled_layers() -> None:
    fields = {**SMALL, "seq_length": 256, "mtp_num_layers": 1, "pipeline_model_parallel_size": 2}
    rows = Predictor(megatron_job(gpus=2, batch=8, **fields)).predict(selective()).ranks
    plain = {**fields, "mtp_num_layers": None}
    without = Predictor(megatron_job(gpus=2, batch=8, **plain)).predict(selective()).ranks
    assert rows[0].static.parameters == without[0].static.parameters
    assert rows[1].static.parameters > without[1].static.parameters
    assert rows[1].peak.peak_bytes > without[1].peak.peak_bytes
    counts = Predictor(megatron_job(gpus=2, batch=8, **fields)).active_layers()
    assert counts["mlp"] == 6 + 1


def test_block_leaves_mtp_depths_alone_and_uniform_does_not() -> None:
    fields = {**SMALL, "seq_length": 256, "mtp_num_layers": 1}
    predictor = Predictor(job(**fields))
    block, uniform = (predictor.predict(c).hot for c in (full("block", 99), full("uniform", 1)))
    assert dict(block.replay.flops)["gemm"] < dict(uniform.replay.flops)["gemm"]


def test_a_frozen_base_saves_less_and_has_no_states() -> None:
    small = job(**SMALL, seq_length=256)
    whole = Predictor(small).predict(selective()).hot
    lora = Predictor(replace(small, peft=PeftConfig(dim=8))).predict(selective()).hot
    assert lora.static.optimizer < whole.static.optimizer / 10
    assert lora.static.parameters > whole.static.parameters
    assert lora.activation_bytes_after_forward < whole.activation_bytes_after_forward


def test_repeated_mtp_depths_share_their_weights_and_hold_activations_each() -> None:
    fields = {**SMALL, "seq_length": 256}
    one, two, shared = (
        Predictor(megatron_job(batch=2, **{**fields, **more})).predict(selective()).hot
        for more in (
            {"mtp_num_layers": 1},
            {"mtp_num_layers": 2},
            {"mtp_num_layers": 2, "mtp_use_repeated_layer": True},
        )
    )
    assert one.static.parameters == shared.static.parameters < two.static.parameters
    assert shared.activation_bytes_after_forward == two.activation_bytes_after_forward
    assert shared.step_work == two.step_work


def test_hybrid_patterns_split_at_bars_and_predict_further_behind_slashes() -> None:
    """One MTP depth of attention and experts is one layer of both."""
    hybrid = {**SMALL, **MOE, "seq_length": 256, "num_layers": 4, "is_hybrid_model": True}
    split = megatron_job(
        gpus=2,
        batch=8,
        **{**hybrid, "hybrid_override_pattern": "M*E|M", "pipeline_model_parallel_size": 2},
    )
    kinds = [[x.kind for x in stage.layers] for stage in Predictor(split).stages]
    assert kinds == [["mamba", "attention", "moe"], ["mamba"]]
    deep = {**hybrid, "hybrid_override_pattern": "M*EM/*E", "mtp_num_layers": 1}
    (stage,) = Predictor(megatron_job(**deep)).stages
    assert stage.layers[-1].kind == "mtp+attention+moe"
    with pytest.raises(UnsupportedError, match="such a stack"):
        Predictor(megatron_job(**{**deep, "hybrid_override_pattern": "M*EM/MM"}))
