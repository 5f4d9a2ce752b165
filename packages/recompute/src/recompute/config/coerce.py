"""Typed reading: one value of a job file becomes the type its field has, or a clear error.

A row per type as written in :mod:`recompute.config.schema`. What Megatron itself would judge (labels,
granularity, number of layers) keeps any value of the right type, so that ``check`` can report it.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from typing import Any, Final

from recompute.config.layer_pattern import MAX_LAYERS, parse_layer_frequency
from recompute.config.schema import FrozenValue
from recompute.errors import ConfigError
from recompute.units import parse_bytes

MAX_SIZE: Final = 1 << 48
MAX_RANKS: Final = 1 << 20

DTYPES: Final[Mapping[str, str]] = {
    "float32": "fp32",
    "float": "fp32",
    "fp32": "fp32",
    "32": "fp32",
    "bfloat16": "bf16",
    "bf16": "bf16",
    "float16": "fp16",
    "half": "fp16",
    "fp16": "fp16",
    "uint8": "fp8",
    "fp8": "fp8",
}
"""Spelling of a dtype, without ``torch.`` -> ours. Megatron writes FP8 states as ``torch.uint8``."""
DTYPE_FIELDS: Final = frozenset(
    (
        "params_dtype",
        "logit_dtype",
        "moe_router_dtype",
        "main_grads_dtype",
        "main_params_dtype",
        "exp_avg_dtype",
        "exp_avg_sq_dtype",
    )
)
ACTIVATIONS: Final[Mapping[str, str]] = {
    "gelu": "gelu",
    "gelu_pytorch_tanh": "gelu",
    "gelu_new": "gelu",
    "openai_gelu": "gelu",
    "fast_gelu": "gelu",
    "silu": "silu",
    "swish": "silu",
    "squared_relu": "squared_relu",
    "relu2": "squared_relu",
    "relu": "relu",
    "quick_gelu": "quick_gelu",
}
CHOICES: Final[Mapping[str, tuple[str, ...]]] = {
    "entry_point": ("bridge", "megatron-lm"),
    "transformer_impl": ("transformer_engine", "local", "inference_optimized"),
    "attention_backend": ("auto", "flash", "fused", "unfused", "local"),
    "normalization": ("LayerNorm", "RMSNorm"),
    "position_embedding_type": ("learned_absolute", "rope", "yarn", "mrope", "relative", "none"),
    "cross_entropy_fusion_impl": ("native", "te", "linear"),
    "fp8": ("e4m3", "hybrid"),
    "fp8_recipe": ("delayed", "tensorwise", "mxfp8", "blockwise", "custom"),
    "fp4": ("e2m1",),
    "fp4_recipe": ("nvfp4", "custom"),
    "softmax_type": ("vanilla", "off-by-one", "learnable"),
    "moe_token_dispatcher_type": ("allgather", "alltoall", "alltoall_seq", "flex"),
    "moe_router_score_function": ("softmax", "sigmoid", "sqrtsoftplus"),
    "moe_token_drop_policy": ("probs", "position"),
    "dsa_kernel_backend": ("none", "tilelang", "cudnn"),
    "data_parallel_sharding_strategy": (
        "no_shard",
        "optim",
        "optim_grads",
        "optim_grads_params",
    ),
}
"""Fields with a closed set of values that decides what is stored; recompute's own are for ``check``."""
KEEP_TEXT: Final = frozenset(("recompute_granularity", "recompute_method"))
"""Any scalar is kept as text: whether it is legal is a rule, not a reading error."""
FREQUENCIES: Final = frozenset(
    ("moe_layer_freq", "linear_attention_freq", "window_attn_skip_freq", "no_rope_freq")
)
POSITIVE: Final[Mapping[str, int]] = {
    "num_layers": MAX_LAYERS,
    "hidden_size": MAX_SIZE,
    "num_attention_heads": MAX_SIZE,
    "num_query_groups": MAX_SIZE,
    "ffn_hidden_size": MAX_SIZE,
    "kv_channels": MAX_SIZE,
    "vocab_size": MAX_SIZE,
    "make_vocab_size_divisible_by": MAX_SIZE,
    "seq_length": MAX_SIZE,
    "q_lora_rank": MAX_SIZE,
    "kv_lora_rank": MAX_SIZE,
    "qk_head_dim": MAX_SIZE,
    "v_head_dim": MAX_SIZE,
    "dsa_indexer_n_heads": MAX_SIZE,
    "dsa_indexer_head_dim": MAX_SIZE,
    "dsa_indexer_topk": MAX_SIZE,
    "dsa_indexer_topk_freq": MAX_LAYERS,
    "linear_conv_kernel_dim": MAX_SIZE,
    "linear_key_head_dim": MAX_SIZE,
    "linear_value_head_dim": MAX_SIZE,
    "linear_num_key_heads": MAX_SIZE,
    "linear_num_value_heads": MAX_SIZE,
    "mamba_state_dim": MAX_SIZE,
    "mamba_head_dim": MAX_SIZE,
    "mamba_num_groups": MAX_SIZE,
    "mamba_num_heads": MAX_SIZE,
    "num_moe_experts": MAX_RANKS,
    "moe_ffn_hidden_size": MAX_SIZE,
    "moe_router_topk": MAX_RANKS,
    "moe_latent_size": MAX_SIZE,
    "moe_shared_expert_intermediate_size": MAX_SIZE,
    "tensor_model_parallel_size": MAX_RANKS,
    "pipeline_model_parallel_size": MAX_RANKS,
    "virtual_pipeline_model_parallel_size": MAX_RANKS,
    "context_parallel_size": MAX_RANKS,
    "expert_model_parallel_size": MAX_RANKS,
    "expert_tensor_parallel_size": MAX_RANKS,
    "microbatch_group_size_per_vp_stage": MAX_RANKS,
    "num_layers_in_first_pipeline_stage": MAX_LAYERS,
    "num_layers_in_last_pipeline_stage": MAX_LAYERS,
    "micro_batch_size": MAX_SIZE,
    "global_batch_size": MAX_SIZE,
    "num_distributed_optimizer_instances": MAX_RANKS,
    "dim": MAX_SIZE,
    "num_gpus": MAX_RANKS,
    "memory_bytes": MAX_SIZE,
}
"""Sizes: at least 1, at most the value here."""
MAX_OF: Final[Mapping[str, int]] = {"mtp_num_layers": 64}
"""Bounds of fields that may be 0."""
NOT_NEGATIVE: Final = frozenset(
    (
        "hidden_dropout",
        "attention_dropout",
        "dropout",
        "dsa_indexer_loss_coeff",
        "qk_pos_emb_head_dim",
        "mtp_num_layers",
        "train_iters",
        "bucket_size",
        "num_layers_at_start_in_bf16",
        "num_layers_at_end_in_bf16",
        "optimizer_offload_fraction",
    )
)
ZERO_IS_NONE: Final = frozenset(
    ("moe_shared_expert_intermediate_size", "num_moe_experts", "q_lora_rank")
)
"""Bridge writes these as 0 or leaves them null, meaning the same."""


