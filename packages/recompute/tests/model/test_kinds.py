"""Every layer kind under every label and layout: laws that hold whatever the sizes are."""

from __future__ import annotations

from dataclasses import replace
from itertools import chain, combinations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from recompute.config.schema import ModelConfig
from recompute.errors import UnsupportedError
from recompute.model.arena import rounded
from recompute.model.layer import LAYER_KINDS, SUBLAYERS, layer_kinds, mtp_kind
from recompute.model.run import TapeRun, profile
from recompute.model.shape import Shape, shape_of
from recompute.model.tape import Mechanism, Tape

from .jobs import GRADS, job

LAYOUTS = (
    {},
    {"moe_permute_fusion": True, "apply_rope_fusion": True, "bias_activation_fusion": True},
    {"moe_token_dispatcher_type": "allgather", "expert_model_parallel_size": 4},
    {
        "tensor_model_parallel_size": 2,
        "sequence_parallel": True,
        "expert_model_parallel_size": 4,
        "expert_tensor_parallel_size": 1,
        "moe_shared_expert_overlap": True,
    },
    {
        "tensor_model_parallel_size": 2,
        "sequence_parallel": True,
        "expert_model_parallel_size": 2,
        "expert_tensor_parallel_size": 2,
        "mla_down_proj_fusion": True,
        "qk_layernorm": True,
    },
    {"moe_token_dispatcher_type": "flex", "expert_model_parallel_size": 8},
    {
        "moe_token_dispatcher_type": "flex",
        "moe_flex_dispatcher_backend": "hybridep",
        "expert_model_parallel_size": 8,
        "moe_router_dtype": "fp32",
    },
    {"context_parallel_size": 2, "moe_latent_size": 256, "moe_z_loss_coeff": 0.1},
    {"context_parallel_size": 4, "cp_comm_type": "a2a", "qk_layernorm": True},
    {"context_parallel_size": 2, "cp_comm_type": "all_gather"},
    {"attention_output_gate": True, "qk_layernorm": True},
    {
        "transformer_impl": "local",
        "moe_grouped_gemm": False,
        "add_bias_linear": True,
        "moe_shared_expert_intermediate_size": None,
        "normalization": "LayerNorm",
    },
    {"moe_router_score_function": "sigmoid", "moe_aux_loss_coeff": 0.1},
    {"moe_expert_capacity_factor": 1.0, "moe_pad_expert_input_to_capacity": True},
    {"moe_expert_capacity_factor": 1.0, "moe_shared_expert_gate": True},
    {"attention_dropout": 0.1, "hidden_dropout": 0.1, "moe_input_jitter_eps": 0.01},
    {"mla_down_proj_fusion": True, "qk_layernorm": True, "moe_apply_probs_on_input": True},
    {"fp8": "hybrid", "fp8_recipe": "delayed", "qk_layernorm": True},
    {"fp8": "e4m3", "fp8_recipe": "blockwise", "moe_grouped_gemm": False},
    {
        "fp4": "e2m1",
        "moe_token_dispatcher_type": "flex",
        "expert_model_parallel_size": 8,
        "bias_activation_fusion": True,
        "activation_func_fp8_input_store": True,
    },
)


def built(kind: str, layout: dict[str, object], batch: int = 2) -> tuple[Tape, Shape, ModelConfig]:
    one = job(batch, **{**layout, "multi_latent_attention": "mla" in kind or "dsa" in kind})
    shape = shape_of(one)
    return LAYER_KINDS[kind](one.model, shape), shape, one.model


def label_sets(tape: Tape) -> list[frozenset[str]]:
    """No label, each alone, each pair, and all."""
    labels = sorted({region.label for region in tape.regions})
    sets = chain.from_iterable(combinations(labels, n) for n in (0, 1, 2, len(labels)))
    return sorted({frozenset(s) for s in sets}, key=sorted)


@pytest.mark.parametrize("layout", LAYOUTS, ids=lambda fields: "+".join(fields) or "plain")
@pytest.mark.parametrize("kind", LAYER_KINDS)
def test_backward_lets_go_of_all_but_gradients(kind: str, layout: dict[str, object]) -> None:
    """After a backward only weight gradients, the input's gradient and what modules hold are left."""
    tape, shape, _ = built(kind, layout)
    for labels in label_sets(tape):
        run = TapeRun(tape, labels, GRADS)
        run.forward()
        run.backward()
        assert not run.saved_by_op, labels
        assert not run.saved_by_region, labels
        left = run.arena.held - run.weight_grads - run.left_behind
        handed_on = rounded(shape.stream)  # or held by a module as well, and counted there
        assert left == handed_on or (left == 0 and "full" in labels), labels


