"""A plan for people: the verdict first, what to paste next, then the ranking."""

from __future__ import annotations

from typing import TYPE_CHECKING

from recompute.report.plan_document import plan_overrides
from recompute.report.text import (
    assumed,
    bullets,
    corrections_of,
    gib,
    job_words,
    notices,
    pasted,
    percent,
    signed_gib,
    table,
)
from recompute.search.budget import Compared
from recompute.search.cost import MODEL_ERROR
from recompute.search.reasons import place
from recompute.search.types import LeverResult, Outcome, Plan, Status
from recompute.units import format_gib

if TYPE_CHECKING:
    from collections.abc import Sequence

TITLES = {
    "hydra": "Hydra",
    "bridge_python": "Megatron Bridge, Python",
    "megatron_lm": "Megatron-LM",
    "yaml": "YAML",
}
"""Target of :func:`plan_overrides` -> how people call it, in the order of printing; the job's own form goes first."""

FITTING_SHOWN, BREAKING_SHOWN = 8, 5
"""Choices listed on each side of the budget when --top does not say how many."""


def plan_text(plan: Plan, *, top: int | None = None) -> str:
    """Return the answer as text.

    Args:
        plan: The answer.
        top: How many choices to list; by default those that no other one beats.
    """
    parts = [_verdict(plan), "why\n" + bullets(plan.why), _paste(plan), _levers(plan)]
    parts.append(_ranking(plan, top))
    corrections = corrections_of(plan.assumptions)
    parts.append("\n".join(corrections))
    parts.append(assumed(plan.assumptions))
    return "\n\n".join(part for part in parts if part)


def _verdict(plan: Plan) -> str:
    limit = _limit(plan)
    match plan.status:
        case Status.ALREADY_FITS:
            head = f"already fits: no recompute is needed within {limit}"
        case Status.PLANNED:
            assert plan.chosen is not None
            head = f"plan: {plan.chosen.choice.label()} is the cheapest that fits {limit}"
        case _:
            head = f"infeasible: no recompute choice fits {limit}"
    shown = plan.chosen or plan.closest
    assert shown is not None
    low, high = shown.reserved_range_bytes
    lines = [
        head,
        f"  peak       {format_gib(shown.peak_bytes)} allocated, {gib(low)} to {gib(high)} reserved",
        f"  step time  {percent(shown.step_time_overhead)} over no recompute",
    ]
    if plan.chosen is None:
        assert shown.breach is not None
        over = format_gib(shown.breach.over_bytes)
        lines.insert(1, f"  closest    {shown.choice.label()}, {over} over at {_where(shown)}")
    if shown.choice.per_layer is not None:
        lines += [
            f"  layers     {s.first} to {s.last}: {', '.join(s.modules)}"
            for s in shown.choice.per_layer
        ]
    lines += [f"  note       {text}" for text in notices(plan.assumptions)]
    lines += _first_try(plan)
    if plan.stock is not None and plan.chosen is not None and plan.stock != plan.chosen:
        gain = plan.stock.step_time_overhead - plan.chosen.step_time_overhead
        lines.append(
            f"  gain       {gain:.1%} of the step against {plan.stock.choice.label()}, the best "
            "stock choice"
        )
    return "\n".join(lines)


def _first_try(plan: Plan) -> list[str]:
    """Name the first change that leaves clearly less to recompute: levers come cheapest first."""
    if plan.status is Status.ALREADY_FITS:
        return []
    most = 1.0 if plan.chosen is None else plan.chosen.step_time_overhead - MODEL_ERROR
    for lever in plan.cheaper_first:
        if lever.fits and most > 0:
            return [f"  first try  {lever.change}: then nothing has to be recomputed"]
        if lever.then is not None and lever.then.step_time_overhead < most:
            left, cost = _then(lever)
            return [f"  first try  {lever.change}: then {left} is enough, {cost}"]
    return []


def _limit(plan: Plan) -> str:
    budget = plan.budget
    text = format_gib(budget.limit_bytes)
    if budget.compared is Compared.RESERVED:
        return f"{budget.name} ({text}, {gib(budget.margin_bytes)} kept outside torch)"
    return f"{text} less {gib(budget.margin_bytes)}" if budget.margin_bytes else text


def _where(outcome: Outcome) -> str:
    assert outcome.breach is not None
    return place(outcome.breach.rank, outcome.breach.phase)


