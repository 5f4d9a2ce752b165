"""Which Megatron Core revision a job runs on."""

from __future__ import annotations

from typing import TYPE_CHECKING

from recompute.config.revision import (
    NEWEST_RELEASE,
    Revision,
    parse_bridge_version,
    parse_revision,
)

if TYPE_CHECKING:
    from recompute.config.schema import JobConfig


def revision_of(job: JobConfig) -> tuple[Revision, bool]:
    """Return the revision, and whether it is assumed because the job names none.

    ``framework.megatron_core`` wins over what ``framework.megatron_bridge`` pins.

    Raises:
        ConfigError: ``unknown-revision``.
    """
    if job.framework.megatron_core is not None:
        return parse_revision(job.framework.megatron_core), False
    if job.framework.megatron_bridge is not None:
        return parse_bridge_version(job.framework.megatron_bridge), False
    return NEWEST_RELEASE, True
