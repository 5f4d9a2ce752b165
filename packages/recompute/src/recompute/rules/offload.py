"""Offloading to host memory beside recompute: layer offload, fine-grained offload, paged stash."""

from __future__ import annotations

from typing import Final

from recompute.rules.allowed import OFFLOAD_OF
from recompute.rules.case import Case, below, names_of
from recompute.rules.edits import put
from recompute.rules.types import (
    ALL,
    BRIDGE,
    Edit,
    Rule,
    Source,
    between,
    ex,
    on,
    since,
)

_SELECTIVE: Final = {"recompute_granularity": "selective"}
_OFFLOAD: Final = {
    "fine_grained_activation_offloading": True,
    "offload_modules": ("core_attn",),
    "environment": {"NVTE_CPU_OFFLOAD_V1": "1"},
}
_INSIDE_MOE: Final = frozenset({"moe_act", "expert_fc1", "fused_group_mlp"})
_MOE: Final = {"num_moe_experts": 8, "moe_grouped_gemm": True}
_BRIDGE_CONFIG: Final = "src/megatron/bridge/training/config.py"
_NO_FINE: Final = put(fine_grained_activation_offloading=False)
_NO_LAYERS: Final = put(cpu_offloading=False)


def _offloads(case: Case) -> frozenset[str]:
    """Return the offload labels that act."""
    if not case.model.fine_grained_activation_offloading:
        return frozenset()
    return frozenset(names_of(case.model.offload_modules))


def _less_offload(case: Case, *labels: str) -> Edit:
    kept = tuple(name for name in names_of(case.model.offload_modules) if name not in labels)
    edit: dict[str, object] = {"model.offload_modules": kept}
    if not kept:
        edit["model.fine_grained_activation_offloading"] = False
    return edit


def _unknown(case: Case) -> tuple[str, ...]:
    allowed = OFFLOAD_OF.get(case.name, frozenset())
    return tuple(name for name in sorted(_offloads(case)) if name not in allowed)


def _stash_conflicts(case: Case) -> frozenset[str]:
    covered = _INSIDE_MOE if case.name != "0.18" else _INSIDE_MOE - {"fused_group_mlp"}
    return covered & frozenset(names_of(case.model.offload_modules))


def _partial_groups(case: Case) -> bool:
    offloads = _offloads(case)
    return "fused_group_mlp" in offloads and bool({"expert_fc1", "moe_act"} & offloads)


