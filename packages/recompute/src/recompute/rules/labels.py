"""Selective labels: which names exist, and what each needs from the model."""

from __future__ import annotations

from typing import Final

from recompute.rules.allowed import (
    FIELD_SINCE,
    ONLY_ON_DEV,
    label_since,
    nearest_label,
)
from recompute.rules.case import GDN_VARIANTS, Case, names_of, replays_fused_attention
from recompute.rules.edits import drop, ordered, put
from recompute.rules.types import (
    Edit,
    Rule,
    Source,
    between,
    ex,
    on,
    since,
)

_SELECTIVE: Final = {"recompute_granularity": "selective"}
_GDN_MODEL: Final = {
    "experimental_attention_variant": "gated_delta_net",
    "linear_attention_freq": 4,
    "linear_num_key_heads": 8,
    "linear_num_value_heads": 8,
}
_SHARED: Final = {
    "num_moe_experts": 8,
    "moe_shared_expert_intermediate_size": 512,
    "moe_token_dispatcher_type": "alltoall",
}


def _unknown(case: Case) -> tuple[str, ...]:
    allowed = case.allowed
    return tuple(name for name in names_of(case.model.recompute_modules) if name not in allowed)


def _spelled(case: Case) -> str | None:
    """Return the text that was given where a list belongs; Python takes it for its letters."""
    given: object = case.model.recompute_modules
    if isinstance(given, str):
        return given
    names = names_of(given)
    return "".join(names) if len(names) > 1 and all(len(name) == 1 for name in names) else None


def _known(case: Case) -> Edit:
    """Keep accepted labels; replace the others by the label they most likely mean."""
    kept: set[str] = set()
    spelled = _spelled(case)
    given = names_of(case.model.recompute_modules) if spelled is None else (spelled,)
    for name in (part for text in given for part in text.split(",")):
        meant = name if name in case.allowed else nearest_label(name, case.allowed)
        if meant is not None:
            kept.add(meant)
    return {"model.recompute_modules": ordered(kept)}


def _absent_fields(case: Case) -> list[str]:
    """Return the recompute-related fields that were set and that the revision does not have."""
    model, given = case.model, case.job.given
    return [
        name
        for name in (*FIELD_SINCE, *ONLY_ON_DEV)
        if f"model.{name}" in given
        and not case.has_field(name)
        and getattr(model, name) not in (None, False, (), "none", 1, 2, 1.0)
    ]


def _without_absent(case: Case) -> Edit:
    defaults = type(case.model)()
    return {f"model.{name}": getattr(defaults, name) for name in _absent_fields(case)}


def _is_gdn(case: Case) -> bool:
    variant = case.model.experimental_attention_variant
    if case.name in ("0.19", "dev"):
        return variant == "gated_delta_net"
    return variant in GDN_VARIANTS


def _described(name: str, allowed: frozenset[str]) -> str:
    if "," in name:
        return f"{name!r} (one text; write the labels apart)"
    arrived = label_since(name)
    if arrived is not None:
        return f"{name} (since {arrived})"
    near = nearest_label(name, allowed)
    return f"{name} (of no revision; nearest is {near})" if near else f"{name} (of no revision)"


def _arrival(name: str) -> str:
    return "dev only" if name in ONLY_ON_DEV else f"since {FIELD_SINCE[name]}"


