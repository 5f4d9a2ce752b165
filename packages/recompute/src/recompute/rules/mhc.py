"""Hyper-connections (mHC): label mhc on main and on the dev branch."""

from __future__ import annotations

from typing import Any, Final

from recompute.rules.case import Case, names_of
from recompute.rules.edits import drop, put
from recompute.rules.graph_scopes import no_graph
from recompute.rules.overlap import overlaps
from recompute.rules.types import Edit, Rule, Source, ex, on

_MAIN: Final = on("main")
_DEV: Final = on("dev")
_BOTH: Final = on("main", "dev")
_LABEL: Final = {"recompute_granularity": "selective", "recompute_modules": ("mhc",)}
_ON_MAIN: Final = {**_LABEL, "enable_mhc_connections": True}
_ON_DEV: Final = {**_LABEL, "enable_hyper_connections": True}
_OVERLAP: Final = {
    "overlap_moe_expert_parallel_comm": True,
    "num_moe_experts": 8,
    "expert_model_parallel_size": 2,
    "moe_token_dispatcher_type": "alltoall",
}
_NORMS: Final = frozenset({"attn_norm", "mlp_norm"})
_ATTENTION: Final = frozenset({"qkv_linear", "core_attn", "attn_proj"})
_SPLIT: Final = {"cuda_graph_impl": "transformer_engine", "cuda_graph_modules": ("attn",)}


def _enabled(case: Case) -> bool:
    model = case.model
    switch = model.enable_mhc_connections if case.name == "main" else model.enable_hyper_connections
    return bool(switch)


def _bad_number(value: Any) -> bool:
    return value is not None and (
        isinstance(value, bool) or not isinstance(value, int) or value < 1
    )


def _offloads(case: Case) -> frozenset[str]:
    if not case.model.fine_grained_activation_offloading:
        return frozenset()
    return frozenset(names_of(case.model.offload_modules))


def _keep(case: Case, away: frozenset[str]) -> Edit:
    kept = tuple(name for name in names_of(case.model.offload_modules) if name not in away)
    edit: dict[str, object] = {"model.offload_modules": kept}
    if not kept:
        edit["model.fine_grained_activation_offloading"] = False
    return edit


def _is_split(case: Case) -> bool:
    """Whether the graph is the attention-only one that leaves mHC outside."""
    return (
        case.graph == "transformer_engine"
        and case.scopes == {"attn"}
        and case.labels == {"mhc"}
        and not case.model.external_cuda_graph
    )


