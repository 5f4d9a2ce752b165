"""Overlapped expert communication, delayed weight gradients and FSDP beside recompute."""

from __future__ import annotations

from typing import Final

from recompute.config.revision import ORDER
from recompute.rules.case import Case, below
from recompute.rules.edits import drop, put
from recompute.rules.types import (
    ARGUMENTS,
    BRIDGE,
    MEGATRON,
    Edit,
    Rule,
    Source,
    between,
    ex,
    on,
    since,
)

_SELECTIVE: Final = {"recompute_granularity": "selective"}
_FULL: Final = {
    "recompute_granularity": "full",
    "recompute_method": "uniform",
    "recompute_num_layers": 1,
}
_OVERLAP: Final = {
    "overlap_moe_expert_parallel_comm": True,
    "num_moe_experts": 8,
    "moe_grouped_gemm": True,
    "expert_model_parallel_size": 2,
    "moe_token_dispatcher_type": "alltoall",
}


def overlaps(case: Case) -> bool:
    """Say whether expert-parallel communication is overlapped.

    Bridge's ``comm_overlap``, where the job has it, writes over the model's own switch.
    """
    preset = case.job.comm_overlap
    if preset is not None and case.entry == "bridge":
        return preset.get("overlap_moe_expert_parallel_comm") is True
    return bool(case.model.overlap_moe_expert_parallel_comm)


def _no_overlap(case: Case) -> Edit:
    edit: dict[str, object] = {"model.overlap_moe_expert_parallel_comm": False}
    if case.job.comm_overlap is not None:
        edit["comm_overlap.overlap_moe_expert_parallel_comm"] = False
    if case.model.delay_wgrad_compute:
        edit["model.delay_wgrad_compute"] = False
    if case.model.ep_overlap_early_attn_memory_release:
        edit["model.ep_overlap_early_attn_memory_release"] = False
    return edit


def _torch_too_old(case: Case) -> bool:
    version = case.torch
    return below(version, 2, 6) or version == ((2, 6), False)


def prerequisite(case: Case) -> str | None:
    """Return the first prerequisite of the overlap that the job misses."""
    model, index = case.model, case.index
    mtp = model.mtp_num_layers
    checks = (
        (_torch_too_old(case), f"torch 2.6 or newer (it is {case.job.framework.torch})"),
        (
            model.pipeline_model_parallel_size > 1
            and model.virtual_pipeline_model_parallel_size is None
            and not _layout_chunks(case),
            "virtual_pipeline_model_parallel_size with pipeline parallelism",
        ),
        (
            model.expert_model_parallel_size <= 1,
            f"expert parallelism (expert_model_parallel_size={model.expert_model_parallel_size})",
        ),
        (
            model.moe_token_dispatcher_type not in ("alltoall", "flex"),
            f"dispatcher alltoall or flex, not {model.moe_token_dispatcher_type}",
        ),
        (not (model.bf16 or model.fp16), "bf16 or fp16"),
        (bool(model.moe_shared_expert_overlap), "moe_shared_expert_overlap off"),
        (
            mtp not in ((None, 0, 1) if index >= ORDER["0.19"] else (None, 1)),
            f"at most one MTP layer (mtp_num_layers={mtp})",
        ),
        (
            case.name in {"0.16", "0.17"} and mtp == 1 and model.pipeline_model_parallel_size == 1,
            "pipeline parallelism with an MTP layer",
        ),
        (_graph_in_the_way(case), "no CUDA graph of moe or mlp regions"),
    )
    return next((text for broken, text in checks if broken), None)


def _layout_chunks(case: Case) -> bool:
    chunks = case.chunks if case.model.pipeline_model_parallel_layout is not None else None
    return chunks is not None and len(chunks[0]) > 1


def _graph_in_the_way(case: Case) -> bool:
    if case.graph == "none" or case.index < ORDER["0.16"]:
        return False
    if case.name in {"0.16", "0.17"} and case.graph != "transformer_engine":
        return True
    return case.graph == "transformer_engine" and bool({"moe", "mlp"} & case.scopes)