def coerce(section: str, name: str, kind: str, value: FrozenValue) -> FrozenValue:
    """Return ``value`` as the type ``kind``.

    Args:
        section: Section of the field.
        name: The field.
        kind: Type as written in the schema, for example ``int | None``.
        value: As read: null, boolean, number, text, tuple or mapping.

    Raises:
        ConfigError: ``wrong-type``, ``bad-value`` or ``bad-layer-frequency``.
    """
    field = f"{section}.{name}"
    if value is None:
        return None
    if name in ZERO_IS_NONE and value == 0 and value is not False:
        return None
    result = _special(field, name, value)
    if result is _ORDINARY:
        result = _READERS[kind.removesuffix(" | None")](field, kind, value)
    _check_range(field, name, result)
    return result


_ORDINARY: Final = object()


def _special(field: str, name: str, value: FrozenValue) -> FrozenValue:
    """Read the fields whose spelling is richer than their type."""
    result: FrozenValue = _ORDINARY
    if name in KEEP_TEXT and not isinstance(value, tuple | Mapping):
        result = str(value)
    elif name in DTYPE_FIELDS and isinstance(value, str | int):
        result = _lookup(field, DTYPES, str(value).removeprefix("torch."), "unknown dtype")
    elif not isinstance(value, str):
        result = _ORDINARY
    elif name == "memory_bytes":
        size = parse_bytes(value)
        result = _ORDINARY if size is None else size
    elif name == "activation_func":
        result = _lookup(field, ACTIVATIONS, value.rpartition(".")[2], "unknown activation")
    elif name in FREQUENCIES:
        result = parse_layer_frequency(value, field)
    elif name in CHOICES:
        result = _choose(field, CHOICES[name], value)
    return result


