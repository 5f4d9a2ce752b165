"""What FP8 and FP4 keep: the copy that backward reads, never more, and never twice."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

import pytest

from recompute.config.schema import HardwareConfig
from recompute.errors import UnsupportedError
from recompute.model.layer import LAYER_KINDS, layer_kinds
from recompute.model.ops.number_formats import FORMATS, cut, padding_tokens
from recompute.model.run import TapeRun, profile
from recompute.model.shape import shape_of
from recompute.model.tape import Op, Tape

from .jobs import GRADS, job

FORMAT_FIELDS = {
    recipe: {"fp4": "e2m1"} if recipe == "nvfp4" else {"fp8": "hybrid", "fp8_recipe": recipe}
    for recipe in FORMATS
}
BLOCK_SCALES = {
    "delayed": 0,
    "tensorwise": 0,
    "blockwise": Fraction(4, 128),
    "mxfp8": Fraction(1, 32),
    "nvfp4": Fraction(1, 16),
}


def tape_of(kind: str, **fields: object) -> Tape:
    one = job(**{"multi_latent_attention": "mla" in kind, **fields})
    return LAYER_KINDS[kind](one.model, shape_of(one))


def op_of(tape: Tape, name: str) -> Op:
    return tape.ops[tape.position(name)]


@pytest.mark.parametrize("recipe", FORMATS)
def test_the_second_linear_keeps_its_input_in_the_format(recipe: str) -> None:
    op = op_of(tape_of("attention+mlp", **FORMAT_FIELDS[recipe]), "mlp.linear_fc2")
    elements = 2 * 1024 * 3072
    element = Fraction(1, 2) if recipe == "nvfp4" else 1
    assert op.quantized is not None
    expected = elements * (element + BLOCK_SCALES[recipe])
    assert op.quantized.size - FORMATS[recipe].constant == expected
    assert not op.saves


@pytest.mark.parametrize("recipe", FORMATS)
@pytest.mark.parametrize("kind", ["attention+mlp", "mla+moe", "gdn+moe", "mamba"])
def test_fewer_bytes_than_16_bits(kind: str, recipe: str) -> None:
    wide = profile(tape_of(kind), frozenset(), GRADS)
    assert profile(tape_of(kind, **FORMAT_FIELDS[recipe]), frozenset(), GRADS).saved < wide.saved


def test_the_projection_shares_what_attention_keeps_unless_scaling_is_delayed() -> None:
    current = op_of(tape_of("attention+mlp", **FORMAT_FIELDS["tensorwise"]), PROJECTION)
    delayed = op_of(tape_of("attention+mlp", **FORMAT_FIELDS["delayed"]), PROJECTION)
    assert (current.saves, current.quantized) == (("core_attn_out",), None)
    assert delayed.quantized is not None


PROJECTION = "self_attention.linear_proj"


def test_moe_act_keeps_the_original_so_that_discarding_it_frees_something() -> None:
    tape = tape_of("attention+moe", **FORMAT_FIELDS["tensorwise"])
    plain, active = profile(tape, frozenset(), GRADS), profile(tape, frozenset({"moe_act"}), GRADS)
    run = TapeRun(tape, frozenset({"moe_act"}), GRADS)
    run.forward()
    second = tape.position("mlp.experts.linear_fc2")
    assert run.saved_by_op[second] == ["experts.fc2_in"]
    assert "experts.fc2_in" in run.arena.discarded
    assert active.saved < plain.saved


def test_moe_act_costs_bytes_where_the_activation_already_stores_its_input_in_8_bits() -> None:
    fields = {"bias_activation_fusion": True, "activation_func_fp8_input_store": True}
    tape = tape_of("attention+moe", **fields, **FORMAT_FIELDS["nvfp4"])
    plain, active = profile(tape, frozenset(), GRADS), profile(tape, frozenset({"moe_act"}), GRADS)
    assert active.saved > plain.saved


def test_router_and_output_layer_stay_wide() -> None:
    tape = tape_of("mtp+attention+moe", **FORMAT_FIELDS["mxfp8"])
    assert op_of(tape, "mlp.router.gating").quantized is None
    assert op_of(tape, "mtp.output_layer").quantized is None
    assert op_of(tape, "mlp.experts.linear_fc1").quantized is not None


def test_weights_have_a_transposed_copy_before_blackwell() -> None:
    one = job(num_moe_experts=None, **FORMAT_FIELDS["tensorwise"])
    newer = replace(one, hardware=HardwareConfig(gpu="B200"))
    kind = layer_kinds(one.model)[0]
    hopper = LAYER_KINDS[kind](one.model, shape_of(one)).weight_cache
    blackwell = LAYER_KINDS[kind](newer.model, shape_of(newer)).weight_cache
    assert hopper == 2 * blackwell > 0
    stored = replace(one, model=replace(one.model, fp8_param=True))
    assert LAYER_KINDS[kind](stored.model, shape_of(stored)).weight_cache == blackwell


def test_layers_at_the_ends_stay_wide() -> None:
    fields = {"num_moe_experts": None, "first_last_layers_bf16": True}
    one = job(**fields, **FORMAT_FIELDS["delayed"], num_layers_at_end_in_bf16=2)
    kinds = layer_kinds(one.model)
    assert kinds == ("attention+mlp@bf16", "attention+mlp") + ("attention+mlp@bf16",) * 2
    assert LAYER_KINDS[kinds[0]](one.model, shape_of(one)).weight_cache == 0
    assert layer_kinds(job(**fields).model) == ("attention+mlp",) * 4


def test_experts_are_filled_up_by_half_the_alignment_in_the_mean() -> None:
    one = job(**FORMAT_FIELDS["mxfp8"])
    assert padding_tokens(one.model, shape_of(one)) == 16 * 32 // 2
    done = job(**FORMAT_FIELDS["mxfp8"], moe_router_padding_for_quantization=True)
    assert padding_tokens(done.model, shape_of(done)) == 0
    assert padding_tokens(job().model, shape_of(job())) == 0


@pytest.mark.parametrize(
    "fields",
    [
        {"fp8": "hybrid", "fp8_recipe": "custom"},
        {"fp8": "hybrid", "fp8_recipe": "delayed", "fp8_dot_product_attention": True},
    ],
)
def test_what_is_not_modelled_is_named(fields: dict[str, object]) -> None:
    with pytest.raises(UnsupportedError) as caught:
        tape_of("attention+mlp", **fields)
    assert caught.value.code == "unsupported-number-format"


@pytest.mark.parametrize(
    ("piece", "block", "taken"),
    [
        (3 << 19, 4 << 20, 2 << 20),  # 1.5 of 4 MiB: two to a block, the second takes 2.5
        (1 << 20, 4 << 20, 1 << 20),  # small allocations come from pools of their own
        (4 << 20, 4 << 20, 4 << 20),
        (5 << 20, 4 << 20, 5 << 20),  # does not fit: a segment is made for it
        (3 << 20, 8 << 20, 3 << 20),  # 2 MiB are left over and stay free
    ],
)
def test_the_allocator_leaves_no_splinters(piece: int, block: int, taken: int) -> None:
    assert cut(piece, block) == taken


def test_per_tensor_scaling_allocates_each_experts_copy_alone() -> None:
    """A block format allocates all of them together, so nothing is lost."""
    fields = {"moe_ffn_hidden_size": 768, "hidden_size": 2048, "moe_router_padding_for_fp8": True}
    kept = {}
    for recipe in ("tensorwise", "blockwise"):
        given = job(fp8="hybrid", fp8_recipe=recipe, batch=8, **fields)
        tape = LAYER_KINDS["attention+moe"](given.model, shape_of(given))
        (op,) = [o for o in tape.ops if o.name == "mlp.experts.linear_fc2"]
        assert op.quantized is not None
        kept[recipe] = op.quantized.size / op.weights
    assert kept["tensorwise"] > 1.2 * kept["blockwise"]


@pytest.mark.parametrize("recipe", ["tensorwise", "delayed", "blockwise"])
def test_the_norm_runs_back_before_its_linear_lets_go(recipe: str) -> None:
    """Its input's gradient is made beside the quantized gradients; the quantized input is gone by then."""
    tape = tape_of("attention+mlp", **FORMAT_FIELDS[recipe])
    first, second = op_of(tape, "mlp.linear_fc1"), op_of(tape, "mlp.linear_fc2")
    assert (first.norm_inside, second.norm_inside) == (True, False)
    kept = FORMATS[recipe]
    out = sum(tensor.size for tensor in first.writes) // 2
    gradients = 2 * (int(out * kept.element) + kept.constant)
    assert first.quantized is not None
    stream = tape.inputs[0].size
    assert first.backward_workspace == gradients + stream - first.quantized.size
    assert first.quantized.size < stream


def test_a_norm_that_is_a_module_of_its_own_runs_back_alone() -> None:
    tape = tape_of("attention+moe", **FORMAT_FIELDS["tensorwise"])
    assert not any(op.norm_inside for op in tape.ops if op.name.startswith("mlp."))


@pytest.mark.parametrize("recipe", FORMATS)
def test_which_copies_of_weights_a_forward_without_gradients_frees(recipe: str) -> None:
    tape = tape_of("attention+mlp", **FORMAT_FIELDS[recipe])
    freed = {op.name: op.remade for op in tape.ops if op.remade}
    scaled = recipe not in ("tensorwise", "delayed")
    assert set(freed) == ({"self_attention.linear_qkv", "mlp.linear_fc1"} if scaled else set())
    for name, size in freed.items():
        assert size * 2 == op_of(tape, name).weight_cache
