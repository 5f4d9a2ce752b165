"""The choices that stock Megatron can make for a job: every one that is legal and different.

Labels that act on no layer of the job make no separate candidates, nor do counts beyond the longest
chunk, since those act as the longest does.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from recompute.config.choice import (
    LABELS,
    NO_RECOMPUTE,
    RecomputeChoice,
    full,
    selective,
    with_choice,
)
from recompute.config.pipeline import layers_per_chunk
from recompute.errors import UnsupportedError
from recompute.rules.check import check, legal

if TYPE_CHECKING:
    from recompute.config.revision import Revision
    from recompute.config.schema import JobConfig

MAX_LONGEST = 512
"""Layers of one chunk at most: each count up to it is two candidates."""


def candidates(
    job: JobConfig, revision: Revision, active_layers: Mapping[str, int]
) -> tuple[RecomputeChoice, ...]:
    """Return every legal choice, no recompute first.

    Args:
        job: A complete job.
        revision: The Megatron Core revision that decides what is legal.
        active_layers: Label -> layers on which it does anything.

    Returns:
        No recompute, every legal subset of the labels that act, ``full`` with ``uniform`` and
        ``block`` for every count up to the longest chunk. No recompute is there even when a rule
        refuses it.
    """
    known = known_errors(job, revision)
    first, *others = every_choice(job, active_layers)
    return (first, *(choice for choice in others if is_legal(job, choice, revision, known)))


def every_choice(job: JobConfig, active_layers: Mapping[str, int]) -> Iterator[RecomputeChoice]:
    """Yield what :func:`candidates` returns before it asks the rules."""
    yield NO_RECOMPUTE
    yield from _selective(active_layers)
    yield from _full(job)


def known_errors(job: JobConfig, revision: Revision) -> frozenset[str]:
    """Return the rules that the job breaks whatever it recomputes, mostly none."""
    return errors_of(with_choice(_for_granularity(job, NO_RECOMPUTE), NO_RECOMPUTE), revision)


def errors_of(job: JobConfig, revision: Revision) -> frozenset[str]:
    """Return the names of the rules that a job breaks."""
    findings = check(job, revision, fixes=False)
    return frozenset(finding.rule for finding in findings if finding.severity == "error")


def is_legal(
    job: JobConfig, choice: RecomputeChoice, revision: Revision, known: frozenset[str]
) -> bool:
    """Say whether a choice breaks no rule that the job without recompute does not break."""
    job = _for_granularity(job, choice)
    if not known:
        return legal(job, choice, revision)
    return errors_of(with_choice(job, choice), revision) <= known


def _for_granularity(job: JobConfig, choice: RecomputeChoice) -> JobConfig:
    """Drop ``distribute_saved_activations`` for selective choices: it belongs to full recompute."""
    if not job.model.distribute_saved_activations or choice.recompute_granularity == "full":
        return job
    return replace(job, model=replace(job.model, distribute_saved_activations=False))


def _selective(active_layers: Mapping[str, int]) -> Iterator[RecomputeChoice]:
    labels = [label for label in LABELS if active_layers.get(label, 0) > 0]
    for count in range(1, len(labels) + 1):
        for subset in itertools.combinations(labels, count):
            yield selective(*subset)


def _full(job: JobConfig) -> Iterator[RecomputeChoice]:
    longest = max((size for row in layers_per_chunk(job) for size in row), default=0)
    if longest > MAX_LONGEST:
        raise UnsupportedError(
            "chunk-too-long",
            f"a model chunk of {longest} layers has more counts to try than {MAX_LONGEST}",
            hint="give more pipeline stages or chunks, or ask explain, which tries no counts",
            data={"layers": longest},
        )
    for method in ("block", "uniform"):
        for count in range(1, longest + 1):
            yield full(method, count)
