"""Labels that are legal and match no layer of this model, or add nothing to another label."""

from __future__ import annotations

from typing import Final

from recompute.rules.case import Case
from recompute.rules.edits import drop
from recompute.rules.types import BRIDGE, Rule, Source, ex, on, since

_SELECTIVE: Final = {"recompute_granularity": "selective"}
_LAYER: Final = "megatron/core/transformer/transformer_layer.py"
_MOE_LAYER: Final = "megatron/core/transformer/moe/moe_layer.py"
_ALL_MOE: Final = {"num_moe_experts": 128, "moe_layer_freq": 1, "moe_grouped_gemm": True}
_MIXED: Final = {"num_moe_experts": 8, "moe_layer_freq": (0, 1, 1, 1, 1, 1, 1, 1)}
_GDP: Final = frozenset({"gdp_in_proj", "gdp_qkv"})
_COPIES_THREE_FIELDS: Final = ("qwen3_vl", "qwen3vl", "ernie45_vl", "ernie4_5_vl", "exaone45")
_NULLS_FIELDS: Final = ("nemotron_vl", "nemotron_omni", "nemotronomni")


def _norms_fused(case: Case) -> bool:
    """Whether Transformer Engine has fused every norm that the label could discard."""
    model, layers = case.model, case.layers
    if model.transformer_impl != "transformer_engine" or layers.total == 0 or layers.gdn:
        return False
    latent = model.multi_latent_attention and not model.mla_down_proj_fusion
    return layers.moe == 0 and not (latent and layers.attention)


def _shared_size(case: Case) -> int:
    size = case.model.moe_shared_expert_intermediate_size
    return size if isinstance(size, int) else 0


def _names_any(case: Case, words: tuple[str, ...]) -> bool:
    return any(word in case.architecture for word in words)