RULES: Final[tuple[Rule, ...]] = (
    Rule(
        id="mhc-needs-mhc",
        severity="error",
        raised="config",
        title="label mhc without hyper-connections: Megatron refuses it",
        revisions=_BOTH,
        gate="selective",
        when=lambda c: "mhc" in c.labels and not _enabled(c),
        message="label mhc needs enable_mhc_connections (main) or enable_hyper_connections (dev); "
        "neither counts here: {m.enable_mhc_connections}, {m.enable_hyper_connections}",
        fields=("model.recompute_modules", "model.enable_mhc_connections"),
        fix=drop("mhc"),
        source=Source(terms=("'mhc' in recompute_modules requires",)),
        bad=ex("main", **_LABEL),
        good=ex("main", **_ON_MAIN),
    ),
    Rule(
        id="mhc-vs-mlp",
        severity="error",
        raised="config",
        title="mhc together with mlp: Megatron refuses it",
        revisions=_BOTH,
        gate="selective",
        when=lambda c: {"mhc", "mlp"} <= c.labels,
        message="mhc and mlp use two checkpoint mechanisms that get in each other's way",
        fields=("model.recompute_modules",),
        fix=drop("mlp"),
        source=Source(terms=("'mhc' and 'mlp' in recompute_modules",)),
        bad=ex("main", **{**_ON_MAIN, "recompute_modules": ("mlp", "mhc")}),
        good=ex("main", **_ON_MAIN),
    ),
    Rule(
        id="mhc-layer-num",
        severity="error",
        raised="config",
        title="mhc_recompute_layer_num that is not a positive integer: Megatron refuses it",
        revisions=_BOTH,
        gate="selective",
        when=lambda c: "mhc" in c.labels and _bad_number(c.model.mhc_recompute_layer_num),
        message="mhc_recompute_layer_num={m.mhc_recompute_layer_num} must be a positive integer or "
        "null (the whole block)",
        fields=("model.mhc_recompute_layer_num",),
        fix=put(mhc_recompute_layer_num=None),
        source=Source(terms=("mhc_recompute_layer_num must be a positive",)),
        bad=ex("main", **_ON_MAIN, mhc_recompute_layer_num=0),
        good=ex("main", **_ON_MAIN, mhc_recompute_layer_num=2),
    ),
    Rule(
        id="mhc-vs-offload-main",
        severity="error",
        raised="config",
        title="main: mhc with fine-grained offload: Megatron refuses it",
        revisions=_MAIN,
        gate="selective",
        when=lambda c: "mhc" in c.labels and bool(c.model.fine_grained_activation_offloading),
        message="label mhc runs before the offload is ready to give tensors back: main refuses "
        "fine_grained_activation_offloading beside it",
        fields=("model.recompute_modules", "model.fine_grained_activation_offloading"),
        fix=put(fine_grained_activation_offloading=False),
        source=Source(terms=("fine_grained_activation_offloading is",)),
        bad=ex(
            "main",
            "core",
            **_ON_MAIN,
            fine_grained_activation_offloading=True,
            offload_modules=("core_attn",),
        ),
        good=ex("main", **_ON_MAIN),
    ),
    Rule(
        id="mhc-vs-offload-dev",
        severity="error",
        raised="config",
        title="dev: mhc with an offload of the norms: Megatron refuses it",
        revisions=_DEV,
        gate="selective",
        when=lambda c: "mhc" in c.labels and bool(_NORMS & _offloads(c)),
        message="label mhc starts its replay before offloaded norms are back; offload_modules="
        "{m.offload_modules}",
        fields=("model.recompute_modules", "model.offload_modules"),
        fix=lambda c: _keep(c, _NORMS),
        source=Source(terms=("'mhc' in recompute_modules is incompatible",)),
        bad=ex(
            "dev",
            "core",
            **_ON_DEV,
            fine_grained_activation_offloading=True,
            offload_modules=("attn_norm",),
        ),
        good=ex(
            "dev",
            "core",
            **_ON_DEV,
            fine_grained_activation_offloading=True,
            offload_modules=("core_attn",),
        ),
    ),
    Rule(
        id="mhc-missing-hint",
        severity="warning",
        raised="config",
        title="hyper-connections without label mhc: Megatron warns",
        revisions=_BOTH,
        when=lambda c: _enabled(c) and "mhc" not in c.labels,
        message="hyper-connections keep several streams per layer; without label mhc they all stay",
        fields=("model.recompute_modules",),
        advice="consider selective with label mhc",
        source=Source(terms=("HyperConnections are enabled but 'mhc'",)),
        bad=ex("main", enable_mhc_connections=True),
        good=ex("main", **_ON_MAIN),
    ),
    Rule(
        id="mhc-full",
        severity="error",
        raised="config",
        title="main: hyper-connections with full: Megatron refuses it",
        revisions=_MAIN,
        gate="full",
        when=_enabled,
        message="main does not replay whole layers with hyper-connections",
        fields=("model.recompute_granularity", "model.enable_mhc_connections"),
        fix=lambda _: {
            "model.recompute_granularity": "selective",
            "model.recompute_modules": ("mhc",),
            "model.recompute_method": None,
            "model.recompute_num_layers": None,
        },
        source=Source(terms=("not yet compatible with full activation",)),
        bad=ex(
            "main",
            recompute_granularity="full",
            recompute_method="uniform",
            recompute_num_layers=1,
            enable_mhc_connections=True,
        ),
        good=ex("main", **_ON_MAIN),
    ),
    Rule(
        id="mhc-pp",
        severity="error",
        raised="config",
        title="main: hyper-connections with pipeline parallelism: Megatron refuses it",
        revisions=_MAIN,
        when=lambda c: _enabled(c) and c.model.pipeline_model_parallel_size > 1,
        message="main has no hyper-connections with pipeline_model_parallel_size="
        "{m.pipeline_model_parallel_size}: the streams do not fit the stage buffers",
        fields=("model.enable_mhc_connections", "model.pipeline_model_parallel_size"),
        advice="use the dev branch, or one pipeline stage",
        source=Source(terms=("does not support pipeline_model_parallel_size",)),
        bad=ex("main", **_ON_MAIN, pipeline_model_parallel_size=2),
        good=ex("main", **_ON_MAIN),
    ),
    Rule(
        id="mhc-mtp",
        severity="error",
        raised="config",
        title="main: hyper-connections with MTP: Megatron refuses it",
        revisions=_MAIN,
        when=lambda c: _enabled(c) and c.model.mtp_num_layers is not None,
        message="main has no hyper-connections with mtp_num_layers={m.mtp_num_layers}",
        fields=("model.enable_mhc_connections", "model.mtp_num_layers"),
        advice="use the dev branch, or no MTP layer",
        source=Source(terms=("not compatible with Multi-Token",)),
        bad=ex("main", **_ON_MAIN, mtp_num_layers=1),
        good=ex("main", **_ON_MAIN),
    ),
    Rule(
        id="mhc-moe-layer",
        severity="error",
        raised="build",
        title="main: a hyper-connection layer cannot hold an MoE layer",
        revisions=_MAIN,
        when=lambda c: _enabled(c) and c.layers.moe > 0 and not c.hybrid,
        message="main raises when it builds a hyper-connection layer on an MoE layer "
        "({c.layers.moe} of {c.layers.total} layers here)",
        fields=("model.enable_mhc_connections", "model.num_moe_experts"),
        advice="use a hybrid stack, where the MoE layer is a layer of its own, or the dev branch",
        source=Source(
            path="megatron/core/transformer/transformer_layer.py",
            where="HyperConnectionTransformerLayer.__init__",
        ),
        bad=ex("main", **_ON_MAIN, num_moe_experts=8),
        good=ex("main", **_ON_MAIN),
    ),
    Rule(
        id="mhc-extract-layers",
        severity="error",
        raised="forward",
        title="main: label mhc while layers' features are extracted",
        revisions=_MAIN,
        gate="selective",
        when=lambda c: "mhc" in c.labels and bool(c.foreign("extract_layer_indices")),
        message="main cannot extract layer features in training with label mhc",
        fields=("model.recompute_modules",),
        fix=drop("mhc"),
        source=Source(
            path="megatron/core/transformer/transformer_block.py", where="TransformerBlock.forward"
        ),
        bad=ex("main", **_ON_MAIN, unmodelled={"model.extract_layer_indices": (2,)}),
        good=ex("main", **_ON_MAIN),
    ),
    Rule(
        id="mhc-hybrid-cg-dev",
        severity="error",
        raised="build",
        title="dev: label mhc in a hybrid stack with transformer_engine or full-iteration graphs",
        revisions=_DEV,
        gate="selective",
        when=lambda c: (
            "mhc" in c.labels and c.hybrid and c.graph in ("transformer_engine", "full_iteration")
        ),
        message="the dev branch refuses {c.graph} graphs on hybrid layers with label mhc",
        fields=("model.recompute_modules", "model.cuda_graph_impl"),
        fix=no_graph,
        source=Source(
            path="megatron/core/models/hybrid/hybrid_block.py",
            where="HyperConnectionHybridLayer.__init__",
        ),
        bad=ex("dev", **_ON_DEV, **_SPLIT, hybrid_override_pattern="M*M*M*M*"),
        good=ex("dev", **_ON_DEV, hybrid_override_pattern="M*M*M*M*"),
    ),
    Rule(
        id="mhc-cg-local-dev",
        severity="error",
        raised="config",
        title="dev: label mhc with local graphs: Megatron refuses it",
        revisions=_DEV,
        gate="selective",
        when=lambda c: "mhc" in c.labels and c.graph == "local",
        message="label mhc needs the host between captured pieces, which cuda_graph_impl=local does "
        "not allow",
        fields=("model.recompute_modules", "model.cuda_graph_impl"),
        fix=no_graph,
        source=Source(terms=("mHC recompute is not supported with cuda_graph_impl='local'",)),
        bad=ex("dev", "core", **_ON_DEV, cuda_graph_impl="local"),
        good=ex("dev", "core", **_ON_DEV, **_SPLIT),
    ),
    Rule(
        id="mhc-cg-full-iter-dropout-dev",
        severity="error",
        raised="config",
        title="dev: label mhc in a full-iteration graph with dropout: Megatron refuses it",
        revisions=_DEV,
        gate="selective",
        when=lambda c: (
            "mhc" in c.labels
            and c.graph == "full_iteration"
            and (c.model.hidden_dropout != 0 or c.model.attention_dropout != 0)
        ),
        message="random state cannot be rewound inside a captured iteration: hidden_dropout="
        "{m.hidden_dropout} and attention_dropout={m.attention_dropout} must be 0 with label mhc",
        fields=("model.hidden_dropout", "model.attention_dropout", "model.cuda_graph_impl"),
        fix=drop("mhc"),
        advice="or set both dropouts to 0.0 and keep the label",
        source=Source(terms=("mHC recompute with cuda_graph_impl='full_iteration'",)),
        bad=ex("dev", **_ON_DEV, cuda_graph_impl="full_iteration", hidden_dropout=0.1),
        good=ex("dev", **_ON_DEV, cuda_graph_impl="full_iteration"),
    ),
    Rule(
        id="mhc-cg-te-scope-dev",
        severity="error",
        raised="config",
        title="dev: label mhc with Transformer Engine graphs other than attention alone",
        revisions=_DEV,
        gate="selective",
        when=lambda c: (
            "mhc" in c.labels
            and c.graph == "transformer_engine"
            and not (c.scopes == {"attn"} and c.labels == {"mhc"})
        ),
        message="beside Transformer Engine graphs label mhc stands alone (labels "
        "{m.recompute_modules}) and only attn is captured ({m.cuda_graph_modules} "
        "{m.cuda_graph_scope})",
        fields=("model.recompute_modules", "model.cuda_graph_modules"),
        fix=no_graph,
        source=Source(terms=("mHC recompute with Transformer Engine CUDA Graphs",)),
        bad=ex("dev", **_ON_DEV, cuda_graph_impl="transformer_engine"),
        good=ex("dev", **_ON_DEV, **_SPLIT),
    ),
    Rule(
        id="mhc-cg-te-offload-dev",
        severity="error",
        raised="config",
        title="dev: label mhc, attention graph and an offload of attention tensors: refused",
        revisions=_DEV,
        gate="selective",
        when=lambda c: (
            "mhc" in c.labels
            and c.graph == "transformer_engine"
            and bool(_ATTENTION & _offloads(c))
        ),
        message="the attention-only graph with label mhc does not wait for offloads of attention "
        "tensors; offload_modules={m.offload_modules}",
        fields=("model.offload_modules", "model.cuda_graph_modules"),
        fix=lambda c: _keep(c, _ATTENTION),
        source=Source(terms=("attention-only TE CUDA Graphs is incompatible",)),
        bad=ex(
            "dev",
            "core",
            **_ON_DEV,
            **_SPLIT,
            fine_grained_activation_offloading=True,
            offload_modules=("core_attn",),
        ),
        good=ex("dev", "core", **_ON_DEV, **_SPLIT),
    ),
    Rule(
        id="mhc-cg-vpp-dev",
        severity="error",
        raised="config",
        title="dev: label mhc, graphs and virtual pipeline stages without the expert overlap",
        revisions=_DEV,
        gate="selective",
        when=lambda c: (
            "mhc" in c.labels
            and c.graph != "none"
            and c.model.virtual_pipeline_model_parallel_size is not None
            and not overlaps(c)
        ),
        message="label mhc with CUDA graphs and virtual_pipeline_model_parallel_size="
        "{m.virtual_pipeline_model_parallel_size} is allowed only together with "
        "overlap_moe_expert_parallel_comm",
        fields=("model.virtual_pipeline_model_parallel_size", "model.cuda_graph_impl"),
        fix=no_graph,
        source=Source(terms=("mHC recompute supports interleaved pipeline",)),
        bad=ex(
            "dev",
            **_ON_DEV,
            **_SPLIT,
            pipeline_model_parallel_size=2,
            virtual_pipeline_model_parallel_size=2,
        ),
        good=ex("dev", **_ON_DEV, **_SPLIT, pipeline_model_parallel_size=2),
    ),
    Rule(
        id="mhc-a2a-cg-dev",
        severity="error",
        raised="config",
        title="dev: label mhc, expert overlap and a graph that is neither the split nor whole",
        revisions=_DEV,
        gate="selective",
        when=lambda c: (
            "mhc" in c.labels
            and overlaps(c)
            and c.graph not in ("none", "full_iteration")
            and not _is_split(c)
        ),
        message="label mhc with the expert overlap allows no CUDA graph but the attention-only one "
        "or that of the full iteration; this job captures {c.graph} {m.cuda_graph_modules}",
        fields=("model.cuda_graph_impl", "model.overlap_moe_expert_parallel_comm"),
        fix=no_graph,
        source=Source(terms=("mHC recompute with overlap_moe_expert_parallel_comm",)),
        bad=ex("dev", **_ON_DEV, **_OVERLAP, cuda_graph_impl="transformer_engine"),
        good=ex("dev", **_ON_DEV, **_OVERLAP, **_SPLIT),
    ),
    Rule(
        id="mhc-captured-producer",
        severity="warning",
        raised="never",
        title="dev: label mhc beside an attention graph saves nothing when the producer is captured",
        revisions=_DEV,
        gate="selective",
        when=lambda c: (
            "mhc" in c.labels
            and c.graph == "transformer_engine"
            and "attn" in c.scopes
            and not c.foreign("mhc_recompute_attn_cuda_graph_split")
        ),
        message="if the attention graph captures the mHC producer too, label mhc has nothing to "
        "discard; an early state of this feature also read freed memory (gradient norms near 1e8)",
        fields=("model.recompute_modules", "model.cuda_graph_modules"),
        advice="where the branch has it, set mhc_recompute_attn_cuda_graph_split; check the gradient "
        "norm of the first steps",
        source=Source(revision="#5841", path="pull request", where="review, and #6661"),
        basis="report",
        bad=ex("dev", **_ON_DEV, **_SPLIT),
        good=ex("dev", **_ON_DEV),
    ),
    Rule(
        id="gdp-chunk-range",
        severity="error",
        raised="config",
        title="main: gated delta product chunk states outside 0 to 64: Megatron refuses it",
        revisions=_MAIN,
        when=lambda c: (
            bool(c.model.gdp_cutedsl_kernel)
            and not 0 <= c.model.gdp_num_chunk_states_to_recompute <= 64
        ),
        message="gdp_num_chunk_states_to_recompute={m.gdp_num_chunk_states_to_recompute} must be "
        "between 0 and 64 with gdp_cutedsl_kernel",
        fields=("model.gdp_num_chunk_states_to_recompute",),
        fix=lambda c: {
            "model.gdp_num_chunk_states_to_recompute": min(
                max(c.model.gdp_num_chunk_states_to_recompute, 0), 64
            )
        },
        source=Source(terms=("gdp_num_chunk_states_to_recompute must be",)),
        bad=ex("main", gdp_cutedsl_kernel=True, gdp_num_chunk_states_to_recompute=65),
        good=ex("main", gdp_cutedsl_kernel=True, gdp_num_chunk_states_to_recompute=64),
    ),
)
"""Rows on hyper-connections and the gated delta product kernel."""
