"""Fixes as edits of fields, and how they are written as overrides."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final

from recompute.config.choice import LABELS
from recompute.config.mixed_precision import OVERWRITTEN_BY
from recompute.config.schema import JobConfig
from recompute.rules.case import Case, names_of
from recompute.rules.types import Edit

if TYPE_CHECKING:
    from collections.abc import Iterable

Fix = Callable[[Case], Edit]

_PLAIN: Final = re.compile(r"[A-Za-z0-9_./*-]+")
_WORDS: Final = frozenset({"null", "true", "false", "none", "yes", "no", "on", "off"})


def put(**values: Any) -> Fix:
    """Return a fix that sets fields of ``model``; ``ddp__x`` names a field of another section."""
    edit = {_dotted(name): value for name, value in values.items()}
    return lambda _: edit


def drop(*labels: str) -> Fix:
    """Return a fix that takes labels out of ``recompute_modules``."""
    return lambda case: {"model.recompute_modules": without(case, *labels)}


def without(case: Case, *labels: str) -> tuple[str, ...]:
    """Return the explicit label list of the job less ``labels``."""
    given = case.model.recompute_modules
    names = ("core_attn",) if given is None else names_of(given)
    return ordered(name for name in names if name not in labels)


def ordered(labels: Iterable[str]) -> tuple[str, ...]:
    """Return labels once each, in Megatron's order."""
    known = {name: position for position, name in enumerate(LABELS)}
    return tuple(sorted(set(labels), key=lambda name: (known.get(name, len(known)), name)))


def apply(job: JobConfig, edit: Edit) -> JobConfig:
    """Return the job with the fields of ``edit`` replaced and nothing else changed."""
    for section, values in _by_section(edit).items():
        if section == "unmodelled":
            kept = {key: value for key, value in job.unmodelled.items() if key not in values}
            job = dataclasses.replace(job, unmodelled=kept)
        elif section == "environment":
            job = dataclasses.replace(job, environment={**job.environment, **values})
        elif section == "comm_overlap":
            preset = {**(job.comm_overlap or {}), **values}
            job = dataclasses.replace(job, comm_overlap=preset)
        else:
            part = dataclasses.replace(getattr(job, section), **values)
            job = dataclasses.replace(job, **{section: part})
    return job


def value_of(job: JobConfig, name: str) -> Any:
    """Return the value of ``section.field``."""
    section, _, field = name.partition(".")
    if section in {"unmodelled", "environment", "comm_overlap"}:
        return (getattr(job, section) or {}).get(field)
    return getattr(getattr(job, section), field, None)


def overrides_of(edit: Edit, job: JobConfig | None = None) -> tuple[str, ...]:
    """Write an edit as Hydra overrides, one for each field.

    A variable of the environment is written as the ``export`` that sets it.

    Args:
        edit: ``section.field`` -> value.
        job: The job to be overridden, where known: what its ``mixed_precision`` overwrites is set there.
    """
    if job is not None and job.mixed_precision is not None:
        edit = {OVERWRITTEN_BY.get(name, name): value for name, value in edit.items()}
    return tuple(_override(name, value) for name, value in sorted(edit.items()))


def _override(name: str, value: Any) -> str:
    section, _, field = name.partition(".")
    if section == "environment":
        return f"export {field}={value}"
    if section == "unmodelled":
        return f"~{field}"
    return f"{name}={_write(value)}"


def _write(value: Any) -> str:
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, tuple | list):
        return "[" + ",".join(_write(item) for item in value) + "]"
    if isinstance(value, str):
        plain = _PLAIN.fullmatch(value) and value.lower() not in _WORDS
        return value if plain else "'" + value.replace("\\", "\\\\").replace("'", "\\'") + "'"
    return str(value)


def _by_section(edit: Edit) -> Mapping[str, dict[str, Any]]:
    sections: dict[str, dict[str, Any]] = {}
    for name, value in edit.items():
        section, _, field = name.partition(".")
        sections.setdefault(section, {})[field] = value
    return sections


def _dotted(name: str) -> str:
    section, separator, field = name.partition("__")
    return f"{section}.{field}" if separator else f"model.{name}"