RULES: Final[tuple[Rule, ...]] = (
    Rule(
        id="mlp-on-moe",
        severity="warning",
        raised="never",
        title="mlp on a model whose layers are all MoE: no effect",
        revisions=since("0.12"),
        gate="selective",
        when=lambda c: "mlp" in c.labels and c.layers.total > 0 and c.layers.dense_mlp == 0,
        message="mlp matches 0 of {c.layers.total} layers: all of them hold an MoE layer (or none "
        "holds an MLP), and mlp covers dense MLPs only",
        fields=("model.recompute_modules",),
        fix=drop("mlp"),
        advice="use moe_act (narrow) or moe (the whole layer)",
        source=Source(path=_LAYER, where="TransformerLayer.__init__", terms=("recompute_mlp",)),
        bad=ex("0.19", **_SELECTIVE, **_ALL_MOE, recompute_modules=("mlp",)),
        good=ex("0.19", **_SELECTIVE, recompute_modules=("mlp",)),
    ),
    Rule(
        id="mlp-mixed",
        severity="note",
        raised="never",
        title="mlp on a model of dense and MoE layers: only the dense ones",
        revisions=since("0.12"),
        gate="selective",
        when=lambda c: "mlp" in c.labels and c.layers.dense_mlp > 0 and c.layers.moe > 0,
        message="mlp matches {c.layers.dense_mlp} of {c.layers.total} layers: the dense ones",
        fields=("model.recompute_modules",),
        source=Source(path=_LAYER, where="TransformerLayer.__init__", terms=("recompute_mlp",)),
        bad=ex("0.19", **_SELECTIVE, **_MIXED, recompute_modules=("mlp",)),
        good=ex("0.19", **_SELECTIVE, recompute_modules=("mlp",)),
    ),
    Rule(
        id="moe-on-dense",
        severity="warning",
        raised="never",
        title="moe on a model without MoE layers: no effect, not validated",
        revisions=since("0.12"),
        gate="selective",
        when=lambda c: "moe" in c.labels and c.layers.total > 0 and c.layers.moe == 0,
        message="moe matches 0 of {c.layers.total} layers: num_moe_experts={m.num_moe_experts}",
        fields=("model.recompute_modules", "model.num_moe_experts"),
        fix=drop("moe"),
        advice="use mlp for dense layers",
        source=Source(path=_MOE_LAYER, where="MoELayer.__init__"),
        bad=ex("0.19", **_SELECTIVE, recompute_modules=("moe",)),
        good=ex("0.19", **_SELECTIVE, **_ALL_MOE, recompute_modules=("moe",)),
    ),
    Rule(
        id="moe-act-on-dense",
        severity="warning",
        raised="never",
        title="moe_act on a model without MoE layers: accepted with grouped GEMM, no effect",
        revisions=since("0.12"),
        gate="selective",
        when=lambda c: (
            "moe_act" in c.labels
            and bool(c.model.moe_grouped_gemm)
            and c.layers.total > 0
            and c.layers.moe == 0
        ),
        message="moe_act matches 0 of {c.layers.total} layers: num_moe_experts={m.num_moe_experts}",
        fields=("model.recompute_modules", "model.num_moe_experts"),
        fix=drop("moe_act"),
        source=Source(path="megatron/core/transformer/moe/experts.py", where="TEGroupedMLP"),
        bad=ex("0.19", **_SELECTIVE, recompute_modules=("moe_act",), moe_grouped_gemm=True),
        good=ex("0.19", **_SELECTIVE, **_ALL_MOE, recompute_modules=("moe_act",)),
    ),
    Rule(
        id="shared-experts-absent",
        severity="warning",
        raised="never",
        title="shared_experts without shared experts: no effect",
        revisions=since("0.14"),
        gate="selective",
        when=lambda c: (
            "shared_experts" in c.labels
            and c.known_model
            and (c.layers.moe == 0 or _shared_size(c) == 0)
        ),
        message="shared_experts matches no layer: num_moe_experts={m.num_moe_experts}, "
        "moe_shared_expert_intermediate_size={m.moe_shared_expert_intermediate_size}",
        fields=("model.recompute_modules", "model.moe_shared_expert_intermediate_size"),
        fix=drop("shared_experts"),
        source=Source(path=_MOE_LAYER, where="MoELayer.shared_experts_compute"),
        bad=ex("0.19", **_SELECTIVE, **_ALL_MOE, recompute_modules=("shared_experts",)),
        good=ex(
            "0.19",
            **_SELECTIVE,
            **_ALL_MOE,
            recompute_modules=("shared_experts",),
            moe_shared_expert_intermediate_size=512,
        ),
    ),
    Rule(
        id="layernorm-fused",
        severity="warning",
        raised="never",
        title="layernorm on dense Transformer Engine layers: both norms are fused, no effect",
        revisions=since("0.12"),
        gate="selective",
        when=lambda c: "layernorm" in c.labels and _norms_fused(c),
        message="layernorm matches no norm of this model: Transformer Engine fuses the input norm "
        "into linear_qkv and the pre-MLP norm into linear_fc1 ({c.layers.total} layers)",
        fields=("model.recompute_modules", "model.transformer_impl"),
        fix=drop("layernorm"),
        source=Source(path=_LAYER, where="TransformerLayer.__init__", terms=("IdentityOp",)),
        bad=ex("0.19", **_SELECTIVE, recompute_modules=("layernorm",)),
        good=ex("0.19", **_SELECTIVE, recompute_modules=("layernorm",), transformer_impl="local"),
    ),
    Rule(
        id="core-attn-no-attn",
        severity="warning",
        raised="never",
        title="core_attn on a model without attention layers: no effect",
        revisions=since("0.12"),
        gate="selective",
        when=lambda c: "core_attn" in c.labels and c.layers.total > 0 and c.layers.attention == 0,
        message="core_attn matches 0 of {c.layers.total} layers: none holds attention",
        fields=("model.recompute_modules",),
        fix=drop("core_attn"),
        source=Source(path="megatron/core/transformer/attention.py", where="Attention.forward"),
        bad=ex(
            "0.19",
            **_SELECTIVE,
            recompute_modules=("core_attn",),
            hybrid_override_pattern="M-M-M-M-",
        ),
        good=ex(
            "0.19",
            **_SELECTIVE,
            recompute_modules=("core_attn",),
            hybrid_override_pattern="M*M-M*M-",
        ),
    ),
    Rule(
        id="gdn-norm-out-absent",
        severity="warning",
        raised="never",
        title="gdn_norm_out on a model whose pattern has no gated delta net layer: no effect",
        revisions=since("0.19"),
        gate="selective",
        when=lambda c: (
            "gdn_norm_out" in c.labels
            and bool(c.model.experimental_attention_variant)
            and c.model.linear_attention_freq is not None
            and c.layers.gdn == 0
        ),
        message="gdn_norm_out matches 0 of {c.layers.total} layers: linear_attention_freq="
        "{m.linear_attention_freq} gives no gated delta net layer",
        fields=("model.recompute_modules", "model.linear_attention_freq"),
        fix=drop("gdn_norm_out"),
        source=Source(path="megatron/core/ssm/gated_delta_net", where="GatedDeltaNet"),
        bad=ex(
            "0.19",
            **_SELECTIVE,
            recompute_modules=("gdn_norm_out",),
            experimental_attention_variant="gated_delta_net",
            linear_attention_freq=1,
        ),
        good=ex(
            "0.19",
            **_SELECTIVE,
            recompute_modules=("gdn_norm_out",),
            experimental_attention_variant="gated_delta_net",
            linear_attention_freq=4,
        ),
    ),
    Rule(
        id="gdp-labels-no-gdp",
        severity="warning",
        raised="never",
        title="main: gdp labels on a model without gated delta product layers: no effect",
        revisions=on("main"),
        gate="selective",
        when=lambda c: bool(_GDP & c.labels) and not c.hybrid,
        message="gdp_in_proj and gdp_qkv act on gated delta product layers in the Mamba slot of a "
        "hybrid stack; this model has none",
        fields=("model.recompute_modules",),
        fix=drop("gdp_in_proj", "gdp_qkv"),
        source=Source(
            path="megatron/core/ssm/gated_delta_product.py", where="GatedDeltaProductMixer"
        ),
        bad=ex("main", **_SELECTIVE, recompute_modules=("gdp_qkv",)),
        good=ex(
            "main",
            **_SELECTIVE,
            recompute_modules=("gdp_qkv",),
            hybrid_override_pattern="M*M-M*M-",
        ),
    ),
    Rule(
        id="moe-act-opfuser-old-te",
        severity="note",
        raised="never",
        title="moe_act with the op fuser: Transformer Engine does it, or nobody does",
        revisions=since("0.18"),
        gate="selective",
        when=lambda c: (
            "moe_act" in c.labels
            and bool(c.model.use_transformer_engine_op_fuser)
            and c.layers.moe > 0
        ),
        message="with use_transformer_engine_op_fuser label moe_act is handed to Transformer Engine; "
        "a version whose operation has no activation_recompute_in_mlp ignores it",
        fields=("model.recompute_modules", "model.use_transformer_engine_op_fuser"),
        advice="check the signature in your Transformer Engine",
        source=Source(path="megatron/core/transformer/moe/experts.py", where="TEGroupedMLP"),
        bad=ex(
            "0.19",
            **_SELECTIVE,
            **_ALL_MOE,
            recompute_modules=("moe_act",),
            use_transformer_engine_op_fuser=True,
        ),
        good=ex("0.19", **_SELECTIVE, **_ALL_MOE, recompute_modules=("moe_act",)),
    ),
    Rule(
        id="mlp-chunks-shadowed",
        severity="warning",
        raised="never",
        title="mlp beside mlp_chunks_for_training: the chunks are ignored on those layers",
        revisions=since("0.18"),
        gate="selective",
        when=lambda c: (
            "mlp" in c.labels and c.model.mlp_chunks_for_training > 1 and c.layers.dense_mlp > 0
        ),
        message="mlp_chunks_for_training={m.mlp_chunks_for_training} is ignored on the "
        "{c.layers.dense_mlp} layers that label mlp replays",
        fields=("model.mlp_chunks_for_training", "model.recompute_modules"),
        source=Source(path=_LAYER, where="TransformerLayer._forward_mlp"),
        bad=ex("0.19", **_SELECTIVE, recompute_modules=("mlp",), mlp_chunks_for_training=2),
        good=ex("0.19", **_SELECTIVE, recompute_modules=("mlp",)),
    ),
    Rule(
        id="nested-inside-moe",
        severity="note",
        raised="never",
        title="moe_act or shared_experts inside moe: they act during the replay only",
        revisions=since("0.12"),
        gate="selective",
        when=lambda c: (
            "moe" in c.labels
            and c.layers.moe > 0
            and bool({"moe_act", "shared_experts"} & c.labels)
        ),
        message="moe already discards what {d} would; inside it they change the replay's own peak "
        "only",
        detail=lambda c: ", ".join(sorted({"moe_act", "shared_experts"} & c.labels)),
        fields=("model.recompute_modules",),
        source=Source(path=_MOE_LAYER, where="MoELayer.forward"),
        bad=ex("0.19", **_SELECTIVE, **_ALL_MOE, recompute_modules=("moe_act", "moe")),
        good=ex("0.19", **_SELECTIVE, **_ALL_MOE, recompute_modules=("moe_act",)),
    ),
    Rule(
        id="vlm-vision-fields",
        severity="warning",
        raised="never",
        title="Bridge vision towers: labels do not reach them",
        revisions=since("0.16"),
        entries=frozenset({"bridge"}),
        when=lambda c: (
            c.effective in ("selective", "full")
            and (
                (bool(c.labels) and _names_any(c, _COPIES_THREE_FIELDS))
                or _names_any(c, _NULLS_FIELDS)
            )
        ),
        message="the vision tower of this family does not take over recompute_modules="
        "{m.recompute_modules}: Qwen3-VL, Ernie 4.5 VL and Exaone 4.5 copy granularity, method and "
        "count only (so selective means core_attn there), Nemotron VL and Omni clear all of them",
        fields=("model.recompute_modules", "model.vision"),
        advice="set the tower's recompute separately and plan it separately",
        source=Source(
            repository=BRIDGE,
            revision="067f987d",
            path="src/megatron/bridge/models",
            where="vision configs",
        ),
        bad=ex(
            "0.19",
            **_SELECTIVE,
            recompute_modules=("mlp",),
            unmodelled={"model.model_type": "qwen3_vl"},
        ),
        good=ex("0.19", **_SELECTIVE, recompute_modules=("mlp",)),
    ),
    Rule(
        id="vision-not-covered",
        severity="note",
        raised="never",
        title="a vision tower with its own config: the language model's recompute is not its",
        revisions=since("0.8"),
        when=lambda c: (
            c.effective in ("selective", "full")
            and bool(c.model.vision)
            and "recompute_granularity" not in (c.model.vision or {})
        ),
        message="the job's vision tower states no recompute_granularity of its own: recompute of the "
        "language model does not reach it",
        fields=("model.vision",),
        advice="set model.vision.recompute_granularity",
        source=Source(
            repository=BRIDGE, revision="#5320", path="pull request", where="encoder policy"
        ),
        basis="report",
        bad=ex("0.19", **_SELECTIVE, recompute_modules=("mlp",), vision={"num_layers": 32}),
        good=ex("0.19", **_SELECTIVE, recompute_modules=("mlp",)),
    ),
)
"""Rows on labels without effect."""