def _paste(plan: Plan) -> str:
    if plan.chosen is None:
        return ""
    if plan.chosen.choice == plan.current and plan.current.per_layer is None:
        return "paste\n  nothing: the job says so already"
    if plan.chosen.choice.per_layer is not None:
        return _paste_per_layer(plan)
    lines = ["paste"]
    overrides = plan_overrides(plan)
    own = "megatron_lm" if plan.job.identity.entry_point == "megatron-lm" else "hydra"
    for target in sorted(TITLES, key=lambda name: name != own):
        title = TITLES[target]
        if overrides.get(target):
            lines.append(f"  {title}:")
            lines += [f"    {line}" for line in overrides[target].splitlines()]
    return "\n".join(lines)


def _paste_per_layer(plan: Plan) -> str:
    """Say how a plan that no setting can express reaches the model."""
    return "\n".join(
        (
            "paste",
            "  save the plan:",
            f"    {command_of(plan)} --per-layer --json > plan.json",
            "  call in the training script, after the model is built and before its first step:",
            "    import json, recompute.megatron",
            '    recompute.megatron.apply(model, json.load(open("plan.json")))',
            "  docs/how-to/plan-a-run.md says where that is in Megatron Bridge and Megatron-LM",
        )
    )


def command_of(plan: Plan) -> str:
    """Return the command that gives this plan again, as far as the job remembers it."""
    job, budget = plan.job, plan.budget
    words = ["recompute plan", *job_words(job)]
    if budget.compared is Compared.ALLOCATED:
        words.append(f"--budget {budget.limit_bytes}")
        words += [f"--margin {budget.margin_bytes}"] if budget.margin_bytes else []
    elif budget.name != (job.hardware.gpu or "").lower():
        words.append(f"--gpu {budget.name}")
    return " ".join(words)


def _levers(plan: Plan) -> str:
    if not plan.cheaper_first:
        return ""
    needed = plan.status is not Status.ALREADY_FITS
    title = "would free more memory (never applied for you)"
    header: tuple[str, ...] = ("change", "GiB", "override|")
    if needed:
        title = (
            "may be cheaper: peak without recompute, and what is left to do (never applied for you)"
        )
        header = ("change", "GiB", "then|", "step time", "override|")
    rows = []
    for lever in plan.cheaper_first:
        first = (lever.change, signed_gib(lever.peak_delta_bytes))
        left = _then(lever) if needed else ()
        rows.append((*first, *left, " ".join(pasted(lever.overrides, plan.job))))
    return title + "\n" + table(header, rows)


def _then(lever: LeverResult) -> tuple[str, str]:
    """Say what still has to be recomputed with a lever, and what that costs."""
    if lever.fits:
        return "nothing", "0"
    if lever.then is None:
        return "-", "-"
    return lever.then.choice.label(), percent(lever.then.step_time_overhead)


def _ranking(plan: Plan, top: int | None) -> str:
    shown = _interesting(plan) if top is None else list(plan.alternatives[:top])
    rows = [
        (
            outcome.choice.label(),
            gib(outcome.peak_bytes),
            percent(outcome.step_time_overhead),
            "yes" if outcome.fits else f"over by {_over(outcome)} at {_where(outcome)}",
            _mark(plan, outcome),
        )
        for outcome in shown
    ]
    hidden = len(plan.alternatives) - len(shown)
    more = f"\n  {hidden} more; --top {len(plan.alternatives)} lists all" if hidden else ""
    header = ("choice", "peak GiB", "step time", "fits|", "|")
    return "choices, best first\n" + table(header, rows) + more


def _over(outcome: Outcome) -> str:
    assert outcome.breach is not None
    return gib(outcome.breach.over_bytes)


def _mark(plan: Plan, outcome: Outcome) -> str:
    marks = []
    if outcome == plan.chosen:
        marks.append("chosen")
    if outcome.choice == plan.current:
        marks.append("the job's own")
    if plan.stock is not None and outcome.choice == plan.stock.choice and outcome != plan.chosen:
        marks.append("the best stock choice")
    if outcome.dominated:
        marks.append("another needs no more memory or time")
    return ", ".join(marks)


def _interesting(plan: Plan) -> Sequence[Outcome]:
    """Return the best on either side of the budget, single labels, and the job's own choice."""
    front = [outcome for outcome in plan.alternatives if not outcome.dominated]
    kept = [o for o in front if o.fits][:FITTING_SHOWN]
    kept += [o for o in front if not o.fits][:BREAKING_SHOWN]
    return [
        outcome
        for outcome in plan.alternatives
        if outcome in kept
        or outcome in {plan.chosen, plan.closest, plan.control}
        or outcome.choice == plan.current
        or (plan.stock is not None and outcome.choice == plan.stock.choice)
        or (len(outcome.choice.recompute_modules) == 1 and outcome.choice.per_layer is None)
    ]
