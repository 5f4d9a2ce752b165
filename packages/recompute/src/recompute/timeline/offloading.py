"""Which layers of a chunk send activations to the host, and what is back while each runs backward.

The end of each group's backward brings one group back, whether or not the group itself had left. As many
groups as stay at the end of a chunk are therefore ahead of the one that runs: with one layer that stays,
each layer is whole before its backward begins, and brings back the layer before group by group.

Source: NVIDIA/Megatron-LM core_v0.19.0
megatron/core/pipeline_parallel/fine_grained_activation_offload.py
``PipelineOffloadManager.post_warmup_callback`` (what stays), ``ChunkOffloadHandler.bulk_reload`` (where
a chunk has nothing more to bring back, it begins with the next one in backward).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Protocol

from recompute.config.schema import JobConfig
from recompute.model.offload import OffloadGroup
from recompute.model.tape_profile import TapeProfile
from recompute.timeline.stages import Chunk, Stage
from recompute.timeline.units_of_work import Unit, unit_of

Arrivals = tuple[tuple[int, int], ...]
"""Position of an operation, and the bytes of the layer before that its backward brings back."""
Active = tuple[str, frozenset[str]]
"""Kind of a layer and its active labels."""


class Profiles(Protocol):
    """What this module asks of a book of layers."""

    @property
    def job(self) -> JobConfig:
        """The job."""
        ...

    def profile(
        self, kind: str, active: frozenset[str], *, offloads: bool = ..., arrivals: Arrivals = ...
    ) -> TapeProfile:
        """Return the profile of a layer."""
        ...

    def groups(self, kind: str, active: frozenset[str]) -> tuple[OffloadGroup, ...]:
        """Return what a layer would offload."""
        ...


def leaves(job: JobConfig, index: int, chunk: Chunk, stage: Stage) -> bool:
    """Say whether the layer at a place of its chunk offloads.

    ``cpu_offloading`` takes the first layers. Fine-grained offloading leaves the last layer of the rank
    that has the head, whose backward comes at once (ChunkOffloadHandler.should_bulk_offload; the head's
    own chunk may have no layer), and of the others the share that ``activation_offload_fraction`` asks
    for, from the front. A depth of multi-token prediction is that last layer.
    """
    model = job.model
    if model.cpu_offloading:
        return model.cpu_offloading_activations and index < model.cpu_offloading_num_layers
    if not model.fine_grained_activation_offloading:
        return False
    eligible = len(chunk.layers) - int(stage.runs_back_at_once(chunk) and not chunk.mtp)
    kept = int(eligible * (1 - model.activation_offload_fraction))
    return index < eligible - kept


def offloading_units(
    book: Profiles, chunk: Chunk, stage: Stage, layers: Sequence[Active]
) -> list[Unit]:
    """Return the decoder layers of a chunk as units, offloaded where the job says so.

    Args:
        book: Profiles of the job's layers.
        chunk: The chunk.
        stage: Its pipeline rank.
        layers: Kind and active labels of each decoder layer of the chunk.
    """
    marks = [leaves(book.job, index, chunk, stage) for index in range(len(layers))]
    fine = book.job.model.fine_grained_activation_offloading and any(marks)
    sources = _sources(marks, wraps=not stage.runs_back_at_once(chunk)) if fine else {}
    units = []
    for index, (kind, active) in enumerate(layers):
        before = sources.get(index)
        arrivals = arriving(book, layers[index], layers[before]) if before is not None else ()
        made = book.profile(kind, active, offloads=marks[index], arrivals=arrivals)
        units.append(unit_of(kind, made))
    return _with_early(units, book, layers, marks) if fine else units


def arriving(book: Profiles, running: Active, before: Active) -> Arrivals:
    """Return what each group's backward of one layer brings back of another, last groups first."""
    returning = book.profile(*before, offloads=True).returning
    groups = book.groups(*running)
    pairs = zip(reversed(groups), reversed(returning), strict=False)
    return tuple((group.first, size) for group, size in pairs)


def _staying(marks: Sequence[bool]) -> int:
    """Return how many layers are ahead: those that stay at the end of a chunk, one at least."""
    return max(1, len(marks) - 1 - max(i for i, mark in enumerate(marks) if mark))


def _sources(marks: Sequence[bool], *, wraps: bool) -> dict[int, int]:
    """Return the layer that each one brings back: so many before it as are ahead.

    Args:
        marks: Which layers offload.
        wraps: Other micro-batches are in flight, whose last layers come after this one's first.
    """
    ahead, leaving = _staying(marks), [index for index, mark in enumerate(marks) if mark]
    found = {index: index - ahead for index in range(ahead, len(marks)) if marks[index - ahead]}
    if wraps:
        found |= {
            index: leaving[(index - ahead) % len(leaving)]
            for index in range(min(ahead, len(marks)))
        }
    return found


def _with_early(
    units: Sequence[Unit], book: Profiles, layers: Sequence[Active], marks: Sequence[bool]
) -> list[Unit]:
    """Add what more than one layer ahead has brought back before a layer's backward begins."""
    ahead, found = _staying(marks), []
    for index, unit in enumerate(units):
        early = sum(
            sum(book.profile(*layers[at], offloads=True).returning)
            for at in range(max(0, index - ahead + 1), index)
            if marks[at]
        )
        found.append(
            replace(
                unit,
                backward_peak=unit.backward_peak + early,
                alive_at_backward_peak=(
                    *unit.alive_at_backward_peak,
                    ("activations brought back", early),
                ),
            )
            if early
            else unit
        )
    return found


def with_held_input(
    units: Sequence[Unit], first: int, stream: int, *, received: bool
) -> tuple[Unit, ...]:
    """Count the input of a chunk's first layer where it left for the host and others hold it still.

    The embedding's output is an argument of the model's whole forward, loss included; what another rank
    sent, the schedule holds until its backward. Only the group of a separate input norm empties it for
    all (NVIDIA/Megatron-LM core_v0.19.0 megatron/core/models/gpt/gpt_model.py ``decoder_input``,
    megatron/core/pipeline_parallel/schedules.py ``input_tensors``, transformer_layer.py
    ``forced_released_tensors``).

    Args:
        units: The chunk.
        first: Place of its first layer.
        stream: Bytes of that layer's input.
        received: It comes from another rank.
    """
    if first >= len(units) or not units[first].input_left:
        return tuple(units)
    held = ("input", stream)
    if received:
        unit = units[first]
        grown = replace(
            unit,
            saved=unit.saved + stream,
            forward_peak=unit.forward_peak + stream,
            backward_peak=unit.backward_peak + stream,
            alive_saved=(*unit.alive_saved, held),
            alive_at_forward_peak=(*unit.alive_at_forward_peak, held),
            alive_at_backward_peak=(*unit.alive_at_backward_peak, held),
        )
        return (*units[:first], grown, *units[first + 1 :])
    later = (
        replace(
            unit,
            forward_peak=unit.forward_peak + stream,
            alive_at_forward_peak=(*unit.alive_at_forward_peak, held),
        )
        for unit in units[first + 1 :]
    )
    return (*units[: first + 1], *later)
