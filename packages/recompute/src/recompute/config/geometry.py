"""Does the job hang together: sizes that must divide, a world size that factors, batches that fit.

What Megatron or torch would refuse at start-up whatever the recompute settings are. Each check is a
row: a condition with the message and the fix. Rules about recompute are not here but in ``rules``.

Source: NVIDIA/Megatron-LM core_v0.19.0 megatron/core/transformer/transformer_config.py
``TransformerConfig.__post_init__``, megatron/core/model_parallel_config.py, megatron/core/parallel_state.py
``initialize_model_parallel``, megatron/training/arguments.py ``validate_args``.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

from recompute.config.pipeline import chunk_count, layers_per_chunk
from recompute.config.schema import JobConfig, ModelConfig
from recompute.errors import ConfigError

Problem = tuple[str, str, str, Mapping[str, Any]]
"""Code, message, hint, data."""


def check_geometry(job: JobConfig) -> None:
    """Refuse a job whose sizes do not fit together.

    Args:
        job: Typed and in range; a job whose architecture is not known is checked as far as it goes.

    Raises:
        ConfigError: ``missing-field``, ``does-not-divide``, ``layer-count``, ``world-size``,
            ``batch-size``, ``pipeline-split``, ``pipeline-layout``, ``conflicting-values`` or
            ``unknown-gpu``.
    """
    for check in _CHECKS:
        for code, message, hint, data in check(job):
            raise ConfigError(code, message, hint=hint, data=data)
    if job.model.num_layers:
        _check_pipeline(job)
    if job.hardware.gpu is not None and job.hardware.memory_bytes is None:
        from recompute.config.gpus import find_gpu

        find_gpu(job.hardware.gpu)


def data_parallel_size(job: JobConfig) -> int | None:
    """Return the ranks that hold the same shard, or ``None`` when the job names no GPU count."""
    if job.hardware.num_gpus is None:
        return None
    return max(1, job.hardware.num_gpus // model_parallel_size(job.model))


def model_parallel_size(model: ModelConfig) -> int:
    """Return the ranks that hold one copy of the model: TP x PP x CP."""
    return (
        model.tensor_model_parallel_size
        * model.pipeline_model_parallel_size
        * model.context_parallel_size
    )


def _divides(
    name: str, value: int | None, divisor_name: str, divisor: int, hint: str = ""
) -> Iterator[Problem]:
    """Yield a problem when ``value`` is not a multiple of ``divisor``."""
    if value is None or divisor < 1 or value % divisor == 0:
        return
    nearest = -(-value // divisor) * divisor
    yield (
        "does-not-divide",
        f"{name}={value} is not a multiple of {divisor_name}={divisor}",
        hint or f"for example {name}={nearest}, or another {divisor_name}",
        {"field": name, "value": value, "divisor": divisor_name, "divisor_value": divisor},
    )


def _architecture(job: JobConfig) -> Iterator[Problem]:
    model = job.model
    if _architecture_unknown(job):
        return
    needed = ["num_layers", "hidden_size"]
    if model.hybrid_override_pattern is None or "*" in model.hybrid_override_pattern:
        needed.append("num_attention_heads")
    absent = [f"model.{name}" for name in needed if getattr(model, name) == 0]
    if absent:
        yield (
            "missing-field",
            "the job does not give " + ", ".join(absent),
            "add " + " ".join(f"{name}=VALUE" for name in absent),
            {"field": absent[0], "fields": absent},
        )


def _architecture_unknown(job: JobConfig) -> bool:
    return any(item.id == "architecture-unknown" for item in job.assumptions)


def _heads(job: JobConfig) -> Iterator[Problem]:
    model, tp = job.model, job.model.tensor_model_parallel_size
    heads = model.num_attention_heads
    yield from _divides("model.num_attention_heads", heads, "model.tensor_model_parallel_size", tp)
    if model.kv_channels is None and not model.multi_latent_attention and heads:
        yield from _divides(
            "model.hidden_size",
            model.hidden_size,
            "model.num_attention_heads",
            heads,
            hint="give model.kv_channels, or a hidden size that the heads divide",
        )
    groups = model.num_query_groups
    if groups is None or model.multi_latent_attention or not heads:
        return
    yield from _divides("model.num_attention_heads", heads, "model.num_query_groups", groups)
    if groups % tp and tp % groups:
        yield (
            "does-not-divide",
            f"model.num_query_groups={groups} neither divides nor is divided by TP={tp}",
            "choose a tensor parallel size that divides the query groups",
            {"field": "model.num_query_groups", "value": groups, "divisor_value": tp},
        )


def _widths(job: JobConfig) -> Iterator[Problem]:
    model, tp = job.model, job.model.tensor_model_parallel_size
    tp_name = "model.tensor_model_parallel_size"
    yield from _divides("model.ffn_hidden_size", model.ffn_hidden_size, tp_name, tp)
    if model.num_moe_experts is not None:
        etp = model.expert_tensor_parallel_size
        yield from _divides(
            "model.moe_ffn_hidden_size",
            model.moe_ffn_hidden_size,
            tp_name if etp is None else "model.expert_tensor_parallel_size",
            tp if etp is None else etp,
        )
        yield from _divides(
            "model.moe_shared_expert_intermediate_size",
            model.moe_shared_expert_intermediate_size,
            tp_name,
            tp,
        )
    if not model.should_pad_vocab:
        yield from _divides("model.vocab_size", model.vocab_size, tp_name, tp)


def _experts(job: JobConfig) -> Iterator[Problem]:
    model = job.model
    ep = model.expert_model_parallel_size
    if model.num_moe_experts is not None:
        yield from _divides(
            "model.num_moe_experts", model.num_moe_experts, "model.expert_model_parallel_size", ep
        )
    elif ep > 1 and not _architecture_unknown(job):
        yield (
            "conflicting-values",
            f"model.expert_model_parallel_size={ep} without experts",
            "give model.num_moe_experts, or model.expert_model_parallel_size=1",
            {"field": "model.expert_model_parallel_size", "value": ep},
        )
    topk, experts = model.moe_router_topk, model.num_moe_experts
    if experts is not None and topk > experts:
        yield (
            "conflicting-values",
            f"model.moe_router_topk={topk} is more than model.num_moe_experts={experts}",
            f"model.moe_router_topk={experts} or less",
            {"field": "model.moe_router_topk", "value": topk},
        )


def _frequencies(job: JobConfig) -> Iterator[Problem]:
    model = job.model
    for name in (
        "moe_layer_freq",
        "linear_attention_freq",
        "window_attn_skip_freq",
        "no_rope_freq",
    ):
        value = getattr(model, name)
        if isinstance(value, tuple) and model.num_layers and len(value) != model.num_layers:
            yield (
                "layer-count",
                f"model.{name} speaks about {len(value)} layers, the job has {model.num_layers}",
                f"give one 0 or 1 for each of the {model.num_layers} layers",
                {"field": f"model.{name}", "value": len(value), "num_layers": model.num_layers},
            )
        elif isinstance(value, int) and value < 1:
            yield (
                "bad-value",
                f"model.{name}={value} is less than 1",
                f"model.{name}=1 means every layer",
                {"field": f"model.{name}", "value": value},
            )


def _pattern(job: JobConfig) -> Iterator[Problem]:
    model = job.model
    pattern = model.hybrid_override_pattern
    if pattern is None:
        return
    length = len(pattern.partition("/")[0].replace("|", ""))
    if model.num_layers and length != model.num_layers:
        yield (
            "layer-count",
            f"model.hybrid_override_pattern has {length} symbols, the job has {model.num_layers} layers",
            f"model.num_layers={length}, or one symbol for each layer",
            {"field": "model.hybrid_override_pattern", "value": length},
        )


def _sequence(job: JobConfig) -> Iterator[Problem]:
    model = job.model
    cp, tp = model.context_parallel_size, model.tensor_model_parallel_size
    if cp > 1:
        yield from _divides(
            "model.seq_length", model.seq_length, "2 * model.context_parallel_size", 2 * cp
        )
    if model.sequence_parallel and tp > 1 and model.seq_length is not None:
        yield from _divides(
            "model.seq_length",
            model.seq_length,
            "model.tensor_model_parallel_size * model.context_parallel_size",
            tp * cp,
        )


def _precision(job: JobConfig) -> Iterator[Problem]:
    model = job.model
    for one, other in (("bf16", "fp16"), ("fp8", "fp4")):
        if getattr(model, one) and getattr(model, other):
            yield (
                "conflicting-values",
                f"model.{one} and model.{other} are both set",
                f"keep one: model.{other}=" + ("false" if one == "bf16" else "null"),
                {"field": f"model.{one}"},
            )
    for low in ("fp8", "fp4"):
        if getattr(model, f"{low}_param") and not getattr(model, low):
            yield (
                "conflicting-values",
                f"model.{low}_param=true without model.{low}",
                f"model.{low}_param=false, or give model.{low}",
                {"field": f"model.{low}_param"},
            )


def _world(job: JobConfig) -> Iterator[Problem]:
    model, world = job.model, job.hardware.num_gpus
    if world is None:
        return
    whole = model_parallel_size(model)
    accepted = _accepted_count(job, world)
    if world % whole:
        yield (
            "world-size",
            f"hardware.num_gpus={world} is not a multiple of TP x PP x CP = {whole}",
            f"hardware.num_gpus={accepted}, or other parallel sizes",
            {"field": "hardware.num_gpus", "value": world, "model_parallel_size": whole},
        )
    expert = _expert_parallel_size(model)
    if model.expert_model_parallel_size > 1 and world % expert:
        yield (
            "world-size",
            f"hardware.num_gpus={world} is not a multiple of ETP x EP x PP = {expert}{_inherited(model)}",
            f"hardware.num_gpus={accepted}, or other expert parallel sizes"
            + (", or model.expert_tensor_parallel_size=1" if _inherited(model) else ""),
            {"field": "hardware.num_gpus", "value": world, "expert_parallel_size": expert},
        )


def _inherited(model: ModelConfig) -> str:
    """Say that the expert tensor parallel size is not the job's own, where it is above one."""
    if model.expert_tensor_parallel_size or model.tensor_model_parallel_size == 1:
        return ""
    return f" (ETP is not given: Megatron takes TP, {model.tensor_model_parallel_size})"


