"""The same question for several budgets, GPUs or field values, in one table."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from recompute.config.choice import RecomputeChoice
from recompute.config.require import EXPLAIN, require_complete
from recompute.errors import ConfigError, RecomputeError, UnsupportedError
from recompute.search.budget import budget_of
from recompute.search.plan import answer, prepare
from recompute.search.types import Plan
from recompute.search.workers import IN_LINE, Workers
from recompute.units import format_gib, parse_bytes

if TYPE_CHECKING:
    from recompute.config.schema import JobConfig
    from recompute.timeline.stages import Stage
    from recompute.timeline.types import Prediction

MAX_STEPS = 64
"""Budgets in one range at most."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Variant:
    """One job of a sweep."""

    changes: tuple[str, ...]
    """``section.field=value`` in which it differs from the others."""
    job: JobConfig | None
    problem: str = ""
    """Why there is no job, where the values do not go together."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WhatIfRow:
    """One cell of the table."""

    changes: tuple[str, ...]
    memory: str
    """The budget or the GPU, as given."""
    plan: Plan | None
    problem: str = ""
    refused: UnsupportedError | None = None
    """Why there is no plan, where the job holds something that is not modelled."""
    on: str = ""
    """The GPU that was asked for, where one was."""
    is_per_layer: bool = False
    """Plans per layer were asked for."""

    @property
    def gain(self) -> float | None:
        """What a per-layer plan wins over the best stock choice, as a fraction of the control's step."""
        plan = self.plan
        if not self.is_per_layer or plan is None or plan.chosen is None or plan.stock is None:
            return None
        return plan.stock.step_time_overhead - plan.chosen.step_time_overhead

    @property
    def only_per_layer(self) -> bool:
        """Say whether a per-layer plan fits where no stock choice does."""
        plan = self.plan
        return self.is_per_layer and plan is not None and bool(plan.chosen) and plan.stock is None


@dataclass(frozen=True, slots=True, kw_only=True)
class Largest:
    """The largest value of a swept field with which a choice fits."""

    choice: RecomputeChoice
    value: int
    memory: str


def what_if(
    variants: Sequence[Variant],
    budgets: Sequence[str | int | None],
    gpus: Sequence[str | None],
    *,
    margin: str | float | None = None,
    per_layer: bool = False,
    workers: Workers = IN_LINE,
) -> tuple[WhatIfRow, ...]:
    """Plan every variant for every budget and GPU.

    Args:
        variants: Jobs, or why a combination of values makes none.
        budgets: Allocated bytes or text; ``None`` for the memory of the GPU.
        gpus: Names; ``None`` for the job's own.
        margin: As for :func:`recompute.search.plan.plan`.
        per_layer: As for :func:`recompute.search.plan.plan`.
        workers: Who plans the variants; the answer does not depend on it.

    Raises:
        ConfigError: A budget, GPU or margin is wrong.
        UnsupportedError: No variant is modelled.
    """
    asked = [
        _Asked(
            variant=variant,
            budgets=tuple(budgets),
            gpus=tuple(gpus),
            margin=margin,
            per_layer=per_layer,
        )
        for variant in variants
    ]
    found = workers.ordered(_rows_of, asked, what="jobs planned", of=len(asked))
    rows = tuple(itertools.chain.from_iterable(answers for _, answers in found))
    refused = [row.refused for row in rows if row.refused is not None]
    if refused and len(refused) == len(rows):
        raise refused[0]
    return rows


@dataclass(frozen=True, slots=True, kw_only=True)
class _Asked:
    """Everything that is asked of one variant."""

    variant: Variant
    budgets: tuple[str | int | None, ...]
    gpus: tuple[str | None, ...]
    margin: str | float | None
    per_layer: bool


