"""Build the model, its wrappers and its optimizer from a workload (see :mod:`recompute.measure.workload`)."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from recompute.config.choice import RecomputeChoice
from recompute.errors import UnsupportedError
from recompute.megatron.specs import hybrid_kind, layer_spec, prediction_spec

DTYPES: Final = {"fp32": "float32", "bf16": "bfloat16", "fp16": "float16", "fp64": "float64"}
MODEL_ONLY: Final = frozenset(
    (
        "vocab_size",
        "should_pad_vocab",
        "make_vocab_size_divisible_by",
        "seq_length",
        "position_embedding_type",
        "share_embeddings_and_output_weights",
        "transformer_impl",
        "multi_latent_attention",
        "logit_dtype",
        "is_hybrid_model",
        "init_model_with_meta_device",
        "fp8_param",
        "qk_l2_norm",
        "hybrid_override_pattern",
    )
)
"""Fields of a job's model that are not fields of the config: they go to the model or choose its class."""

CHOICE: Final = (
    "recompute_granularity",
    "recompute_method",
    "recompute_num_layers",
    "recompute_modules",
    "moe_layer_recompute",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Update:
    """A model ready to train."""

    model: list[Any]
    optimizer: Any
    begin: Callable[[], None]
    finish: Callable[[], None]


def config_of(torch: Any, workload: dict[str, Any], choice: RecomputeChoice) -> Any:
    """Return the real config of the installed Megatron Core.

    Raises:
        UnsupportedError: ``field-not-installed``: the job sets a field that this Megatron Core lacks.
    """
    from megatron.core.transformer import transformer_config

    model = workload["model"]
    latent = model["multi_latent_attention"]
    kind = (
        transformer_config.MLATransformerConfig if latent else transformer_config.TransformerConfig
    )
    known = {item.name: item for item in dataclasses.fields(kind)}
    values: dict[str, Any] = {}
    for name, value in model.items():
        if name in CHOICE or name in MODEL_ONLY or value is None:
            continue
        if name in known:
            values[name] = _value(torch, name, value)
        elif name in workload["given"]:
            raise UnsupportedError(
                "field-not-installed",
                f"the installed Megatron Core has no field {name}",
                hint="install the revision that the job names, or drop the field",
                data={"field": f"model.{name}"},
            )
    values |= _precision(torch, model) | _recompute(choice)
    config = kind(**values)
    config.use_cpu_initialization = bool(values.get("use_cpu_initialization", False))
    return config


def model_of(workload: dict[str, Any], config: Any, place: Any) -> list[Any]:
    """Return this rank's chunks, on its device and in the job's dtype."""
    from megatron.core import parallel_state

    model = workload["model"]
    virtual = model["virtual_pipeline_model_parallel_size"]
    chunks = []
    for stage in range(virtual or 1):
        number = stage if virtual else None
        ends = {
            "pre_process": parallel_state.is_pipeline_first_stage(
                ignore_virtual=False, vp_stage=number
            ),
            "post_process": parallel_state.is_pipeline_last_stage(
                ignore_virtual=False, vp_stage=number
            ),
        }
        chunk = _chunk(workload, config, number, ends).to(place)
        if model["bf16"] or model["fp16"]:
            chunk = chunk.bfloat16() if model["bf16"] else chunk.half()
        chunks.append(chunk.train())
    return chunks


def _chunk(workload: dict[str, Any], config: Any, stage: int | None, ends: dict[str, bool]) -> Any:
    """Return one chunk: a GPT, or a hybrid where the job has a layer pattern."""
    model = workload["model"]
    common = {
        "vocab_size": _vocabulary(model),
        "max_sequence_length": workload["seq_length"],
        "parallel_output": True,
        "share_embeddings_and_output_weights": model["share_embeddings_and_output_weights"],
        "position_embedding_type": model["position_embedding_type"],
        "vp_stage": stage,
        **ends,
    }
    if model["hybrid_override_pattern"]:
        kind, spec, pattern = hybrid_kind()
        return kind(config, spec, **common, **{pattern: model["hybrid_override_pattern"]})
    from megatron.core.models.gpt.gpt_model import GPTModel

    layers = layer_spec(model, config, stage)
    predicted = prediction_spec(model, config, layers, stage)
    return GPTModel(config, layers, mtp_block_spec=predicted, **common)


def optimizer_of(torch: Any, workload: dict[str, Any], chunks: list[Any]) -> Update:
    """Return the model under the job's DDP and optimizer; both null: a plain torch AdamW."""
    if workload["optimizer"] is None or workload["ddp"] is None:
        parameters = [p for chunk in chunks for p in chunk.parameters()]
        plain = torch.optim.AdamW(parameters, lr=1e-5, fused=parameters[0].is_cuda)

        def finish() -> None:
            plain.step()
            plain.zero_grad(set_to_none=True)

        return Update(model=chunks, optimizer=plain, begin=lambda: None, finish=finish)
    return _distributed(torch, workload, chunks)


def _distributed(torch: Any, workload: dict[str, Any], chunks: list[Any]) -> Update:
    from megatron.core.distributed import (
        DistributedDataParallel,
        DistributedDataParallelConfig,
        finalize_model_grads,
    )
    from megatron.core.optimizer import OptimizerConfig, get_megatron_optimizer

    config = chunks[0].config
    ddp = DistributedDataParallelConfig(
        **_known(torch, DistributedDataParallelConfig, workload["ddp"])
    )
    wrapped = [
        DistributedDataParallel(config, ddp, chunk, disable_bucketing=index > 0)
        for index, chunk in enumerate(chunks)
    ]
    values = _known(torch, OptimizerConfig, workload["optimizer"])
    half = {"bf16": config.bf16, "fp16": config.fp16, "params_dtype": config.params_dtype}
    optimizer = get_megatron_optimizer(OptimizerConfig(**{**values, **half, "lr": 1e-5}), wrapped)
    config.finalize_model_grads_func = finalize_model_grads
    config.grad_scale_func = optimizer.scale_loss

    def begin() -> None:
        for chunk in wrapped:
            chunk.zero_grad_buffer()
        optimizer.zero_grad()

    return Update(
        model=wrapped, optimizer=optimizer, begin=begin, finish=lambda: _updated(optimizer)
    )


def _updated(optimizer: Any) -> None:
    optimizer.step()


def _vocabulary(model: dict[str, Any]) -> int:
    """Return the vocabulary, padded as Megatron pads it."""
    size = int(model["vocab_size"])
    if not model["should_pad_vocab"]:
        return size
    unit = int(model["make_vocab_size_divisible_by"] * model["tensor_model_parallel_size"])
    return -(-size // unit) * unit


def _recompute(choice: RecomputeChoice) -> dict[str, Any]:
    """Return the four fields; a per-layer plan is applied after building."""
    if choice.per_layer is not None:
        return {"recompute_granularity": "selective", "recompute_modules": []}
    full = choice.recompute_granularity == "full"
    return {
        "recompute_granularity": choice.recompute_granularity,
        "recompute_modules": None if full else list(choice.recompute_modules),
        "recompute_method": choice.recompute_method,
        "recompute_num_layers": choice.recompute_num_layers,
    }


def _precision(torch: Any, model: dict[str, Any]) -> dict[str, Any]:
    dtype = getattr(torch, DTYPES[model["params_dtype"]])
    if model["bf16"] or model["fp16"]:
        dtype = torch.bfloat16 if model["bf16"] else torch.float16
    return {"params_dtype": dtype, "pipeline_dtype": dtype}


def _value(torch: Any, name: str, value: Any) -> Any:
    """Return a job's value as Megatron Core has it."""
    if name == "activation_func":
        return _activation(value)
    if name == "attention_backend":
        from megatron.core.transformer.enums import AttnBackend

        return AttnBackend[value]
    if name.endswith("_dtype") and value in DTYPES and name != "moe_router_dtype":
        return getattr(torch, DTYPES[value])
    if name == "window_size":
        return tuple(value)
    return value


def _activation(name: str) -> Any:
    from torch.nn import functional

    if name == "squared_relu":
        from megatron.core.activations import squared_relu

        return squared_relu
    if name == "quick_gelu":
        from megatron.core.fusions.fused_bias_geglu import quick_gelu

        return quick_gelu
    return getattr(functional, name)


def _known(torch: Any, kind: Any, values: dict[str, Any]) -> dict[str, Any]:
    """Return the values that a config class of the installed Megatron Core has fields for."""
    names = {item.name for item in dataclasses.fields(kind)}
    return {
        name: _value(torch, name, value)
        for name, value in values.items()
        if name in names and value is not None
    }
