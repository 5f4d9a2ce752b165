"""Which runs a study has, in which order, and what each is told. Pure values.

First the control and the candidates, one change at a time; then, in random order, the repeats of what the
others are held against, and every candidate again for each further seed of the data.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from recompute.config.choice import NO_RECOMPUTE, RecomputeChoice
from recompute.config.override_writers import FLAGS, overrides_for
from recompute.config.schema import JobConfig
from recompute.measure.candidate import text_of
from recompute.measure.groups import groups_of
from recompute.measure.launch import Launcher
from recompute.measure.row import Row
from recompute.measure.slurm_script import SlurmOptions
from recompute.measure.stand_in import cheapest_of, fits

CONTROL: Final = "control"
MEGATRON_LM: Final = "megatron-lm"
HYDRA: Final = "hydra"
VOLATILE: Final = ("attempt", "order")
"""What may differ between two starts of the same run."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """How a study is run."""

    out: str
    launcher: Launcher = Launcher.LOCAL
    python: str
    entry: tuple[str, ...] = ()
    entry_style: str = HYDRA
    """How the user's script takes a choice: ``hydra`` overrides or ``megatron-lm`` flags."""
    steps: int = 8
    warmup_steps: int = 2
    repeats: int = 2
    """Runs of the control, and with ``repeat_all`` of every candidate."""
    repeat_all: bool = False
    limit_seconds: float = 900.0
    seed: int = 0
    """Of the initialisation, and of the order of repeats."""
    data_seeds: tuple[int, ...] = (0,)
    """Seeds of the data's order; everything is measured under each."""
    seed_argument: str | None = None
    """How the user's script takes a seed: ``dataset.random_seed={seed}``."""
    retry: tuple[str, ...] = ()
    """Outcomes of runs that have ended and are run again all the same: what they failed of was mended."""
    ahead: int = 0
    """Runs whose process is started while another still runs; they load everything and wait."""
    slurm: SlurmOptions = field(default_factory=SlurmOptions)
    executor: str | None = None
    """NeMo-Run: ``file.py:function`` that returns an executor."""
    driver_python: str | None = None
    """NeMo-Run: the interpreter that has it, where it is not ``python``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedRun:
    """One run of a study."""

    name: str
    choice: RecomputeChoice
    repeat: int
    """Counts the runs of a candidate; equal numbers of two candidates have equal data."""
    data_seed: int = 0


def terms_of(settings: Settings) -> dict[str, Any]:
    """Return what all runs of a study have in common besides the job: a run under other terms is not matched."""
    return {
        "entry": list(settings.entry),
        "entry_style": settings.entry_style if settings.entry else None,
        "seed_argument": settings.seed_argument,
        "seed": settings.seed,
        "steps": settings.steps,
        "warmup_steps": settings.warmup_steps,
    }


def first_runs(choices: Sequence[RecomputeChoice], settings: Settings) -> tuple[PlannedRun, ...]:
    """Return the control, and the candidates one change at a time."""
    return tuple(_run(choice, 0, settings) for choice in (NO_RECOMPUTE, *_others(choices)))


def later_runs(
    choices: Sequence[RecomputeChoice],
    settings: Settings,
    reference: RecomputeChoice = NO_RECOMPUTE,
) -> tuple[PlannedRun, ...]:
    """Return the repeats and the further seeds, in random order.

    Args:
        choices: The candidates.
        settings: How many, and with which seed the order is drawn.
        reference: What the others are held against: it is repeated for the noise floor.
    """
    every = [NO_RECOMPUTE, *_others(choices)]
    kept = [c for c in every if c != NO_RECOMPUTE or c == reference]
    """A control that does not fit tells nothing new when it is repeated."""
    repeated = kept if settings.repeat_all else [reference]
    later = [_run(c, n, settings) for n in range(1, settings.repeats) for c in repeated]
    seeds = range(1, len(settings.data_seeds))
    later += [_run(c, settings.repeats - 1 + n, settings) for n in seeds for c in kept]
    random.Random(settings.seed).shuffle(later)  # noqa: S311 - an order, not a secret
    return tuple(later)


def reference_of(done: Sequence[tuple[RecomputeChoice, Sequence[Row]]]) -> RecomputeChoice:
    """Return what the others are held against: no recompute, or where that fails the cheapest that passes.

    The cheapest is the one that :func:`recompute.measure.compare.compare` will take, too: the shortest steps,
    since the only difference is what is replayed.
    """
    groups = groups_of(row for _, rows in done for row in rows)
    control = next((group for group in groups if group.choice == NO_RECOMPUTE), None)
    if control is not None and fits(control):
        return NO_RECOMPUTE
    found = cheapest_of([group for group in groups if group is not control])
    return NO_RECOMPUTE if found is None or found.choice is None else found.choice


def told_to(
    run: PlannedRun, job: JobConfig, settings: Settings, *, attempt: int, order: int
) -> dict[str, Any]:
    """Return what the run's processes are told, as ``RECOMPUTE_RUN`` holds it.

    Args:
        run: Which one.
        job: Complete and normalized.
        settings: How.
        attempt: Counts the starts of this run.
        order: Counts the starts of this ledger.
    """
    stock = run.choice.per_layer is None
    return {
        "ledger": str(Path(settings.out).resolve()),
        "run": run.name,
        "candidate": text_of(run.choice),
        "control_id": f"{CONTROL}-0",
        "repeat": run.repeat,
        "attempt": attempt,
        "order": order,
        "overrides": overrides_for(run.choice, job)["hydra"].split(" ") if stock else [],
        "apply": bool(settings.entry) and not stock,
        "warmup_steps": settings.warmup_steps,
        "steps": settings.steps,
        "seed": settings.seed,
        "data_seed": run.data_seed,
    }


def words_of(
    run: PlannedRun, told: Mapping[str, Any], job: JobConfig, settings: Settings
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the user's script with its arguments, and those that make it this run."""
    entry = settings.entry
    arguments: list[str] = list(told["overrides"])
    if settings.entry_style == MEGATRON_LM:
        entry = without_flags(entry)
        flags = overrides_for(run.choice, job)["megatron_lm"] if told["overrides"] else ""
        arguments = flags.partition("#")[0].split()
    if settings.seed_argument is not None:
        arguments += settings.seed_argument.format(seed=run.data_seed).split()
    return entry, tuple(arguments)


def without_flags(words: Sequence[str]) -> tuple[str, ...]:
    """Return a Megatron-LM command without its recompute flags and their values."""
    kept: list[str] = []
    dropping = False
    for word in words:
        if word.startswith("--"):
            dropping = word.partition("=")[0] in FLAGS
        if not dropping:
            kept.append(word)
    return tuple(kept)


def _others(choices: Sequence[RecomputeChoice]) -> list[RecomputeChoice]:
    return [choice for choice in dict.fromkeys(choices) if choice != NO_RECOMPUTE]


def _run(choice: RecomputeChoice, repeat: int, settings: Settings) -> PlannedRun:
    name = CONTROL if choice == NO_RECOMPUTE else text_of(choice)
    seed = settings.data_seeds[max(0, repeat - settings.repeats + 1)]
    return PlannedRun(name=f"{name}-{repeat}", choice=choice, repeat=repeat, data_seed=seed)
