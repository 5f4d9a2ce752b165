"""recompute: activation recompute for Megatron Core and Megatron Bridge, checked, predicted, planned.

``recompute.load(path, *overrides)`` reads a job. Public names are imported on first use, so that
``import recompute`` costs nothing.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from recompute.config.load import load as load

__version__ = "0.1.0"

_PUBLIC: Final = {"load": "recompute.config.load"}
"""Public name -> the module that defines it."""


def __getattr__(name: str) -> Any:
    """Import a public name when it is first used."""
    if name not in _PUBLIC:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(_PUBLIC[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_PUBLIC})
