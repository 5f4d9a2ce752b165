"""CUDA graphs beside recompute: effects without a message, offload, and Bridge's own checks."""

from __future__ import annotations

from typing import Final

from recompute.config.revision import ORDER
from recompute.rules.case import Case
from recompute.rules.edits import put
from recompute.rules.graph_scopes import captured, no_graph
from recompute.rules.types import (
    BRIDGE,
    Rule,
    Source,
    ex,
    on,
    since,
)

_SELECTIVE: Final = {"recompute_granularity": "selective"}
_TE: Final = {"cuda_graph_impl": "transformer_engine"}
_LOCAL: Final = {"cuda_graph_impl": "local"}
_MOE: Final = {"num_moe_experts": 8, "moe_token_dispatcher_type": "alltoall"}
_LAYER: Final = "megatron/core/transformer/transformer_layer.py"
_RANDOM: Final = "megatron/core/tensor_parallel/random.py"
_MLP_GRAPH: Final = {**_TE, "cuda_graph_modules": ("mlp",)}
_ATTN_GRAPH: Final = {**_TE, "cuda_graph_modules": ("attn",)}
_ROUTER_GRAPH: Final = {**_TE, "cuda_graph_modules": ("moe_router",)}
_REGION_OF: Final = {
    "core_attn": "attn",
    "mlp": "mlp",
    "moe": "moe",
    "shared_experts": "moe_router",
}
_DISCARDS: Final = frozenset(
    {"layernorm", "moe_act", "mla_up_proj", "gdn_norm_out", "gdp_in_proj", "gdp_qkv"}
)


def _captured_labels(case: Case) -> list[str]:
    return sorted(label for label in case.labels & set(_REGION_OF) if _inside(case, label))


def _inside(case: Case, label: str) -> bool:
    return captured(case, _REGION_OF[label])


def _offload_local(case: Case) -> bool:
    """Whether a local graph meets offload labels that it cannot serve."""
    partial = frozenset({"expert_fc1", "moe_act", "fused_group_mlp"})
    labels = frozenset(case.model.offload_modules)
    if case.index < ORDER["0.19"]:
        return True
    return not labels or not labels <= partial or not case.scopes or "moe" in case.scopes


def _norm_lost(case: Case) -> bool:
    """Whether the pre-MLP norm's label is switched off when the layers are built."""
    model = case.model
    if "moe_router" not in case.scopes or case.graph != "transformer_engine":
        return False
    if model.moe_shared_expert_intermediate_size is not None and model.moe_shared_expert_overlap:
        return True
    serves = model.moe_token_dispatcher_type == "alltoall" or bool(model.moe_latent_size)
    return not ("moe_preprocess" in case.scopes and serves)


