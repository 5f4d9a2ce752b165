"""What the class that ``model._target_`` names gives the fields that a job leaves out.

``providers.json`` holds the defaults of Megatron Bridge's model providers where they differ from our own,
read from its source at its releases and its main branch by ``tools/provider_catalogue.py``. A
``run_config.yaml`` that Bridge wrote gives every field, so nothing changes there.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from recompute.config.draft import Draft
from recompute.config.schema import FrozenValue

UNKNOWN_PROVIDER: Final = "provider-unknown"
"""Id of the assumption that a job's provider is not in the catalogue; the texts print it first."""
ARCHITECTURE: Final = (
    "gated_linear_unit",
    "activation_func",
    "normalization",
    "add_bias_linear",
    "position_embedding_type",
    "share_embeddings_and_output_weights",
)
"""Fields in which models differ most from a plain GPT."""


@functools.cache
def providers() -> Mapping[str, Mapping[str, Any]]:
    """Return ``class -> {source: revision and path, fields: its defaults that differ from ours}``."""
    text = Path(__file__).with_name("providers.json").read_text(encoding="utf-8")
    table: dict[str, Mapping[str, Any]] = json.loads(text)
    return table


def apply_provider(draft: Draft) -> None:
    """Give the fields that the job leaves out what its provider gives them, as visible changes.

    Args:
        draft: Changed in place, after overrides; nothing happens without a ``model._target_``.
    """
    if draft.provider is None:
        return
    name = draft.provider.rpartition(".")[2]
    entry = providers().get(name)
    if entry is None:
        _unknown(draft, draft.provider)
        return
    missing = {key: item for key, item in entry["fields"].items() if not draft.has("model", key)}
    source = f"NVIDIA-NeMo/Megatron-Bridge {entry['source']} {name}"
    for key, value in missing.items():
        draft.change(
            f"model.{key}", _frozen(value), f"{name} gives it where the job does not", source
        )
    if missing:
        draft.assume(
            "provider-defaults",
            f"{len(missing)} fields that the job does not give are {name}'s; recompute show lists them",
        )


def _unknown(draft: Draft, target: str) -> None:
    left = [field for field in ARCHITECTURE if not draft.has("model", field)]
    if left:
        draft.assume(
            UNKNOWN_PROVIDER,
            f"model._target_ {target[:120]} is not known: fields not given fell to GPT defaults "
            f"({', '.join(left)}, ...)",
        )


def _frozen(value: FrozenValue) -> FrozenValue:
    return tuple(_frozen(item) for item in value) if isinstance(value, list) else value
