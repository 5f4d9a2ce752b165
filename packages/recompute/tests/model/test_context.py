"""Attention over a context group: what each exchange keeps."""

from __future__ import annotations

import pytest

from recompute.errors import UnsupportedError
from recompute.model.arena import rounded
from recompute.model.layer import LAYER_KINDS
from recompute.model.run import profile
from recompute.model.shape import shape_of

from .jobs import GRADS, job

GROUP = {"num_moe_experts": None, "context_parallel_size": 4}


def saved(exchange: str | tuple[str, ...] | None, kind: str = "attention+mlp") -> int:
    one = job(**GROUP, cp_comm_type=exchange, multi_latent_attention="mla" in kind)
    return profile(LAYER_KINDS[kind](one.model, shape_of(one)), frozenset(), GRADS).saved


@pytest.mark.parametrize("kind", ["attention+mlp", "mla+mlp"])
def test_trading_tokens_for_heads_keeps_the_output_twice(kind: str) -> None:
    """On the attention's side of the exchange, and as the projection's input."""
    one = job(**GROUP, multi_latent_attention="mla" in kind)
    shape = shape_of(one)
    tape = LAYER_KINDS[kind](one.model, shape)
    output = tape.ops[tape.position("self_attention.core_attention")].writes[0].size
    assert saved("a2a", kind) - saved("p2p", kind) == rounded(output)
    assert saved("a2a+p2p", kind) == saved("a2a", kind)


def test_a_ring_is_what_nothing_said_means() -> None:
    assert saved(None) == saved("p2p") == saved(("p2p",) * 4)


def test_gathering_keeps_what_one_rank_alone_would() -> None:
    half = {**GROUP, "context_parallel_size": 1, "seq_length": 256}
    one = job(**half)
    alone = profile(
        LAYER_KINDS["attention+mlp"](one.model, shape_of(one)), frozenset(), GRADS
    ).saved
    assert saved("all_gather") == alone


@pytest.mark.parametrize("exchange", [("p2p", "a2a", "p2p", "p2p"), "broadcast"])
def test_what_is_not_modelled_is_named(exchange: str | tuple[str, ...]) -> None:
    with pytest.raises(UnsupportedError) as caught:
        saved(exchange)
    assert caught.value.code == "unsupported-context-parallel"
