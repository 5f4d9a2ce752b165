"""recompute: activation recompute for Megatron Core and Megatron Bridge, checked, predicted, planned.

``recompute.load(path, *overrides)`` reads a job, ``explain(job)`` and ``plan(job, budget)`` answer. Public names are imported on first use, so that
``import recompute`` costs nothing.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from recompute.config.load import load as load
    from recompute.search.explain import explain as explain
    from recompute.search.plan import plan as plan

__version__ = "0.1.0"

_PUBLIC: Final = {
    "diagnose": "recompute.diagnose",
    "explain": "recompute.search.explain",
    "load": "recompute.config.load",
    "plan": "recompute.search.plan",
}
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
