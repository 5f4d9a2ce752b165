"""A plan for people: the verdict first, what to paste next, then the ranking."""

from __future__ import annotations

from typing import TYPE_CHECKING

from recompute.report.part import Part, Table, assumption_part, text_of
from recompute.report.plan_document import plan_overrides
from recompute.report.text import (
    corrections_of,
    gib,
    job_words,
    notices,
    pasted,
    percent,
    signed_gib,
)
from recompute.search.budget import Budget, Compared
from recompute.search.cost import MODEL_ERROR
from recompute.search.reasons import place
from recompute.search.types import LeverResult, Outcome, Plan, Status
from recompute.units import exact_size, format_gib

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
    corrections = corrections_of(plan.assumptions)
    return text_of(
        (
            *plan_parts(plan, top=top),
            Part(lines=corrections) if corrections else None,
            assumption_part(plan.assumptions, whole=False),
        )
    )


def plan_parts(plan: Plan, *, top: int | None = None) -> tuple[Part | None, ...]:
    """Return verdict, reasons, what to paste, levers and ranking; arguments as for :func:`plan_text`."""
    return (
        _verdict(plan),
        Part(title="why", points=tuple(plan.why)),
        _paste(plan),
        _levers(plan),
        _ranking(plan, top),
    )


def _verdict(plan: Plan) -> Part:
    limit = limit_words(plan.budget)
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
    facts = [
        ("peak", f"{format_gib(shown.peak_bytes)} allocated, {gib(low)} to {gib(high)} reserved"),
        ("step time", f"{percent(shown.step_time_overhead)} over no recompute"),
    ]
    if plan.chosen is None:
        assert shown.breach is not None
        over = format_gib(shown.breach.over_bytes)
        facts.insert(0, ("closest", f"{shown.choice.label()}, {over} over at {_where(shown)}"))
    facts += [
        ("layers", f"{s.first} to {s.last}: {', '.join(s.modules)}")
        for s in shown.choice.per_layer or ()
    ]
    facts += [("note", text) for text in notices(plan.assumptions)]
    facts += _first_try(plan)
    if plan.stock is not None and plan.chosen is not None and plan.stock != plan.chosen:
        gain = plan.stock.step_time_overhead - plan.chosen.step_time_overhead
        stock = plan.stock.choice.label()
        facts.append(("gain", f"{gain:.1%} of the step against {stock}, the best stock choice"))
    return Part(lines=(head,), facts=tuple(facts))


def _first_try(plan: Plan) -> list[tuple[str, str]]:
    """Name the first change that leaves clearly less to recompute: levers come cheapest first."""
    if plan.status is Status.ALREADY_FITS:
        return []
    most = 1.0 if plan.chosen is None else plan.chosen.step_time_overhead - MODEL_ERROR
    for lever in plan.cheaper_first:
        if lever.fits and most > 0:
            return [("first try", f"{lever.change}: then nothing has to be recomputed")]
        if lever.then is not None and lever.then.step_time_overhead < most:
            left, cost = _then(lever)
            return [("first try", f"{lever.change}: then {left} is enough, {cost}")]
    return []


def limit_words(*budgets: Budget) -> str:
    """Name a budget and what of it is kept free, which may differ from layout to layout."""
    budget = budgets[0]
    low, high = (pick(each.margin_bytes for each in budgets) for pick in (min, max))
    text = format_gib(budget.limit_bytes)
    if budget.compared is Compared.RESERVED:
        kept = gib(low) if low == high else f"{gib(low)} to {gib(high)}"
        return f"{budget.name} ({text}, {kept} kept outside torch)"
    return f"{text} less {gib(budget.margin_bytes)}" if budget.margin_bytes else text


def _where(outcome: Outcome) -> str:
    assert outcome.breach is not None
    return place(outcome.breach.rank, outcome.breach.phase)


def _paste(plan: Plan) -> Part | None:
    if plan.chosen is None:
        return None
    if plan.chosen.choice == plan.current and plan.current.per_layer is None:
        return Part(title="paste", lines=("nothing: the job says so already",))
    if plan.chosen.choice.per_layer is not None:
        return _paste_per_layer(plan)
    overrides = plan_overrides(plan)
    own = "megatron_lm" if plan.job.identity.entry_point == "megatron-lm" else "hydra"
    return Part(
        title="paste",
        code=tuple(
            (TITLES[target], overrides[target])
            for target in sorted(TITLES, key=lambda name: name != own)
            if overrides.get(target)
        ),
    )


def _paste_per_layer(plan: Plan) -> Part:
    """Say how a plan that no setting can express reaches the model."""
    call = 'import json, recompute.megatron\nrecompute.megatron.apply(model, json.load(open("plan.json")))'
    return Part(
        title="paste",
        code=(
            ("save the plan", f"{command_of(plan)} --per-layer --json > plan.json"),
            (
                "call in the training script, after the model is built and before its first step",
                call,
            ),
        ),
        after=("docs/how-to/plan-a-run.md says where that is in Megatron Bridge and Megatron-LM",),
    )


def command_of(plan: Plan) -> str:
    """Return the command that gives this plan again, as far as the job remembers it."""
    job, budget = plan.job, plan.budget
    words = ["recompute plan", *job_words(job)]
    if budget.compared is Compared.ALLOCATED:
        words.append(f"--budget {exact_size(budget.limit_bytes)}")
        words += [f"--margin {exact_size(budget.margin_bytes)}"] if budget.margin_bytes else []
    elif budget.name != (job.hardware.gpu or "").lower():
        words.append(f"--gpu {budget.name}")
    return " ".join(words)


def _levers(plan: Plan) -> Part | None:
    if not plan.cheaper_first:
        return None
    needed = plan.status is not Status.ALREADY_FITS
    title = "would free more memory (never applied for you)"
    header: tuple[str, ...] = ("change", "GiB")
    if needed:
        title = (
            "may be cheaper: peak without recompute, and what is left to do (never applied for you)"
        )
        header = (*header, "then|", "step time")
    rows = [
        (lever.change, signed_gib(lever.peak_delta_bytes), *(_then(lever) if needed else ()))
        for lever in plan.cheaper_first
    ]
    overrides = [" ".join(pasted(lever.overrides, plan.job)) for lever in plan.cheaper_first]
    return Part(
        title=title,
        table=Table(
            header=header,
            rows=tuple(rows),
            below=tuple(overrides),
            below_title="override",
            below_is_code=True,
        ),
    )


def _then(lever: LeverResult) -> tuple[str, str]:
    """Say what still has to be recomputed with a lever, and what that costs."""
    if lever.fits:
        return "nothing", "0"
    if lever.then is None:
        return "-", "-"
    return lever.then.choice.label(), percent(lever.then.step_time_overhead)


def _ranking(plan: Plan, top: int | None) -> Part:
    shown = _interesting(plan) if top is None else list(plan.alternatives[:top])
    rows = tuple(
        (
            outcome.choice.label(),
            gib(outcome.peak_bytes),
            percent(outcome.step_time_overhead),
            "yes" if outcome.fits else f"over by {_over(outcome)} at {_where(outcome)}",
            _mark(plan, outcome),
        )
        for outcome in shown
    )
    hidden = len(plan.alternatives) - len(shown)
    return Part(
        title="choices, best first",
        table=Table(header=("choice", "peak GiB", "step time", "fits|", "remark|"), rows=rows),
        after=(f"{hidden} more; --top {len(plan.alternatives)} lists all",) if hidden else (),
    )


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
