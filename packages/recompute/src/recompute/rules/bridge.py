"""Megatron Bridge's own models, recipes and launch flags."""

from __future__ import annotations

from typing import Final

from recompute.config.revision import ORDER
from recompute.rules.case import Case
from recompute.rules.edits import drop
from recompute.rules.types import BRIDGE, Entry, Rule, Source, ex, on, since

_BRIDGE: Final[frozenset[Entry]] = frozenset({"bridge"})
_SELECTIVE: Final = {"recompute_granularity": "selective"}
_FULL: Final = {
    "recompute_granularity": "full",
    "recompute_method": "uniform",
    "recompute_num_layers": 1,
}
_GEMMA4: Final = {"unmodelled": {"model.model_type": "gemma4"}}


def _is(case: Case, *words: str) -> bool:
    return any(word in case.architecture for word in words)


def _gemma4(case: Case) -> bool:
    return _is(case, "gemma4", "gemma-4", "gemma_4")


def _both_flags(case: Case) -> bool:
    given = case.job.given
    return (
        given.get("model.recompute_modules") == "override"
        and given.get("model.recompute_num_layers") == "override"
    )


RULES: Final[tuple[Rule, ...]] = (
    Rule(
        id="gemma4-moe-layernorm",
        severity="error",
        raised="bridge",
        title="Bridge's Gemma 4 MoE with layernorm, graphs, overlap, chunks or norm offload",
        revisions=since("0.18"),
        entries=_BRIDGE,
        when=lambda c: (
            (c.model.num_moe_experts or 0) > 0
            and _gemma4(c)
            and (
                "layernorm" in c.labels
                or c.graph != "none"
                or bool(c.model.moe_shared_expert_overlap)
                or c.model.mlp_chunks_for_training > 1
                or (
                    bool(c.model.fine_grained_activation_offloading)
                    and "mlp_norm" in c.model.offload_modules
                )
            )
        ),
        message="Bridge's Gemma 4 MoE layer refuses label layernorm, CUDA graphs, shared-expert "
        "overlap, MLP chunks and an offload of mlp_norm (recompute_modules="
        "{m.recompute_modules}, graphs {c.graph})",
        fields=("model.recompute_modules", "model.cuda_graph_impl"),
        fix=lambda c: drop("layernorm")(c) if "layernorm" in c.labels else {},
        source=Source(
            repository=BRIDGE,
            revision="067f987d",
            path="src/megatron/bridge/models/gemma/gemma4_provider.py",
            where="Gemma4ModelProvider",
        ),
        bad=ex(
            "0.19",
            **_SELECTIVE,
            **_GEMMA4,
            num_moe_experts=8,
            recompute_modules=("layernorm",),
        ),
        good=ex(
            "0.19",
            **_SELECTIVE,
            **_GEMMA4,
            num_moe_experts=8,
            moe_grouped_gemm=True,
            recompute_modules=("moe_act",),
        ),
    ),
    Rule(
        id="gemma4-own-forward",
        severity="note",
        raised="never",
        title="Bridge's Gemma 4 has its own checkpointed forward",
        revisions=since("0.18"),
        entries=_BRIDGE,
        gate="full",
        when=_gemma4,
        message="Bridge's Gemma 4 carries its own checkpointed forward (for its per-layer "
        "embeddings): what holds for Megatron's full path need not hold for it",
        fields=("model.recompute_granularity",),
        source=Source(
            repository=BRIDGE,
            revision="067f987d",
            path="src/megatron/bridge/models/gemma",
            where="modeling_gemma4",
        ),
        bad=ex("0.19", **_FULL, **_GEMMA4),
        good=ex("0.19", **_FULL),
    ),
    Rule(
        id="qwen3vl-own-forward",
        severity="note",
        raised="never",
        title="Bridge's Qwen3-VL has its own full-recompute code",
        revisions=since("0.16"),
        entries=_BRIDGE,
        gate="full",
        when=lambda c: _is(c, "qwen3_vl", "qwen3vl", "qwen3-vl", "qwen35_vl"),
        message="Bridge's Qwen3-VL language and vision blocks carry their own full-recompute code "
        "(uniform with a shorter last group, and block)",
        fields=("model.recompute_granularity",),
        source=Source(
            repository=BRIDGE,
            revision="067f987d",
            path="src/megatron/bridge/models/qwen_vl/modelling_qwen3_vl/transformer_block.py",
            where="Qwen3VLTransformerBlock",
        ),
        bad=ex("0.19", **_FULL, unmodelled={"model.model_type": "qwen3_vl"}),
        good=ex("0.19", **_FULL),
    ),
    Rule(
        id="sarvam-defaults",
        severity="note",
        raised="never",
        title="Bridge's Sarvam providers switch selective recompute on by themselves",
        revisions=since("0.17"),
        entries=_BRIDGE,
        when=lambda c: _is(c, "sarvam") and "model.recompute_modules" not in c.job.given,
        message="Bridge's Sarvam providers default to selective with layernorm, shared_experts, mlp "
        "and moe_act, or with moe: write the list out",
        fields=("model.recompute_granularity", "model.recompute_modules"),
        source=Source(
            repository=BRIDGE,
            revision="067f987d",
            path="src/megatron/bridge/models/sarvam/sarvam_provider.py",
            where="providers",
        ),
        bad=ex("0.19", unmodelled={"model.model_type": "sarvam"}),
        good=ex("0.19"),
    ),
    Rule(
        id="cli-both-flags",
        severity="note",
        raised="never",
        title="Bridge's launcher with both --recompute_num_layers and --recompute_modules",
        revisions=since("0.16"),
        entries=_BRIDGE,
        gate="declared-selective",
        when=lambda c: c.model.recompute_num_layers is not None and _both_flags(c),
        message="--recompute_num_layers sets full, --recompute_modules then sets selective and "
        "leaves the count {m.recompute_num_layers} in place, which Megatron refuses: give one of "
        "them",
        fields=("model.recompute_modules", "model.recompute_num_layers"),
        source=Source(
            repository=BRIDGE,
            revision="067f987d",
            path="scripts/performance/utils/overrides.py",
            where="_set_recompute_overrides",
        ),
        bad=ex(
            "0.19",
            **_SELECTIVE,
            recompute_modules=("mlp",),
            recompute_num_layers=1,
            given={"recompute_modules": "override", "recompute_num_layers": "override"},
        ),
        good=ex("0.19", **_SELECTIVE, recompute_modules=("mlp",)),
    ),
    Rule(
        id="mhc-recipe-vs-pin",
        severity="note",
        raised="config",
        title="Bridge's DeepSeek-V4 recipes list mhc, which the pinned Megatron Core refuses",
        revisions=on("pin"),
        entries=_BRIDGE,
        gate="declared-selective",
        when=lambda c: "mhc" in c.labels,
        message="Bridge's DeepSeek-V4 recipes need the dev branch of Megatron Core for label mhc; the "
        "revision that Bridge pins (2a75ac12) refuses it",
        fields=("model.recompute_modules",),
        advice="check against --mcore dev, and build that branch",
        source=Source(
            repository=BRIDGE,
            revision="067f987d",
            path="src/megatron/bridge/recipes/deepseek",
            where="deepseek_v4",
        ),
        bad=ex("pin", **_SELECTIVE, recompute_modules=("mhc",)),
        good=ex("pin", **_SELECTIVE, recompute_modules=("mlp",)),
    ),
    Rule(
        id="bridge-distribute-docs",
        severity="note",
        raised="never",
        title="Bridge's documentation shows distribute_saved_activations with selective",
        revisions=since("0.16"),
        entries=_BRIDGE,
        gate="declared-selective",
        when=lambda c: bool(c.model.distribute_saved_activations) and c.index >= ORDER["0.16"],
        message="Bridge's documentation shows distribute_saved_activations with selective; every "
        "selective site passes False, so it does nothing",
        fields=("model.distribute_saved_activations",),
        source=Source(
            repository=BRIDGE,
            revision="067f987d",
            path="docs/training/activation-recomputation.md",
            where="example",
        ),
        bad=ex(
            "0.19",
            **_SELECTIVE,
            recompute_modules=("mlp",),
            distribute_saved_activations=True,
        ),
        good=ex("0.19", **_SELECTIVE, recompute_modules=("mlp",)),
    ),
)
"""Rows on Megatron Bridge."""
