"""An explanation for people: the peak of every rank, what is alive there, the labels."""

from __future__ import annotations

from typing import TYPE_CHECKING

from recompute.report.part import Part, Table, assumption_part, text_of
from recompute.report.text import (
    corrections_of,
    gib,
    notices,
    percent,
    quantity,
    signed_gib,
)
from recompute.search.reasons import place
from recompute.search.reserved import allocator_of
from recompute.units import format_gib

if TYPE_CHECKING:
    from recompute.search.budget import Budget
    from recompute.search.explain import Explanation
    from recompute.timeline.types import RankPeak

OWNERS_SHOWN = 12
"""Owners listed for the hot rank; the rest is one line."""


def explain_text(explanation: Explanation, budget: Budget | None = None) -> str:
    """Return the explanation as text.

    Args:
        explanation: The answer.
        budget: What the peak is held against, where the reader asked for it.
    """
    assumptions = assumption_part(explanation.assumptions, whole=False)
    return text_of((*explain_parts(explanation, budget), assumptions))


def explain_parts(explanation: Explanation, budget: Budget | None = None) -> tuple[Part, ...]:
    """Return the explanation without its assumptions; arguments as for :func:`explain_text`."""
    hot = explanation.prediction.hot
    low, high = hot.peak_range_bytes
    head = (
        f"{explanation.choice.label()}: peak {format_gib(hot.peak.peak_bytes)} "
        f"({gib(low)} to {gib(high)}) at {place(hot.rank, hot.peak.phase)}"
    )
    shown = explanation.shown
    detail = hot if hot in shown else shown[0]
    corrections = corrections_of(explanation.assumptions)
    held = () if budget is None else (over_or_under(explanation, budget),)
    return (
        Part(lines=(head, *held, *notices(explanation.assumptions), *corrections)),
        Part(title="ranks, GiB", table=_ranks(shown)),
        Part(title=f"alive at the peak of {_name(detail)}, GiB", table=_alive(detail)),
        Part(title="each label alone, against no recompute", table=_labels(explanation)),
    )


def over_or_under(explanation: Explanation, budget: Budget) -> str:
    """Say by how much the hottest rank is over a budget, or under it."""
    allocator = allocator_of(explanation.job.environment)
    made = explanation.prediction
    over = budget.over(made.hot.peak.peak_bytes, allocator, made.graph_pool_bytes)
    said = f"over {budget.name} by {format_gib(over)}"
    if over <= 0:
        said = f"fits {budget.name} with {format_gib(-over)} to spare"
    return f"{said} (fits up to {format_gib(budget.allowed_peak(allocator, made.graph_pool_bytes))} allocated)"


def _name(row: RankPeak) -> str:
    return " ".join(f"{axis} {index}" for axis, index in row.rank)


def _ranks(rows: tuple[RankPeak, ...]) -> Table:
    header = (
        "rank",
        "peak",
        "phase|",
        "parameters",
        "gradients",
        "optimizer",
        "other",
        "activations",
        "after forward",
    )
    return Table(
        header=header,
        rows=tuple(
            (
                _name(row),
                gib(row.peak.peak_bytes),
                row.peak.phase.value,
                gib(row.static.parameters),
                gib(row.static.gradients),
                gib(row.static.optimizer),
                gib(row.static.other),
                gib(row.activation_bytes_at_peak),
                gib(row.activation_bytes_after_forward),
            )
            for row in rows
        ),
    )


def _alive(row: RankPeak) -> Table:
    owners = sorted(row.alive_at_peak, key=lambda o: (-o.bytes, o.owner))
    rows = [(o.owner, gib(o.bytes)) for o in owners[:OWNERS_SHOWN]]
    rest = owners[OWNERS_SHOWN:]
    if rest:
        rows.append((f"{len(rest)} smaller ones", gib(sum(o.bytes for o in rest))))
    return Table(header=("owner", "GiB"), rows=tuple(rows))


def _labels(explanation: Explanation) -> Table:
    effects = (
        *explanation.labels,
        *(() if explanation.full is None else (explanation.full,)),
    )
    header = (
        "label",
        "layers",
        "change of peak, GiB",
        "freed GiB",
        "replay",
        "sent",
        "step time",
    )
    return Table(
        header=header,
        rows=tuple(
            (
                effect.label,
                str(effect.active_layers),
                signed_gib(effect.peak_delta_bytes),
                signed_gib(effect.saved_after_forward_bytes),
                quantity(effect.replay_flops, "FLOP"),
                quantity(effect.replay_comm_bytes, "B"),
                percent(effect.step_time_overhead),
            )
            for effect in effects
        ),
        below=tuple(effect.note for effect in effects),
        below_title="note",
    )
