"""Which schema class each section has, and the types and defaults of its fields."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping
from typing import Any, Final

from recompute.config.schema import (
    DdpConfig,
    FrameworkConfig,
    FrozenValue,
    HardwareConfig,
    ModelConfig,
    OptimizerConfig,
    PeftConfig,
    TrainConfig,
)

SCHEMAS: Final[Mapping[str, type[Any]]] = {
    "model": ModelConfig,
    "train": TrainConfig,
    "optimizer": OptimizerConfig,
    "ddp": DdpConfig,
    "peft": PeftConfig,
    "hardware": HardwareConfig,
    "framework": FrameworkConfig,
}
"""Section -> class, in the order in which a job is written."""


@functools.cache
def kinds(section: str) -> Mapping[str, str]:
    """Return ``field -> type as written`` of a section; annotations are text in the schema."""
    return {field.name: str(field.type) for field in dataclasses.fields(SCHEMAS[section])}


@functools.cache
def _defaults(section: str) -> Mapping[str, Any]:
    return {field.name: field.default for field in dataclasses.fields(SCHEMAS[section])}


def default_of(section: str, name: str) -> FrozenValue:
    """Return what a field of the schema is when nobody gives it."""
    return _defaults(section)[name]
