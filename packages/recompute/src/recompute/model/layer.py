"""Put a layer together: sublayers' operations plus the regions that labels recompute.

A layer kind is a row of :data:`LAYER_KINDS`; adding one is the checklist docs/how-to/add-a-layer-type.md.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from recompute.config.layer_pattern import layer_kinds as marked
from recompute.config.schema import ModelConfig
from recompute.model.ops.attention import core_attention_region, self_attention
from recompute.model.ops.linear import bias_dropout_add
from recompute.model.ops.mla import mla_attention, mla_regions
from recompute.model.ops.mlp import dense_mlp, mlp_region
from recompute.model.ops.moe import moe_mlp, moe_regions
from recompute.model.shape import Shape
from recompute.model.tape import Mechanism, Op, Region, Tape, Tensor

Part = tuple[tuple[Op, ...], tuple[Region, ...]]
"""Operations of a sublayer and the regions inside it."""
Builder = Callable[[ModelConfig, Shape, str, str], Part]


def _attention(model: ModelConfig, shape: Shape, source: str, target: str) -> Part:
    ops = self_attention(model, shape, source, target)
    regions = [core_attention_region()]
    if model.transformer_impl == "local":
        regions.append(norm_region("input_layernorm", "self_attention.linear_proj"))
    return ops, tuple(regions)


def _latent_attention(model: ModelConfig, shape: Shape, source: str, target: str) -> Part:
    ops = mla_attention(model, shape, source, target)
    return ops, (core_attention_region(), *mla_regions(model))


def _mlp(model: ModelConfig, shape: Shape, source: str, target: str) -> Part:
    regions = [mlp_region(model)]
    if model.transformer_impl == "local":
        regions.append(norm_region("pre_mlp_layernorm", "mlp.linear_fc2"))
    return dense_mlp(model, shape, source, target), tuple(regions)


def _moe(model: ModelConfig, shape: Shape, source: str, target: str) -> Part:
    ops = moe_mlp(model, shape, source, target)
    return ops, moe_regions(model, ops)


def norm_region(norm: str, hook: str) -> Region:
    """One norm whose output is discarded after ``hook`` has run."""
    return Region(label="layernorm", mechanism=Mechanism.DISCARD, first=norm, last=norm, hook=hook)


def transformer_layer(name: str, mixer: Builder, feed_forward: Builder) -> LayerBuilder:
    """Return the builder of a layer: mixer and feed-forward, each with bias, dropout and residual.

    Source: NVIDIA/Megatron-LM core_v0.19.0 megatron/core/transformer/transformer_layer.py
    TransformerLayer.forward, layer specs in megatron/core/models/gpt/gpt_layer_specs.py.
    """

    def build(model: ModelConfig, shape: Shape) -> Tape:
        first, first_regions = mixer(model, shape, "hidden", "attn_out")
        second, second_regions = feed_forward(model, shape, "after_attention", "mlp_out")
        between = bias_dropout_add(
            "self_attn_bda", "attn_out", "hidden", "after_attention", model=model, shape=shape
        )
        last = bias_dropout_add(
            "mlp_bda", "mlp_out", "after_attention", "layer_out", model=model, shape=shape
        )
        return Tape(
            name=name,
            inputs=(Tensor(name="hidden", size=shape.stream),),
            outputs=("layer_out",),
            ops=(*first, between, *second, last),
            regions=(*first_regions, *second_regions),
        )

    return build


LayerBuilder = Callable[[ModelConfig, Shape], Tape]
LAYER_KINDS: Final[dict[str, LayerBuilder]] = {
    "dense": transformer_layer("dense", _attention, _mlp),
    "moe": transformer_layer("moe", _attention, _moe),
    "mla": transformer_layer("mla", _latent_attention, _mlp),
    "mla+moe": transformer_layer("mla+moe", _latent_attention, _moe),
}
"""Kind -> builder."""


def dense_layer(model: ModelConfig, shape: Shape) -> Tape:
    """A dense transformer layer."""
    return LAYER_KINDS["dense"](model, shape)


def layer_kinds(model: ModelConfig) -> tuple[str, ...]:
    """Return the kind of every decoder layer, in global order."""
    mixer = "mla" if model.multi_latent_attention else "dense"
    if model.num_moe_experts is None:
        return (mixer,) * model.num_layers
    expert = "mla+moe" if model.multi_latent_attention else "moe"
    return tuple(
        expert if is_moe else mixer for is_moe in marked(model.moe_layer_freq, model.num_layers)
    )