def _lookup(field: str, table: Mapping[str, str], value: str, what: str) -> str:
    if value in table:
        return table[value]
    raise ConfigError(
        "bad-value",
        f"{field}: {what} {value[:60]!r}",
        hint="one of " + ", ".join(sorted(set(table.values()))),
        data={"field": field, "value": value[:200]},
    )


def _choose(field: str, choices: tuple[str, ...], value: str) -> str:
    for choice in choices:
        if value.lower() == choice.lower():
            return choice
    raise ConfigError(
        "bad-value",
        f"{field}: {value[:60]!r} is not one of its values",
        hint="one of " + ", ".join(choices),
        data={"field": field, "value": value[:200], "choices": list(choices)},
    )


_WITH_PREFIX: Final = re.compile(r"([0-9]{1,6}(?:\.[0-9]{1,3})?)\s*([kKmM])i?")


def _example(field: str, kind: str, value: FrozenValue) -> str:
    """Return what to write in place of a value: ``4096`` for ``4k``."""
    match = _WITH_PREFIX.fullmatch(value.strip()) if isinstance(value, str) else None
    if kind == "int" and match is not None:
        lengths = field.endswith(("length", "size"))
        unit = 1024 if lengths and "vocab" not in field else 1000
        return str(int(float(match[1]) * (unit if match[2] in "kK" else unit**2)))
    return _EXAMPLES.get(kind, "VALUE")


def wrong_type(field: str, kind: str, value: FrozenValue) -> ConfigError:
    """Return the error for a value of another type than its field's."""
    return ConfigError(
        "wrong-type",
        f"{field}: {shown(value)} is not {_PHRASES.get(kind.removesuffix(' | None'), kind)}",
        hint=f"write {field}=" + _example(field, kind.removesuffix(" | None"), value),
        data={"field": field, "expected": kind, "value": shown(value)},
    )


def shown(value: FrozenValue) -> str:
    """Write a value for a message, cut short."""
    if value is None:
        return "null"
    if isinstance(value, Mapping):
        return "a mapping"
    if isinstance(value, tuple):
        return "a list"
    return repr(value)[:60]


def _check_range(field: str, name: str, value: FrozenValue) -> None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return
    limit = POSITIVE.get(name)
    low = 1 if limit is not None else 0 if name in NOT_NEGATIVE else None
    if low is not None and value < low:
        raise ConfigError(
            "bad-value",
            f"{field}: {value} is less than {low}",
            hint=f"write {field}={low} or more",
            data={"field": field, "value": value, "minimum": low},
        )
    limit = limit or MAX_OF.get(name, MAX_SIZE)
    if value > limit:
        raise ConfigError(
            "bad-value",
            f"{field}: {value} is more than any job has",
            hint=f"at most {limit}",
            data={"field": field, "value": value, "maximum": limit},
        )


# --- one reader per type


def _int(field: str, kind: str, value: FrozenValue) -> int:
    if isinstance(value, float) and math.isfinite(value) and value == int(value):
        return int(value)
    if not isinstance(value, int) or isinstance(value, bool):
        raise wrong_type(field, kind, value)
    return value


def _float(field: str, kind: str, value: FrozenValue) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise wrong_type(field, kind, value)
    return float(value) if abs(value) < 1e300 else value