@pytest.mark.parametrize("kind", LAYER_KINDS)
def test_names_are_unique_and_tensors_are_written_before_they_are_read(kind: str) -> None:
    for layout in LAYOUTS:
        tape, _, _ = built(kind, layout)
        names = [op.name for op in tape.ops]
        assert len(set(names)) == len(names)
        there = {tensor.name for tensor in tape.inputs}
        for op in tape.ops:
            assert there.issuperset((*op.reads, *op.reads_without_grad)), op.name
            there.update(tensor.name for tensor in op.writes)
            assert there.issuperset((*op.saves, *op.retains)), op.name
        assert there.issuperset(tape.outputs)


@pytest.mark.parametrize("kind", LAYER_KINDS)
def test_regions_name_operations_in_order(kind: str) -> None:
    for layout in LAYOUTS:
        tape, _, _ = built(kind, layout)
        for region in tape.regions:
            first, last = tape.position(region.first), tape.position(region.last)
            assert first <= last
            if region.mechanism is Mechanism.DISCARD:
                assert tape.position(region.hook) > last


@pytest.mark.parametrize("kind", LAYER_KINDS)
def test_every_operation_has_a_cost(kind: str) -> None:
    """A replay is priced by it: nothing but a view is free."""
    tape, _, _ = built(kind, {})
    for op in tape.ops:
        views = all(tensor.storage for tensor in op.writes)
        assert views or op.traffic > 0, op.name


@pytest.mark.parametrize("kind", LAYER_KINDS)
def test_a_discard_never_adds_bytes_after_forward(kind: str) -> None:
    for layout in LAYOUTS:
        if "activation_func_fp8_input_store" in layout:
            continue  # the label keeps in 16 bits what is kept in 8 without it
        tape, _, _ = built(kind, layout)
        saved = profile(tape, frozenset(), GRADS).saved
        for region in tape.regions:
            if region.mechanism is Mechanism.DISCARD:
                assert profile(tape, frozenset({region.label}), GRADS).saved < saved, region.label


@settings(max_examples=60, deadline=None)
@given(
    kind=st.sampled_from(sorted(LAYER_KINDS)),
    layout=st.sampled_from(LAYOUTS),
    batches=st.tuples(st.integers(1, 6), st.integers(1, 6)),
    picked=st.randoms(use_true_random=False),
)
def test_bytes_grow_with_tokens(
    kind: str,
    layout: dict[str, object],
    batches: tuple[int, int],
    picked: object,
) -> None:
    few, many = sorted(batches)
    small, _, _ = built(kind, layout, few)
    large, _, _ = built(kind, layout, many)
    labels = picked.choice(label_sets(small))  # type: ignore[attr-defined]
    less, more = profile(small, labels, GRADS), profile(large, labels, GRADS)
    assert 0 < less.saved <= more.saved
    assert less.forward_peak <= more.forward_peak
    assert less.backward_peak <= more.backward_peak
    assert less.weight_grads == more.weight_grads


@settings(max_examples=40, deadline=None)
@given(layout=st.sampled_from(LAYOUTS), load=st.floats(1.0, 4.0))
def test_a_hot_rank_needs_more_and_its_shared_part_does_not(
    layout: dict[str, object], load: float
) -> None:
    _, shape, model = built("attention+moe", layout)
    build = LAYER_KINDS["attention+moe"]
    even = profile(build(model, shape), frozenset(), GRADS)
    hot = profile(build(model, replace(shape, expert_load=load)), frozenset(), GRADS)
    covered = profile(build(model, replace(shape, expert_load=load)), frozenset({"moe"}), GRADS)
    assert hot.saved >= even.saved
    assert covered.saved - covered.left_behind <= even.saved


# --- the table, and what is not in it

