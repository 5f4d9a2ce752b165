"""A job while it is being read: values by section and field, each with where it was given.

Every reader fills a :class:`Draft`; overrides and precision recipes change it; ``build`` turns it
into a frozen :class:`~recompute.config.schema.JobConfig`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from recompute.config.schema import Assumption, Change, FrozenValue

if TYPE_CHECKING:
    from collections.abc import Iterator

MODELLED: Final = ("model", "train", "optimizer", "ddp", "peft", "hardware", "framework")
"""Sections that become a typed value of the job."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Unresolved:
    """A value that a launch script takes from outside: the shell knows it, we do not."""

    name: str
    """The variable, or the command whose output it is."""
    flag: str


class Draft:
    """Values as given. Mutable, and gone once the job is built."""

    __slots__ = (
        "absent",
        "assumptions",
        "changes",
        "environment",
        "provider",
        "sections",
        "where",
        "whole",
    )

    def __init__(self) -> None:
        self.sections: dict[str, dict[str, FrozenValue]] = {}
        """``section -> field -> value``."""
        self.whole: dict[str, FrozenValue] = {}
        """Sections given as one value: ``mixed_precision: bf16_mixed``."""
        self.absent: dict[str, str] = {}
        """Sections given as null -> where."""
        self.where: dict[str, str] = {}
        """``section.field`` -> where it was given."""
        self.environment: dict[str, str] = {}
        self.changes: list[Change] = []
        self.assumptions: list[Assumption] = []
        self.provider: str | None = None
        """``model._target_``: the class whose defaults hold for fields of ``model`` that are not given."""

    def set(self, section: str, name: str, value: FrozenValue, where: str) -> None:
        """Give one field a value; a section that was null is there again."""
        self.absent.pop(section, None)
        self.sections.setdefault(section, {})[name] = value
        self.where[f"{section}.{name}"] = where

    def get(self, section: str, name: str, default: FrozenValue = None) -> FrozenValue:
        """Return the value given for a field, or ``default``."""
        return self.sections.get(section, {}).get(name, default)

    def has(self, section: str, name: str) -> bool:
        """Tell whether a field was given."""
        return name in self.sections.get(section, {})

    def drop(self, section: str, name: str) -> bool:
        """Forget a field; return whether it was there."""
        self.where.pop(f"{section}.{name}", None)
        return self.sections.get(section, {}).pop(name, self) is not self

    def set_absent(self, section: str, where: str) -> None:
        """Say that a section is null: no DDP wrapper, no Megatron optimizer."""
        self.sections.pop(section, None)
        self.whole.pop(section, None)
        for key in [key for key in self.where if key.startswith(section + ".")]:
            del self.where[key]
        self.absent[section] = where
        self.where[section] = where

    def change(  # noqa: D417 - the fields of Change document themselves
        self, name: str, after: FrozenValue, why: str, source: str
    ) -> None:
        """Give a field the value that the framework would, and record the change.

        Args:
            name: ``section.field``.
        """
        section, _, field = name.partition(".")
        before = self.get(section, field)
        if self.has(section, field) and before == after:
            return
        where = self.where.get(name)
        self.set(section, field, after, where or "derived")
        self.changes.append(Change(field=name, before=before, after=after, why=why, source=source))

    def assume(self, identifier: str, text: str) -> None:
        """Record something that the answer rests on and the job does not say; once per id."""
        if all(known.id != identifier for known in self.assumptions):
            self.assumptions.append(Assumption(id=identifier, text=text))

    def fields(self) -> Iterator[tuple[str, str, FrozenValue]]:
        """Yield ``(section, field, value)`` for everything given."""
        for section, values in self.sections.items():
            for name, value in values.items():
                yield section, name, value