def _bool(field: str, kind: str, value: FrozenValue) -> bool:
    if not isinstance(value, bool):
        raise wrong_type(field, kind, value)
    return value


def _str(field: str, kind: str, value: FrozenValue) -> str:
    if not isinstance(value, str):
        raise wrong_type(field, kind, value)
    return value


def _texts(field: str, kind: str, value: FrozenValue) -> tuple[str, ...]:
    if field == "model.recompute_modules" and isinstance(value, str):
        # Megatron iterates whatever it gets: a string is read letter by letter, and check says so.
        return tuple(value)
    if field in _WORD_LISTS and isinstance(value, str):
        return tuple(word for word in value.replace(",", " ").split() if word)
    if not isinstance(value, tuple):
        raise wrong_type(field, kind, value)
    if not all(isinstance(item, str | int | float) for item in value):
        raise wrong_type(field, kind, value)
    return tuple(str(item) for item in value)


_WORD_LISTS: Final = frozenset(("model.cuda_graph_scope", "model.cuda_graph_modules"))
"""Megatron Core up to 0.15 took one word here."""


def _ints(field: str, kind: str, value: FrozenValue) -> tuple[int, ...]:
    if not isinstance(value, tuple):
        raise wrong_type(field, kind, value)
    return tuple(_int(field, kind, item) for item in value)


def _int_pair(field: str, kind: str, value: FrozenValue) -> tuple[int, ...]:
    if isinstance(value, int) and not isinstance(value, bool):
        return (value, 0)
    pair = _ints(field, kind, value)
    if len(pair) != 2:
        raise wrong_type(field, kind, value)
    return pair


def _int_or_ints(field: str, kind: str, value: FrozenValue) -> int | tuple[int, ...]:
    if isinstance(value, tuple):
        return _ints(field, kind, value)
    return _int(field, kind, value)


def _float_or_floats(field: str, kind: str, value: FrozenValue) -> float | tuple[float, ...]:
    if isinstance(value, tuple):
        return tuple(_float(field, kind, item) for item in value)
    return _float(field, kind, value)


def _str_or_strs(field: str, kind: str, value: FrozenValue) -> str | tuple[str, ...]:
    if isinstance(value, tuple):
        return _texts(field, kind, value)
    return _str(field, kind, value)


def _mapping(field: str, kind: str, value: FrozenValue) -> FrozenValue:
    if not isinstance(value, Mapping):
        raise wrong_type(field, kind, value)
    return dict(value)


def _anything(field: str, kind: str, value: FrozenValue) -> FrozenValue:  # noqa: ARG001 - a row
    return value


_READERS: Final[Mapping[str, Callable[[str, str, FrozenValue], Any]]] = {
    "int": _int,
    "float": _float,
    "bool": _bool,
    "str": _str,
    "tuple[str, ...]": _texts,
    "tuple[int, int]": _int_pair,
    "int | tuple[int, ...]": _int_or_ints,
    "float | tuple[float, ...]": _float_or_floats,
    "str | tuple[str, ...]": _str_or_strs,
    "Mapping[str, FrozenValue]": _mapping,
    "FrozenValue": _anything,
}
_PHRASES: Final[Mapping[str, str]] = {
    "int": "a whole number",
    "float": "a finite number",
    "bool": "true or false",
    "str": "text",
    "tuple[str, ...]": "a list of names",
    "tuple[int, int]": "a list of two numbers",
    "int | tuple[int, ...]": "a whole number or a list of them",
    "float | tuple[float, ...]": "a number or a list of numbers",
    "str | tuple[str, ...]": "a name or a list of names",
    "Mapping[str, FrozenValue]": "a mapping",
}
_EXAMPLES: Final[Mapping[str, str]] = {
    "int": "NUMBER, digits only",
    "float": "NUMBER",
    "bool": "true",
    "tuple[str, ...]": "[mlp]",
    "tuple[int, int]": "[128,0]",
    "int | tuple[int, ...]": "NUMBER",
    "float | tuple[float, ...]": "NUMBER",
}
