"""recompute: activation recompute for Megatron Core and Megatron Bridge, checked, predicted, planned.

``load(path, *overrides)`` reads a job; ``check(job)``, ``explain(job)`` and ``plan(job, budget)`` answer.
Public names are imported on first use, so that ``import recompute`` costs nothing.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from recompute.config.load import load as load
    from recompute.report.check_run import check_job
    from recompute.search.explain import explain as explain
    from recompute.search.plan import plan as plan

    check = check_job

__version__ = "0.1.0"

_PUBLIC: Final = {
    "check": "recompute.report.check_run:check_job",
    "diagnose": "recompute.diagnose",
    "explain": "recompute.search.explain",
    "load": "recompute.config.load",
    "plan": "recompute.search.plan",
}
"""Public name -> the module that defines it, and its name there when that differs."""


def __getattr__(name: str) -> Any:
    """Import a public name when it is first used."""
    if name not in _PUBLIC:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module, _, attribute = _PUBLIC[name].partition(":")
    value = getattr(importlib.import_module(module), attribute or name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_PUBLIC})
