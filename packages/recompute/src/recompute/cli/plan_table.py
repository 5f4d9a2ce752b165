"""``recompute plan`` for several budgets, GPUs or field values: one table."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import TYPE_CHECKING

import click

from recompute.cli import streams

if TYPE_CHECKING:
    from recompute.search.what_if import Variant

MAX_VARIANTS = 256
"""Combinations of swept values at most."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """What the command line said."""

    path: str
    overrides: tuple[str, ...]
    budget: str | None
    gpu: str | None
    sweeps: tuple[str, ...]
    margin: str | None
    per_layer: bool
    mcore: str | None
    as_json: bool
    html: str | None = None
    workers: int | None = None
    cluster: str | None = None


def asks_for_table(budget: str | None, gpu: str | None, sweeps: tuple[str, ...]) -> bool:
    """Say whether the command line asks for more than one answer."""
    several = budget is not None and ("," in budget or ".." in budget)
    return several or (gpu is not None and "," in gpu) or bool(sweeps)


def print_table(options: Options) -> int:
    """Print the table; 1 when nothing fits anywhere."""
    from recompute.cli.reading import read_job
    from recompute.cli.workers import working
    from recompute.search.types import Status
    from recompute.search.what_if import largest_that_fit, parse_budgets, what_if

    base = read_job(options.path, options.overrides, mcore=options.mcore)
    budgets = (None,) if options.budget is None else parse_budgets(options.budget)
    gpus = (None,) if options.gpu is None else tuple(options.gpu.split(","))
    variants = _variants(options)
    with working(options.workers, options.cluster) as staff:
        rows = what_if(
            variants,
            budgets,
            gpus,
            margin=options.margin,
            per_layer=options.per_layer,
            workers=staff,
        )
    field = options.sweeps[0].partition("=")[0] if len(options.sweeps) == 1 else None
    largest = largest_that_fit(rows, field) if field is not None else ()
    if options.html is not None:
        from recompute.report.page import write_page
        from recompute.report.what_if_page import what_if_page

        write_page(options.html, what_if_page(base, rows, largest, field))
        streams.say(f"wrote {options.html}\n")
    if options.as_json:
        from recompute.report.document import dump
        from recompute.report.what_if_report import what_if_document

        click.echo(dump(what_if_document(base, rows, largest)))
    else:
        from recompute.report.what_if_report import what_if_text

        click.echo(what_if_text(rows, largest, field))
    fits = any(r.plan is not None and r.plan.status is not Status.INFEASIBLE for r in rows)
    return 0 if fits else 1


def _variants(options: Options) -> list[Variant]:
    """Read the job once for each combination of swept values."""
    from recompute.cli.reading import read_job
    from recompute.errors import ConfigError
    from recompute.search.what_if import Variant, problem_of

    axes = [_axis(sweep) for sweep in options.sweeps]
    combinations = list(itertools.product(*axes))
    if len(combinations) > MAX_VARIANTS:
        raise ConfigError(
            "too-many-variants",
            f"{len(combinations)} combinations of swept values are more than {MAX_VARIANTS}",
            hint="sweep fewer values",
        )
    found = []
    for changes in combinations:
        try:
            job = read_job(options.path, (*options.overrides, *changes), mcore=options.mcore)
        except ConfigError as error:
            if error.code in {"unknown-field", "unknown-section", "wrong-type", "bad-override"}:
                raise
            found.append(Variant(changes=changes, job=None, problem=problem_of(error)))
        else:
            found.append(Variant(changes=changes, job=job))
    return found


def _axis(sweep: str) -> list[str]:
    from recompute.errors import ConfigError

    field, equals, values = sweep.partition("=")
    if not equals or not field or not values:
        raise ConfigError(
            "bad-sweep",
            f"sweep {sweep[:60]!r} is not FIELD=V1,V2",
            hint="write --sweep train.micro_batch_size=1,2,4",
        )
    return [f"{field}={value.strip()}" for value in values.split(",")]
