"""FP8 and FP4: what output-discarding labels need from the scaling recipe and Transformer Engine."""

from __future__ import annotations

from typing import Final

from recompute.rules.case import Case, below
from recompute.rules.edits import drop, put
from recompute.rules.types import Rule, Source, between, ex, on, since

_SELECTIVE: Final = {"recompute_granularity": "selective"}
_ACT_NORM: Final = frozenset({"moe_act", "layernorm"})
_NORM: Final = {**_SELECTIVE, "recompute_modules": ("layernorm",)}
_MLA: Final = {"multi_latent_attention": True, "normalization": "RMSNorm"}
_EXTENSION: Final = "megatron/core/extensions/transformer_engine.py"


def _discards(case: Case) -> bool:
    return bool(_ACT_NORM & case.labels)


RULES: Final[tuple[Rule, ...]] = (
    Rule(
        id="fp8-act-norm-any",
        severity="error",
        raised="config",
        title="0.13: moe_act or layernorm with any fp8: Megatron refuses it",
        revisions=on("0.13"),
        gate="declared-selective",
        when=lambda c: bool(c.model.fp8) and _discards(c),
        message="Megatron Core 0.13 refuses moe_act and layernorm with fp8={m.fp8}, whatever the "
        "recipe (0.14 allows them with current scaling)",
        fields=("model.recompute_modules", "model.fp8"),
        fix=drop("moe_act", "layernorm"),
        source=Source(terms=("moe_act and layernorm recompute",)),
        bad=ex("0.13", **_NORM, fp8="hybrid", fp8_recipe="tensorwise"),
        good=ex("0.14", **_NORM, fp8="hybrid", fp8_recipe="tensorwise"),
    ),
    Rule(
        id="fp8-delayed-act-norm",
        severity="error",
        raised="config",
        title="moe_act or layernorm with delayed fp8 scaling: Megatron refuses it",
        revisions=since("0.14"),
        gate="declared-selective",
        when=lambda c: bool(c.model.fp8) and c.model.fp8_recipe == "delayed" and _discards(c),
        message="fp8_recipe=delayed (the default) cannot be combined with moe_act or layernorm: a "
        "replay would update the scaling history twice",
        fields=("model.recompute_modules", "model.fp8_recipe"),
        fix=drop("moe_act", "layernorm"),
        advice="or use fp8_recipe tensorwise, blockwise or mxfp8 and keep the labels",
        source=Source(terms=("Delayed scaling does not support moe_act",)),
        bad=ex("0.19", **_NORM, fp8="hybrid"),
        good=ex("0.19", **_NORM, fp8="hybrid", fp8_recipe="blockwise"),
    ),
    Rule(
        id="fp8-te-version",
        severity="error",
        raised="config",
        title="moe_act or layernorm with fp8 and Transformer Engine before 2.6: refused",
        revisions=since("0.14"),
        gate="declared-selective",
        when=lambda c: (
            bool(c.model.fp8)
            and c.model.fp8_recipe != "delayed"
            and _discards(c)
            and below(c.te, 2, 6)
        ),
        message="moe_act and layernorm with fp8 need Transformer Engine 2.6.0dev0 or newer; the job "
        "says {c.job.framework.transformer_engine}",
        fields=("model.recompute_modules", "framework.transformer_engine"),
        fix=drop("moe_act", "layernorm"),
        advice="or install Transformer Engine 2.6 or newer",
        source=Source(terms=("2.6.0dev0", "is_te_min_version")),
        bad=ex(
            "0.19",
            **_NORM,
            fp8="hybrid",
            fp8_recipe="mxfp8",
            framework__transformer_engine="2.5.0",
        ),
        good=ex(
            "0.19",
            **_NORM,
            fp8="hybrid",
            fp8_recipe="mxfp8",
            framework__transformer_engine="2.6.0.dev0+a1b2c3",
        ),
    ),
    Rule(
        id="save-original-input-missing",
        severity="error",
        raised="build",
        title="moe_act or layernorm with fp4 and Transformer Engine before 2.6: layers do not build",
        revisions=since("0.15"),
        gate="selective",
        when=lambda c: bool(c.model.fp4) and _discards(c) and below(c.te, 2, 6),
        message="the linear layers of Transformer Engine {c.job.framework.transformer_engine} have "
        "no save_original_input, which moe_act and layernorm need with fp4={m.fp4}",
        fields=("model.recompute_modules", "framework.transformer_engine"),
        fix=drop("moe_act", "layernorm"),
        advice="or install Transformer Engine 2.6 or newer",
        source=Source(path=_EXTENSION, where="set_save_original_input"),
        bad=ex("0.19", **_NORM, fp4="e2m1", framework__transformer_engine="2.4"),
        good=ex("0.19", **_NORM, fp4="e2m1", framework__transformer_engine="2.8"),
    ),
    Rule(
        id="norm-recompute-unsupported-attn",
        severity="warning",
        raised="build",
        title="layernorm under fp8/fp4 with a layer spec of one's own: the attention must allow it",
        revisions=since("0.14"),
        gate="selective",
        when=lambda c: (
            "layernorm" in c.labels
            and c.quantized
            and c.foreign("transformer_layer_spec") is not None
        ),
        message="layernorm under fp8 or fp4 calls set_for_recompute_input_layernorm on the "
        "attention; a class without it (cross attention in the self-attention slot, your own) "
        "raises NotImplementedError when the layer is built. This job brings its own layer spec",
        fields=("model.recompute_modules", "model.transformer_layer_spec"),
        advice="build one layer before the launch, or drop layernorm",
        source=Source(
            path="megatron/core/transformer/attention.py",
            where="Attention.set_for_recompute_input_layernorm",
        ),
        bad=ex(
            "0.19",
            **_NORM,
            fp8="hybrid",
            fp8_recipe="mxfp8",
            unmodelled={"model.transformer_layer_spec": "mine.spec.layer"},
        ),
        good=ex("0.19", **_NORM, fp8="hybrid", fp8_recipe="mxfp8"),
    ),
    Rule(
        id="norm-recompute-gdn-fp8",
        severity="warning",
        raised="build",
        title="layernorm under fp8/fp4 on gated delta net layers with a norm of their own",
        revisions=since("0.19"),
        gate="selective",
        when=lambda c: "layernorm" in c.labels and c.quantized and c.layers.gdn > 0,
        message="{c.layers.gdn} gated delta net layers have no set_for_recompute_input_layernorm: "
        "with fp8 or fp4, layernorm ends in AttributeError where their input norm is a module of "
        "its own",
        fields=("model.recompute_modules",),
        advice="drop layernorm, or build one layer before the launch",
        source=Source(
            path="megatron/core/transformer/transformer_layer.py",
            where="TransformerLayer.__init__",
            terms=("set_for_recompute_input_layernorm",),
        ),
        basis="inferred",
        bad=ex(
            "0.19",
            **_NORM,
            fp8="hybrid",
            fp8_recipe="mxfp8",
            experimental_attention_variant="gated_delta_net",
            linear_attention_freq=4,
        ),
        good=ex(
            "0.19",
            **_NORM,
            experimental_attention_variant="gated_delta_net",
            linear_attention_freq=4,
        ),
    ),
    Rule(
        id="fp4-moe-act-norm-no-config-check",
        severity="note",
        raised="never",
        title="moe_act or layernorm with fp4: no check of the Transformer Engine version",
        revisions=since("0.15"),
        gate="declared-selective",
        when=lambda c: bool(c.model.fp4) and not c.model.fp8 and _discards(c) and c.te is None,
        message="Megatron checks the Transformer Engine version for moe_act and layernorm with fp8 "
        "only; with fp4={m.fp4} they need save_original_input (2.6 or newer) as well, and fail "
        "late without it",
        fields=("model.recompute_modules", "model.fp4"),
        advice="state framework.transformer_engine to have it checked here",
        source=Source(terms=("2.6.0dev0", "is_te_min_version")),
        bad=ex("0.19", **_NORM, fp4="e2m1"),
        good=ex("0.19", **_NORM, fp4="e2m1", framework__transformer_engine="2.8"),
    ),
    Rule(
        id="absorbed-mla-fp8",
        severity="error",
        raised="forward",
        title="mla_up_proj with fp8/fp4 on absorbed multi-latent attention (DSA models)",
        revisions=between("0.17", "main"),
        gate="selective",
        when=lambda c: (
            "mla_up_proj" in c.labels
            and c.quantized
            and c.model.experimental_attention_variant == "dsa"
        ),
        message="absorbed multi-latent attention (experimental_attention_variant=dsa) asserts "
        "against mla_up_proj with fp8 or fp4 in its first forward",
        fields=("model.recompute_modules", "model.experimental_attention_variant"),
        fix=drop("mla_up_proj"),
        advice="the dev branch lifted it (pull request 6178, 2026-08-18)",
        source=Source(
            path="megatron/core/transformer/experimental_attention_variant/absorbed_mla.py",
            where="AbsorbedMLASelfAttention",
            terms=("mla_up_proj",),
        ),
        bad=ex(
            "0.19",
            **_SELECTIVE,
            **_MLA,
            recompute_modules=("mla_up_proj",),
            experimental_attention_variant="dsa",
            add_bias_linear=False,
            fp8="hybrid",
            fp8_recipe="mxfp8",
        ),
        good=ex(
            "dev",
            **_SELECTIVE,
            **_MLA,
            recompute_modules=("mla_up_proj",),
            experimental_attention_variant="dsa",
            add_bias_linear=False,
            fp8="hybrid",
            fp8_recipe="mxfp8",
        ),
    ),
    Rule(
        id="te-checkpoint-first-module",
        severity="warning",
        raised="never",
        title="delayed fp8 scaling replayed by Transformer Engine before 1.12: scales go stale",
        revisions=since("0.8"),
        when=lambda c: (
            bool(c.model.fp8)
            and c.model.fp8_recipe == "delayed"
            and below(c.te, 1, 12)
            and (c.recomputes or bool(c.foreign("checkpoint")))
        ),
        message="Transformer Engine {c.job.framework.transformer_engine} loses the first-module "
        "flag in the replay, so with delayed fp8 scaling the backward scales are never updated and "
        "training becomes unstable",
        fields=("framework.transformer_engine", "model.fp8_recipe"),
        advice="use a Transformer Engine with pull request 1254 (October 2024) or newer",
        source=Source(
            repository="NVIDIA/TransformerEngine",
            revision="#1254",
            path="transformer_engine/pytorch",
            where="issue 1190 and its fix",
        ),
        basis="report",
        bad=ex(
            "0.10",
            recompute_granularity="full",
            recompute_method="block",
            recompute_num_layers=8,
            fp8="hybrid",
            framework__transformer_engine="1.10.0",
        ),
        good=ex(
            "0.10",
            recompute_granularity="full",
            recompute_method="block",
            recompute_num_layers=8,
            fp8="hybrid",
            framework__transformer_engine="1.13.0",
        ),
    ),
    Rule(
        id="plain-checkpoint-fp8",
        severity="warning",
        raised="never",
        title="0.12: mlp and moe use the plain checkpoint even with fp8",
        revisions=on("0.12"),
        gate="selective",
        when=lambda c: bool(c.model.fp8) and bool({"mlp", "moe"} & c.labels),
        message="Megatron Core 0.12 replays mlp and moe with the plain checkpoint: with fp8="
        "{m.fp8} the scaling state of Transformer Engine is updated by the replay as well (0.13 "
        "uses Transformer Engine's own checkpoint)",
        fields=("model.recompute_modules", "model.fp8"),
        advice="use Megatron Core 0.13 or newer",
        source=Source(
            path="megatron/core/transformer/transformer_layer.py",
            where="TransformerLayer._forward_mlp",
        ),
        bad=ex("0.12", **_SELECTIVE, recompute_modules=("mlp",), fp8="hybrid"),
        good=ex("0.13", **_SELECTIVE, recompute_modules=("mlp",), fp8="hybrid"),
    ),
    Rule(
        id="fp8-and-fp4",
        severity="error",
        raised="config",
        title="fp8 and fp4 together: Megatron refuses it",
        revisions=since("0.15"),
        when=lambda c: bool(c.model.fp8) and bool(c.model.fp4),
        message="fp8={m.fp8} and fp4={m.fp4} exclude each other",
        fields=("model.fp8", "model.fp4"),
        fix=put(fp4=None),
        source=Source(terms=("fp4 and fp8 cannot be used",)),
        bad=ex("0.19", fp8="hybrid", fp8_recipe="mxfp8", fp4="e2m1"),
        good=ex("0.19", fp8="hybrid", fp8_recipe="mxfp8"),
    ),
    Rule(
        id="masters-kept-twice",
        severity="warning",
        raised="never",
        title="precision-aware optimizer, no FP8, and an FP8 recipe all the same: whole FP32 masters",
        revisions=since("0.13"),
        when=lambda c: c.job.masters_kept_twice,
        message="optimizer.fp8_recipe={c.job.optimizer.fp8_recipe} in a job without FP8: Megatron Core "
        "keeps whole FP32 masters and copies the gradients to FP32 in every step, where the "
        "precision-aware optimizer would keep 16 bits of each (Bridge copies mixed_precision.fp8_recipe, "
        "tensorwise by default)",
        fields=("optimizer.fp8_recipe", "optimizer.use_precision_aware_optimizer"),
        fix=put(optimizer__fp8_recipe="delayed"),
        source=Source(
            path="megatron/core/optimizer/optimizer_config.py",
            where="OptimizerConfig.__post_init__",
            terms=("use_precision_aware_optimizer_no_fp8_or_ds_fp8",),
        ),
        bad=ex(
            "0.19",
            optimizer__use_distributed_optimizer=True,
            optimizer__use_precision_aware_optimizer=True,
            optimizer__fp8_recipe="tensorwise",
        ),
        good=ex(
            "0.19",
            optimizer__use_distributed_optimizer=True,
            optimizer__use_precision_aware_optimizer=True,
            optimizer__fp8_recipe="delayed",
        ),
    ),
)
"""Rows on fp8, fp4 and Transformer Engine versions."""
