"""Which Transformer Engine a job runs, for behaviour that changed between its releases."""

from __future__ import annotations

import re
from typing import Final

from recompute.config.schema import JobConfig

Version = tuple[int, int]
"""Major and minor."""

CONTEMPORARY: Final[dict[Version, Version]] = {
    (0, 12): (2, 3),
    (0, 13): (2, 5),
    (0, 14): (2, 8),
    (0, 15): (2, 10),
    (0, 16): (2, 12),
    (0, 17): (2, 14),
    (0, 18): (2, 16),
    (0, 19): (2, 20),
}
"""Megatron Core release -> newest Transformer Engine release of its day.

Sources: tags of NVIDIA/Megatron-LM, history of build_tools/VERSION.txt in NVIDIA/TransformerEngine;
core 0.19.2 was measured with 2.20.2.
"""

_VERSION: Final = re.compile(r"(?:core_v|v)?(\d{1,4})\.(\d{1,4})")


def read_version(text: str | None) -> Version | None:
    """Read major and minor of a version, ``None`` where there is none to read."""
    found = _VERSION.match(text) if text else None
    return (int(found[1]), int(found[2])) if found else None


def core_at_least(job: JobConfig, first: Version) -> bool:
    """Say whether the job's Megatron Core is a release or later; unknown is the newest."""
    version = read_version(job.framework.megatron_core)
    return version is None or version >= first


def transformer_engine_at_least(job: JobConfig, first: Version) -> bool:
    """Say whether the job's Transformer Engine is a release or later.

    Without its version, that of Megatron Core's day is assumed; without either, the newest.
    """
    version = read_version(job.framework.transformer_engine)
    if version is None:
        core = read_version(job.framework.megatron_core)
        version = CONTEMPORARY.get(core) if core else None
    return version is None or version >= first


def refuses_engine_loss(job: JobConfig) -> bool:
    """Say whether Megatron-LM's command line of the job's release refuses Transformer Engine's cross entropy.

    From 0.18.2 on (NVIDIA/Megatron-LM core_v0.18.2 and core_v0.19.0 megatron/training/arguments.py
    ``validate_args``; not in core_v0.18.0). Without a version, the newest is assumed.
    """
    if core_at_least(job, (0, 19)):
        return True
    return re.match(r"(?:core_v|v)?0\.18\.[2-9]", job.framework.megatron_core or "") is not None
