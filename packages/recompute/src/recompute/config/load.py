"""A job in any accepted form -> one :class:`~recompute.config.schema.JobConfig`.

``load`` reads, applies overrides, expands the precision recipe and checks the geometry. It fills in no
default of Megatron beyond the schema's own: that is :mod:`recompute.config.normalize`, a visible step.
"""

from __future__ import annotations

from recompute.config.build import build
from recompute.config.draft import Draft
from recompute.config.mixed_precision import expand_mixed_precision
from recompute.config.overrides import apply_overrides
from recompute.config.schema import JobConfig, JobIdentity
from recompute.config.sections import read_sections
from recompute.config.source import JobText, read_job
from recompute.config.yaml_source import parse_yaml


def load(path: str, *overrides: str, stdin: bytes | None = None) -> JobConfig:
    """Read a job.

    Args:
        path: A job file in any accepted form, ``recipe:NAME``, or ``-`` for standard input.
        overrides: Hydra style: ``model.num_layers=8``, ``+hardware.gpu=h200``, ``~ddp``.
        stdin: Bytes to take for standard input.

    Raises:
        ConfigError: what is wrong, and what to write instead.
        UnsupportedError: the job is valid but of a kind that is not modelled.
        WorldError: the disk failed.
    """
    source = read_job(path, stdin)
    draft, identity = _read(source)
    apply_overrides(draft, overrides)
    expand_mixed_precision(draft)
    return build(draft, identity)


def _read(source: JobText) -> tuple[Draft, JobIdentity]:
    draft = read_sections(parse_yaml(source.text, source.path), source.path)
    return draft, JobIdentity(path=source.path, sha256=source.sha256, format="bridge-yaml")
