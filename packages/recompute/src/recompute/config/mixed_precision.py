"""``mixed_precision``: a named recipe or its fields, and what Bridge writes into the other sections.

Bridge copies every field of the recipe, defaults included, over the field of that name in ``model``,
``optimizer`` and ``ddp``, whatever was given there. Each value that differs becomes a
:class:`~recompute.config.schema.Change`.

Source: NVIDIA-NeMo/Megatron-Bridge 067f987d src/megatron/bridge/training/mixed_precision.py
``MixedPrecisionConfig``, ``update_config_with_precision_overrides`` and the registered recipes.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Final

from recompute.config.coerce import DTYPES
from recompute.config.draft import Draft
from recompute.config.schema import FrozenValue
from recompute.config.section_types import default_of
from recompute.errors import ConfigError

SOURCE: Final = (
    "NVIDIA-NeMo/Megatron-Bridge 067f987d src/megatron/bridge/training/mixed_precision.py "
    "update_config_with_precision_overrides"
)

DEFAULTS: Final[Mapping[str, Any]] = MappingProxyType(
    {
        "fp16": False,
        "bf16": False,
        "params_dtype": None,
        "grad_reduce_in_fp32": True,
        "fp8": None,
        "fp8_recipe": "tensorwise",
        "first_last_layers_bf16": False,
        "fp8_margin": 0,
        "fp8_amax_history_len": 1,
        "fp8_wgrad": True,
        "fp8_dot_product_attention": False,
        "fp8_multi_head_attention": False,
        "fp8_param_gather": False,
        "fp4": None,
        "fp4_recipe": "nvfp4",
        "fp4_param_gather": False,
        "loss_scale": None,
        "num_layers_at_start_in_bf16": 0,
        "num_layers_at_end_in_bf16": 0,
        "reuse_grad_buf_for_mxfp8_param_ag": False,
    }
)
"""Fields of the recipe that enter the job, with Bridge's defaults."""

_BF16: Final = {"bf16": True, "params_dtype": "bf16"}
_FP16: Final = {"fp16": True, "params_dtype": "fp16", "grad_reduce_in_fp32": False}
_DELAYED: Final = {
    "fp8": "hybrid",
    "fp8_recipe": "delayed",
    "fp8_amax_history_len": 1024,
    "fp8_param_gather": True,
}
_MXFP8: Final = {
    "fp8": "e4m3",
    "fp8_recipe": "mxfp8",
    "fp8_param_gather": True,
    "reuse_grad_buf_for_mxfp8_param_ag": True,
}
_CURRENT: Final = {
    "fp8": "hybrid",
    "fp8_recipe": "tensorwise",
    "first_last_layers_bf16": True,
    "num_layers_at_start_in_bf16": 1,
    "num_layers_at_end_in_bf16": 1,
    "fp8_param_gather": True,
}
_TWO_ENDS: Final = {"num_layers_at_start_in_bf16": 2, "num_layers_at_end_in_bf16": 2}
_SUBCHANNEL: Final = {"fp8": "hybrid", "fp8_recipe": "blockwise"}
_NVFP4: Final = {"fp4": "e2m1", "fp4_recipe": "nvfp4", "fp4_param_gather": True}

RECIPES: Final[Mapping[str, Mapping[str, Any]]] = {
    "bf16_mixed": _BF16,
    "fp16_mixed": _FP16,
    "bf16_with_fp8_delayed_scaling_mixed": {**_BF16, **_DELAYED},
    "fp16_with_fp8_delayed_scaling_mixed": {**_FP16, **_DELAYED},
    "bf16_with_mxfp8_mixed": {**_BF16, **_MXFP8},
    "fp16_with_mxfp8_mixed": {**_FP16, **_MXFP8},
    "bf16_with_fp8_current_scaling_mixed": {**_BF16, **_CURRENT},
    "fp16_with_fp8_current_scaling_mixed": {**_FP16, **_CURRENT},
    "nemotron_h_bf16_with_fp8_current_scaling_mixed": {**_BF16, **_CURRENT, **_TWO_ENDS},
    "nanov2_bf16_with_fp8_current_scaling_mixed": {
        **_BF16,
        **_CURRENT,
        **_TWO_ENDS,
        "fp8_recipe": "blockwise",
    },
    "bf16_with_fp8_subchannel_scaling_mixed": {**_BF16, **_SUBCHANNEL},
    "fp16_with_fp8_subchannel_scaling_mixed": {**_FP16, **_SUBCHANNEL},
    "bf16_with_nvfp4_mixed": {**_BF16, **_NVFP4},
    "nemotron_3_super_bf16_with_nvfp4_mixed": {
        **_BF16,
        **_NVFP4,
        "first_last_layers_bf16": True,
        "num_layers_at_end_in_bf16": 14,
    },
}
"""Recipe name -> the fields in which it differs from :data:`DEFAULTS`."""

