"""Read the job that a command names: file, overrides, revision; one way for every command."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from recompute.config.schema import JobConfig


def read_job(path: str, overrides: tuple[str, ...], *, mcore: str | None = None) -> JobConfig:
    """Return the job as Megatron would see it.

    Args:
        path: JOB of the command line.
        overrides: ``section.field=value`` of the command line.
        mcore: ``--mcore``: wins over ``framework.megatron_core``.

    Raises:
        RecomputeError: The job cannot be read or meant.
    """
    from recompute.config.load import load

    return load(path, *overrides, mcore=mcore)