RULES: Final[tuple[Rule, ...]] = (
    Rule(
        id="cpu-offload-vs-recompute",
        severity="error",
        raised="config",
        title="cpu_offloading with any granularity: Megatron refuses it, empty lists included",
        revisions=ALL,
        when=lambda c: bool(c.model.cpu_offloading) and c.declared != "none",
        message="cpu_offloading excludes recompute (recompute_granularity="
        "{m.recompute_granularity}); fine_grained_activation_offloading is the one that works "
        "beside it",
        fields=("model.cpu_offloading", "model.recompute_granularity"),
        fix=_NO_LAYERS,
        advice="or set model.recompute_granularity=null and keep the offload",
        source=Source(terms=("CPU offloading does not work when",)),
        bad=ex(
            "0.19",
            **_SELECTIVE,
            recompute_modules=("mlp",),
            cpu_offloading=True,
            cpu_offloading_num_layers=4,
        ),
        good=ex("0.19", cpu_offloading=True, cpu_offloading_num_layers=4),
    ),
    Rule(
        id="cpu-offload-pp",
        severity="error",
        raised="config",
        title="cpu_offloading with pipeline parallelism: Megatron refuses it",
        revisions=ALL,
        when=lambda c: bool(c.model.cpu_offloading) and c.model.pipeline_model_parallel_size > 1,
        message="cpu_offloading does not work with pipeline_model_parallel_size="
        "{m.pipeline_model_parallel_size}",
        fields=("model.cpu_offloading", "model.pipeline_model_parallel_size"),
        fix=_NO_LAYERS,
        source=Source(terms=("no support for Pipeline parallelism with CPU",)),
        bad=ex(
            "0.19",
            cpu_offloading=True,
            cpu_offloading_num_layers=2,
            pipeline_model_parallel_size=4,
        ),
        good=ex("0.19", cpu_offloading=True, cpu_offloading_num_layers=2),
    ),
    Rule(
        id="cpu-offload-layers",
        severity="error",
        raised="config",
        title="cpu_offloading_num_layers outside 0 to num_layers - 1: Megatron refuses it",
        revisions=ALL,
        when=lambda c: (
            bool(c.model.cpu_offloading)
            and not 0 <= c.model.cpu_offloading_num_layers < c.model.num_layers
        ),
        message="cpu_offloading_num_layers={m.cpu_offloading_num_layers} must be at least 0 and "
        "below num_layers={m.num_layers}",
        fields=("model.cpu_offloading_num_layers",),
        fix=lambda c: {"model.cpu_offloading_num_layers": max(c.model.num_layers - 1, 0)},
        source=Source(terms=("CPU offloading can be done only for layers",)),
        bad=ex("0.19", cpu_offloading=True, cpu_offloading_num_layers=8),
        good=ex("0.19", cpu_offloading=True, cpu_offloading_num_layers=7),
    ),
    Rule(
        id="fgo-vs-cpu-offload",
        severity="error",
        raised="config",
        title="both kinds of offload: Megatron refuses it",
        revisions=since("0.16"),
        when=lambda c: (
            bool(c.model.fine_grained_activation_offloading) and bool(c.model.cpu_offloading)
        ),
        message="fine_grained_activation_offloading and cpu_offloading exclude each other",
        fields=("model.fine_grained_activation_offloading", "model.cpu_offloading"),
        fix=_NO_LAYERS,
        source=Source(terms=("cannot be enabled with cpu_offloading", "fine_grained")),
        bad=ex("0.19", **_OFFLOAD, cpu_offloading=True, cpu_offloading_num_layers=2),
        good=ex("0.19", **_OFFLOAD),
    ),
    Rule(
        id="offload-modules-empty",
        severity="error",
        raised="config",
        title="fine-grained offload with an empty list: Megatron refuses it",
        revisions=since("0.16"),
        when=lambda c: (
            bool(c.model.fine_grained_activation_offloading) and not c.model.offload_modules
        ),
        message="fine_grained_activation_offloading needs offload_modules; the list is empty",
        fields=("model.offload_modules",),
        fix=_NO_FINE,
        advice="or name what to offload in model.offload_modules",
        source=Source(terms=("len(self.offload_modules) > 0",)),
        bad=ex("0.19", **{**_OFFLOAD, "offload_modules": ()}),
        good=ex("0.19", **_OFFLOAD),
    ),
    Rule(
        id="offload-modules-unknown",
        severity="error",
        raised="config",
        title="an offload label that the revision does not have: Megatron refuses the list",
        revisions=since("0.16"),
        when=lambda c: bool(c.model.fine_grained_activation_offloading) and bool(_unknown(c)),
        message="offload_modules={m.offload_modules} holds a name that Megatron Core {c.name} does "
        "not accept (fused_group_mlp came with 0.19, gdp_qkv with main)",
        fields=("model.offload_modules",),
        fix=lambda c: _less_offload(c, *_unknown(c)),
        source=Source(terms=("allowed_modules", "offload_modules")),
        bad=ex(
            "0.18",
            **{**_OFFLOAD, "offload_modules": ("fused_group_mlp",)},
            use_transformer_engine_op_fuser=True,
        ),
        good=ex(
            "0.19",
            **{**_OFFLOAD, "offload_modules": ("fused_group_mlp",)},
            use_transformer_engine_op_fuser=True,
        ),
    ),
    Rule(
        id="offload-attn-proj",
        severity="error",
        raised="config",
        title="offload of attn_proj without core_attn: Megatron refuses it",
        revisions=since("0.16"),
        when=lambda c: "attn_proj" in _offloads(c) and "core_attn" not in _offloads(c),
        message="attn_proj cannot be offloaded without core_attn: its input is core attention's "
        "output, which that backward needs",
        fields=("model.offload_modules",),
        fix=lambda c: {"model.offload_modules": ("core_attn", *c.model.offload_modules)},
        source=Source(terms=("attn_proj", "core_attn", "offload_modules")),
        bad=ex("0.19", **{**_OFFLOAD, "offload_modules": ("attn_proj",)}),
        good=ex("0.19", **{**_OFFLOAD, "offload_modules": ("core_attn", "attn_proj")}),
    ),
    Rule(
        id="offload-inside-moe",
        severity="error",
        raised="config",
        title="offload of an expert activation while moe replays the whole layer: refused",
        revisions=since("0.19"),
        gate="selective",
        when=lambda c: "moe" in c.labels and bool(_INSIDE_MOE & _offloads(c)),
        message="offload_modules={m.offload_modules} names tensors inside the MoE layer, and label "
        "moe discards all of them: there is nothing to offload",
        fields=("model.offload_modules", "model.recompute_modules"),
        fix=lambda c: _less_offload(c, *_INSIDE_MOE),
        advice="or drop moe from model.recompute_modules and keep the offload",
        source=Source(terms=("offload_inside_moe",)),
        bad=ex(
            "0.19",
            **_SELECTIVE,
            **_MOE,
            **{**_OFFLOAD, "offload_modules": ("moe_act",)},
            recompute_modules=("moe",),
        ),
        good=ex(
            "0.19",
            **_SELECTIVE,
            **_MOE,
            **{**_OFFLOAD, "offload_modules": ("core_attn",)},
            recompute_modules=("moe",),
        ),
    ),
    Rule(
        id="offload-inside-moe-unchecked",
        severity="warning",
        raised="never",
        title="offload of an expert activation while moe replays the layer, before 0.19: not checked",
        revisions=between("0.16", "0.18"),
        gate="selective",
        when=lambda c: "moe" in c.labels and bool(_INSIDE_MOE & _offloads(c)),
        message="offload_modules={m.offload_modules} names tensors inside the MoE layer, and label "
        "moe discards all of them. Megatron Core {c.name} lets it pass; 0.19 refuses it",
        fields=("model.offload_modules", "model.recompute_modules"),
        fix=lambda c: _less_offload(c, *_INSIDE_MOE),
        advice="or drop moe from model.recompute_modules and keep the offload",
        source=Source(terms=("offload_modules", "allowed_modules")),
        bad=ex(
            "0.16",
            **_SELECTIVE,
            **_MOE,
            **{**_OFFLOAD, "offload_modules": ("moe_act",)},
            recompute_modules=("moe",),
        ),
        good=ex(
            "0.16",
            **_SELECTIVE,
            **_MOE,
            **{**_OFFLOAD, "offload_modules": ("core_attn",)},
            recompute_modules=("moe",),
        ),
    ),
    Rule(
        id="offload-gdp",
        severity="error",
        raised="config",
        title="offload of gdp_qkv with label gdp_in_proj: Megatron refuses it",
        revisions=on("main"),
        gate="declared-selective",
        when=lambda c: "gdp_in_proj" in c.labels and "gdp_qkv" in _offloads(c),
        message="gdp_in_proj discards the tensor that offload group gdp_qkv would keep on the host",
        fields=("model.offload_modules", "model.recompute_modules"),
        fix=lambda c: _less_offload(c, "gdp_qkv"),
        source=Source(terms=("gdp_qkv", "gdp_in_proj")),
        bad=ex(
            "main",
            **_SELECTIVE,
            **{**_OFFLOAD, "offload_modules": ("gdp_qkv",)},
            recompute_modules=("gdp_in_proj",),
        ),
        good=ex(
            "main",
            **_SELECTIVE,
            **{**_OFFLOAD, "offload_modules": ("gdp_qkv",)},
            recompute_modules=("mlp",),
        ),
    ),
    Rule(
        id="offload-core-attn-under-recompute",
        severity="warning",
        raised="never",
        title="core_attn offloaded and replayed: the replay branch bypasses the offload",
        revisions=since("0.16"),
        gate="selective",
        when=lambda c: "core_attn" in c.labels and "core_attn" in _offloads(c),
        message="core_attn is in recompute_modules and in offload_modules={m.offload_modules}: the "
        "recompute branch never enters the offload, and the projection input would have two owners",
        fields=("model.offload_modules", "model.recompute_modules"),
        advice="choose one of the two; open pull request 7237 will refuse the pair",
        source=Source(
            path="megatron/core/transformer/attention.py",
            where="Attention.forward",
            terms=("checkpoint_core_attention",),
        ),
        basis="inferred",
        bad=ex(
            "0.19",
            **_SELECTIVE,
            **{**_OFFLOAD, "offload_modules": ("core_attn", "attn_proj")},
            recompute_modules=("core_attn",),
        ),
        good=ex("0.19", **_SELECTIVE, **_OFFLOAD, recompute_modules=("mlp",)),
    ),
    Rule(
        id="offload-fused-group-mlp",
        severity="error",
        raised="config",
        title="fused_group_mlp without the op fuser, or beside parts of itself: refused",
        revisions=since("0.19"),
        when=lambda c: (
            "fused_group_mlp" in _offloads(c)
            and (not c.model.use_transformer_engine_op_fuser or _partial_groups(c))
        ),
        message="offload label fused_group_mlp needs use_transformer_engine_op_fuser and excludes "
        "expert_fc1 and moe_act; offload_modules={m.offload_modules}, op fuser "
        "{m.use_transformer_engine_op_fuser}",
        fields=("model.offload_modules", "model.use_transformer_engine_op_fuser"),
        fix=lambda c: (
            _less_offload(c, "expert_fc1", "moe_act")
            if c.model.use_transformer_engine_op_fuser
            else _less_offload(c, "fused_group_mlp")
        ),
        source=Source(terms=("fused_group_mlp", "use_transformer_engine_op_fuser")),
        bad=ex("0.19", **{**_OFFLOAD, "offload_modules": ("fused_group_mlp",)}),
        good=ex(
            "0.19",
            **{**_OFFLOAD, "offload_modules": ("fused_group_mlp",)},
            use_transformer_engine_op_fuser=True,
        ),
    ),
    Rule(
        id="offload-numbers",
        severity="error",
        raised="config",
        title="offload fraction outside 0 to 1 or a negative size: Megatron refuses it",
        revisions=since("0.19"),
        when=lambda c: (
            bool(c.model.fine_grained_activation_offloading)
            and (
                not 0 <= c.model.activation_offload_fraction <= 1
                or c.model.min_offloaded_tensor_size < 0
            )
        ),
        message="activation_offload_fraction={m.activation_offload_fraction} must be between 0 and 1 "
        "and min_offloaded_tensor_size={m.min_offloaded_tensor_size} at least 0",
        fields=("model.activation_offload_fraction", "model.min_offloaded_tensor_size"),
        fix=lambda c: {
            "model.activation_offload_fraction": min(
                max(c.model.activation_offload_fraction, 0.0), 1.0
            ),
            "model.min_offloaded_tensor_size": max(c.model.min_offloaded_tensor_size, 0),
        },
        source=Source(terms=("activation_offload_fraction",)),
        bad=ex("0.19", **_OFFLOAD, activation_offload_fraction=1.5),
        good=ex("0.19", **_OFFLOAD, activation_offload_fraction=0.5),
    ),
    Rule(
        id="paged-stash-vs-offload",
        severity="error",
        raised="config",
        title="paged stash with another offload of expert activations: Megatron refuses it",
        revisions=since("0.18"),
        when=lambda c: (
            bool(c.model.moe_paged_stash)
            and (bool(c.model.cpu_offloading) or bool(_stash_conflicts(c)))
        ),
        message="moe_paged_stash already holds the expert activations; offload_modules="
        "{m.offload_modules} and cpu_offloading={m.cpu_offloading} must leave them alone",
        fields=("model.moe_paged_stash", "model.offload_modules", "model.cpu_offloading"),
        fix=lambda c: {
            **(_less_offload(c, *_INSIDE_MOE) if _stash_conflicts(c) else {}),
            **({"model.cpu_offloading": False} if c.model.cpu_offloading else {}),
        },
        source=Source(terms=("moe_paged_stash", "moe_offload_conflict")),
        bad=ex(
            "0.19",
            **_MOE,
            **{**_OFFLOAD, "offload_modules": ("expert_fc1",)},
            moe_paged_stash=True,
            unmodelled={"model.moe_expert_rank_capacity_factor": 1.5},
        ),
        good=ex(
            "0.19",
            **_MOE,
            **_OFFLOAD,
            moe_paged_stash=True,
            unmodelled={"model.moe_expert_rank_capacity_factor": 1.5},
        ),
    ),
    Rule(
        id="paged-stash-capacity",
        severity="error",
        raised="config",
        title="paged stash without moe_expert_rank_capacity_factor: Megatron refuses it",
        revisions=since("0.18"),
        when=lambda c: (
            bool(c.model.moe_paged_stash)
            and not c.published
            and c.foreign("moe_expert_rank_capacity_factor") is None
        ),
        message="moe_paged_stash needs moe_expert_rank_capacity_factor, which is not set",
        fields=("model.moe_paged_stash",),
        fix=put(moe_paged_stash=False),
        source=Source(terms=("moe_paged_stash", "moe_expert_rank_capacity_factor")),
        bad=ex("0.19", **_MOE, moe_paged_stash=True),
        good=ex(
            "0.19",
            **_MOE,
            moe_paged_stash=True,
            unmodelled={"model.moe_expert_rank_capacity_factor": 1.5},
        ),
    ),
    Rule(
        id="bridge-offload-te",
        severity="error",
        raised="bridge",
        title="fine-grained offload with the local implementation: Bridge refuses it",
        revisions=since("0.16"),
        entries=frozenset({"bridge"}),
        when=lambda c: (
            bool(c.model.fine_grained_activation_offloading)
            and c.model.transformer_impl != "transformer_engine"
        ),
        message="Bridge allows fine_grained_activation_offloading with "
        "transformer_impl=transformer_engine only, not {m.transformer_impl}",
        fields=("model.fine_grained_activation_offloading", "model.transformer_impl"),
        fix=_NO_FINE,
        source=Source(
            repository=BRIDGE,
            revision="067f987d",
            path=_BRIDGE_CONFIG,
            where="_validate_fine_grained_activation_offloading",
        ),
        bad=ex("0.19", **_OFFLOAD, transformer_impl="local"),
        good=ex("0.19", **_OFFLOAD),
    ),
    Rule(
        id="bridge-offload-env",
        severity="error",
        raised="bridge",
        title="fine-grained offload without NVTE_CPU_OFFLOAD_V1=1 on TE 2.10 or newer: refused",
        revisions=since("0.16"),
        entries=frozenset({"bridge"}),
        when=lambda c: (
            bool(c.model.fine_grained_activation_offloading)
            and c.te is not None
            and not below(c.te, 2, 10)
            and str(c.job.environment.get("NVTE_CPU_OFFLOAD_V1", "0")) != "1"
        ),
        message="with Transformer Engine {c.job.framework.transformer_engine} Bridge wants "
        "NVTE_CPU_OFFLOAD_V1=1 in the environment, or weights would be offloaded as well",
        fields=("model.fine_grained_activation_offloading", "framework.transformer_engine"),
        advice="export NVTE_CPU_OFFLOAD_V1=1",
        source=Source(
            repository=BRIDGE,
            revision="067f987d",
            path=_BRIDGE_CONFIG,
            where="_validate_fine_grained_activation_offloading",
        ),
        bad=ex(
            "0.19",
            **{**_OFFLOAD, "environment": {}},
            framework__transformer_engine="2.10.0",
        ),
        good=ex("0.19", **_OFFLOAD, framework__transformer_engine="2.10.0"),
    ),
    Rule(
        id="bridge-offload-env-unknown",
        severity="note",
        raised="bridge",
        title="fine-grained offload, Transformer Engine version not stated",
        revisions=since("0.16"),
        entries=frozenset({"bridge"}),
        when=lambda c: (
            bool(c.model.fine_grained_activation_offloading)
            and c.te is None
            and str(c.job.environment.get("NVTE_CPU_OFFLOAD_V1", "0")) != "1"
        ),
        message="with Transformer Engine 2.10 or newer Bridge wants NVTE_CPU_OFFLOAD_V1=1 in the "
        "environment; the job states neither",
        fields=("model.fine_grained_activation_offloading",),
        advice="export NVTE_CPU_OFFLOAD_V1=1, or state framework.transformer_engine",
        source=Source(
            repository=BRIDGE,
            revision="067f987d",
            path=_BRIDGE_CONFIG,
            where="_validate_fine_grained_activation_offloading",
        ),
        bad=ex("0.19", **{**_OFFLOAD, "environment": {}}),
        good=ex("0.19", **_OFFLOAD),
    ),
)
"""Rows on offloading beside recompute."""