MODELS: dict[str, tuple[dict[str, object], tuple[str, ...]]] = {
    "attention": ({"num_moe_experts": None}, ("attention+mlp",) * 4),
    "moe": ({"moe_layer_freq": (0, 1, 0, 1)}, ("attention+mlp", "attention+moe") * 2),
    "mla": (
        {"multi_latent_attention": True, "moe_layer_freq": 2},
        ("mla+moe", "mla+mlp") * 2,
    ),
    "dsa": (
        {
            "multi_latent_attention": True,
            "experimental_attention_variant": "dsa",
            "moe_layer_freq": 2,
        },
        ("dsa+moe", "dsa+mlp") * 2,
    ),
    "gdn": (
        {"experimental_attention_variant": "gated_delta_net", "linear_attention_freq": 2},
        ("gdn+moe", "attention+moe") * 2,
    ),
    "window": (
        {"num_moe_experts": None, "window_attn_skip_freq": 2},
        ("window+mlp", "global+mlp") * 2,
    ),
    "nope": (
        {"num_moe_experts": None, "no_rope_freq": 4},
        ("attention+mlp",) * 3 + ("nope+mlp",),
    ),
    "mamba": ({"hybrid_override_pattern": "M*-E"}, ("mamba", "attention", "mlp", "moe")),
    "mlp": ({"hybrid_override_pattern": "-G-G"}, ("mlp", "gdn") * 2),
}


@pytest.mark.parametrize("name", MODELS)
def test_kinds_of_a_model(name: str) -> None:
    fields, kinds = MODELS[name]
    assert layer_kinds(job(**fields).model) == kinds


def test_every_sublayer_has_an_example() -> None:
    used = {part for _, kinds in MODELS.values() for kind in kinds for part in kind.split("+")}
    assert used == set(SUBLAYERS)


def test_a_prediction_depth_wraps_the_last_layer() -> None:
    assert mtp_kind(job(moe_layer_freq=(1, 1, 0, 0)).model) == "mtp+attention+mlp"


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"hybrid_override_pattern": "MX"}, "'X'"),
        ({"experimental_attention_variant": "gdn2"}, "gdn2"),
        ({"experimental_attention_variant": "dsa"}, "without multi_latent_attention"),
        (
            {
                "experimental_attention_variant": "dsa",
                "multi_latent_attention": True,
                "dsa_indexer_topk": None,
            },
            "dsa_indexer_topk",
        ),
        (
            {
                "experimental_attention_variant": "dsa",
                "multi_latent_attention": True,
                "hybrid_override_pattern": "M*ME",
            },
            "hybrid pattern",
        ),
        (
            {
                "experimental_attention_variant": "gated_delta_net",
                "linear_attention_freq": None,
            },
            "linear_attention_freq",
        ),
    ],
)
def test_what_is_not_modelled_is_named(fields: dict[str, object], named: str) -> None:
    with pytest.raises(UnsupportedError, match=named) as caught:
        layer_kinds(job(**fields).model)
    assert caught.value.code == "unsupported-layer"


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({"moe_router_load_balancing_type": ("sinkhorn", "aux_loss")}, "unsupported-router"),
        ({"moe_router_score_function": "sqrtsoftplus"}, "unsupported-router"),
        (
            {
                "moe_token_dispatcher_type": "flex",
                "moe_flex_dispatcher_backend": "ncclep",
            },
            "unsupported-dispatcher",
        ),
        (
            {"activation_func": "gelu", "bias_activation_fusion": True},
            "unsupported-expert-activation",
        ),
        ({"moe_paged_stash": True}, "unsupported-moe"),
    ],
)
def test_what_a_mixture_of_experts_does_not_model_is_named(
    fields: dict[str, object], code: str
) -> None:
    one = job(**fields)
    with pytest.raises(UnsupportedError) as caught:
        LAYER_KINDS["attention+moe"](one.model, shape_of(one))
    assert caught.value.code == code


def test_sinkhorn_keeps_the_softmax_and_no_auxiliary_scores() -> None:
    one = job(moe_router_load_balancing_type="sinkhorn", moe_aux_loss_coeff=0.0)
    many = job(moe_router_load_balancing_type="aux_loss", moe_aux_loss_coeff=0.01)
    ops = {
        name: {
            t.name
            for op in LAYER_KINDS["attention+moe"](j.model, shape_of(j)).ops
            for t in op.keeps
        }
        for name, j in (("one", one), ("many", many))
    }
    assert "router.scores" in ops["one"]
    assert "router.aux_scores" not in ops["one"]
    assert "router.aux_scores" in ops["many"]
