"""The rule table: every topic's rows, in the order they are reported."""

from __future__ import annotations

from typing import Final

from recompute.rules import granularity, labels
from recompute.rules.types import Rule

TOPICS: Final[tuple[tuple[str, tuple[Rule, ...]], ...]] = (
    ("Granularity, method, layer count", granularity.RULES),
    ("Labels", labels.RULES),
)
"""Heading -> rows."""

RULES: Final[tuple[Rule, ...]] = tuple(rule for _, rows in TOPICS for rule in rows)
"""Every row."""

BY_ID: Final = {rule.id: rule for rule in RULES}
"""Rule id -> row."""