RULES: Final[tuple[Rule, ...]] = (
    Rule(
        id="a2a-full",
        severity="error",
        raised="config",
        title="full with overlapped expert communication: Megatron refuses it",
        revisions=since("0.14", dev=False),
        gate="full",
        when=overlaps,
        message="overlap_moe_expert_parallel_comm runs two micro-batches through each other, which "
        "full recompute cannot replay",
        fields=("model.recompute_granularity", "model.overlap_moe_expert_parallel_comm"),
        fix=lambda c: {
            "model.recompute_granularity": "selective",
            "model.recompute_modules": ("moe_act",) if c.model.moe_grouped_gemm else (),
            "model.recompute_method": None,
            "model.recompute_num_layers": None,
        },
        advice="or set model.overlap_moe_expert_parallel_comm=false and keep full",
        source=Source(terms=("disable full recomputation when enabling",)),
        bad=ex("0.19", **_FULL, **_OVERLAP),
        good=ex("0.19", **_SELECTIVE, **_OVERLAP, recompute_modules=("moe_act",)),
    ),
    Rule(
        id="a2a-method",
        severity="error",
        raised="config",
        title="a method with overlapped expert communication: refused, whatever the granularity",
        revisions=since("0.14"),
        when=lambda c: (
            c.model.recompute_method is not None
            and overlaps(c)
            and not (c.name == "dev" and c.declared == "full")
        ),
        message="overlap_moe_expert_parallel_comm wants recompute_method null, it is "
        "{m.recompute_method}",
        fields=("model.recompute_method", "model.overlap_moe_expert_parallel_comm"),
        fix=put(recompute_method=None),
        source=Source(terms=("disable recomputation method when enabling",)),
        bad=ex(
            "0.19",
            **_SELECTIVE,
            **_OVERLAP,
            recompute_modules=("moe_act",),
            recompute_method="uniform",
        ),
        good=ex("0.19", **_SELECTIVE, **_OVERLAP, recompute_modules=("moe_act",)),
    ),
    Rule(
        id="a2a-num-layers",
        severity="error",
        raised="config",
        title="a layer count with overlapped expert communication: refused",
        revisions=since("0.14"),
        when=lambda c: (
            c.model.recompute_num_layers is not None
            and overlaps(c)
            and not (c.name == "dev" and c.declared == "full")
        ),
        message="overlap_moe_expert_parallel_comm wants recompute_num_layers null, it is "
        "{m.recompute_num_layers}",
        fields=("model.recompute_num_layers", "model.overlap_moe_expert_parallel_comm"),
        fix=put(recompute_num_layers=None),
        source=Source(terms=("recompute_num_layers must be None when enabling",)),
        bad=ex("0.19", **_OVERLAP, recompute_num_layers=1),
        good=ex("0.19", **_SELECTIVE, **_OVERLAP, recompute_modules=("moe_act",)),
    ),
    Rule(
        id="a2a-moe-label",
        severity="error",
        raised="config",
        title="label moe with overlapped expert communication: refused, even without granularity",
        revisions=since("0.17"),
        when=lambda c: (
            overlaps(c) and ("moe" in c.labels or "moe" in (c.model.recompute_modules or ()))
        ),
        message="label moe would replay routing, dispatch and combine, which "
        "overlap_moe_expert_parallel_comm runs beside another micro-batch",
        fields=("model.recompute_modules", "model.overlap_moe_expert_parallel_comm"),
        fix=drop("moe"),
        advice="moe_act and layernorm work with the overlap",
        source=Source(terms=("disable moe in recompute_modules",)),
        bad=ex("0.19", **_OVERLAP, recompute_granularity=None, recompute_modules=("moe",)),
        good=ex("0.19", **_SELECTIVE, **_OVERLAP, recompute_modules=("moe_act",)),
    ),
    Rule(
        id="a2a-moe-label-unchecked",
        severity="warning",
        raised="never",
        title="label moe with overlapped expert communication before 0.17: accepted, the replay repeats it",
        revisions=between("0.14", "0.16"),
        when=lambda c: (
            overlaps(c) and ("moe" in c.labels or "moe" in (c.model.recompute_modules or ()))
        ),
        message="label moe beside overlap_moe_expert_parallel_comm: Megatron Core {c.name} lets it "
        "pass, but the replay repeats the dispatch and combine; 0.17 and newer refuse it",
        fields=("model.recompute_modules", "model.overlap_moe_expert_parallel_comm"),
        advice="moe_act and layernorm work with the overlap",
        source=Source(terms=("disable full recomputation when enabling",)),
        bad=ex("0.16", **_SELECTIVE, **_OVERLAP, recompute_modules=("moe",)),
        good=ex("0.16", **_SELECTIVE, **_OVERLAP, recompute_modules=("moe_act",)),
    ),
    Rule(
        id="a2a-other-prereqs",
        severity="error",
        raised="config",
        title="overlapped expert communication without its prerequisites: Megatron refuses it",
        revisions=since("0.14"),
        when=lambda c: overlaps(c) and c.known_model and prerequisite(c) is not None,
        message="overlap_moe_expert_parallel_comm needs {d}",
        detail=prerequisite,
        fields=("model.overlap_moe_expert_parallel_comm",),
        fix=_no_overlap,
        source=Source(terms=("overlap_moe_expert_parallel_comm is only supported with",)),
        bad=ex("0.19", **{**_OVERLAP, "expert_model_parallel_size": 1}),
        good=ex("0.19", **_OVERLAP),
    ),
    Rule(
        id="a2a-bridge-experts",
        severity="error",
        raised="bridge",
        title="Bridge: overlapped expert communication needs more than one expert",
        revisions=since("0.14"),
        entries=frozenset({"bridge"}),
        when=lambda c: overlaps(c) and (c.model.num_moe_experts or 0) <= 1 and c.known_model,
        message="overlap_moe_expert_parallel_comm needs more than one expert; num_moe_experts="
        "{m.num_moe_experts}",
        fields=("model.overlap_moe_expert_parallel_comm", "model.num_moe_experts"),
        fix=_no_overlap,
        source=Source(
            repository=BRIDGE,
            revision="067f987d",
            path="src/megatron/bridge/training/comm_overlap.py",
            where="CommOverlapConfig._get_model_comm_overlap_cfgs",
        ),
        bad=ex("0.19", overlap_moe_expert_parallel_comm=True),
        good=ex("0.19", **_OVERLAP),
    ),
    Rule(
        id="a2a-full-dev",
        severity="error",
        raised="config",
        title="dev: full with the overlap only without dropout, delayed fp8 or distributed saves",
        revisions=on("dev"),
        gate="full",
        when=lambda c: (
            overlaps(c)
            and (
                bool(c.model.distribute_saved_activations)
                or c.model.attention_dropout != 0
                or c.model.hidden_dropout != 0
                or (bool(c.model.fp8) and c.model.fp8_recipe == "delayed")
            )
        ),
        message="the dev branch replays whole layers beside the overlap only with both dropouts 0 "
        "(attention {m.attention_dropout}, hidden {m.hidden_dropout}), without delayed fp8 "
        "scaling (fp8={m.fp8}) and without distribute_saved_activations",
        fields=("model.recompute_granularity", "model.overlap_moe_expert_parallel_comm"),
        fix=_no_overlap,
        source=Source(terms=("overlap_moe_expert_parallel_comm full recompute",)),
        bad=ex("dev", **_FULL, **_OVERLAP, hidden_dropout=0.1),
        good=ex("dev", **_FULL, **_OVERLAP),
    ),
    Rule(
        id="a2a-full-dev-numlayers",
        severity="error",
        raised="forward",
        title="dev: the overlap's replay segments need a method and a positive layer count",
        revisions=on("dev"),
        gate="full",
        when=lambda c: (
            overlaps(c)
            and c.model.recompute_method in ("uniform", "block")
            and c.model.recompute_num_layers is not None
            and (c.count or 0) < 1
        ),
        message="the dev branch builds replay segments of recompute_num_layers="
        "{m.recompute_num_layers} layers, which must be a positive integer",
        fields=("model.recompute_num_layers",),
        fix=put(recompute_num_layers=1),
        source=Source(
            path="megatron/core/models/common/model_chunk_schedule_plan.py",
            where="TransformerModelChunkSchedulePlan._build_recompute_segments",
        ),
        bad=ex(
            "dev", **{**_FULL, "recompute_method": "block", "recompute_num_layers": 0}, **_OVERLAP
        ),
        good=ex("dev", **_FULL, **_OVERLAP),
    ),
    Rule(
        id="a2a-full-dev-fsdp",
        severity="error",
        raised="forward",
        title="dev: full with the overlap and Megatron FSDP is refused",
        revisions=on("dev"),
        gate="full",
        when=lambda c: overlaps(c) and c.job.ddp is not None and c.job.ddp.use_megatron_fsdp,
        message="the dev branch refuses full recompute beside the overlap with Megatron FSDP",
        fields=("ddp.use_megatron_fsdp", "model.overlap_moe_expert_parallel_comm"),
        fix=_no_overlap,
        source=Source(
            path="megatron/core/pipeline_parallel/combined_1f1b.py",
            where="combined_forward_backward_step",
        ),
        bad=ex("dev", **_FULL, **_OVERLAP, ddp__use_megatron_fsdp=True),
        good=ex("dev", **_FULL, **_OVERLAP),
    ),
    Rule(
        id="a2a-layernorm-hook",
        severity="note",
        raised="never",
        title="layernorm beside the overlap: the norm comes back when the experts' output does",
        revisions=since("0.14"),
        gate="selective",
        when=lambda c: overlaps(c) and "layernorm" in c.labels and c.layers.moe > 0,
        message="beside the overlap the pre-MLP norm of {c.layers.moe} MoE layers is restored when "
        "the routed experts' output gets its gradient, earlier than without the overlap",
        fields=("model.recompute_modules",),
        source=Source(
            path="megatron/core/models/gpt/fine_grained_callables.py",
            where="build_transformer_layer_callables",
        ),
        bad=ex("0.19", **_SELECTIVE, **_OVERLAP, recompute_modules=("layernorm",)),
        good=ex("0.19", **_SELECTIVE, **_OVERLAP, recompute_modules=("moe_act",)),
    ),
    Rule(
        id="delay-wgrad",
        severity="error",
        raised="config",
        title="delayed weight gradients without the expert overlap: Megatron refuses it",
        revisions=since("0.14"),
        when=lambda c: bool(c.model.delay_wgrad_compute) and not overlaps(c),
        message="delay_wgrad_compute needs overlap_moe_expert_parallel_comm",
        fields=("model.delay_wgrad_compute",),
        fix=put(delay_wgrad_compute=False),
        source=Source(terms=("must be enabled when enabling delay_wgrad_compute",)),
        bad=ex("0.19", delay_wgrad_compute=True),
        good=ex("0.19", **_OVERLAP, delay_wgrad_compute=True),
    ),
    Rule(
        id="ep-overlap-early-release",
        severity="error",
        raised="config",
        title="early release of attention memory without the expert overlap: refused",
        revisions=since("0.16"),
        when=lambda c: bool(c.model.ep_overlap_early_attn_memory_release) and not overlaps(c),
        message="ep_overlap_early_attn_memory_release needs overlap_moe_expert_parallel_comm",
        fields=("model.ep_overlap_early_attn_memory_release",),
        fix=put(ep_overlap_early_attn_memory_release=False),
        source=Source(terms=("ep_overlap_early_attn_memory_release",)),
        bad=ex("0.19", ep_overlap_early_attn_memory_release=True),
        good=ex("0.19", **_OVERLAP, ep_overlap_early_attn_memory_release=True),
    ),
    Rule(
        id="fsdp2-prefetch",
        severity="note",
        raised="never",
        title="torch FSDP2 with recompute: backward prefetch order is set explicitly",
        revisions=since("0.10"),
        when=lambda c: (
            c.effective in ("selective", "full")
            and c.job.ddp is not None
            and c.job.ddp.use_torch_fsdp2
        ),
        message="with torch FSDP2 Megatron sets each module's backward prefetch to the module before "
        "it, since the replay would otherwise confuse the order",
        fields=("ddp.use_torch_fsdp2",),
        source=Source(
            path="megatron/core/distributed/torch_fully_sharded_data_parallel.py",
            where="TorchFullyShardedDataParallel.__init__",
        ),
        bad=ex("0.19", **_SELECTIVE, recompute_modules=("mlp",), ddp__use_torch_fsdp2=True),
        good=ex("0.19", **_SELECTIVE, recompute_modules=("mlp",)),
    ),
    Rule(
        id="mfsdp-recompute-detect",
        severity="note",
        raised="never",
        title="Megatron FSDP version 2 takes a forward inside backward for recompute",
        revisions=on("pin", "main"),
        when=lambda c: _fsdp_v2(c) and (c.recomputes or bool(c.foreign("activation_recompute"))),
        message="Megatron FSDP version 2 recognises the replay as a forward inside backward and "
        "leaves its prefetching off there",
        fields=("ddp.megatron_fsdp_version",),
        source=Source(
            path="megatron/core/distributed/fsdp/src/megatron_fsdp/experimental/module.py",
            where="FsdpModule",
        ),
        bad=ex(
            "pin",
            **_FULL,
            ddp__use_megatron_fsdp=True,
            unmodelled={"ddp.megatron_fsdp_version": 2},
        ),
        good=ex("pin", **_FULL, ddp__use_megatron_fsdp=True),
    ),
    Rule(
        id="mfsdp-v2-stale-prefetch",
        severity="warning",
        raised="never",
        title="Megatron FSDP version 2 before 2026-08-08: the replay prefetches finished modules",
        revisions=frozenset({*between("0.17", "0.19"), "dev"}),
        when=lambda c: _fsdp_v2(c) and (c.recomputes or bool(c.foreign("activation_recompute"))),
        message="in Megatron FSDP version 2 of Megatron Core {c.name} the replay triggers a prefetch "
        "that gathers modules whose backward is over: parameters stay gathered, and gradients can "
        "be stale",
        fields=("ddp.megatron_fsdp_version", "model.recompute_granularity"),
        advice="use a Megatron Core with pull request 6153 (2026-08-08), or FSDP version 1",
        source=Source(
            repository=MEGATRON, revision="#6153", path="pull request", where="merged 2026-08-08"
        ),
        basis="report",
        bad=ex(
            "0.19",
            **_FULL,
            ddp__use_megatron_fsdp=True,
            unmodelled={"ddp.megatron_fsdp_version": 2},
        ),
        good=ex("0.19", **_FULL, ddp__use_megatron_fsdp=True),
    ),
    Rule(
        id="mfsdp-prefetch-dev",
        severity="error",
        raised="cli",
        title="dev: prefetching weights for the replay needs Megatron FSDP, full and no overlap",
        revisions=on("dev"),
        when=lambda c: bool(c.foreign(_PREFETCH)) and not _may_prefetch(c),
        message="megatron_fsdp_prefetch_recompute_forward_weights needs Megatron FSDP with "
        "data_parallel_sharding_strategy=optim_grads_params, recompute_granularity=full and no "
        "expert overlap; this job has {m.recompute_granularity}",
        fields=("ddp.megatron_fsdp_prefetch_recompute_forward_weights",),
        fix=lambda _: {f"unmodelled.ddp.{_PREFETCH}": None},
        source=Source(
            path=ARGUMENTS,
            where="validate_args",
            terms=("megatron_fsdp_prefetch_recompute_forward_weights",),
        ),
        bad=ex(
            "dev",
            "megatron-lm",
            **_SELECTIVE,
            recompute_modules=("mlp",),
            unmodelled={"ddp.megatron_fsdp_prefetch_recompute_forward_weights": True},
        ),
        good=ex(
            "dev",
            "megatron-lm",
            **_FULL,
            ddp__use_megatron_fsdp=True,
            ddp__data_parallel_sharding_strategy="optim_grads_params",
            unmodelled={"ddp.megatron_fsdp_prefetch_recompute_forward_weights": True},
        ),
    ),
)
"""Rows on overlap and sharded data parallelism."""

_PREFETCH: Final = "megatron_fsdp_prefetch_recompute_forward_weights"


def _fsdp_v2(case: Case) -> bool:
    if not case.job.unmodelled:
        return False
    if str(case.foreign("fsdp", "")).lower() in {"v2", "2", "megatron_fsdp_v2"}:
        return True
    return (
        case.job.ddp is not None
        and case.job.ddp.use_megatron_fsdp
        and str(case.foreign("megatron_fsdp_version", "")).lstrip("vV") == "2"
    )


def _may_prefetch(case: Case) -> bool:
    ddp = case.job.ddp
    return (
        ddp is not None
        and ddp.use_megatron_fsdp
        and ddp.data_parallel_sharding_strategy == "optim_grads_params"
        and case.effective == "full"
        and not overlaps(case)
    )
