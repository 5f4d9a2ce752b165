"""The environment around a job: context parallelism, allocator, compiler, random state."""

from __future__ import annotations

from typing import Final

from recompute.config.versions import refuses_engine_loss
from recompute.rules.case import Case, below
from recompute.rules.edits import put
from recompute.rules.types import ALL, BRIDGE, Rule, Source, ex, since

_SELECTIVE: Final = {"recompute_granularity": "selective"}
_FULL: Final = {
    "recompute_granularity": "full",
    "recompute_method": "uniform",
    "recompute_num_layers": 1,
}
_TE_LOSS: Final = {"cross_entropy_loss_fusion": True, "cross_entropy_fusion_impl": "te"}
_EXPANDABLE: Final = {"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"}
_ALLOCATOR: Final = ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF")
_DISCARDS: Final = frozenset(
    {"layernorm", "moe_act", "mla_up_proj", "gdn_norm_out", "gdp_in_proj", "gdp_qkv", "mhc"}
)
_MEMORY_SKILL: Final = "skills/nemo-mbridge-perf-memory-tuning/SKILL.md"


def _expandable(case: Case) -> bool:
    environment = case.job.environment
    return any(
        "expandable_segments:true" in str(environment.get(name, "")).lower() for name in _ALLOCATOR
    )


RULES: Final[tuple[Rule, ...]] = (
    Rule(
        id="cp-replay",
        severity="note",
        raised="never",
        title="core_attn or gdn_norm_out under context parallelism: the replay communicates again",
        revisions=since("0.12"),
        gate="selective",
        when=lambda c: (
            c.model.context_parallel_size > 1 and bool({"core_attn", "gdn_norm_out"} & c.labels)
        ),
        message="with context_parallel_size={m.context_parallel_size} the replay of {d} repeats its "
        "communication",
        detail=lambda c: " and ".join(sorted({"core_attn", "gdn_norm_out"} & c.labels)),
        fields=("model.recompute_modules", "model.context_parallel_size"),
        source=Source(
            path="megatron/core/transformer/attention.py",
            where="Attention._checkpointed_attention_forward",
        ),
        bad=ex("0.19", **_SELECTIVE, recompute_modules=("core_attn",), context_parallel_size=2),
        good=ex("0.19", **_SELECTIVE, recompute_modules=("mlp",), context_parallel_size=2),
    ),
    Rule(
        id="te-cross-entropy-refused",
        severity="error",
        raised="cli",
        title="Transformer Engine's fused cross entropy: Megatron-LM refuses it from 0.18.2 on",
        revisions=since("0.18"),
        entries=frozenset({"megatron-lm"}),
        when=lambda c: (
            bool(c.model.cross_entropy_loss_fusion)
            and c.model.cross_entropy_fusion_impl == "te"
            and (c.name != "0.18" or refuses_engine_loss(c.job))
        ),
        message="--cross-entropy-loss-fusion with --cross-entropy-fusion-impl te is refused for its "
        "stability; native keeps an FP32 copy of the logits, which the peak of the last stage then holds",
        fields=("model.cross_entropy_fusion_impl", "model.cross_entropy_loss_fusion"),
        fix=put(cross_entropy_fusion_impl="native"),
        source=Source(
            path="megatron/training/arguments.py",
            where="validate_args",
            terms=("cross_entropy_fusion_impl", "cross_entropy_loss_fusion"),
        ),
        bad=ex("0.19", "megatron-lm", **_TE_LOSS),
        good=ex("0.19", "bridge", **_TE_LOSS),
    ),
    Rule(
        id="alloc-frag",
        severity="warning",
        raised="never",
        title="expandable segments beside NCCL user buffers before torch 2.11: they exclude",
        revisions=since("0.14"),
        when=lambda c: (
            c.job.ddp is not None
            and c.job.ddp.nccl_ub
            and _expandable(c)
            and (c.torch is None or below(c.torch, 2, 11))
        ),
        message="expandable_segments:True cures fragmentation, but excludes ddp.nccl_ub with torch "
        "before 2.11 (the job says torch {c.job.framework.torch})",
        fields=("ddp.nccl_ub",),
        advice="drop one of the two",
        source=Source(
            path="megatron/core/distributed/distributed_data_parallel_config.py",
            where="DistributedDataParallelConfig.__post_init__",
        ),
        bad=ex("0.19", ddp__nccl_ub=True, environment=_EXPANDABLE),
        good=ex("0.19", environment=_EXPANDABLE),
    ),
    Rule(
        id="alloc-graph-register",
        severity="warning",
        raised="never",
        title="expandable segments beside CUDA graphs without NCCL_GRAPH_REGISTER=0",
        revisions=since("0.14"),
        when=lambda c: (
            c.graph != "none"
            and bool(c.job.environment)
            and _expandable(c)
            and str(c.job.environment.get("NCCL_GRAPH_REGISTER", "")) != "0"
        ),
        message="expandable_segments:True beside CUDA graphs ({c.graph}) needs "
        "NCCL_GRAPH_REGISTER=0 on some GPUs; with context parallelism it can hang",
        fields=("model.cuda_graph_impl",),
        advice="export NCCL_GRAPH_REGISTER=0",
        source=Source(
            repository=BRIDGE, revision="067f987d", path=_MEMORY_SKILL, where="fragmentation"
        ),
        bad=ex(
            "0.19",
            cuda_graph_impl="transformer_engine",
            cuda_graph_modules=("attn",),
            environment=_EXPANDABLE,
        ),
        good=ex(
            "0.19",
            cuda_graph_impl="transformer_engine",
            cuda_graph_modules=("attn",),
            environment={**_EXPANDABLE, "NCCL_GRAPH_REGISTER": "0"},
        ),
    ),
    Rule(
        id="output-discard-jit",
        severity="note",
        raised="never",
        title="output-discarding labels compile an extension at the first replay",
        revisions=since("0.17"),
        gate="selective",
        when=lambda c: bool(_DISCARDS & c.labels),
        message="{d} compile a small C++ extension at the first replay: the container needs a "
        "compiler, and the first step waits once",
        detail=lambda c: ", ".join(sorted(_DISCARDS & c.labels)),
        fields=("model.recompute_modules",),
        source=Source(path="megatron/core/tensor_parallel/random.py", where="_get_share_storage"),
        bad=ex(
            "0.19",
            **_SELECTIVE,
            recompute_modules=("moe_act",),
            num_moe_experts=8,
            moe_grouped_gemm=True,
        ),
        good=ex("0.19", **_SELECTIVE, recompute_modules=("mlp",)),
    ),
    Rule(
        id="recompute-rng",
        severity="note",
        raised="never",
        title="full with dropout: another path of random numbers",
        revisions=ALL,
        gate="full",
        when=lambda c: c.model.hidden_dropout > 0 or c.model.attention_dropout > 0,
        message="full restores random state before each replay; with hidden_dropout="
        "{m.hidden_dropout} and attention_dropout={m.attention_dropout} the run's random numbers "
        "differ from one without recompute",
        fields=("model.hidden_dropout", "model.attention_dropout"),
        advice="compare a short run's loss before relying on it",
        source=Source(path="megatron/core/tensor_parallel/random.py", where="CheckpointFunction"),
        bad=ex("0.19", **_FULL, hidden_dropout=0.1),
        good=ex("0.19", **_FULL),
    ),
)
"""Rows on what surrounds a job."""