TARGETS: Final[tuple[tuple[str, tuple[str, ...]], ...]] = (
    ("bf16", ("model.bf16",)),
    ("fp16", ("model.fp16",)),
    ("params_dtype", ("model.params_dtype",)),
    ("fp8", ("model.fp8",)),
    ("fp8_recipe", ("model.fp8_recipe", "optimizer.fp8_recipe")),
    ("first_last_layers_bf16", ("model.first_last_layers_bf16",)),
    ("fp8_margin", ("model.fp8_margin",)),
    ("fp8_amax_history_len", ("model.fp8_amax_history_len",)),
    ("fp8_wgrad", ("model.fp8_wgrad",)),
    ("fp8_dot_product_attention", ("model.fp8_dot_product_attention",)),
    ("fp8_multi_head_attention", ("model.fp8_multi_head_attention",)),
    ("fp8_param_gather", ("model.fp8_param", "ddp.fp8_param_gather")),
    ("fp4", ("model.fp4",)),
    ("fp4_recipe", ("model.fp4_recipe",)),
    ("fp4_param_gather", ("model.fp4_param",)),
    ("num_layers_at_start_in_bf16", ("model.num_layers_at_start_in_bf16",)),
    ("num_layers_at_end_in_bf16", ("model.num_layers_at_end_in_bf16",)),
    ("grad_reduce_in_fp32", ("ddp.grad_reduce_in_fp32",)),
    (
        "reuse_grad_buf_for_mxfp8_param_ag",
        ("ddp.reuse_grad_buf_for_mxfp8_param_ag", "optimizer.reuse_grad_buf_for_mxfp8_param_ag"),
    ),
    ("loss_scale", ("optimizer.loss_scale",)),
)
"""Field of the recipe -> the fields of the job that it overwrites."""

OVERWRITTEN_BY: Final[Mapping[str, str]] = MappingProxyType(
    {target: f"mixed_precision.{field}" for field, targets in TARGETS for target in targets}
)
"""Field of the job -> the field to set where the job has a ``mixed_precision``, which would overwrite it."""


_QUANTIZED: Final = frozenset(
    (
        "fp8_recipe",
        "first_last_layers_bf16",
        "fp8_margin",
        "fp8_amax_history_len",
        "fp8_wgrad",
        "fp4_recipe",
        "num_layers_at_start_in_bf16",
        "num_layers_at_end_in_bf16",
    )
)
"""Fields of ``model`` without effect in a job that has neither FP8 nor FP4; they are left alone there.

``optimizer.fp8_recipe`` does have one there (:attr:`recompute.config.schema.OptimizerConfig.core_keeps_masters`)."""


def recipe_fields(name: str) -> dict[str, Any]:
    """Return the fields in which a named recipe differs from the defaults.

    Raises:
        ConfigError: ``unknown-precision``.
    """
    key = name.replace("-", "_")
    if key in RECIPES:
        return dict(RECIPES[key])
    near = difflib.get_close_matches(key, RECIPES, 1, 0.5)
    raise ConfigError(
        "unknown-precision",
        f"mixed_precision: unknown recipe {name[:60]!r}",
        hint=f"did you mean {near[0]}?" if near else "one of " + ", ".join(RECIPES),
        data={"field": "mixed_precision", "value": name[:200], "choices": list(RECIPES)},
    )


def expand_mixed_precision(draft: Draft) -> None:
    """Write what the precision recipe sets into ``model``, ``ddp`` and ``optimizer``.

    Args:
        draft: Changed in place; each change is recorded.

    Raises:
        ConfigError: ``unknown-precision``, or ``wrong-type`` for anything but a name or fields.
    """
    given = _given(draft)
    if given is None:
        return
    values = {**DEFAULTS, **given}
    # Bridge keeps the two names of one switch equal.
    for gather, param in (("fp8_param_gather", "fp8_param"), ("fp4_param_gather", "fp4_param")):
        if given.get(param) is not None:
            values[gather] = given[param]
    dtype = values["params_dtype"]
    if isinstance(dtype, str):
        values["params_dtype"] = DTYPES.get(dtype.removeprefix("torch."), dtype)
    name = draft.whole.get("mixed_precision", "mixed_precision")
    quantized = any(values[low] or draft.get("model", low) for low in ("fp8", "fp4"))
    for field, targets in TARGETS:
        for target in targets:
            if field in _QUANTIZED and not quantized and target.startswith("model."):
                continue
            _overwrite(draft, target, values[field], f"{name} sets {field}")


def _given(draft: Draft) -> Mapping[str, FrozenValue] | None:
    if "mixed_precision" in draft.whole:
        name = draft.whole["mixed_precision"]
        if not isinstance(name, str):
            raise ConfigError(
                "wrong-type",
                "mixed_precision is neither the name of a recipe nor a mapping of its fields",
                hint="write mixed_precision: bf16_mixed",
                data={"field": "mixed_precision"},
            )
        return recipe_fields(name)
    return draft.sections.get("mixed_precision") or None


def _overwrite(draft: Draft, target: str, value: FrozenValue, why: str) -> None:
    section, _, field = target.partition(".")
    if section in draft.absent:
        return
    if value is None and field == "params_dtype":
        return
    if draft.get(section, field, default_of(section, field)) != value:
        draft.change(target, value, why, SOURCE)
