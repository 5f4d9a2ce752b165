"""CUDA graphs beside recompute: implementations and regions, revision by revision."""

from __future__ import annotations

from typing import Final

from recompute.config.revision import ORDER
from recompute.rules.edits import drop, put
from recompute.rules.graph_scopes import captured, no_graph, problem, whole
from recompute.rules.types import (
    Rule,
    Source,
    between,
    ex,
    on,
    since,
)

_SELECTIVE: Final = {"recompute_granularity": "selective"}
_TE: Final = {"cuda_graph_impl": "transformer_engine"}
_LOCAL: Final = {"cuda_graph_impl": "local"}
_MOE: Final = {"num_moe_experts": 8, "moe_token_dispatcher_type": "alltoall"}
_FULL: Final = {
    "recompute_granularity": "full",
    "recompute_method": "uniform",
    "recompute_num_layers": 1,
}
_LAYER: Final = "megatron/core/transformer/transformer_layer.py"
_MLP_GRAPH: Final = {**_TE, "cuda_graph_modules": ("mlp",)}
_ATTN_GRAPH: Final = {**_TE, "cuda_graph_modules": ("attn",)}
_ROUTER_GRAPH: Final = {**_TE, "cuda_graph_modules": ("moe_router",)}


RULES: Final[tuple[Rule, ...]] = (
    Rule(
        id="cg-settings",
        severity="error",
        raised="config",
        title="graph implementation and regions that no job can have: Megatron refuses them",
        revisions=since("0.16"),
        when=lambda c: (
            (c.graph != "none" or c.model.cuda_graph_scope is not None)
            and c.known_model
            and problem(c) is not None
        ),
        message="cuda_graph_impl={m.cuda_graph_impl}, cuda_graph_scope={m.cuda_graph_scope}, "
        "cuda_graph_modules={m.cuda_graph_modules}: {d}",
        detail=problem,
        fields=("model.cuda_graph_impl", "model.cuda_graph_scope", "model.cuda_graph_modules"),
        fix=no_graph,
        source=Source(terms=("cuda graph is only supported for MoE",)),
        bad=ex("0.19", **_ROUTER_GRAPH),
        good=ex("0.19", **_ROUTER_GRAPH, **_MOE),
    ),
    Rule(
        id="cg-legacy-switches",
        severity="error",
        raised="config",
        title="the old graph switches beside each other or beside cuda_graph_impl: refused",
        revisions=since("0.15"),
        when=lambda c: (
            (bool(c.model.enable_cuda_graph) or bool(c.model.external_cuda_graph))
            and (
                c.model.cuda_graph_impl != "none"
                or (bool(c.model.enable_cuda_graph) and bool(c.model.external_cuda_graph))
            )
        ),
        message="enable_cuda_graph={m.enable_cuda_graph} and external_cuda_graph="
        "{m.external_cuda_graph} exclude each other and cuda_graph_impl={m.cuda_graph_impl}",
        fields=(
            "model.enable_cuda_graph",
            "model.external_cuda_graph",
            "model.cuda_graph_impl",
        ),
        fix=no_graph,
        advice="name the implementation once, in model.cuda_graph_impl",
        source=Source(terms=("external_cuda_graph", "cuda_graph_impl", "Do not use")),
        bad=ex("0.15", enable_cuda_graph=True, external_cuda_graph=True),
        good=ex("0.15", **_TE, cuda_graph_scope=("attn",)),
    ),
    Rule(
        id="cg-impl-value",
        severity="error",
        raised="config",
        title="a graph implementation that the revision does not have: Megatron refuses it",
        revisions=since("0.15"),
        when=lambda c: (
            c.graph not in ("none", "local", "transformer_engine", "full_iteration")
            or (c.model.cuda_graph_impl == "full_iteration" and c.index < ORDER["0.18"])
        ),
        message="cuda_graph_impl={m.cuda_graph_impl} is not known to Megatron Core {c.name} "
        "(full_iteration came with 0.18; before, it is cuda_graph_scope=full_iteration with local)",
        fields=("model.cuda_graph_impl",),
        fix=no_graph,
        source=Source(terms=("Invalid cuda graph implementation",)),
        bad=ex("0.17", cuda_graph_impl="full_iteration"),
        good=ex("0.18", cuda_graph_impl="full_iteration"),
    ),
    Rule(
        id="cg-cpu-offload",
        severity="error",
        raised="config",
        title="CUDA graphs with cpu_offloading: Megatron refuses it (from 0.18 only per layer)",
        revisions=since("0.11"),
        when=lambda c: (
            bool(c.model.cpu_offloading)
            and c.graph != "none"
            and not (c.graph == "full_iteration" and c.index >= ORDER["0.18"])
        ),
        message="CUDA graphs ({c.graph}) and cpu_offloading exclude each other",
        fields=("model.cpu_offloading", "model.cuda_graph_impl"),
        fix=put(cpu_offloading=False),
        source=Source(terms=("CUDA graphs not supported with CPU offloading",)),
        bad=ex("0.19", **_ATTN_GRAPH, cpu_offloading=True, cpu_offloading_num_layers=2),
        good=ex("0.19", cpu_offloading=True, cpu_offloading_num_layers=2),
    ),
    Rule(
        id="cg-any-recompute",
        severity="error",
        raised="config",
        title="0.9 to 0.14: CUDA graphs with any granularity are refused",
        revisions=between("0.9", "0.14"),
        when=lambda c: c.graph == "local" and c.effective != "none",
        message="enable_cuda_graph excludes every recompute in Megatron Core {c.name} "
        "(recompute_granularity={m.recompute_granularity})",
        fields=("model.enable_cuda_graph", "model.recompute_granularity"),
        fix=no_graph,
        source=Source(terms=("CUDA graphs not supported with activation",)),
        bad=ex("0.14", **_SELECTIVE, recompute_modules=("mlp",), enable_cuda_graph=True),
        good=ex("0.14", enable_cuda_graph=True),
    ),
    Rule(
        id="cg-0.15",
        severity="error",
        raised="config",
        title="0.15: graphs with recompute only as transformer_engine, scope attn, selective",
        revisions=on("0.15"),
        when=lambda c: (
            c.graph != "none"
            and c.effective != "none"
            and not (
                c.effective == "selective"
                and c.graph == "transformer_engine"
                and c.scopes == {"attn"}
            )
        ),
        message="Megatron Core 0.15 takes recompute beside CUDA graphs only as selective with "
        "cuda_graph_impl=transformer_engine and cuda_graph_scope=attn; this job has "
        "{m.recompute_granularity}, {c.graph}, {m.cuda_graph_scope}",
        fields=("model.cuda_graph_impl", "model.recompute_granularity"),
        fix=no_graph,
        source=Source(terms=("CUDA graphs not supported with activation",)),
        bad=ex("0.15", **_FULL, **_LOCAL),
        good=ex(
            "0.15", **_SELECTIVE, **_TE, cuda_graph_scope=("attn",), recompute_modules=("mlp",)
        ),
    ),
    Rule(
        id="cg-0.15-attn-labels",
        severity="error",
        raised="config",
        title="0.15: an attention graph with core_attn or mla_up_proj is refused",
        revisions=on("0.15"),
        gate="selective",
        when=lambda c: (
            c.graph == "transformer_engine"
            and c.scopes == {"attn"}
            and bool({"core_attn", "mla_up_proj"} & c.labels)
        ),
        message="Megatron Core 0.15 refuses core_attn and mla_up_proj beside an attention graph "
        "(recompute_modules={m.recompute_modules})",
        fields=("model.recompute_modules", "model.cuda_graph_scope"),
        fix=drop("core_attn", "mla_up_proj"),
        source=Source(terms=("attn cuda graph is not supported with",)),
        bad=ex(
            "0.15",
            **_SELECTIVE,
            **_TE,
            cuda_graph_scope=("attn",),
            recompute_modules=("core_attn",),
        ),
        good=ex(
            "0.15", **_SELECTIVE, **_TE, cuda_graph_scope=("attn",), recompute_modules=("mlp",)
        ),
    ),
    Rule(
        id="cg-0.15-layernorm",
        severity="warning",
        raised="config",
        title="0.15: beside an attention graph only the pre-MLP norm is recomputed",
        revisions=on("0.15"),
        gate="selective",
        when=lambda c: (
            c.graph == "transformer_engine" and c.scopes == {"attn"} and "layernorm" in c.labels
        ),
        message="beside an attention graph Megatron Core 0.15 recomputes the pre-MLP norm only, not "
        "the input norm",
        fields=("model.recompute_modules",),
        source=Source(terms=("input_layernorm recompute is not supported",)),
        bad=ex(
            "0.15",
            **_SELECTIVE,
            **_TE,
            cuda_graph_scope=("attn",),
            recompute_modules=("layernorm",),
            transformer_impl="local",
        ),
        good=ex(
            "0.15", **_SELECTIVE, **_TE, cuda_graph_scope=("attn",), recompute_modules=("mlp",)
        ),
    ),
    Rule(
        id="cg-0.14-layernorm",
        severity="warning",
        raised="never",
        title="0.14: the input norm is not recomputed beside an external CUDA graph",
        revisions=on("0.14"),
        gate="selective",
        when=lambda c: bool(c.model.external_cuda_graph) and "layernorm" in c.labels,
        message="with external_cuda_graph Megatron Core 0.14 switches the input norm's recompute "
        "off, in silence",
        fields=("model.recompute_modules", "model.external_cuda_graph"),
        source=Source(path=_LAYER, where="TransformerLayer.__init__"),
        bad=ex(
            "0.14",
            **_SELECTIVE,
            recompute_modules=("layernorm",),
            external_cuda_graph=True,
            transformer_impl="local",
        ),
        good=ex("0.14", **_SELECTIVE, recompute_modules=("layernorm",), transformer_impl="local"),
    ),
    Rule(
        id="cg-full-needs-full-iteration",
        severity="error",
        raised="config",
        title="full with a CUDA graph that is not of the whole iteration: Megatron refuses it",
        revisions=since("0.16"),
        when=lambda c: (
            c.graph not in ("none", "full_iteration") and c.effective in ("full", "other")
        ),
        message="full recompute runs only inside a full-iteration graph; this job captures "
        "{c.graph} graphs of {m.cuda_graph_scope} {m.cuda_graph_modules}",
        fields=("model.cuda_graph_impl", "model.recompute_granularity"),
        fix=no_graph,
        advice="or use selective labels outside the captured regions, or a full-iteration graph",
        source=Source(terms=("full recompute is only supported",)),
        bad=ex("0.19", **_FULL, **_TE),
        good=ex("0.19", **_FULL, cuda_graph_impl="full_iteration"),
    ),
    Rule(
        id="cg-te-moe-router",
        severity="error",
        raised="config",
        title="label moe around a captured router: Megatron refuses it",
        revisions=since("0.16"),
        gate="selective",
        when=lambda c: (
            c.graph == "transformer_engine" and "moe" in c.labels and "moe_router" in c.scopes
        ),
        message="label moe would replay a region around the captured moe_router: a checkpoint lies "
        "wholly inside or wholly outside a graph",
        fields=("model.recompute_modules", "model.cuda_graph_modules", "model.cuda_graph_scope"),
        fix=drop("moe"),
        advice="moe_act and layernorm work beside a captured router",
        source=Source(terms=("moe recompute is not supported with moe_router",)),
        bad=ex("0.19", **_SELECTIVE, **_MOE, **_ROUTER_GRAPH, recompute_modules=("moe",)),
        good=ex("0.19", **_SELECTIVE, **_MOE, **_ATTN_GRAPH, recompute_modules=("moe",)),
    ),
    Rule(
        id="cg-dropout-attn",
        severity="error",
        raised="config",
        title="core_attn replayed inside a graph with attention dropout: Megatron refuses it",
        revisions=since("0.16"),
        gate="selective",
        when=lambda c: (
            c.graph != "none"
            and c.model.attention_dropout != 0
            and "core_attn" in c.labels
            and captured(c, "attn")
            and c.known_model
        ),
        message="attention_dropout={m.attention_dropout} (the default is 0.1) cannot be replayed "
        "inside a captured graph, and core_attn is inside this one",
        fields=("model.attention_dropout", "model.recompute_modules", "model.cuda_graph_impl"),
        fix=drop("core_attn"),
        advice="or set model.attention_dropout=0.0 and keep the label",
        source=Source(terms=("attention dropout is not supported with graphed",)),
        bad=ex(
            "0.19", **_SELECTIVE, **_TE, recompute_modules=("core_attn",), attention_dropout=0.1
        ),
        good=ex("0.19", **_SELECTIVE, **_TE, recompute_modules=("core_attn",)),
    ),
    Rule(
        id="cg-dropout-mlp-moe",
        severity="error",
        raised="config",
        title="mlp or moe replayed inside a graph with hidden dropout: Megatron refuses it",
        revisions=since("0.16"),
        gate="selective",
        when=lambda c: (
            c.graph != "none"
            and c.model.hidden_dropout != 0
            and c.known_model
            and (
                ("mlp" in c.labels and captured(c, "mlp"))
                or ("moe" in c.labels and captured(c, "moe"))
            )
        ),
        message="hidden_dropout={m.hidden_dropout} (the default is 0.1) cannot be replayed inside a "
        "captured graph, and recompute_modules={m.recompute_modules} lie inside this one",
        fields=("model.hidden_dropout", "model.recompute_modules", "model.cuda_graph_impl"),
        fix=drop("mlp", "moe"),
        advice="or set model.hidden_dropout=0.0 and keep the labels",
        source=Source(terms=("hidden dropout is not supported with graphed",)),
        bad=ex("0.19", **_SELECTIVE, **_MLP_GRAPH, recompute_modules=("mlp",), hidden_dropout=0.1),
        good=ex("0.19", **_SELECTIVE, **_MLP_GRAPH, recompute_modules=("mlp",)),
    ),
    Rule(
        id="cg-jitter-moe",
        severity="error",
        raised="config",
        title="moe replayed inside a graph with input jitter: Megatron refuses it",
        revisions=since("0.16"),
        gate="selective",
        when=lambda c: (
            c.graph != "none"
            and c.model.moe_input_jitter_eps is not None
            and "moe" in c.labels
            and captured(c, "moe")
        ),
        message="moe_input_jitter_eps={m.moe_input_jitter_eps} draws random numbers, which label moe "
        "cannot replay inside a captured graph",
        fields=("model.moe_input_jitter_eps", "model.recompute_modules"),
        fix=drop("moe"),
        advice="or set model.moe_input_jitter_eps=null and keep the label",
        source=Source(terms=("moe_input_jitter_eps is not supported",)),
        bad=ex(
            "0.19",
            **_SELECTIVE,
            **_MOE,
            **_TE,
            recompute_modules=("moe",),
            moe_input_jitter_eps=0.01,
        ),
        good=ex("0.19", **_SELECTIVE, **_MOE, **_TE, recompute_modules=("moe",)),
    ),
    Rule(
        id="cg-gtp-shared",
        severity="error",
        raised="config",
        title="shared_experts replayed in a local graph with weight rematerialisation: refused",
        revisions=since("0.19"),
        gate="selective",
        when=lambda c: (
            "shared_experts" in c.labels
            and c.graph == "local"
            and c.quantized
            and int(c.foreign("gtp_weight_remat_size", 1) or 1) > 1
            and c.model.moe_shared_expert_intermediate_size is not None
            and not c.model.moe_shared_expert_overlap
            and (whole(c) or bool({"moe", "moe_router", "moe_preprocess"} & c.scopes))
        ),
        message="with weight rematerialisation over tensor ranks, fp8 or fp4 and a local graph "
        "around the shared experts, label shared_experts needs .backward() where the warm-up "
        "calls .grad()",
        fields=("model.recompute_modules", "model.cuda_graph_impl"),
        fix=drop("shared_experts"),
        source=Source(terms=("gtp_weight_remat_size", "shared_experts")),
        bad=ex(
            "0.19",
            "core",
            **_SELECTIVE,
            **_MOE,
            **_LOCAL,
            recompute_modules=("shared_experts",),
            moe_shared_expert_intermediate_size=512,
            fp8="hybrid",
            fp8_recipe="mxfp8",
            unmodelled={"model.gtp_weight_remat_size": 2},
        ),
        good=ex(
            "0.19",
            "core",
            **_SELECTIVE,
            **_MOE,
            **_LOCAL,
            recompute_modules=("moe_act",),
            moe_grouped_gemm=True,
            moe_shared_expert_intermediate_size=512,
            fp8="hybrid",
            fp8_recipe="mxfp8",
            unmodelled={"model.gtp_weight_remat_size": 2},
        ),
    ),
)
"""Rows on CUDA graphs that Megatron refuses or warns about."""
