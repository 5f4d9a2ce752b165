"""The shapes of the rule table: one row for each rule, with one failing and one passing example."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, Literal

from recompute.config.revision import NAMES

if TYPE_CHECKING:
    from recompute.rules.case import Case

Severity = Literal["error", "warning", "note"]
SEVERITIES: Final[tuple[Severity, ...]] = ("error", "warning", "note")
"""Most urgent first."""

Entry = Literal["megatron-lm", "bridge", "core"]
ENTRIES: Final[frozenset[Entry]] = frozenset({"megatron-lm", "bridge", "core"})
"""Who builds the config: Megatron-LM's own training scripts, Megatron Bridge, or other code."""

Raised = Literal["config", "cli", "bridge", "build", "forward", "backward", "launch", "never"]
"""When Megatron itself speaks up: building the config, validating arguments, validating Bridge's
container, building layers, the first forward or backward, starting the program, or never."""

Gate = Literal["any", "declared-selective", "selective", "full"]
"""Which jobs a rule can concern. ``declared-selective`` looks at the granularity as given,
``selective`` also at the one that the deprecated ``moe_layer_recompute`` switch sets."""

Edit = Mapping[str, Any]
"""``section.field`` -> new value."""

MEGATRON: Final = "NVIDIA/Megatron-LM"
BRIDGE: Final = "NVIDIA-NeMo/Megatron-Bridge"
CONFIG: Final = "megatron/core/transformer/transformer_config.py"
ARGUMENTS: Final = "megatron/training/arguments.py"

REFS: Final[Mapping[str, str]] = {
    **{name: f"core_v{name}.0" for name in NAMES if name[0] == "0"},
    "pin": "2a75ac12",
    "main": "d98e8a64",
    "dev": "d48bd6be",
}
"""Revision name -> tag or commit that was read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """Where a rule was read."""

    path: str = CONFIG
    where: str = "TransformerConfig.__post_init__"
    repository: str = MEGATRON
    revision: str | None = None
    """A fixed revision, issue or pull request; ``None``: the revision that is checked."""
    terms: tuple[str, ...] = ()
    """Words that all occur in the statements this rule rests on; ``()``: the whole function."""

    def at(self, revision: str) -> Source:
        """Return the source with its revision filled in for the revision named ``revision``."""
        if self.revision is not None:
            return self
        return Source(
            path=self.path,
            where=self.where,
            repository=self.repository,
            revision=REFS.get(revision, revision),
            terms=self.terms,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Example:
    """One job, as the fields that differ from a small valid one, on one revision."""

    revision: str
    entry: Entry = "bridge"
    fields: Mapping[str, Any] = field(default_factory=dict)
    """``section.field`` -> value; a bare name is a field of ``model``."""


def ex(revision: str, entry: Entry = "bridge", /, **fields: Any) -> Example:
    """Return an example; ``__`` in a name stands for the dot between section and field."""
    return Example(
        revision=revision,
        entry=entry,
        fields={name.replace("__", "."): value for name, value in fields.items()},
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """One row of the table."""

    id: str
    """Stable kebab-case name."""
    severity: Severity
    raised: Raised
    """When Megatron itself reports it; ``never`` for what it passes over in silence."""
    title: str
    """Condition and effect in one line, for the reference page."""
    revisions: frozenset[str]
    when: Callable[[Case], bool]
    """Whether the rule concerns the job."""
    message: str
    """Template over ``m`` (the model section), ``c`` (the case) and ``d`` (``detail``): names values
    and the effect."""
    fields: tuple[str, ...]
    source: Source
    bad: Example
    good: Example
    gate: Gate = "any"
    entries: frozenset[Entry] = ENTRIES
    fix: Callable[[Case], Edit] | None = None
    """Fields to change; ``None`` where there is nothing to paste."""
    detail: Callable[[Case], object] | None = None
    """Value of ``d`` in the message."""
    advice: str = ""
    """What to do where no override does it."""
    basis: str = "code"
    """``code``: read in the source; ``inferred``: follows from the code path, not run;
    ``run``: seen in a run of the real code; ``report``: a public report named in the source."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One rule that concerns a job."""

    rule: str
    severity: Severity
    message: str
    fields: tuple[str, ...]
    overrides: tuple[str, ...]
    """Hydra overrides to paste; all of a report's overrides together give a legal job."""
    source: Source
    raised: Raised
    advice: str = ""
    confirmed: bool = True
    """False when the source that was named with ``--mcore PATH`` differs from what we read."""

    def to_document(self) -> dict[str, Any]:
        """Return the finding as the JSON documents hold it."""
        source = self.source
        return {
            "rule": self.rule,
            "severity": self.severity,
            "message": self.message,
            "fields": list(self.fields),
            "fix": {"overrides": list(self.overrides), "advice": self.advice},
            "source": {
                "repository": source.repository,
                "revision": source.revision,
                "path": source.path,
                "where": source.where,
            },
            "raised": self.raised,
            "confirmed": self.confirmed,
        }


def since(first: str, *, dev: bool = True) -> frozenset[str]:
    """Return the revisions from ``first`` to main, with the dev branch unless told otherwise."""
    names = NAMES[NAMES.index(first) : NAMES.index("main") + 1]
    return frozenset({*names, "dev"} if dev else names)


def between(first: str, last: str) -> frozenset[str]:
    """Return the revisions from ``first`` to ``last``, both included, without dev."""
    return frozenset(NAMES[NAMES.index(first) : NAMES.index(last) + 1])


def on(*names: str) -> frozenset[str]:
    """Return exactly these revisions."""
    return frozenset(names)


ALL: Final = since("0.8")
