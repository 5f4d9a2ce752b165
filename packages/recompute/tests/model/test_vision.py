"""A vision tower is a job of its own beside the language model."""

from __future__ import annotations

import pytest

from recompute.errors import UnsupportedError
from recompute.model.layer import LAYER_KINDS, layer_kinds
from recompute.model.run import profile
from recompute.model.shape import shape_of
from recompute.model.vision import tower_of

from .jobs import GRADS, job

TOWER = {
    "num_layers": 27,
    "hidden_size": 1152,
    "num_attention_heads": 16,
    "ffn_hidden_size": 4304,
    "hidden_dropout": 0.0,
    "attention_dropout": 0.0,
    "activation_func": "gelu",
    "seq_length": 729,
}


def test_the_tower_has_its_own_layers_tokens_and_labels() -> None:
    tower = tower_of(job(vision={**TOWER, "recompute_modules": ("mlp",)}))
    assert tower is not None
    assert layer_kinds(tower.model) == ("attention+mlp",) * 27
    shape = shape_of(tower)
    assert (shape.tokens, shape.hidden, shape.ffn, shape.act) == (2 * 729, 1152, 4304, 2)
    assert tower.model.recompute_modules == ("mlp",)
    tape = LAYER_KINDS["attention+mlp"](tower.model, shape)
    hidden, wide = 1152, 4304
    attention = 4 * hidden * (hidden + 1)
    feed_forward = 2 * hidden * wide + wide + hidden
    assert tape.weight_bytes // 2 == attention + feed_forward + 4 * hidden
    saved, covered = (profile(tape, frozenset(x), GRADS).saved for x in ((), ("mlp",)))
    assert covered < saved


def test_a_job_without_tower() -> None:
    assert tower_of(job()) is None


@pytest.mark.parametrize(
    ("vision", "named"),
    [
        ({"num_layers": 2, "hidden_size": 64}, "patches"),
        ({**TOWER, "spatial_merge_size": 2}, "spatial_merge_size"),
        ({**TOWER, "num_moe_experts": 4}, "experts"),
    ],
)
def test_what_is_not_modelled_is_named(vision: dict[str, object], named: str) -> None:
    with pytest.raises(UnsupportedError, match=named) as caught:
        tower_of(job(vision=vision))
    assert caught.value.code == "unsupported-vision"
