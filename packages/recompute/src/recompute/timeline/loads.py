"""How uneven routing gets in public runs, and what that does to a range.

The figures are the loads at which the model's peak is the measured one, over the golden rows with expert
parallelism (``benchmarks/expert_loads.py``: Megatron-LM's functional and release tests, auxiliary
losses of every kind and Sinkhorn; no other error is told apart from routing there, so they are an upper
estimate).
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from recompute.config.schema import Assumption, JobConfig
from recompute.timeline.types import Prediction

USUAL_LOAD: Final = 1.14
"""Routed tokens of the hot rank over their mean: the median of those runs."""

HIGH_LOAD: Final = 1.85
"""The same in the most uneven of them, their 99th percentile."""


def may_be_uneven(job: JobConfig) -> bool:
    """Say whether ranks can get different shares of the routed tokens."""
    model = job.model
    routed = model.num_moe_experts is not None and model.expert_model_parallel_size > 1
    return routed and not model.moe_router_force_load_balancing


def load_assumption(job: JobConfig, load: float) -> Assumption:
    """Say which load a prediction assumes, and what others would be.

    Args:
        job: A job with experts.
        load: Routed tokens that arrive at the rank over their mean.
    """
    if load != 1.0:
        text = f"the hot rank gets {load:g} times its share of the routed tokens"
    elif may_be_uneven(job):
        text = (
            "every rank gets an equal share of the routed tokens; the hot rank of public runs gets "
            f"{USUAL_LOAD:g} times its share in the median and {HIGH_LOAD:g} in the most uneven one: "
            "--expert-load predicts it"
        )
    else:
        text = "every rank gets an equal share of the routed tokens"
    return Assumption(id="expert-load", text=text)


def widened(balanced: Prediction, hot: Prediction) -> Prediction:
    """Let the ranges of a balanced prediction reach up to those of the hot rank."""
    ranks = tuple(
        replace(
            row,
            peak_range_bytes=(
                row.peak_range_bytes[0],
                max(row.peak_range_bytes[1], other.peak_range_bytes[1]),
            ),
        )
        for row, other in zip(balanced.ranks, hot.ranks, strict=True)
    )
    return replace(balanced, ranks=ranks)
