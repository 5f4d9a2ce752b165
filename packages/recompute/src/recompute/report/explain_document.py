"""An explanation as the JSON document of the contract."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from recompute.report.document import envelope
from recompute.report.plan_document import assumption_list
from recompute.search.reserved import allocator_of

if TYPE_CHECKING:
    from recompute.search.budget import Budget
    from recompute.search.explain import Explanation, LabelEffect
    from recompute.timeline.types import RankPeak


def explain_document(explanation: Explanation, budget: Budget | None = None) -> dict[str, Any]:
    """Return the document ``recompute.explain/1``.

    Args:
        explanation: The answer.
        budget: What the peak is held against, where ``--gpu`` asks for it; ``over_bytes`` below zero is
            room.
    """
    document = envelope("explain", explanation.job)
    document["assumptions"] = assumption_list(explanation.assumptions)
    document |= {
        "choice": explanation.choice.to_document(),
        "hot_rank": dict(explanation.prediction.hot.rank),
        "ranks": [rank_document(row) for row in explanation.shown],
        "labels": [_label(effect) for effect in explanation.labels],
        "full": None if explanation.full is None else _label(explanation.full),
    }
    if budget is not None:
        made = explanation.prediction
        allocator = allocator_of(explanation.job.environment)
        peak = made.hot.peak.peak_bytes
        document["budget_bytes"] = budget.limit_bytes
        document["over_bytes"] = budget.over(peak, allocator, made.graph_pool_bytes)
    return document


def rank_document(row: RankPeak) -> dict[str, Any]:
    """Return one row of ``ranks``."""
    static = row.static
    return {
        "rank": dict(row.rank),
        "global_ranks": list(row.global_ranks),
        "peak_bytes": row.peak.peak_bytes,
        "peak_range_bytes": list(row.peak_range_bytes),
        "peak_phase": row.peak.phase.value,
        "static_bytes": {
            "parameters": static.parameters,
            "gradients": static.gradients,
            "optimizer": static.optimizer,
            "other": static.other,
        },
        "activation_bytes_at_peak": row.activation_bytes_at_peak,
        "activation_bytes_after_forward": row.activation_bytes_after_forward,
        "phases": [
            {"phase": phase.phase.value, "peak_bytes": phase.peak_bytes} for phase in row.phases
        ],
        "alive_at_peak": [{"owner": o.owner, "bytes": o.bytes} for o in row.alive_at_peak],
    }


def _label(effect: LabelEffect) -> dict[str, Any]:
    return {
        "label": effect.label,
        "active_layers": effect.active_layers,
        "peak_delta_bytes": effect.peak_delta_bytes,
        "saved_after_forward_bytes": effect.saved_after_forward_bytes,
        "replay_flops": effect.replay_flops,
        "replay_comm_bytes": effect.replay_comm_bytes,
        "step_time_overhead": effect.step_time_overhead,
        "note": effect.note,
    }
