"""Sparse attention of plain kernels: laws of what it keeps, whatever the sizes are."""

from __future__ import annotations

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from recompute.model.layer import LAYER_KINDS
from recompute.model.run import profile
from recompute.model.shape import shape_of

from .jobs import GRADS, job

PER_SCORE = 13
"""Bytes of one score in 16 bits: three masks, two FP32 tensors, the probabilities."""
LATENT = {"multi_latent_attention": True, "experimental_attention_variant": "dsa"}
SIZES = st.fixed_dictionaries(
    {
        "num_attention_heads": st.sampled_from((1, 2, 8)),
        "kv_lora_rank": st.sampled_from((128, 512)),
        "qk_layernorm": st.booleans(),
        "q_lora_rank": st.sampled_from((None, 256)),
        "dsa_indexer_loss_coeff": st.sampled_from((None, 0.0, 0.01)),
        "dsa_indexer_n_heads": st.sampled_from((1, 4, 64)),
        "dsa_indexer_k_norm_fp32": st.booleans(),
    }
)


def saved(seq: int, batch: int, labels: frozenset[str], **fields: Any) -> int:
    one = job(batch, **{**LATENT, "num_query_groups": None, "seq_length": seq, **fields})
    return profile(LAYER_KINDS["dsa"](one.model, shape_of(one)), labels, GRADS).saved


@settings(max_examples=30, deadline=None)
@given(fields=SIZES, batch=st.integers(1, 3), blocks=st.integers(1, 4))
def test_all_pairs_are_kept_and_nothing_else_grows_with_their_number(
    fields: dict[str, Any], batch: int, blocks: int
) -> None:
    """The second difference over the length takes away what is constant or grows with tokens."""
    step = 512 * blocks
    for labels, pair in ((frozenset[str](), PER_SCORE), (frozenset(("core_attn",)), 0)):
        one, two, three = (saved(n * step, batch, labels, **fields) for n in (1, 2, 3))
        scores = batch * fields["num_attention_heads"] * step * step
        assert three - 2 * two + one == 2 * pair * scores


@settings(max_examples=30, deadline=None)
@given(fields=SIZES, batch=st.integers(1, 3), chosen=st.tuples(*[st.integers(1, 8)] * 2))
def test_fewer_chosen_keys_save_their_indices_alone(
    fields: dict[str, Any], batch: int, chosen: tuple[int, int]
) -> None:
    seq, (few, many) = 1024, sorted(chosen)
    less, more = (
        saved(seq, batch, frozenset(), dsa_indexer_topk=64 * n, **fields) for n in (few, many)
    )
    trains = bool(fields["dsa_indexer_loss_coeff"])
    assert more - less == trains * batch * seq * 64 * (many - few) * 8


@settings(max_examples=30, deadline=None)
@given(fields=SIZES, batch=st.integers(1, 3))
def test_an_indexer_without_a_loss_keeps_nothing(fields: dict[str, Any], batch: int) -> None:
    frozen = {**fields, "dsa_indexer_loss_coeff": None}
    small, large = (
        saved(1024, batch, frozenset(), **{**frozen, "dsa_indexer_n_heads": n}) for n in (1, 64)
    )
    assert small == large
    trained = {**fields, "dsa_indexer_loss_coeff": 0.01}
    assert saved(1024, batch, frozenset(), **trained) > small
