"""Profiles of a job's layers under any choice, computed once and shared by all choices."""

from __future__ import annotations

from dataclasses import replace

from recompute.config.choice import RecomputeChoice
from recompute.config.schema import JobConfig
from recompute.model.layer import LAYER_KINDS
from recompute.model.ops.ends import embedding_tape, head_tape
from recompute.model.run import GradPolicy, TapeProfile, profile
from recompute.model.shape import shape_of
from recompute.model.tape import Mechanism, Region, Tape
from recompute.timeline.stages import Chunk, Stage
from recompute.timeline.types import Replay
from recompute.timeline.units_of_work import Unit, group_of, unit_of
from recompute.timeline.work import total, work_of

FULL = "full"
"""Name of the region that covers a whole layer."""


class LayerBook:
    """Tapes and profiles of one job.

    Args:
        job: A complete job.
        microbatches: Micro-batches of one step; with one and no DDP wrapper, weight gradients
            appear during backward, with more they are there from the second backward on.
        composition: Keep what is alive, for reports.
    """

    def __init__(self, job: JobConfig, microbatches: int, *, composition: bool) -> None:
        self.job = job
        self.shape = shape_of(job)
        self.composition = composition
        self.policy = GradPolicy(
            appear_in_backward=job.ddp is None and microbatches == 1,
            fused=job.ddp is not None and job.model.gradient_accumulation_fusion,
        )
        self._tapes: dict[str, Tape] = {}
        self._profiles: dict[tuple[str, frozenset[str]], TapeProfile] = {}
        self._replays: dict[tuple[str, frozenset[str]], Replay] = {}

    def tape(self, kind: str) -> Tape:
        """Return the tape of a layer kind, with a region around the whole layer added."""
        if kind not in self._tapes:
            model = self.job.model
            tape = LAYER_KINDS[kind](model, self.shape)
            whole = Region(
                label=FULL,
                mechanism=Mechanism.CHECKPOINT,
                first=tape.ops[0].name,
                last=tape.ops[-1].name,
                saved_shards=self.shape.tp if model.distribute_saved_activations else 1,
            )
            self._tapes[kind] = replace(tape, regions=(*tape.regions, whole))
        return self._tapes[kind]

    def active(self, kind: str, labels: tuple[str, ...]) -> frozenset[str]:
        """Return those of ``labels`` that do anything on a layer kind."""
        return frozenset(region.label for region in self.tape(kind).regions).intersection(labels)

    def profile(self, kind: str, active: frozenset[str]) -> TapeProfile:
        """Return the profile of a layer kind with some labels active."""
        key = (kind, active)
        if key not in self._profiles:
            self._profiles[key] = profile(
                self.tape(kind), active, self.policy, composition=self.composition
            )
        return self._profiles[key]

    def end(self, name: str, stage: Stage) -> tuple[Tape, TapeProfile]:
        """Return tape and profile of ``embedding`` or ``head`` on a stage.

        Tied weights are one tensor when both ends lie on one rank, and two copies otherwise.
        """
        shared = self.job.model.share_embeddings_and_output_weights
        both = stage.has_embedding and stage.has_head
        if name == "embedding":
            tape = embedding_tape(self.job.model, self.shape, owns_weight=not (shared and both))
        else:
            tape = head_tape(self.job.model, self.shape, owns_weight=True)
        key = (f"{name}/{shared and both}", frozenset[str]())
        if key not in self._profiles:
            self._profiles[key] = profile(
                tape, frozenset(), self.policy, composition=self.composition
            )
        return tape, self._profiles[key]

    def replay(self, kind: str, active: frozenset[str]) -> Replay:
        """Return what one layer runs again in one backward."""
        key = (kind, active)
        if key not in self._replays:
            by_name = {op.name: op for op in self.tape(kind).ops}
            names = self.profile(kind, active).replayed
            self._replays[key] = work_of(by_name[name] for name in names)
        return self._replays[key]

    def units(self, chunk: Chunk, stage: Stage, choice: RecomputeChoice) -> tuple[Unit, ...]:
        """Return a chunk as units under a choice, ends included."""
        units: list[Unit] = []
        if chunk.embedding:
            units.append(unit_of("embedding", self.end("embedding", stage)[1]))
        units += self._layer_units(chunk, choice)
        if chunk.head:
            units.append(unit_of("head", self.end("head", stage)[1]))
        return tuple(units)

    def _layer_units(self, chunk: Chunk, choice: RecomputeChoice) -> list[Unit]:
        if choice.recompute_granularity != FULL or choice.per_layer is not None:
            return [
                unit_of(kind, self.profile(kind, active))
                for kind, active in self.actives(chunk, choice)
            ]
        size = choice.recompute_num_layers or 0
        kinds = [layer.kind for layer in chunk.layers]
        units: list[Unit] = []
        if choice.recompute_method == "block":
            for index, kind in enumerate(kinds):
                units.append(self._group([kind]) if index < size else self._plain(kind))
            return units
        return [
            self._group(kinds[first : first + size]) for first in range(0, len(kinds), max(size, 1))
        ]

    def _plain(self, kind: str) -> Unit:
        return unit_of(kind, self.profile(kind, frozenset()))

    def _group(self, kinds: list[str]) -> Unit:
        whole = [self.profile(kind, frozenset({FULL})) for kind in kinds]
        if len(kinds) == 1:
            return unit_of(kinds[0], whole[0])
        plain = [self.profile(kind, frozenset()) for kind in kinds]
        return group_of("checkpointed layers", whole, plain, self.shape.stream)

    def actives(self, chunk: Chunk, choice: RecomputeChoice) -> list[tuple[str, frozenset[str]]]:
        """Return kind and active regions of every layer of a chunk."""
        size = choice.recompute_num_layers or 0
        pairs = []
        for index, layer in enumerate(chunk.layers):
            if choice.per_layer is not None:
                labels = next(
                    (s.modules for s in choice.per_layer if s.first <= layer.number <= s.last), ()
                )
            elif choice.recompute_granularity == FULL:
                whole = choice.recompute_method == "uniform" or index < size
                labels = (FULL,) if whole else ()
            else:
                labels = tuple(m for m in choice.recompute_modules if m != FULL)
            pairs.append((layer.kind, self.active(layer.kind, labels)))
        return pairs

    def stage_work(self, stage: Stage) -> Replay:
        """Return what one micro-batch's forward of a stage runs."""
        parts = [work_of(self.tape(layer.kind).ops) for c in stage.chunks for layer in c.layers]
        for name, present in (("embedding", stage.has_embedding), ("head", stage.has_head)):
            if present:
                parts.append(work_of(self.end(name, stage)[0].ops))
        return total((part, 1) for part in parts)

    def stage_replay(self, stage: Stage, choice: RecomputeChoice) -> Replay:
        """Return what one micro-batch's backward of a stage runs again."""
        pairs: dict[tuple[str, frozenset[str]], int] = {}
        for chunk in stage.chunks:
            for pair in self.actives(chunk, choice):
                pairs[pair] = pairs.get(pair, 0) + 1
        return total((self.replay(*pair), times) for pair, times in pairs.items() if pair[1])
