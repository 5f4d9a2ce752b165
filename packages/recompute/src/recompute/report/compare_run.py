"""Compare a ledger from its path: what the command and the agents' tool share."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from recompute.config.schema import JobConfig
    from recompute.measure.ledger import Ledger
    from recompute.measure.types import Comparison


def compare_ledger(root: str, *, allow_differences: bool = False) -> Comparison:
    """Read a ledger and hold its candidates against the control.

    Args:
        root: The folder.
        allow_differences: As for :func:`recompute.measure.compare.compare`.

    Raises:
        InputError: The ledger cannot be read, or its runs are not matched.
    """
    from recompute.measure.compare import compare
    from recompute.measure.ledger import read_ledger

    held = read_ledger(root)
    return compare(held, job=_job_of(held), allow_differences=allow_differences)


def _job_of(ledger: Ledger) -> JobConfig | None:
    """Return the job that the ledger holds, as Megatron would act on it."""
    if ledger.job_path is None:
        return None
    from recompute.config.load import load
    from recompute.config.normalize import normalize
    from recompute.config.require import EXPLAIN, require_complete

    return normalize(require_complete(load(ledger.job_path), EXPLAIN))
