"""Why a run went out of memory: logs, memory snapshots and ledgers in, a verdict and actions out.

The package is also the public function: ``recompute.diagnose(["train.log"])`` is
:func:`recompute.diagnose.run.diagnose`.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from recompute.diagnose.run import Answer


class _CallableModule(ModuleType):
    """Lets the stage's folder and the public function have the one name that both are called by."""

    def __call__(self, paths: str | Iterable[str], **options: Any) -> Answer:
        """Diagnose logs, folders, snapshots or ledgers.

        Args:
            paths: One path or several.
            options: ``job``, ``revision``, ``predict`` and ``progress`` of
                :func:`recompute.diagnose.run.diagnose`.
        """
        from recompute.diagnose.run import diagnose as run

        return run((paths,) if isinstance(paths, str) else tuple(map(str, paths)), **options)


sys.modules[__name__].__class__ = _CallableModule
diagnose = sys.modules[__name__]
