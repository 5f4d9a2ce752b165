"""The edge that meets torch and Megatron Core, inside the user's own environment.

``apply(model, plan)`` puts a per-layer plan on a built model; ``MemoryProbe`` writes what a run did to a
ledger. Both are imported on first use; neither is needed for planning. No module of this package has a
public name of it: importing that module would put it in the function's place.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from recompute.megatron.applied import apply as apply
    from recompute.megatron.boundaries import read_back as read_back
    from recompute.megatron.probe import MemoryProbe as MemoryProbe

_PUBLIC: Final = {
    "MemoryProbe": "recompute.megatron.probe",
    "apply": "recompute.megatron.applied",
    "read_back": "recompute.megatron.boundaries",
}


def __getattr__(name: str) -> Any:
    """Import a public name when it is first used."""
    if name not in _PUBLIC:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(_PUBLIC[name]), name)
    globals()[name] = value
    return value