RULES: Final[tuple[Rule, ...]] = (
    Rule(
        id="cg-router-premlp-norm",
        severity="warning",
        raised="build",
        title="layernorm beside a captured router: the pre-MLP norm is switched off",
        revisions=since("0.16"),
        gate="selective",
        when=lambda c: (
            c.graph != "none" and "layernorm" in c.labels and c.layers.moe > 0 and _norm_lost(c)
        ),
        message="layernorm is switched off for the pre-MLP norm of all {c.layers.moe} MoE layers: "
        "beside a captured moe_router it needs moe_preprocess captured too, with the alltoall "
        "dispatcher or latent MoE, and no shared-expert overlap (dispatcher "
        "{m.moe_token_dispatcher_type}, captured {m.cuda_graph_modules} {m.cuda_graph_scope})",
        fields=("model.recompute_modules", "model.cuda_graph_modules"),
        advice="capture moe_preprocess as well, or drop layernorm",
        source=Source(
            path=_LAYER,
            where="TransformerLayer.__init__",
            terms=("pre_mlp_layernorm recompute is",),
        ),
        bad=ex("0.19", **_SELECTIVE, **_MOE, **_ROUTER_GRAPH, recompute_modules=("layernorm",)),
        good=ex(
            "0.19",
            **_SELECTIVE,
            **_MOE,
            **_TE,
            cuda_graph_modules=("moe_router", "moe_preprocess"),
            recompute_modules=("layernorm",),
        ),
    ),
    Rule(
        id="cg-local-moe-noop",
        severity="warning",
        raised="never",
        title="label moe with local graphs outside partial capture: nobody checkpoints",
        revisions=since("0.16"),
        gate="selective",
        when=lambda c: (
            c.graph == "local"
            and "moe" in c.labels
            and c.layers.moe > 0
            and not {"moe_router", "moe_preprocess"} & c.scopes
        ),
        message="with cuda_graph_impl=local label moe moves to the partial-graph wrapper, which runs "
        "only when moe_router or moe_preprocess is captured; here neither is, so no MoE layer is "
        "replayed",
        fields=("model.recompute_modules", "model.cuda_graph_impl"),
        advice="capture moe_router and moe_preprocess, or use transformer_engine graphs of attn",
        source=Source(path="megatron/core/transformer/moe/moe_layer.py", where="MoELayer.__init__"),
        basis="inferred",
        bad=ex("0.19", "core", **_SELECTIVE, **_MOE, **_LOCAL, recompute_modules=("moe",)),
        good=ex(
            "0.19",
            "core",
            **_SELECTIVE,
            **_MOE,
            **_LOCAL,
            cuda_graph_modules=("moe_router",),
            recompute_modules=("moe",),
        ),
    ),
    Rule(
        id="cg-capture-bypass",
        severity="note",
        raised="never",
        title="a whole-region checkpoint inside a captured graph is a plain call from 0.18 on",
        revisions=since("0.18"),
        gate="selective",
        when=lambda c: c.graph != "none" and bool(_captured_labels(c)),
        detail=lambda c: ", ".join(_captured_labels(c)),
        message="{d} lie inside the captured region: from 0.18 on a checkpoint is a "
        "plain call while a graph is captured, so nothing is replayed there",
        fields=("model.recompute_modules", "model.cuda_graph_impl"),
        advice="measure against [] before counting on a saving",
        source=Source(path=_RANDOM, where="checkpoint"),
        bad=ex("0.19", **_SELECTIVE, **_MLP_GRAPH, recompute_modules=("mlp",)),
        good=ex("0.19", **_SELECTIVE, **_ATTN_GRAPH, recompute_modules=("mlp",)),
    ),
    Rule(
        id="cg-warmup-bypass",
        severity="note",
        raised="never",
        title="output-discarding labels do not discard during graph warm-up",
        revisions=since("0.16"),
        gate="selective",
        when=lambda c: c.graph != "none" and bool(_DISCARDS & c.labels),
        detail=lambda c: ", ".join(sorted(_DISCARDS & c.labels)),
        message="during graph warm-up {d} keep their outputs: the warm-up's peak "
        "is that of no recompute",
        fields=("model.recompute_modules", "model.cuda_graph_warmup_steps"),
        source=Source(path=_RANDOM, where="CheckpointWithoutOutput.checkpoint"),
        bad=ex(
            "0.19",
            **_SELECTIVE,
            **_MOE,
            **_ATTN_GRAPH,
            recompute_modules=("moe_act",),
            moe_grouped_gemm=True,
        ),
        good=ex("0.19", **_SELECTIVE, **_ATTN_GRAPH, recompute_modules=("mlp",)),
    ),
    Rule(
        id="ckpt-not-with-grad",
        severity="note",
        raised="backward",
        title="a checkpoint cannot be differentiated with .grad(), which local graph warm-up uses",
        revisions=since("0.15"),
        gate="selective",
        when=lambda c: c.graph == "local" and bool(_captured_labels(c)),
        message="{d} lie inside a local graph, whose warm-up differentiates with .grad(); a "
        "checkpoint raises RuntimeError there where it is not bypassed (fp8 and fp4 regions are "
        "not)",
        detail=lambda c: ", ".join(_captured_labels(c)),
        fields=("model.recompute_modules", "model.cuda_graph_impl"),
        source=Source(path=_RANDOM, where="CheckpointFunction.backward"),
        bad=ex(
            "0.19",
            "core",
            **_SELECTIVE,
            cuda_graph_impl="local",
            cuda_graph_modules=("mlp",),
            recompute_modules=("mlp",),
        ),
        good=ex("0.19", **_SELECTIVE, **_ATTN_GRAPH, recompute_modules=("mlp",)),
    ),
    Rule(
        id="cg-toggle-drops-granularity",
        severity="note",
        raised="never",
        title="toggling local graphs sets modules' granularity to none",
        revisions=since("0.15"),
        when=lambda c: c.graph == "local" and c.recomputes,
        message="toggle_cuda_graphs with local graphs sets recompute_granularity to none on the "
        "modules that carry it: after a switch to evaluation and back, check that recompute is "
        "still on",
        fields=("model.cuda_graph_impl", "model.recompute_granularity"),
        source=Source(path="megatron/core/transformer/utils.py", where="toggle_cuda_graphs"),
        bad=ex(
            "0.19",
            "core",
            **_SELECTIVE,
            **_LOCAL,
            cuda_graph_modules=("attn",),
            recompute_modules=("mlp",),
        ),
        good=ex("0.19", **_SELECTIVE, **_ATTN_GRAPH, recompute_modules=("mlp",)),
    ),
    Rule(
        id="cg-param-discovery",
        severity="note",
        raised="never",
        title="main: local graphs make at least one warm-up step when recompute is on",
        revisions=on("main"),
        when=lambda c: c.graph == "local" and c.recomputes and c.model.cuda_graph_warmup_steps < 1,
        message="local graphs need one warm-up step to find parameters when recompute is on: "
        "cuda_graph_warmup_steps={m.cuda_graph_warmup_steps} is raised to 1",
        fields=("model.cuda_graph_warmup_steps",),
        source=Source(path="megatron/core/transformer/cuda_graphs.py", where="_CudaGraphRunner"),
        bad=ex(
            "main",
            "core",
            **_SELECTIVE,
            **_LOCAL,
            cuda_graph_modules=("attn",),
            recompute_modules=("mlp",),
            cuda_graph_warmup_steps=0,
        ),
        good=ex(
            "main",
            "core",
            **_SELECTIVE,
            **_LOCAL,
            cuda_graph_modules=("attn",),
            recompute_modules=("mlp",),
        ),
    ),
    Rule(
        id="cg-offload",
        severity="error",
        raised="config",
        title="fine-grained offload with graphs that cannot serve it: Megatron refuses it",
        revisions=since("0.18"),
        when=lambda c: (
            c.graph != "none"
            and bool(c.model.fine_grained_activation_offloading)
            and (
                (c.graph == "local" and _offload_local(c))
                or "moe" in c.scopes
                or c.model.cuda_graph_warmup_steps <= 0
            )
        ),
        message="fine-grained offload needs transformer_engine or full_iteration graphs (from 0.19 "
        "also local ones around offloaded experts), region moe not captured and at least one "
        "warm-up step; offload_modules={m.offload_modules}, {c.graph}, warm-up "
        "{m.cuda_graph_warmup_steps}",
        fields=("model.fine_grained_activation_offloading", "model.cuda_graph_impl"),
        fix=put(fine_grained_activation_offloading=False),
        source=Source(terms=("fine-grained activation offloading is only supported",)),
        bad=ex(
            "0.19",
            "core",
            **_LOCAL,
            fine_grained_activation_offloading=True,
            offload_modules=("core_attn",),
        ),
        good=ex(
            "0.19",
            "core",
            **_ATTN_GRAPH,
            fine_grained_activation_offloading=True,
            offload_modules=("core_attn",),
        ),
    ),
    Rule(
        id="cg-offload-inflight",
        severity="error",
        raised="config",
        title="fine-grained offload in a full-iteration graph without a bound on offloads in flight",
        revisions=since("0.18"),
        when=lambda c: (
            c.graph == "full_iteration"
            and bool(c.model.fine_grained_activation_offloading)
            and c.foreign("fine_grained_offloading_max_inflight_offloads") is None
            and c.job.identity.format != "recipe"
        ),
        message="fine-grained offload inside a full-iteration graph needs "
        "fine_grained_offloading_max_inflight_offloads, an integer of at least 0",
        fields=("model.fine_grained_activation_offloading", "model.cuda_graph_impl"),
        fix=put(fine_grained_activation_offloading=False),
        advice="or set model.fine_grained_offloading_max_inflight_offloads=1",
        source=Source(terms=("fine_grained_offloading_max_inflight_offloads",)),
        bad=ex(
            "0.19",
            "core",
            cuda_graph_impl="full_iteration",
            fine_grained_activation_offloading=True,
            offload_modules=("core_attn",),
        ),
        good=ex(
            "0.19",
            "core",
            cuda_graph_impl="full_iteration",
            fine_grained_activation_offloading=True,
            offload_modules=("core_attn",),
            unmodelled={"model.fine_grained_offloading_max_inflight_offloads": 1},
        ),
    ),
    Rule(
        id="bridge-cg-local",
        severity="error",
        raised="bridge",
        title="Bridge: local graphs only of the full iteration (or for inference)",
        revisions=since("0.18"),
        entries=frozenset({"bridge"}),
        when=lambda c: (
            c.graph == "local"
            and (
                bool(c.scopes)
                or str(c.foreign("inference_cuda_graph_scope")) not in ("layer", "block")
            )
        ),
        message="Megatron Bridge takes cuda_graph_impl=local only for full-iteration graphs; this "
        "job captures {m.cuda_graph_modules} {m.cuda_graph_scope}",
        fields=("model.cuda_graph_impl",),
        fix=put(cuda_graph_impl="transformer_engine"),
        source=Source(
            repository=BRIDGE,
            revision="067f987d",
            path="src/megatron/bridge/utils/cuda_graph.py",
            where="validate_cuda_graph_configuration",
        ),
        bad=ex("0.19", **_LOCAL, cuda_graph_modules=("attn",)),
        good=ex("0.19", **_ATTN_GRAPH),
    ),
    Rule(
        id="bridge-autocast-layer-cg",
        severity="error",
        raised="build",
        title="Bridge: full TE layer spec with local graphs and recompute or offload is refused",
        revisions=since("0.16"),
        entries=frozenset({"bridge"}),
        when=lambda c: (
            bool(c.foreign("use_transformer_engine_full_layer_spec"))
            and c.graph == "local"
            and (c.effective != "none" or bool(c.model.cpu_offloading))
        ),
        message="Bridge's full Transformer Engine layer spec asserts that local graphs stand without "
        "recompute and without cpu_offloading (recompute_granularity={m.recompute_granularity})",
        fields=("model.cuda_graph_impl", "model.recompute_granularity"),
        fix=no_graph,
        source=Source(
            repository=BRIDGE,
            revision="067f987d",
            path="src/megatron/bridge/models/gpt_full_te_layer_autocast_spec.py",
            where="TETransformerLayerAutocast.__init__",
        ),
        bad=ex(
            "0.17",
            **_SELECTIVE,
            **_LOCAL,
            recompute_modules=("mlp",),
            unmodelled={"model.use_transformer_engine_full_layer_spec": True},
        ),
        good=ex(
            "0.17",
            **_SELECTIVE,
            recompute_modules=("mlp",),
            unmodelled={"model.use_transformer_engine_full_layer_spec": True},
        ),
    ),
)
"""Rows on what CUDA graphs do to recompute and offload."""