RULES: Final[tuple[Rule, ...]] = (
    Rule(
        id="unknown-label",
        severity="error",
        raised="config",
        title="a label that the revision does not have: Megatron refuses the list",
        revisions=since("0.12"),
        gate="declared-selective",
        when=lambda c: bool(_unknown(c)),
        message="recompute_modules={m.recompute_modules} holds a name that Megatron Core {c.name} "
        "does not accept: {d}",
        fields=("model.recompute_modules",),
        detail=lambda c: (
            (
                ", ".join(_described(name, c.allowed) for name in dict.fromkeys(_unknown(c)))
                if _spelled(c) is None
                else f"the text {_spelled(c)!r}, where a list belongs"
            )
            + ". It accepts "
            + ", ".join(sorted(c.allowed))
        ),
        fix=_known,
        source=Source(terms=("allowed_modules", "recompute_modules")),
        bad=ex("0.13", **_SELECTIVE, recompute_modules=("shared_experts",)),
        good=ex("0.14", **_SELECTIVE, recompute_modules=("shared_experts",)),
    ),
    Rule(
        id="field-not-in-revision",
        severity="error",
        raised="config",
        title="a field that the revision's config does not have yet",
        revisions=since("0.8"),
        when=lambda c: bool(c.job.given) and bool(_absent_fields(c)),
        message="Megatron Core {c.name} has no {d}: building its config fails",
        detail=lambda c: ", ".join(f"{name} ({_arrival(name)})" for name in _absent_fields(c)),
        fields=("model",),
        fix=_without_absent,
        source=Source(where="TransformerConfig"),
        bad=ex(
            "0.15",
            fine_grained_activation_offloading=True,
            offload_modules=("core_attn",),
            given={
                "fine_grained_activation_offloading": "job.yaml:3",
                "offload_modules": "job.yaml:4",
            },
        ),
        good=ex(
            "0.16",
            fine_grained_activation_offloading=True,
            offload_modules=("core_attn",),
            environment={"NVTE_CPU_OFFLOAD_V1": "1"},
            given={"fine_grained_activation_offloading": "job.yaml:3"},
        ),
    ),
    Rule(
        id="duplicate-labels",
        severity="note",
        raised="never",
        title="a label twice: harmless",
        revisions=since("0.12"),
        gate="declared-selective",
        when=lambda c: (
            len(set(names_of(c.model.recompute_modules)))
            != len(names_of(c.model.recompute_modules))
        ),
        message="recompute_modules={m.recompute_modules} names a label twice; Megatron reads it as a "
        "set",
        fields=("model.recompute_modules",),
        fix=lambda c: {"model.recompute_modules": ordered(names_of(c.model.recompute_modules))},
        source=Source(terms=("allowed_modules", "recompute_modules")),
        bad=ex("0.19", **_SELECTIVE, recompute_modules=("mlp", "mlp")),
        good=ex("0.19", **_SELECTIVE, recompute_modules=("mlp",)),
    ),
    Rule(
        id="modules-none-default",
        severity="note",
        raised="never",
        title="selective without a list recomputes core_attn",
        revisions=since("0.12"),
        gate="declared-selective",
        when=lambda c: c.model.recompute_modules is None and not replays_fused_attention(c),
        message="recompute_modules is not set, so Megatron fills in [core_attn]; write the list out, "
        "and [] for no recompute",
        fields=("model.recompute_modules",),
        fix=put(recompute_modules=("core_attn",)),
        source=Source(terms=("recompute_modules is None",)),
        bad=ex("0.19", **_SELECTIVE, attention_backend="unfused"),
        good=ex("0.19", **_SELECTIVE, recompute_modules=("mlp",)),
    ),
    Rule(
        id="empty-list-ok",
        severity="note",
        raised="never",
        title="selective with an empty list: legal, and recomputes nothing",
        revisions=since("0.12"),
        gate="declared-selective",
        entries=frozenset({"bridge", "core"}),
        when=lambda c: not c.labels and c.model.recompute_modules is not None,
        message="recompute_modules=[] with selective is legal and recomputes nothing: the control "
        "to compare other choices with",
        fields=("model.recompute_modules",),
        source=Source(terms=("len(self.recompute_modules) > 0",)),
        bad=ex("0.19", **_SELECTIVE, recompute_modules=()),
        good=ex("0.19", **_SELECTIVE, recompute_modules=("mlp",)),
    ),
    Rule(
        id="core-attn-warning",
        severity="warning",
        raised="config",
        title="core_attn with fused attention: replays attention and saves next to nothing",
        revisions=since("0.12"),
        gate="declared-selective",
        when=replays_fused_attention,
        detail=lambda c: (
            "recompute_modules is not set, which Megatron reads as [core_attn]; "
            if c.model.recompute_modules is None
            else ""
        ),
        message="{d}core_attn with attention_backend={m.attention_backend}: a fused kernel already "
        "avoids the score matrix, so the replay costs time and saves next to nothing (it can even "
        "raise the peak). Compare with []",
        fields=("model.recompute_modules", "model.attention_backend"),
        advice="drop core_attn unless attention is unfused; measured on Moonlight 16B: 36.614 "
        "against 36.618 GB at +3.85% step time",
        source=Source(terms=("core_attn", "warnings.warn")),
        bad=ex("0.19", **_SELECTIVE, recompute_modules=("core_attn",)),
        good=ex(
            "0.19", **_SELECTIVE, recompute_modules=("core_attn",), attention_backend="unfused"
        ),
    ),
    Rule(
        id="selective-fused-before-labels",
        severity="warning",
        raised="never",
        title="selective before 0.12 is core attention: little to save with a fused kernel",
        revisions=between("0.8", "0.11"),
        gate="declared-selective",
        when=lambda c: (
            c.model.transformer_impl == "transformer_engine"
            and c.model.attention_backend not in ("unfused", "local")
        ),
        message="selective means core attention in Megatron Core {c.name}; with a fused kernel "
        "(attention_backend={m.attention_backend}) the score matrix is not kept anyway",
        fields=("model.recompute_granularity",),
        advice="labels such as mlp need Megatron Core 0.12",
        source=Source(
            revision="#1225", path="issue", where="25.52 to 24.94 GB with --recompute-activations"
        ),
        basis="report",
        bad=ex("0.11", "megatron-lm", **_SELECTIVE),
        good=ex("0.11", "megatron-lm", **_SELECTIVE, attention_backend="unfused"),
    ),
    Rule(
        id="moe-act-needs-grouped-gemm",
        severity="error",
        raised="config",
        title="moe_act without grouped GEMM: Megatron refuses it, dense models included",
        revisions=since("0.12"),
        gate="declared-selective",
        when=lambda c: "moe_act" in c.labels and not c.model.moe_grouped_gemm and c.known_model,
        message="moe_act lives in the grouped expert MLP; moe_grouped_gemm={m.moe_grouped_gemm} with "
        "num_moe_experts={m.num_moe_experts}",
        fields=("model.recompute_modules", "model.moe_grouped_gemm"),
        fix=lambda c: (
            {"model.moe_grouped_gemm": True}
            if c.layers.moe and c.model.transformer_impl == "transformer_engine"
            else drop("moe_act")(c)
        ),
        source=Source(terms=("moe_act", "moe_grouped_gemm")),
        bad=ex("0.19", **_SELECTIVE, recompute_modules=("moe_act",), num_moe_experts=4),
        good=ex(
            "0.19",
            **_SELECTIVE,
            recompute_modules=("moe_act",),
            num_moe_experts=4,
            moe_grouped_gemm=True,
        ),
    ),
    Rule(
        id="mla-up-proj-needs-mla",
        severity="error",
        raised="config",
        title="mla_up_proj without multi-latent attention: Megatron refuses it",
        revisions=since("0.12"),
        gate="declared-selective",
        when=lambda c: (
            "mla_up_proj" in c.labels and not c.model.multi_latent_attention and c.known_model
        ),
        message="mla_up_proj needs multi_latent_attention; this model has standard attention",
        fields=("model.recompute_modules", "model.multi_latent_attention"),
        fix=drop("mla_up_proj"),
        source=Source(terms=("mla_up_proj", "multi_latent_attention")),
        bad=ex("0.19", **_SELECTIVE, recompute_modules=("mla_up_proj",)),
        good=ex(
            "0.19",
            **_SELECTIVE,
            recompute_modules=("mla_up_proj",),
            multi_latent_attention=True,
        ),
    ),
    Rule(
        id="gdn-label-needs-gdn",
        severity="error",
        raised="config",
        title="gdn_norm_out on a model without gated delta net: Megatron refuses it",
        revisions=since("0.19"),
        gate="declared-selective",
        when=lambda c: "gdn_norm_out" in c.labels and not _is_gdn(c) and c.known_model,
        message="gdn_norm_out needs a gated delta net model; experimental_attention_variant="
        "{m.experimental_attention_variant}",
        fields=("model.recompute_modules", "model.experimental_attention_variant"),
        fix=drop("gdn_norm_out"),
        source=Source(terms=("gdn_norm_out", "experimental_attention_variant")),
        bad=ex("0.19", **_SELECTIVE, recompute_modules=("gdn_norm_out",)),
        good=ex("0.19", **_SELECTIVE, **_GDN_MODEL, recompute_modules=("gdn_norm_out",)),
    ),
    Rule(
        id="gdn-needs-gdn-dev",
        severity="error",
        raised="config",
        title="gdn on a model without gated delta net: the dev branch refuses it",
        revisions=on("dev"),
        gate="declared-selective",
        when=lambda c: (
            "gdn" in c.labels and c.model.experimental_attention_variant != "gated_delta_net"
        ),
        message="gdn needs experimental_attention_variant=gated_delta_net, not "
        "{m.experimental_attention_variant}",
        fields=("model.recompute_modules", "model.experimental_attention_variant"),
        fix=drop("gdn"),
        source=Source(terms=("'gdn'", "gated_delta_net")),
        bad=ex("dev", **_SELECTIVE, recompute_modules=("gdn",)),
        good=ex("dev", **_SELECTIVE, **_GDN_MODEL, recompute_modules=("gdn",)),
    ),
    Rule(
        id="gdn-exclusive-dev",
        severity="error",
        raised="config",
        title="gdn together with gdn_norm_out: the dev branch refuses it",
        revisions=on("dev"),
        gate="declared-selective",
        when=lambda c: {"gdn", "gdn_norm_out"} <= c.labels,
        message="gdn replays the whole mixer, gdn_norm_out part of it: keep one of them",
        fields=("model.recompute_modules",),
        fix=drop("gdn_norm_out"),
        source=Source(terms=("'gdn'", "'gdn_norm_out'")),
        bad=ex("dev", **_SELECTIVE, **_GDN_MODEL, recompute_modules=("gdn", "gdn_norm_out")),
        good=ex("dev", **_SELECTIVE, **_GDN_MODEL, recompute_modules=("gdn",)),
    ),
    Rule(
        id="shared-experts-vs-overlap",
        severity="error",
        raised="config",
        title="shared_experts with shared-expert overlap: Megatron refuses it",
        revisions=since("0.14"),
        gate="declared-selective",
        when=lambda c: (
            "shared_experts" in c.labels
            and bool(c.model.moe_shared_expert_overlap)
            and c.model.moe_shared_expert_intermediate_size is not None
        ),
        message="shared_experts cannot be replayed while moe_shared_expert_overlap runs it on its "
        "own stream",
        fields=("model.recompute_modules", "model.moe_shared_expert_overlap"),
        fix=drop("shared_experts"),
        advice="or set model.moe_shared_expert_overlap=false and keep the label",
        source=Source(terms=("shared_experts", "moe_shared_expert_overlap")),
        bad=ex(
            "0.19",
            **_SELECTIVE,
            **_SHARED,
            moe_shared_expert_overlap=True,
            recompute_modules=("shared_experts",),
        ),
        good=ex("0.19", **_SELECTIVE, **_SHARED, recompute_modules=("shared_experts",)),
    ),
    Rule(
        id="shared-experts-overlap-absent",
        severity="error",
        raised="never",
        title="shared_experts with the overlap switch on, shared-expert size not given",
        revisions=since("0.14"),
        gate="declared-selective",
        when=lambda c: (
            "shared_experts" in c.labels
            and bool(c.model.moe_shared_expert_overlap)
            and c.model.moe_shared_expert_intermediate_size is None
        ),
        message="shared_experts and moe_shared_expert_overlap exclude each other; Megatron lets this "
        "job pass only because moe_shared_expert_intermediate_size is not set, and then neither "
        "does anything",
        fields=(
            "model.recompute_modules",
            "model.moe_shared_expert_overlap",
            "model.moe_shared_expert_intermediate_size",
        ),
        fix=drop("shared_experts"),
        advice="or set model.moe_shared_expert_overlap=false",
        source=Source(terms=("shared_experts", "moe_shared_expert_overlap")),
        bad=ex(
            "0.19",
            **_SELECTIVE,
            moe_shared_expert_overlap=True,
            recompute_modules=("shared_experts",),
        ),
        good=ex("0.19", **_SELECTIVE, **_SHARED, recompute_modules=("shared_experts",)),
    ),
    Rule(
        id="moe-layer-recompute-deprecated",
        severity="error",
        raised="launch",
        title="moe_layer_recompute: deprecated; sets selective and adds moe (None: core_attn + moe)",
        revisions=since("0.12"),
        when=lambda c: bool(c.model.moe_layer_recompute) and c.declared in ("none", "selective"),
        message="moe_layer_recompute sets selective and adds moe to the labels (an unset list "
        "becomes core_attn and moe). Megatron's own warning names moe_layer, which is not a label: "
        "it is moe",
        fields=("model.moe_layer_recompute",),
        fix=lambda c: {
            "model.moe_layer_recompute": False,
            "model.recompute_granularity": "selective",
            "model.recompute_modules": ordered(c.labels),
        },
        source=Source(terms=("moe_layer_recompute", "warnings.warn")),
        bad=ex("0.19", moe_layer_recompute=True, num_moe_experts=4),
        good=ex("0.19", **_SELECTIVE, recompute_modules=("moe",), num_moe_experts=4),
    ),
    Rule(
        id="moe-layer-recompute-full",
        severity="error",
        raised="config",
        title="moe_layer_recompute with full: Megatron refuses it",
        revisions=since("0.12"),
        gate="full",
        when=lambda c: bool(c.model.moe_layer_recompute),
        message="moe_layer_recompute cannot be set with full, which replays the MoE layer anyway",
        fields=("model.moe_layer_recompute",),
        fix=put(moe_layer_recompute=False),
        source=Source(terms=("moe_layer_recompute", "full")),
        bad=ex(
            "0.19",
            recompute_granularity="full",
            recompute_method="uniform",
            recompute_num_layers=1,
            moe_layer_recompute=True,
        ),
        good=ex(
            "0.19",
            recompute_granularity="full",
            recompute_method="uniform",
            recompute_num_layers=1,
        ),
    ),
    Rule(
        id="moe-layer-recompute-bypasses-num-layers",
        severity="warning",
        raised="never",
        title="moe_layer_recompute is applied after the checks: fields selective forbids get through",
        revisions=since("0.12"),
        when=lambda c: (
            bool(c.model.moe_layer_recompute)
            and c.declared == "none"
            and (
                c.model.recompute_num_layers is not None
                or any(name not in c.allowed for name in names_of(c.model.recompute_modules))
            )
        ),
        message="moe_layer_recompute turns selective on after Megatron has checked the fields, so "
        "recompute_num_layers={m.recompute_num_layers} and recompute_modules="
        "{m.recompute_modules} are not checked here and would fail when written out",
        fields=("model.moe_layer_recompute", "model.recompute_num_layers"),
        fix=put(recompute_num_layers=None),
        source=Source(terms=("moe_layer_recompute", "warnings.warn")),
        bad=ex("0.19", moe_layer_recompute=True, num_moe_experts=4, recompute_num_layers=2),
        good=ex("0.19", **_SELECTIVE, recompute_modules=("moe",), num_moe_experts=4),
    ),
    Rule(
        id="moe-layer-recompute-switch",
        severity="note",
        raised="never",
        title="moe_layer_recompute before 0.12 is a switch of its own",
        revisions=between("0.8", "0.11"),
        when=lambda c: bool(c.model.moe_layer_recompute),
        message="in Megatron Core {c.name} moe_layer_recompute replays every MoE layer, whatever "
        "the granularity; from 0.12 it is an alias of selective with moe",
        fields=("model.moe_layer_recompute",),
        source=Source(path="megatron/core/transformer/moe/moe_layer.py", where="MoELayer.forward"),
        bad=ex("0.11", moe_layer_recompute=True, num_moe_experts=4),
        good=ex("0.12", **_SELECTIVE, recompute_modules=("moe",), num_moe_experts=4),
    ),
)
"""Rows on the label list itself and on what a label needs."""
