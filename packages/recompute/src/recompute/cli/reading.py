"""Read the job that a command names: file, overrides, completion; one way for every command."""

from __future__ import annotations

import dataclasses
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

    job = load(path, *overrides)
    if mcore is not None:
        framework = dataclasses.replace(job.framework, megatron_core=mcore)
        job = dataclasses.replace(job, framework=framework)
    return job
