"""The rule table: every topic's rows, in the order they are reported."""

from __future__ import annotations

from typing import Final

from recompute.rules import (
    bridge,
    cuda_graph,
    cuda_graph_effects,
    distribute,
    environment,
    foreign,
    full_layers,
    full_semantics,
    granularity,
    label_backward,
    labels,
    mhc,
    no_effect,
    offload,
    overlap,
    peft,
    precision,
)
from recompute.rules.types import Rule

TOPICS: Final[tuple[tuple[str, tuple[Rule, ...]], ...]] = (
    ("Granularity, method, layer count", granularity.RULES),
    ("Labels", labels.RULES),
    ("Labels and the backward pass", label_backward.RULES),
    ("Layer count of full recompute", full_layers.RULES),
    ("What full recompute covers", full_semantics.RULES),
    ("Distributed saved activations", distribute.RULES),
    ("FP8 and FP4", precision.RULES),
    ("Offload", offload.RULES),
    ("CUDA graphs", cuda_graph.RULES),
    ("CUDA graphs: effects", cuda_graph_effects.RULES),
    ("Overlap and sharding", overlap.RULES),
    ("Hyper-connections", mhc.RULES),
    ("Adapters", peft.RULES),
    ("Megatron Bridge", bridge.RULES),
    ("Labels without effect", no_effect.RULES),
    ("Environment", environment.RULES),
    ("Settings of other tools", foreign.RULES),
)
"""Heading -> rows."""

RULES: Final[tuple[Rule, ...]] = tuple(rule for _, rows in TOPICS for rule in rows)
"""Every row."""

BY_ID: Final = {rule.id: rule for rule in RULES}
"""Rule id -> row."""
