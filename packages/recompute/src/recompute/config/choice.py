"""A recompute choice: the four fields of Megatron, or a plan per layer. Always explicit."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from recompute.config.schema import JobConfig

LABELS: Final[tuple[str, ...]] = (
    "core_attn",
    "moe_act",
    "layernorm",
    "mla_up_proj",
    "mlp",
    "moe",
    "shared_experts",
    "gdn_norm_out",
    "gdp_in_proj",
    "gdp_qkv",
    "mhc",
    "gdn",
)
"""Every label of any revision, in Megatron's order."""


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class LayerSpan:
    """Boundaries that replay in global layers ``first`` to ``last``, both included."""

    first: int
    last: int
    modules: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class RecomputeChoice:
    """What to recompute. No recompute is always written ``selective`` and ``()``."""

    recompute_granularity: str = "selective"
    recompute_modules: tuple[str, ...] = ()
    """Labels in Megatron's order; empty for full."""
    recompute_method: str | None = None
    recompute_num_layers: int | None = None
    per_layer: tuple[LayerSpan, ...] | None = None

    def to_document(self) -> dict[str, Any]:
        """Return the ``choice`` object of the JSON documents."""
        spans = self.per_layer
        return {
            "recompute_granularity": self.recompute_granularity,
            "recompute_modules": list(self.recompute_modules),
            "recompute_method": self.recompute_method,
            "recompute_num_layers": self.recompute_num_layers,
            "per_layer": None
            if spans is None
            else [{"layers": [s.first, s.last], "modules": list(s.modules)} for s in spans],
        }

    def label(self) -> str:
        """Name the choice for people: ``[]``, ``[mlp]``, ``full/block/4``."""
        if self.per_layer is not None:
            return "per-layer"
        if self.recompute_granularity == "full":
            return f"full/{self.recompute_method}/{self.recompute_num_layers}"
        return "[" + ", ".join(self.recompute_modules) + "]"


NO_RECOMPUTE: Final = RecomputeChoice()


def selective(*labels: str) -> RecomputeChoice:
    """Return a selective choice with its labels in Megatron's order."""
    return RecomputeChoice(recompute_modules=tuple(sorted(set(labels), key=_position)))


def full(method: str, num_layers: int) -> RecomputeChoice:
    """Return a full choice."""
    return RecomputeChoice(
        recompute_granularity="full", recompute_method=method, recompute_num_layers=num_layers
    )


def choice_of(job: JobConfig) -> RecomputeChoice:
    """Return the choice that a job makes, as Megatron would act on it.

    Source: NVIDIA/Megatron-LM core_v0.19.0 megatron/core/transformer/transformer_config.py
    ``__post_init__``: ``recompute_modules=None`` becomes ``["core_attn"]``; without a granularity
    nothing is recomputed.
    """
    model = job.model
    if model.recompute_granularity == "full":
        return full(str(model.recompute_method), model.recompute_num_layers or 0)
    modules = ("core_attn",) if model.recompute_modules is None else model.recompute_modules
    if model.recompute_granularity != "selective":
        modules = ()
    if model.moe_layer_recompute:
        modules = (*(modules or ("core_attn",)), "moe")
    return selective(*modules)


def granularity_in(job: JobConfig, choice: RecomputeChoice) -> str | None:
    """Return ``recompute_granularity`` as a job has to write a choice.

    ``cpu_offloading`` excludes every granularity, an empty list of labels included, so that no recompute is
    written ``None`` there (NVIDIA/Megatron-LM core_v0.19.0 megatron/core/transformer/transformer_config.py
    ``__post_init__``).
    """
    nothing = choice.recompute_granularity == "selective" and not choice.recompute_modules
    return None if nothing and job.model.cpu_offloading else choice.recompute_granularity


def with_choice(job: JobConfig, choice: RecomputeChoice) -> JobConfig:
    """Return the job with the four recompute fields of ``choice``."""
    granularity = granularity_in(job, choice)
    model = replace(
        job.model,
        recompute_granularity=granularity,
        recompute_modules=None if granularity is None else choice.recompute_modules,
        recompute_method=choice.recompute_method,
        recompute_num_layers=choice.recompute_num_layers,
        moe_layer_recompute=False,
    )
    return replace(job, model=model)


def _position(label: str) -> tuple[int, str]:
    return (LABELS.index(label) if label in LABELS else len(LABELS), label)
