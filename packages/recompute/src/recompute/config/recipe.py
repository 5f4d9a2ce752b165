"""``recipe:NAME`` (being generated)."""

from __future__ import annotations

from recompute.config.draft import Draft
from recompute.config.schema import JobIdentity
from recompute.errors import ConfigError


def read_recipe(path: str) -> tuple[Draft, JobIdentity]:
    """Refuse: the catalogue is not there yet."""
    raise ConfigError("unknown-recipe", f"{path}: no such recipe")
