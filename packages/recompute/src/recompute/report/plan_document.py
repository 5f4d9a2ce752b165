"""A plan as the JSON document of the contract."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from recompute.report.document import envelope
from recompute.search.types import Breach, LeverResult, Outcome, Plan

if TYPE_CHECKING:
    from recompute.config.choice import LayerSpan, RecomputeChoice
    from recompute.config.schema import Assumption, JobConfig


def plan_document(plan: Plan, *, top: int | None = None) -> dict[str, Any]:
    """Return the document ``recompute.plan/1``.

    Args:
        plan: The answer.
        top: How many alternatives to list; all by default.
    """
    chosen, budget = plan.chosen, plan.budget
    alternatives = plan.alternatives if top is None else plan.alternatives[:top]
    document = envelope("plan", plan.job)
    document["assumptions"] = assumption_list(plan.assumptions)
    document |= {
        "status": plan.status.value,
        "budget_bytes": budget.limit_bytes,
        "compared": budget.compared.value,
        "margin_bytes": budget.margin_bytes,
        "choice": None if chosen is None else choice_document(chosen.choice, plan.job),
        "predicted": None if chosen is None else _predicted(chosen),
        "control_seconds": plan.control_seconds,
        "control": outcome_document(plan.control, plan.job),
        "current": plan.current.to_document(),
        "alternatives": [outcome_document(outcome, plan.job) for outcome in alternatives],
        "cheaper_first": [_lever(lever, plan.job) for lever in plan.cheaper_first],
        "why": list(plan.why),
        "overrides": dict(plan_overrides(plan)),
        "closest": None if plan.closest is None else outcome_document(plan.closest, plan.job),
    }
    if plan.stock is not None:
        document["stock"] = outcome_document(plan.stock, plan.job)
    return document


def plan_overrides(plan: Plan) -> Mapping[str, str]:
    """Return what to paste for the chosen setting, by target; empty when there is none.

    A per-layer plan has no setting in stock Megatron: its text says how it is applied.
    """
    if plan.chosen is None:
        return {}
    if plan.chosen.choice.per_layer is not None:
        return {
            "bridge_python": "recompute.megatron.apply(model, plan)  # plan: this document",
            "hydra": "",
            "megatron_lm": "",
            "yaml": "",
        }
    from recompute.config.override_writers import overrides_for

    return overrides_for(plan.chosen.choice, plan.job)


def choice_document(choice: RecomputeChoice, job: JobConfig) -> dict[str, Any]:
    """Return a choice as the documents hold it; multi-token-prediction layers are ``mtp.N``."""
    document = choice.to_document()
    if choice.per_layer is not None:
        count = job.model.num_layers
        document["per_layer"] = [
            {"layers": [_layer_name(first, count), _layer_name(last, count)], "modules": [*modules]}
            for first, last, modules in _split_at(choice.per_layer, count)
        ]
    return document


def _split_at(spans: Iterable[LayerSpan], count: int) -> Iterator[tuple[int, int, tuple[str, ...]]]:
    """Cut spans where the decoder ends."""
    for span in spans:
        if span.first < count <= span.last:
            yield span.first, count - 1, span.modules
            yield count, span.last, span.modules
        else:
            yield span.first, span.last, span.modules


def _layer_name(number: int, count: int) -> int | str:
    return number if number < count else f"mtp.{number - count}"


def assumption_list(assumptions: tuple[Assumption, ...]) -> list[dict[str, str]]:
    """Return assumptions as the documents hold them, each id once."""
    return [{"id": key, "text": text} for key, text in {a.id: a.text for a in assumptions}.items()]


def _predicted(outcome: Outcome) -> dict[str, Any]:
    return {
        "peak_bytes": outcome.peak_bytes,
        "reserved_range_bytes": list(outcome.reserved_range_bytes),
        "step_time_overhead": outcome.step_time_overhead,
    }


def outcome_document(outcome: Outcome, job: JobConfig) -> dict[str, Any]:
    """Return an outcome in the shape of an alternative."""
    return {
        "choice": choice_document(outcome.choice, job),
        "predicted": _predicted(outcome),
        "fits": outcome.fits,
        "breaks": None if outcome.breach is None else _breach(outcome.breach),
        "dominated": outcome.dominated,
    }


def _breach(breach: Breach) -> dict[str, Any]:
    return {
        "rank": dict(breach.rank),
        "phase": breach.phase.value,
        "over_bytes": breach.over_bytes,
    }


def _lever(lever: LeverResult, job: JobConfig) -> dict[str, Any]:
    return {
        "change": lever.change,
        "overrides": list(lever.overrides),
        "peak_delta_bytes": lever.peak_delta_bytes,
        "fits": lever.fits,
        "then": None if lever.then is None else outcome_document(lever.then, job),
        "why": lever.why,
    }
