"""Draft -> JobConfig: every field known, typed and in range; what is not modelled is listed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

from recompute.config.coerce import coerce, shown
from recompute.config.draft import MODELLED, Draft, Unresolved
from recompute.config.known import check_field, check_section, is_default
from recompute.config.schema import (
    Assumption,
    FrozenValue,
    JobConfig,
    JobIdentity,
)
from recompute.config.section_types import SCHEMAS, kinds
from recompute.errors import ConfigError

_OPTIONAL: Final = frozenset(("optimizer", "ddp", "peft"))
"""Sections whose null says something: no Megatron optimizer, no DDP wrapper, no adapters."""
_TEXT_NUMBERS: Final = frozenset(
    ("megatron_core", "megatron_bridge", "torch", "transformer_engine")
)
"""Versions: YAML reads 0.19 as a number."""


def build(draft: Draft, identity: JobIdentity) -> JobConfig:
    """Return the job that a draft describes.

    Args:
        draft: Values as given, overrides applied.
        identity: Where the job came from.

    Raises:
        ConfigError: ``unknown-section``, ``unknown-field``, ``wrong-type``, ``bad-value`` or
            ``missing-section``.
    """
    values: dict[str, Any] = {}
    unmodelled: dict[str, FrozenValue] = {}
    for section in draft.sections:
        check_section(section)
    for section in (*draft.absent, *draft.whole):
        check_section(section)
    for section in MODELLED:
        if section in draft.whole:
            raise _not_a_section(section, draft.whole[section])
        if section in draft.absent:
            if section not in _OPTIONAL:
                raise _missing(section)
            values[section] = None
        elif section in draft.sections:
            values[section] = _typed(section, draft.sections[section], unmodelled)
    if "model" not in values:
        raise _missing("model")
    _collect_other(draft, unmodelled)
    framework = values.get("framework")
    if framework is not None and framework.entry_point is not None:
        identity = replace(identity, entry_point=framework.entry_point)
    return JobConfig(
        identity=identity,
        **values,
        mixed_precision=_free(draft, "mixed_precision"),
        comm_overlap=_mapping(draft, "comm_overlap"),
        environment=dict(draft.environment),
        unmodelled=unmodelled,
        given=dict(draft.where),
        changes=tuple(draft.changes),
        assumptions=(*draft.assumptions, *_unmodelled_assumptions(unmodelled)),
    )


def _missing(section: str) -> ConfigError:
    return ConfigError(
        "missing-section",
        f"the job has no {section} section",
        hint=f"add '{section}:' with its fields below it",
        data={"section": section},
    )


def _unresolved(section: str, name: str, value: Unresolved) -> ConfigError:
    return ConfigError(
        "unresolved-variable",
        f"{value.flag} takes its value from ${value.name}, which the script does not set",
        hint=f"add to the command, with its value: {section}.{name}=VALUE",
        data={"field": f"{section}.{name}", "variable": value.name, "flag": value.flag},
    )


def _typed(section: str, given: Mapping[str, FrozenValue], unmodelled: dict[str, Any]) -> Any:
    types = kinds(section)
    fields: dict[str, Any] = {}
    for name, value in given.items():
        if isinstance(value, Unresolved):
            raise _unresolved(section, name, value)
        if value is None and name in types and "None" not in types[name]:
            # Bridge's recipes write null for "the default" where the type has no null.
            continue
        if name in types:
            number = isinstance(value, int | float) and not isinstance(value, bool)
            text = str(value) if name in _TEXT_NUMBERS and number else value
            fields[name] = coerce(section, name, types[name], text)
        else:
            check_field(section, name)
            if not is_default(section, name, value):
                unmodelled[f"{section}.{name}"] = value
    return SCHEMAS[section](**fields)


def _collect_other(draft: Draft, unmodelled: dict[str, FrozenValue]) -> None:
    for section, name, value in draft.fields():
        if section in MODELLED or section in ("mixed_precision", "comm_overlap"):
            continue
        check_field(section, name)
        if not is_default(section, name, value):
            unmodelled[f"{section}.{name}"] = value
    free = ("mixed_precision", "comm_overlap")
    unmodelled.update({key: value for key, value in draft.whole.items() if key not in free})


def _free(draft: Draft, section: str) -> Any:
    if section in draft.whole:
        return draft.whole[section]
    return dict(draft.sections[section]) if draft.sections.get(section) else None


def _mapping(draft: Draft, section: str) -> Any:
    """Return a section that is a mapping or absent, and nothing else."""
    value = _free(draft, section)
    if value is None or isinstance(value, Mapping):
        return value
    raise _not_a_section(section, value)


def _not_a_section(section: str, value: FrozenValue) -> ConfigError:
    return ConfigError(
        "wrong-type",
        f"{section}: {shown(value)} is not a section of fields",
        hint=f"write {section}.FIELD=VALUE"
        + ("" if section not in _OPTIONAL else f", or {section}=null for none"),
        data={"field": section, "value": shown(value)},
    )


def _unmodelled_assumptions(unmodelled: Mapping[str, FrozenValue]) -> tuple[Assumption, ...]:
    """Return one assumption that names every field which could matter and is not modelled."""
    names = [name for name in unmodelled if name.partition(".")[0] in _MAY_MATTER]
    if not names:
        return ()
    text = "known, but not part of the memory model: " + ", ".join(names)
    return (Assumption(id="unmodelled", text=text),)


_MAY_MATTER: Final = frozenset(("model", "optimizer", "ddp", "peft", "dist", "comm_overlap"))
"""Sections where a field that is not modelled could move bytes; a logger's cannot."""
