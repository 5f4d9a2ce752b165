"""A frozen base with adapters: what is still saved, and how little trains."""

from __future__ import annotations

import pytest

from recompute.config.schema import PeftConfig
from recompute.errors import UnsupportedError
from recompute.model.arena import rounded
from recompute.model.layer import LAYER_KINDS
from recompute.model.ops.adapters import adapted, frozen
from recompute.model.run import TapeRun, profile
from recompute.model.shape import Shape, shape_of
from recompute.model.tape import Tape

from .jobs import GRADS, job
from .test_kinds import LAYOUTS, label_sets

LORA = PeftConfig(dim=16)


def built(kind: str, **fields: object) -> tuple[Tape, Shape]:
    one = job(**{"multi_latent_attention": "mla" in kind, **fields})
    shape = shape_of(one)
    return LAYER_KINDS[kind](one.model, shape), shape


def test_parameters_of_lora_on_a_dense_layer() -> None:
    tape, shape = built("attention+mlp", num_moe_experts=None)
    heads = 1024 + 2 * 4 * 128
    wide = 3072
    pairs = ((1024, heads), (1024, 1024), (1024, 2 * wide), (wide, 1024))
    elements = sum(16 * (inputs + outputs) for inputs, outputs in pairs)
    assert adapted(tape, LORA, shape).weight_bytes == elements * shape.act


def test_tensor_parallelism_splits_one_linear_of_each_pair() -> None:
    whole = adapted(*_with(built("attention+mlp", num_moe_experts=None)))
    half = adapted(
        *_with(
            built(
                "attention+mlp",
                num_moe_experts=None,
                tensor_model_parallel_size=2,
                sequence_parallel=True,
            )
        )
    )
    assert half.weight_bytes * 2 == whole.weight_bytes


def _with(pair: tuple[Tape, Shape]) -> tuple[Tape, PeftConfig, Shape]:
    return pair[0], LORA, pair[1]


def test_an_untargeted_frozen_linear_keeps_no_input() -> None:
    tape, shape = built("attention+mlp", num_moe_experts=None)
    some = adapted(tape, PeftConfig(dim=16, target_modules=("linear_qkv",)), shape)
    every = adapted(tape, LORA, shape)
    second = 2 * 1024 * 3072 * shape.act  # the second linear's input, saved by nothing else
    saved = {name: profile(t, frozenset(), GRADS).saved for name, t in (("a", some), ("b", every))}
    assert saved["b"] - saved["a"] > second
    assert profile(frozen(tape), frozenset(), GRADS).saved < saved["a"]
    assert frozen(tape).weight_bytes == 0


def test_full_training_keeps_less_than_adapters_on_every_linear() -> None:
    """The adapters' inputs are the base's, and their own rank comes on top."""
    tape, shape = built("attention+mlp", num_moe_experts=None)
    assert (
        profile(tape, frozenset(), GRADS).saved
        < profile(adapted(tape, LORA, shape), frozenset(), GRADS).saved
        < 1.05 * profile(tape, frozenset(), GRADS).saved
    )


def test_sequence_parallelism_keeps_the_gathered_input() -> None:
    tape, shape = built(
        "attention+mlp",
        num_moe_experts=None,
        tensor_model_parallel_size=2,
        sequence_parallel=True,
    )
    base = profile(tape, frozenset(), GRADS).saved
    gathered = 2 * shape.tokens * shape.hidden * shape.act
    assert profile(adapted(tape, LORA, shape), frozenset(), GRADS).saved > base + gathered / 2


@pytest.mark.parametrize("layout", LAYOUTS, ids=lambda fields: "+".join(fields) or "plain")
@pytest.mark.parametrize("kind", ["attention+mlp", "mla+moe", "gdn+moe", "mamba"])
@pytest.mark.parametrize("dropout", [0.0, 0.1])
def test_backward_lets_go_of_all_but_gradients(
    kind: str, layout: dict[str, object], dropout: float
) -> None:
    plain, shape = built(kind, **layout)
    tape = adapted(plain, PeftConfig(dim=8, dropout=dropout), shape)
    for labels in label_sets(tape):
        run = TapeRun(tape, labels, GRADS)
        run.forward()
        run.backward()
        assert run.arena.held - run.weight_grads - run.left_behind == rounded(shape.stream), labels
        assert run.weight_grads < profile(plain, labels, GRADS).weight_grads


@pytest.mark.parametrize(
    "peft", [PeftConfig(scheme="dora"), PeftConfig(target_modules=("*.layers.0.*.linear_qkv",))]
)
def test_what_is_not_modelled_is_named(peft: PeftConfig) -> None:
    tape, shape = built("attention+mlp")
    with pytest.raises(UnsupportedError) as caught:
        adapted(tape, peft, shape)
    assert caught.value.code == "unsupported-peft"
