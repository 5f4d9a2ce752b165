"""Which fields exist, and the nearest one to a name that does not.

The table is ``known_fields.json``: section -> field -> [type, first revision, last revision, default],
written by ``tools/known_fields.py`` from the classes of Megatron-LM and Megatron Bridge.
"""

from __future__ import annotations

import difflib
import functools
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, cast

from recompute.config.draft import MODELLED
from recompute.config.foreign_fields import FOREIGN_FIELDS, OTHER_NAMES
from recompute.config.schema import FrozenValue
from recompute.errors import ConfigError

EXTRA: Final[Mapping[str, tuple[str, ...]]] = {
    "model": ("vision", "keep_fp8_weight_transpose_cache"),
    "ddp": ("use_torch_fsdp2",),
    "peft": ("scheme",),
    "framework": ("entry_point",),
    "arguments": ("*",),
}
"""Fields of our own schema that no class of Megatron has under that section; ``arguments`` holds what a
Megatron-LM command line gives and no section has."""


@functools.cache
def known_fields() -> Mapping[str, Mapping[str, tuple[Any, ...]]]:
    """Return ``section -> field -> (type, first revision, last revision[, default])``."""
    text = Path(__file__).with_name("known_fields.json").read_text(encoding="utf-8")
    table: dict[str, dict[str, Any]] = json.loads(text)
    for section, names in EXTRA.items():
        for name in names:
            table.setdefault(section, {}).setdefault(name, ["", None, None])
    return cast("Mapping[str, Mapping[str, tuple[Any, ...]]]", table)


def check_section(section: str) -> None:
    """Refuse a section that no job has.

    Raises:
        ConfigError: ``unknown-section``.
    """
    sections = tuple(known_fields())
    if section in sections:
        return
    field = field_named(section)
    near = [field] if field else difflib.get_close_matches(section, sections, 1, 0.6)
    raise ConfigError(
        "unknown-section",
        f"unknown section {section[:60]!r}",
        hint=f"did you mean {near[0]}?" if near else "sections are " + ", ".join(sections),
        data={"section": section[:200], "nearest": near[0] if near else None},
    )


def check_field(section: str, name: str) -> None:
    """Refuse a field that its section does not have.

    Raises:
        ConfigError: ``unknown-field``, with the nearest known field.
    """
    fields = known_fields()[section]
    if name in fields or "*" in fields or name in FOREIGN_FIELDS:
        return
    near = nearest(section, name)
    raise ConfigError(
        "unknown-field",
        f"unknown field {section}.{name[:60]}",
        hint=f"did you mean {near}?" if near else f"recompute show lists the fields of {section}",
        data={"field": f"{section}.{name[:200]}", "nearest": near},
    )


def field_named(name: str) -> str | None:
    """Return the ``section.field`` that a bare name means: a field of a section, or another name of one."""
    table = known_fields()
    homes = (*MODELLED, *(other for other in table if other not in MODELLED))
    home = next((section for section in homes if name in table[section]), None)
    return OTHER_NAMES.get(name.lower()) if home is None else f"{home}.{name}"


def nearest(section: str, name: str) -> str | None:
    """Return the known ``section.field`` nearest to a name: same section first, then the others."""
    if name.lower() in OTHER_NAMES:
        return OTHER_NAMES[name.lower()]
    table = known_fields()
    order = (*MODELLED, *(other for other in table if other not in MODELLED))
    for other in order:
        if other != section and name in table[other]:
            return f"{other}.{name}"
    close = difflib.get_close_matches(name, table.get(section, ()), 1, 0.75)
    if close:
        return f"{section}.{close[0]}"
    everywhere = {field: other for other in reversed(order) for field in table[other]}
    close = difflib.get_close_matches(name, everywhere, 1, 0.75)
    if close:
        return f"{everywhere[close[0]]}.{close[0]}"
    close = difflib.get_close_matches(name, table.get(section, ()), 1, 0.5)
    return f"{section}.{close[0]}" if close else None


def is_default(section: str, name: str, value: FrozenValue) -> bool:
    """Tell whether a value is the one the field has when it is not given."""
    row = known_fields()[section].get(name, ())
    if value is None or len(row) <= _DEFAULT:
        return value is None
    default = tuple(row[_DEFAULT]) if isinstance(row[_DEFAULT], list) else row[_DEFAULT]
    return type(default) is type(value) and bool(default == value)


_DEFAULT: Final = 3
"""Position of the default in a row; rows without one are shorter."""