def _rows_of(asked: _Asked) -> tuple[WhatIfRow, ...]:
    """Plan one variant for every budget and GPU; predictions are made once for all of them."""
    variant = asked.variant
    cells = [
        (gpu, budget, _memory(variant, budget, gpu))
        for gpu in asked.gpus
        for budget in asked.budgets
    ]
    if variant.job is None:
        return tuple(
            WhatIfRow(changes=variant.changes, memory=memory, plan=None, problem=variant.problem)
            for _, _, memory in cells
        )
    job = require_complete(variant.job, EXPLAIN)
    limits = [budget_of(job, budget, gpu=gpu, margin=asked.margin) for gpu, budget, _ in cells]
    try:
        ready = prepare(job, Remembering)
    except UnsupportedError as error:
        return tuple(
            WhatIfRow(
                changes=variant.changes,
                memory=memory,
                plan=None,
                problem=problem_of(error),
                refused=error,
            )
            for _, _, memory in cells
        )
    return tuple(
        WhatIfRow(
            changes=variant.changes,
            memory=memory,
            plan=answer(ready, limit, gpu=gpu, per_layer=asked.per_layer, details=False),
            on=gpu or "",
            is_per_layer=asked.per_layer,
        )
        for (gpu, _, memory), limit in zip(cells, limits, strict=True)
    )


class Remembering:
    """A predictor that makes every prediction once.

    Args:
        job: A complete, normalised job.
    """

    def __init__(self, job: JobConfig) -> None:
        from recompute.timeline.predict import Predictor

        self.job = job
        self._inner = Predictor(job)
        self._known: dict[tuple[RecomputeChoice, bool], Prediction] = {}

    @property
    def stages(self) -> Sequence[Stage]:
        """Pipeline positions with their layers, pp first."""
        return self._inner.stages

    def active_layers(self) -> Mapping[str, int]:
        """Count the layers on which each label does anything."""
        return self._inner.active_layers()

    def predict(self, choice: RecomputeChoice, *, composition: bool = False) -> Prediction:
        """Predict one choice, once."""
        key = (choice, composition)
        if key not in self._known:
            self._known[key] = self._inner.predict(choice, composition=composition)
        return self._known[key]


def largest_that_fit(rows: Iterable[WhatIfRow], field: str) -> tuple[Largest, ...]:
    """Return for each stock choice and memory the largest value of ``field`` with which it fits.

    Args:
        rows: Of a sweep over one field.
        field: ``section.field``; its values are integers.
    """
    best: dict[tuple[str, RecomputeChoice], int] = {}
    for row in rows:
        values = [c.partition("=")[2] for c in row.changes if c.partition("=")[0] == field]
        if row.plan is None or len(values) != 1 or not values[0].isdecimal():
            continue
        for outcome in row.plan.alternatives:
            if outcome.fits:
                key = (row.memory, outcome.choice)
                best[key] = max(best.get(key, 0), int(values[0]))
    return tuple(
        Largest(choice=choice, value=value, memory=memory)
        for (memory, choice), value in best.items()
    )


def parse_budgets(text: str) -> tuple[str | int, ...]:
    """Read one budget, a list ``40GiB,60GiB`` or a range ``40GiB..60GiB`` with an optional ``/5GiB``.

    Raises:
        ConfigError: ``bad-range``.
    """
    if ".." not in text:
        return tuple(part.strip() for part in text.split(","))
    ends, _, step_text = text.partition("/")
    low, high = (parse_bytes(end) for end in ends.split("..", 1))
    step = parse_bytes(step_text) if step_text else None
    if low is None or high is None or low >= high or (step_text and not step):
        raise _bad_range(text)
    width = step or max(1, (high - low) // 8)
    if (high - low) // width >= MAX_STEPS:
        raise _bad_range(text)
    found = list(range(low, high + 1, width))
    return (*found, high) if found[-1] != high else tuple(found)


def _bad_range(text: str) -> ConfigError:
    return ConfigError(
        "bad-range",
        f"budgets {text[:60]!r} are no range of at most {MAX_STEPS} steps",
        hint="write 40GiB,60GiB or 40GiB..60GiB or 40GiB..60GiB/5GiB",
    )


def _memory(variant: Variant, budget: str | int | None, gpu: str | None) -> str:
    if budget is not None:
        size = parse_bytes(budget) if isinstance(budget, str) else budget
        text = str(budget) if size is None else format_gib(size)
        return f"{text} on {gpu}" if gpu else text
    own = variant.job.hardware.gpu if variant.job is not None else None
    return gpu or own or "hardware.memory_bytes"


def problem_of(error: RecomputeError) -> str:
    """Return why a combination of values makes no job, in one line."""
    return f"{error.message} [{error.code}]"
