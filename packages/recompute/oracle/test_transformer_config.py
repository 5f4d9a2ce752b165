"""Our verdict on hard errors is that of the real TransformerConfig and MLATransformerConfig."""

from __future__ import annotations

import itertools
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))

import real  # noqa: E402 - found beside this file
import space  # noqa: E402

from recompute.config.revision import Revision  # noqa: E402
from recompute.rules.table import RULES  # noqa: E402

MANY = settings(
    max_examples=2500,
    derandomize=True,
    deadline=None,
    database=None,
    suppress_health_check=list(HealthCheck),
)


MODERN = real.revision() >= Revision("0.18")
SEEN: Counter[str] = Counter()
"""Our rules that refused something, and how often Megatron accepted or refused."""

UNREACHED = {
    "field-not-in-revision": "speaks about fields that a file gives",
    "gdn-label-needs-gdn": "0.16 has no such label; on 0.19 it is reached",
    "cg-gtp-shared": "weight rematerialisation is no field of the space",
    "paged-stash-vs-offload": "paged stash is no field of the space",
    "paged-stash-capacity": "same",
    "offload-numbers": "the numbers are no fields of the space",
    "offload-fused-group-mlp": "0.16 has no such label; on 0.19 it is reached",
    "cg-offload-inflight": "comes together with cg-offload rows here",
}


def agree(fields: dict[str, Any], *, latent: bool, te: str | None) -> None:
    refused = real.refusal(fields, latent=latent, te=te)
    ours = real.verdict(fields, latent=latent, te=te)
    SEEN.update(ours)
    SEEN["accepted" if refused is None else "refused"] += 1
    assert bool(ours) == (refused is not None), (
        f"ours {ours}, Megatron {refused}, latent={latent}, TE {te}, fields "
        f"{ {k: v for k, v in fields.items() if v != space.FIELDS.get(k, ((),))[0]} }"
    )


@MANY
@given(drawn=space.configurations(modern=MODERN), data=st.data())
def test_a_few_fields_at_a_time(
    drawn: tuple[dict[str, Any], bool, str | None], data: st.DataObject
) -> None:
    fields, latent, te = drawn
    kept = data.draw(st.sets(st.sampled_from(sorted(fields)), min_size=1, max_size=7))
    agree(space.sparse(fields, frozenset(kept)), latent=latent, te=te)


@MANY
@given(drawn=space.configurations(modern=MODERN))
def test_all_fields_at_once(drawn: tuple[dict[str, Any], bool, str | None]) -> None:
    fields, latent, te = drawn
    agree(fields, latent=latent, te=te)


RECOMPUTE = [
    {
        "recompute_granularity": granularity,
        "recompute_method": method,
        "recompute_num_layers": count,
        "recompute_modules": modules,
        "distribute_saved_activations": distribute,
        "sequence_parallel": sequence,
        "tensor_model_parallel_size": 2,
        "moe_layer_recompute": alias,
    }
    for granularity, method, count, modules, distribute, sequence, alias in itertools.product(
        (None, "full", "selective", "none"),
        (None, "uniform", "block", "other"),
        (None, 0, 1, 3),
        (None, (), ("core_attn",), ("mlp", "layernorm"), ("moe_act",), ("moe_layer",)),
        (False, True),
        (False, True),
        (False, True),
    )
]


def test_every_combination_of_the_recompute_fields() -> None:
    assert len(RECOMPUTE) == 3072
    for fields in RECOMPUTE:
        agree(fields, latent=False, te=None)


GRAPHS = [
    {
        "recompute_granularity": granularity,
        "recompute_method": "uniform" if granularity == "full" else None,
        "recompute_num_layers": 1 if granularity == "full" else None,
        "recompute_modules": modules,
        "cuda_graph_impl": impl,
        "cuda_graph_scope": scope,
        "num_moe_experts": experts,
        "moe_token_dispatcher_type": "alltoall",
        "attention_dropout": dropout,
        "hidden_dropout": dropout,
    }
    for granularity, modules, impl, scope, experts, dropout in itertools.product(
        (None, "selective", "full"),
        ((), ("core_attn",), ("mlp",), ("moe",), ("layernorm", "moe")),
        ("none", "local", "transformer_engine", "full_iteration"),
        (
            None,
            (),
            ("attn",),
            ("mlp",),
            ("moe_router",),
            ("attn", "moe_router", "moe_preprocess"),
            ("moe_preprocess",),
            ("full_iteration",),
            ("full_iteration", "attn"),
        ),
        (None, 8),
        (0.0, 0.1),
    )
]


def test_every_combination_of_graphs_and_labels() -> None:
    assert len(GRAPHS) == 2160
    for fields in GRAPHS:
        agree(fields, latent=False, te=None)


PRECISION = [
    (
        {
            "recompute_granularity": "selective",
            "recompute_modules": labels,
            "fp8": fp8,
            "fp8_recipe": recipe,
            "num_moe_experts": 8,
            "moe_token_dispatcher_type": "alltoall",
            "moe_grouped_gemm": grouped,
            "moe_shared_expert_overlap": overlap,
            "moe_shared_expert_intermediate_size": size,
        },
        te,
    )
    for labels, fp8, recipe, grouped, overlap, size, te in itertools.product(
        (("moe_act",), ("layernorm",), ("mlp", "moe"), ("shared_experts",)),
        (None, "hybrid"),
        ("delayed", "mxfp8"),
        (False, True),
        (False, True),
        (None, 64),
        space.TE_VERSIONS,
    )
]


def test_every_combination_of_precision_and_experts() -> None:
    assert len(PRECISION) == 512
    for fields, te in PRECISION:
        agree(fields, latent=False, te=te)


@pytest.mark.parametrize("labels", space.LABELS)
def test_the_label_set_is_the_one_the_assertion_knows(labels: str) -> None:
    from recompute.rules.allowed import LABELS_OF

    fields = {"recompute_granularity": "selective", "recompute_modules": (labels,)}
    refused = real.refusal(fields, latent=False, te=None) or ""
    known = "Invalid choices for recompute_modules" not in refused
    assert known == (labels in LABELS_OF[real.revision().name])


def test_the_fields_that_rules_read_exist_when_the_table_says_so() -> None:
    import dataclasses

    from megatron.core.transformer.transformer_config import TransformerConfig

    from recompute.rules.allowed import FIELD_SINCE, has_field

    names = {field.name for field in dataclasses.fields(TransformerConfig)}
    for name in FIELD_SINCE:
        assert has_field(real.revision().name, name) == (name in names), name


def test_the_comparison_was_not_empty() -> None:
    reachable = {
        rule.id
        for rule in RULES
        if (rule.severity, rule.raised) == ("error", "config")
        and real.revision().name in rule.revisions
        and "core" in rule.entries
    }
    assert reachable - set(SEEN) - set(UNREACHED) == set()
    assert SEEN["accepted"] > 1500
    assert SEEN["refused"] > 3000