def _expert_parallel_size(model: ModelConfig) -> int:
    """Return the ranks that hold one copy of the experts: ETP x EP x PP."""
    etp = model.expert_tensor_parallel_size or model.tensor_model_parallel_size
    return etp * model.expert_model_parallel_size * model.pipeline_model_parallel_size


def _accepted_count(job: JobConfig, world: int) -> int:
    """Return the nearest GPU count, larger first, that every size and the global batch divide."""
    model, whole = job.model, model_parallel_size(job.model)
    step = whole
    if model.expert_model_parallel_size > 1:
        step = math.lcm(whole, _expert_parallel_size(model))
    first = -(-world // step)
    micro, batch = job.train.micro_batch_size, job.train.global_batch_size
    if micro is None or batch is None:
        return first * step
    larger = range(first, first + _COUNTS_TRIED)
    smaller = range(first - 1, max(first - _COUNTS_TRIED, 0), -1)
    counts: list[int] = [*larger, *smaller]
    for times in counts:
        if batch % (micro * (times * step // whole)) == 0:
            return times * step
    return first * step


_COUNTS_TRIED: Final = 256
"""Multiples looked at on either side."""


def _batch(job: JobConfig) -> Iterator[Problem]:
    micro, whole = job.train.micro_batch_size, job.train.global_batch_size
    if micro is None or whole is None:
        return
    data_parallel = data_parallel_size(job) or 1
    step = micro * data_parallel
    if whole % step:
        yield (
            "batch-size",
            f"train.global_batch_size={whole} is not a multiple of {micro} x {data_parallel} (micro-batch x DP)",
            f"train.global_batch_size={-(-whole // step) * step}",
            {"field": "train.global_batch_size", "value": whole, "multiple_of": step},
        )


def _stages(job: JobConfig) -> Iterator[Problem]:
    model = job.model
    virtual = model.virtual_pipeline_model_parallel_size
    if virtual is not None and virtual > 1 and model.pipeline_model_parallel_size == 1:
        yield (
            "conflicting-values",
            f"model.virtual_pipeline_model_parallel_size={virtual} without pipeline parallelism",
            "model.virtual_pipeline_model_parallel_size=null",
            {"field": "model.virtual_pipeline_model_parallel_size", "value": virtual},
        )


_CHECKS: Final[tuple[Callable[[JobConfig], Iterator[Problem]], ...]] = (
    _architecture,
    _heads,
    _widths,
    _experts,
    _frequencies,
    _pattern,
    _sequence,
    _precision,
    _stages,
    _world,
    _batch,
)


def _check_pipeline(job: JobConfig) -> None:
    model = job.model
    total = sum(sum(row) for row in layers_per_chunk(job))
    if total != model.num_layers:
        raise ConfigError(
            "pipeline-layout",
            f"pipeline_model_parallel_layout places {total} layers, the job has {model.num_layers}",
            hint="give one t for each layer, or model.pipeline_model_parallel_layout=null",
            data={"field": "model.pipeline_model_parallel_layout", "value": total},
        )
    chunks, virtual = chunk_count(model), model.virtual_pipeline_model_parallel_size
    if model.pipeline_model_parallel_layout is not None and virtual not in {None, chunks}:
        raise ConfigError(
            "pipeline-layout",
            f"pipeline_model_parallel_layout has {chunks} chunks per rank, "
            f"model.virtual_pipeline_model_parallel_size={virtual}",
            hint=f"model.virtual_pipeline_model_parallel_size={chunks}",
            data={"field": "model.virtual_pipeline_model_parallel_size", "value": virtual},
        )
