"""Put a layer together: sublayers' operations plus the regions that labels recompute.

A layer is a mixer and a feed-forward, each a row of :data:`SUBLAYERS`, or one of them alone, as in a
hybrid stack. Adding a kind is the checklist docs/how-to/add-a-layer-type.md.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Final

from recompute.config.layer_pattern import layer_kinds as marked
from recompute.config.schema import ModelConfig
from recompute.errors import UnsupportedError
from recompute.model.ops.absorbed import absorbed_attention, absorbed_regions
from recompute.model.ops.attention import core_attention_region, self_attention
from recompute.model.ops.gdn import gated_delta_net, gdn_regions
from recompute.model.ops.linear import bias_dropout_add
from recompute.model.ops.mamba import mamba_mixer
from recompute.model.ops.mla import mla_attention, mla_regions
from recompute.model.ops.mlp import dense_mlp, mlp_act_region, mlp_region
from recompute.model.ops.moe import moe_mlp, moe_regions
from recompute.model.ops.mtp import mtp_tape
from recompute.model.ops.number_formats import quantized
from recompute.model.shape import Shape
from recompute.model.tape import Mechanism, Op, Region, Tape, Tensor

Part = tuple[tuple[Op, ...], tuple[Region, ...]]
"""Operations of a sublayer and the regions inside it."""
LayerBuilder = Callable[[ModelConfig, Shape], Tape]


def norm_region(norm: str, hook: str) -> Region:
    """One norm whose output is discarded after ``hook`` has run."""
    return Region(label="layernorm", mechanism=Mechanism.DISCARD, first=norm, last=norm, hook=hook)


def norm_act_region(norm: str, linear: str) -> Region:
    """One norm whose output is discarded as soon as the linear that alone reads it has run.

    Megatron has no such boundary: its ``layernorm`` brings the output back before the backward of the
    whole sublayer. Per-layer plans draw it in layers of the local spec, whose linears keep their input.
    Transformer Engine runs norm and linear in one function that keeps the output itself.
    """
    return Region(label="norm_act", mechanism=Mechanism.DISCARD, first=norm, last=norm, hook=linear)


# --- sublayers


def _attention(model: ModelConfig, shape: Shape, source: str, target: str) -> Part:
    ops = self_attention(model, shape, source, target)
    regions = [core_attention_region()]
    if model.transformer_impl == "local":
        regions.append(norm_region("input_layernorm", "self_attention.linear_proj"))
        regions.append(norm_act_region("input_layernorm", "self_attention.linear_qkv"))
    return ops, tuple(regions)


def _window_attention(model: ModelConfig, shape: Shape, source: str, target: str) -> Part:
    return _attention(model, shape, source, target)


def _full_attention(model: ModelConfig, shape: Shape, source: str, target: str) -> Part:
    return _attention(replace(model, window_size=None), shape, source, target)


def _no_rope_attention(model: ModelConfig, shape: Shape, source: str, target: str) -> Part:
    return _attention(replace(model, position_embedding_type="none"), shape, source, target)


def _latent_attention(model: ModelConfig, shape: Shape, source: str, target: str) -> Part:
    ops = mla_attention(model, shape, source, target)
    return ops, (core_attention_region(), *mla_regions(model, shape))


def _sparse_attention(model: ModelConfig, shape: Shape, source: str, target: str) -> Part:
    return absorbed_attention(model, shape, source, target), absorbed_regions(model)


def _delta_net(model: ModelConfig, shape: Shape, source: str, target: str) -> Part:
    return gated_delta_net(model, shape, source, target), gdn_regions(shape)


def _mamba(model: ModelConfig, shape: Shape, source: str, target: str) -> Part:
    return mamba_mixer(model, shape, source, target), ()


def _mlp(model: ModelConfig, shape: Shape, source: str, target: str) -> Part:
    ops = dense_mlp(model, shape, source, target)
    regions = [mlp_region(model), mlp_act_region(ops)]
    if model.transformer_impl == "local":
        regions.append(norm_region("pre_mlp_layernorm", "mlp.linear_fc2"))
        regions.append(norm_act_region("pre_mlp_layernorm", "mlp.linear_fc1"))
    return ops, tuple(regions)


def _moe(model: ModelConfig, shape: Shape, source: str, target: str) -> Part:
    ops = moe_mlp(model, shape, source, target)
    return ops, moe_regions(model, ops)


@dataclass(frozen=True, slots=True, kw_only=True)
class Sublayer:
    """One row of the table of sublayers."""

    build: Callable[[ModelConfig, Shape, str, str], Part]
    residual: str
    """Name of the addition behind it."""


SUBLAYERS: Final[dict[str, Sublayer]] = {
    "attention": Sublayer(build=_attention, residual="self_attn_bda"),
    "window": Sublayer(build=_window_attention, residual="self_attn_bda"),
    "global": Sublayer(build=_full_attention, residual="self_attn_bda"),
    "nope": Sublayer(build=_no_rope_attention, residual="self_attn_bda"),
    "mla": Sublayer(build=_latent_attention, residual="self_attn_bda"),
    "dsa": Sublayer(build=_sparse_attention, residual="self_attn_bda"),
    "gdn": Sublayer(build=_delta_net, residual="self_attn_bda"),
    "mamba": Sublayer(build=_mamba, residual="mamba_bda"),
    "mlp": Sublayer(build=_mlp, residual="mlp_bda"),
    "moe": Sublayer(build=_moe, residual="mlp_bda"),
}
"""Name -> sublayer. The first eight mix tokens, the last two do not."""

MIXERS: Final = ("attention", "window", "global", "nope", "mla", "dsa", "gdn")
FEED_FORWARDS: Final = ("mlp", "moe")


def layer_of(*names: str) -> LayerBuilder:
    """Return the builder of a layer of these sublayers, each with bias, dropout and residual.

    Source: NVIDIA/Megatron-LM core_v0.19.0 megatron/core/transformer/transformer_layer.py
    TransformerLayer.forward, megatron/core/ssm/mamba_layer.py MambaLayer.forward; specs in
    megatron/core/models/gpt/gpt_layer_specs.py and megatron/core/models/hybrid/hybrid_layer_specs.py.
    """

    def build(model: ModelConfig, shape: Shape) -> Tape:
        stream, ops, regions = "hidden", list[Op](), list[Region]()
        for index, name in enumerate(names):
            row, output = SUBLAYERS[name], f"{name}_out"
            after = "layer_out" if index == len(names) - 1 else f"after_{name}"
            part, inside = row.build(model, shape, stream, output)
            ops += part
            ops.append(
                bias_dropout_add(row.residual, output, stream, after, model=model, shape=shape)
            )
            regions += inside
            stream = after
        return Tape(
            name="+".join(names),
            inputs=(Tensor(name="hidden", size=shape.stream),),
            outputs=("layer_out",),
            ops=quantized(model, shape, tuple(ops)),
            regions=tuple(regions),
        )

    return build


def _mtp_of(inner: LayerBuilder) -> LayerBuilder:
    def build(model: ModelConfig, shape: Shape) -> Tape:
        return mtp_tape(model, shape, inner(model, shape))

    return build


def _in_16_bits(builder: LayerBuilder) -> LayerBuilder:
    def build(model: ModelConfig, shape: Shape) -> Tape:
        return builder(replace(model, fp8=None, fp4=None), shape)

    return build


_PAIRS: Final = {f"{m}+{f}": layer_of(m, f) for m in MIXERS for f in FEED_FORWARDS}
_SINGLES: Final = {name: layer_of(name) for name in SUBLAYERS}
_LAYERS: Final = {**_PAIRS, **_SINGLES}
WIDE: Final = "@bf16"
"""Suffix of a layer that stays in 16 bits inside a quantized model (``first_last_layers_bf16``)."""
LAYER_KINDS: Final[dict[str, LayerBuilder]] = {
    **_LAYERS,
    **{f"{kind}{WIDE}": _in_16_bits(builder) for kind, builder in _LAYERS.items()},
    **{f"mtp+{kind}": _mtp_of(builder) for kind, builder in _PAIRS.items()},
}
"""Kind -> builder: mixer and feed-forward, one of them alone, such a layer left in 16 bits, or an MTP
depth around one."""

_HYBRID: Final = {"M": "mamba", "*": "attention", "-": "mlp", "E": "moe", "G": "gdn"}
"""Symbol of a hybrid pattern -> kind
(megatron/core/models/hybrid/hybrid_layer_allocation.py Symbols)."""


def dense_layer(model: ModelConfig, shape: Shape) -> Tape:
    """A dense transformer layer."""
    return LAYER_KINDS["attention+mlp"](model, shape)


# --- which layers a model has


def layer_kinds(model: ModelConfig) -> tuple[str, ...]:
    """Return the kind of every decoder layer, in global order.

    Raises:
        UnsupportedError: ``unsupported-layer``: a variant or symbol that is not modelled, named.
    """
    kinds = _kinds(model)
    if not model.first_last_layers_bf16 or (model.fp8 is None and model.fp4 is None):
        return kinds
    first = model.num_layers_at_start_in_bf16
    last = len(kinds) - model.num_layers_at_end_in_bf16
    return tuple(
        kind if first <= index < last else f"{kind}{WIDE}" for index, kind in enumerate(kinds)
    )


def _kinds(model: ModelConfig) -> tuple[str, ...]:
    _refuse_variant(model)
    if model.hybrid_override_pattern is not None:
        # stages are told apart by "|" (recompute.config.pipeline), MTP depths follow a "/"
        layers = model.hybrid_override_pattern.partition("/")[0].replace("|", "")
        return tuple(_hybrid_kind(symbol) for symbol in layers)
    mixers = _mixers(model)
    if model.num_moe_experts is None:
        return tuple(f"{mixer}+mlp" for mixer in mixers)
    marks = marked(model.moe_layer_freq, model.num_layers)
    return tuple(
        f"{mixer}+{'moe' if mark else 'mlp'}" for mixer, mark in zip(mixers, marks, strict=True)
    )


def mtp_kind(model: ModelConfig) -> str:
    """Return the kind of an MTP depth: it wraps a layer like the last one of the decoder.

    In a hybrid pattern each depth stands behind a ``/``: ``/*E`` is attention and experts, each with
    its residual, which is what one layer of both is.

    Source: NVIDIA/Megatron-LM core_v0.19.0 megatron/core/models/gpt/gpt_layer_specs.py
    get_gpt_mtp_block_spec, megatron/core/models/hybrid/hybrid_layer_allocation.py
    parse_hybrid_pattern.
    """
    kind = _kinds(model)[-1]
    depths = (model.hybrid_override_pattern or "").split("/")[1:]
    if depths and len(set(depths)) == 1:
        kind = "+".join(_hybrid_kind(symbol) for symbol in depths[0])
    if kind not in _PAIRS:
        raise _unsupported("multi-token prediction over such a stack", "model.mtp_num_layers")
    return f"mtp+{kind}"


def _hybrid_kind(symbol: str) -> str:
    if symbol not in _HYBRID:
        raise _unsupported(f"hybrid layer {symbol!r}", "model.hybrid_override_pattern")
    return _HYBRID[symbol]


def _unsupported(what: str, field: str, hint: str = "") -> UnsupportedError:
    return UnsupportedError(
        "unsupported-layer",
        f"{what} is not modelled",
        hint=hint or "docs/reference/layer-types.md lists what is",
        data={"field": field},
    )


def _refuse_variant(model: ModelConfig) -> None:
    """Refuse attention that is not modelled, in a hybrid pattern too.

    ``dsa`` is sparse attention, from core 0.19 on over absorbed multi-latent attention
    (NVIDIA/Megatron-LM core_v0.19.0 megatron/core/models/gpt/
    experimental_attention_variant_module_specs.py get_dsa_module_spec_for_backend).
    """
    variant = model.experimental_attention_variant
    if variant == "dsa":
        _refuse_sparse(model)
    elif variant not in (None, "gated_delta_net"):
        field = "model.experimental_attention_variant"
        raise _unsupported(f"experimental_attention_variant {variant}", field)


def _refuse_sparse(model: ModelConfig) -> None:
    """Refuse sparse attention of other kernels, or without the sizes of its indexer."""
    if model.hybrid_override_pattern is not None or not model.multi_latent_attention:
        what = "dsa in a hybrid pattern or without multi_latent_attention"
        raise _unsupported(what, "model.experimental_attention_variant")
    for name in ("dsa_indexer_n_heads", "dsa_indexer_head_dim", "dsa_indexer_topk"):
        if getattr(model, name) is None:
            raise _unsupported(f"dsa without {name}", f"model.{name}", f"set model.{name}")


def _mixers(model: ModelConfig) -> tuple[str, ...]:
    """Name the mixer of every layer."""
    variant = model.experimental_attention_variant
    plain = _attention_kinds(model)
    if variant is None:
        return plain
    if variant == "dsa":
        return ("dsa",) * model.num_layers
    return tuple(
        "gdn" if linear else kind for linear, kind in zip(_linear_marks(model), plain, strict=True)
    )


def _linear_marks(model: ModelConfig) -> tuple[bool, ...]:
    """Say which layers are linear: all but every n-th, or as listed.

    Source: NVIDIA/Megatron-LM core_v0.19.0
    megatron/core/models/gpt/experimental_attention_variant_module_specs.py
    get_linear_attention_pattern.
    """
    frequency = model.linear_attention_freq
    if frequency is None:
        raise _unsupported(
            "gated_delta_net without linear_attention_freq", "model.linear_attention_freq"
        )
    if isinstance(frequency, int):
        return tuple((index + 1) % frequency != 0 for index in range(model.num_layers))
    return tuple(bool(mark) for mark in frequency)


def _attention_kinds(model: ModelConfig) -> tuple[str, ...]:
    """Softmax attention of every layer: latent, windowed, without RoPE, or plain."""
    if model.multi_latent_attention:
        return ("mla",) * model.num_layers
    numbers = range(1, model.num_layers + 1)
    if model.no_rope_freq is not None:
        return tuple("nope" if _skips_rope(model, n) else "attention" for n in numbers)
    if model.window_size is not None and model.window_attn_skip_freq is not None:
        return tuple("window" if _is_window(model, n) else "global" for n in numbers)
    return ("attention",) * model.num_layers


def _is_window(model: ModelConfig, number: int) -> bool:
    """Say whether a layer (from 1) attends to a window: not every n-th, or where the list has a 1.

    Source: NVIDIA/Megatron-LM core_v0.19.0 megatron/core/transformer/utils.py
    is_layer_window_attention.
    """
    skip = model.window_attn_skip_freq
    if isinstance(skip, int):
        return number % skip != 0
    assert skip is not None
    return bool(skip[number - 1])


def _skips_rope(model: ModelConfig, number: int) -> bool:
    """Say whether a layer (from 1) has no RoPE: every n-th, or where the list has a 1.

    Source: NVIDIA/Megatron-LM core_v0.19.0 megatron/core/transformer/transformer_config.py
    ``no_rope_freq``.
    """
    skip = model.no_rope_freq
    if isinstance(skip, int):
        return skip > 0 and number % skip == 0
    assert skip is not None
    return bool(skip[number - 1])
