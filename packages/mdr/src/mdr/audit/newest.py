"""The id of the newest ruleset, alone, so that asking for it loads no check and no regex engine."""

from __future__ import annotations

from typing import Final

LATEST: Final = "r1"
"""A key of :data:`mdr.audit.rulesets.RULESETS`; a test holds the two together."""
