"""Put a layer together: sublayers' operations plus the regions that labels recompute.

A layer kind is a row of :data:`LAYER_KINDS`; adding one is the checklist docs/how-to/add-a-layer-type.md.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from recompute.config.schema import ModelConfig
from recompute.model.ops.attention import core_attention_region, self_attention
from recompute.model.ops.linear import bias_dropout_add
from recompute.model.ops.mlp import dense_mlp, mlp_region
from recompute.model.shape import Shape
from recompute.model.tape import Mechanism, Region, Tape, Tensor


def dense_layer(model: ModelConfig, shape: Shape) -> Tape:
    """A dense transformer layer: attention and MLP, each with norm, bias, dropout and residual.

    Source: NVIDIA/Megatron-LM core_v0.19.0 megatron/core/transformer/transformer_layer.py
    TransformerLayer.forward, layer specs in megatron/core/models/gpt/gpt_layer_specs.py.
    """
    attention = self_attention(model, shape, "hidden", "attn_out")
    mlp = dense_mlp(model, shape, "after_attention", "mlp_out")
    first = bias_dropout_add(
        "self_attn_bda", "attn_out", "hidden", "after_attention", model=model, shape=shape
    )
    second = bias_dropout_add(
        "mlp_bda", "mlp_out", "after_attention", "layer_out", model=model, shape=shape
    )
    return Tape(
        name="dense",
        inputs=(Tensor(name="hidden", size=shape.stream),),
        outputs=("layer_out",),
        ops=(*attention, first, *mlp, second),
        regions=(core_attention_region(), mlp_region(model), *_norm_regions(model)),
    )


def _norm_regions(model: ModelConfig) -> tuple[Region, ...]:
    """The ``layernorm`` label acts on norms that are modules of their own: with the local spec only."""
    if model.transformer_impl != "local":
        return ()
    return (
        norm_region("input_layernorm", "self_attention.linear_proj"),
        norm_region("pre_mlp_layernorm", "mlp.linear_fc2"),
    )


def norm_region(norm: str, hook: str) -> Region:
    """One norm whose output is discarded after ``hook`` has run."""
    return Region(label="layernorm", mechanism=Mechanism.DISCARD, first=norm, last=norm, hook=hook)


LAYER_KINDS: Final[dict[str, Callable[[ModelConfig, Shape], Tape]]] = {"dense": dense_layer}
"""Kind -> builder."""


def layer_kinds(model: ModelConfig) -> tuple[str, ...]:
    """Return the kind of every decoder layer, in global order."""
    return ("dense",) * model.num_layers
