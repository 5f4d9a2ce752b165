"""Profiles of a job's layers under any choice, computed once and shared by all choices."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from recompute.config.choice import RecomputeChoice, choice_of
from recompute.config.schema import JobConfig
from recompute.model.layer import LAYER_KINDS, layer_kinds
from recompute.model.offload import OffloadGroup, offload_groups, whole_layer
from recompute.model.ops.adapters import adapted, frozen
from recompute.model.ops.ends import embedding_tape, final_norm_tape, head_tape
from recompute.model.replay import replayed_ops
from recompute.model.run import GradPolicy, profile
from recompute.model.shape import shape_of
from recompute.model.tape import Mechanism, Region, Tape
from recompute.model.tape_profile import TapeProfile
from recompute.model.vision import tower_of
from recompute.timeline.offloading import Arrivals, offloading_units, with_held_input
from recompute.timeline.sharded import NO_WHOLES, Wholes, main_gradient_bytes
from recompute.timeline.stages import Chunk, PlacedLayer, Stage
from recompute.timeline.types import Replay
from recompute.timeline.units_of_work import Unit, group_of, unit_of
from recompute.timeline.work import total, weight_casts_of, work_of

FULL = "full"
"""Name of the region that covers a whole layer."""


class LayerBook:
    """Tapes and profiles of one job.

    Args:
        job: A complete job.
        microbatches: Micro-batches of one step; with one and no DDP wrapper, weight gradients
            appear during backward, with more they are there from the second backward on.
        composition: Keep what is alive, for reports.
        expert_load: Routed tokens that arrive at a rank over their mean.
    """

    def __init__(
        self, job: JobConfig, microbatches: int, *, composition: bool, expert_load: float = 1.0
    ) -> None:
        self.job = job
        self.shape = shape_of(job, expert_load=expert_load)
        self.composition = composition
        self.policy = GradPolicy(
            appear_in_backward=job.ddp is None and microbatches == 1,
            fused=job.ddp is not None and job.model.gradient_accumulation_fusion,
        )
        self.tower = _tower_book(job, microbatches, composition=composition)
        self._raw: dict[str, Tape] = {}
        self._tapes: dict[str, Tape] = {}
        self._profiles: dict[tuple[str, frozenset[str], bool, Arrivals], TapeProfile] = {}
        self._replays: dict[tuple[str, frozenset[str]], Replay] = {}

    def raw(self, kind: str) -> Tape:
        """Return the tape of a layer kind as it would train whole."""
        if kind not in self._raw:
            self._raw[kind] = LAYER_KINDS[kind](self.job.model, self.shape)
        return self._raw[kind]

    def tape(self, kind: str) -> Tape:
        """Return the tape of a layer kind, adapters applied, a region around the whole layer added.

        An MTP depth brings its own region: neither its embedding nor its logits are recomputed.
        """
        if kind not in self._tapes:
            tape = self.raw(kind)
            if self.job.peft is not None:
                tape = adapted(tape, self.job.peft, self.shape)
            sharded = self.job.model.distribute_saved_activations
            whole = Region(
                label=FULL,
                mechanism=Mechanism.CHECKPOINT,
                first=tape.ops[0].name,
                last=tape.ops[-1].name,
                saved_shards=self.shape.tp if sharded else 1,
            )
            own = any(region.label == FULL for region in tape.regions)
            self._tapes[kind] = tape if own else replace(tape, regions=(*tape.regions, whole))
        return self._tapes[kind]

    def active(self, kind: str, labels: tuple[str, ...]) -> frozenset[str]:
        """Return those of ``labels`` that do anything on a layer kind."""
        return frozenset(region.label for region in self.tape(kind).regions).intersection(labels)

    def profile(
        self,
        kind: str,
        active: frozenset[str],
        *,
        offloads: bool = False,
        arrivals: Arrivals = (),
    ) -> TapeProfile:
        """Return the profile of a layer kind with some labels active, offloading or not.

        ``arrivals`` are the bytes that its backward brings back of the layer before, and after which
        operation.
        """
        key = (kind, active, offloads, arrivals)
        if key not in self._profiles:
            self._profiles[key] = profile(
                self.tape(kind),
                active,
                self.policy,
                self.groups(kind, active) if offloads else (),
                arrivals,
                composition=self.composition,
            )
        return self._profiles[key]

    def groups(self, kind: str, active: frozenset[str]) -> tuple[OffloadGroup, ...]:
        """Return what a layer kind offloads; the replay of ``core_attn`` enters no group."""
        model, act = self.job.model, self.shape.act
        if model.cpu_offloading:
            return whole_layer(self.tape(kind), act)
        found = offload_groups(model, self.tape(kind), act)
        return tuple(
            group for group in found if group.name != "core_attn" or group.name not in active
        )

    def raw_end(self, name: str, stage: Stage) -> Tape:
        """Return the tape of ``embedding``, ``final_norm`` or ``head`` on a stage as it would train.

        Tied weights are one tensor when both ends lie on one rank, and two copies otherwise.
        """
        model = self.job.model
        tied = model.share_embeddings_and_output_weights
        if name == "final_norm":
            return final_norm_tape(model, self.shape)
        if name == "head":
            return head_tape(model, self.shape, owns_weight=True)
        both = stage.has_embedding and stage.has_head
        return embedding_tape(model, self.shape, owns_weight=not (tied and both))

    def end(self, name: str, stage: Stage) -> tuple[Tape, TapeProfile]:
        """Return tape and profile of ``embedding``, ``final_norm`` or ``head`` on a stage."""
        tape = self.raw_end(name, stage)
        if self.job.peft is not None:
            tape = frozen(tape)
        key = (f"{name}/{stage.has_embedding and stage.has_head}", frozenset[str](), False, ())
        if key not in self._profiles:
            self._profiles[key] = profile(
                tape, frozenset(), self.policy, composition=self.composition
            )
        return tape, self._profiles[key]

    def tapes(self, stage: Stage) -> list[tuple[Tape, Tape]]:
        """Return every tape of a stage, as it would train whole and as it trains."""
        pairs = [(self.raw(x.kind), self.tape(x.kind)) for x in stage.layers]
        ends = (
            ("embedding", stage.has_embedding),
            ("final_norm", any(chunk.final_norm for chunk in stage.chunks)),
            ("head", stage.has_head),
        )
        for name, present in ends:
            if present:
                pairs.append((self.raw_end(name, stage), self.end(name, stage)[0]))
        if self.tower is not None and stage.has_embedding:
            book, tower = self.tower
            pairs += [(book.raw(x.kind), book.tape(x.kind)) for x in tower.layers]
        return pairs

    def weights(self, stage: Stage) -> list[tuple[Tape, Tape]]:
        """Return the tapes of :meth:`tapes` that own their weights.

        With ``mtp_use_repeated_layer`` all depths run the first one's layer
        (megatron/core/transformer/multi_token_prediction.py MultiTokenPredictionBlock).
        """
        if not self.job.model.mtp_use_repeated_layer:
            return self.tapes(stage)
        chunks = tuple(replace(chunk, mtp=chunk.mtp[:1]) for chunk in stage.chunks)
        return self.tapes(replace(stage, chunks=chunks))

    def replay(self, kind: str, active: frozenset[str]) -> Replay:
        """Return what one layer runs again in one backward."""
        key = (kind, active)
        if key not in self._replays:
            self._replays[key] = work_of(replayed_ops(self.tape(kind), active))
        return self._replays[key]

    def units(self, chunk: Chunk, stage: Stage, choice: RecomputeChoice) -> tuple[Unit, ...]:
        """Return a chunk as units under a choice, ends included."""
        units: list[Unit] = []
        if chunk.embedding:
            units += self._tower_units()
            units.append(unit_of("embedding", self.end("embedding", stage)[1]))
        first = len(units)
        units += self.layer_units(chunk, stage, choice)
        if chunk.final_norm:
            units.append(unit_of("final_norm", self.end("final_norm", stage)[1]))
        after_mtp, after_head = self._shared_gradients(stage)
        units += [unit_of(*pair) for pair in self._mtp_profiles(chunk, choice)]
        if chunk.mtp:
            units[-1] = _leaving(units[-1], after_mtp)
        if chunk.head:
            units.append(_leaving(unit_of("head", self.end("head", stage)[1]), after_head))
        if units and not chunk.embedding and self.job.model.pipeline_model_parallel_size > 1:
            units[0] = self._fed(units[0])
        return with_held_input(units, first, self.shape.stream, received=not chunk.embedding)

    def _shared_gradients(self, stage: Stage) -> tuple[int, int]:
        """Return the bytes of the embedding's gradient that wait from an MTP depth's backward on, or the head's.

        Autograd adds up the gradients of a weight that is used several times before it hands them on
        (torch/csrc/autograd/input_buffer.cpp): what the first use in backward leaves stays until the
        embedding's own backward, the last of the step. Fused accumulation leaves nothing; in FSDP's
        wrappers ends are not modelled so.
        """
        model, ddp = self.job.model, self.job.ddp
        sharded = ddp is not None and (ddp.use_megatron_fsdp or ddp.use_torch_fsdp2)
        if self.policy.fused or sharded or self.job.peft is not None or not stage.has_embedding:
            return 0, 0
        weight = self.shape.vocab * self.shape.hidden * self.shape.act
        if model.share_embeddings_and_output_weights and stage.has_head:
            return 0, 0 if self.policy.appear_in_backward else weight
        return weight, 0

    def _fed(self, first: Unit) -> Unit:
        """Let a chunk hold its last input and that input's gradient until the next input arrives.

        Source: NVIDIA/Megatron-LM core_v0.19.0 megatron/core/transformer/transformer_block.py
        ``set_input_tensor``; the schedule retains the gradient of what it received.
        """
        return replace(first, left_behind=first.left_behind + 2 * self.shape.stream)

    def wholes(self, chunk: Chunk, stage: Stage, choice: RecomputeChoice) -> tuple[Wholes, ...]:
        """Return what the layers of each unit of :meth:`units` weigh when they are whole.

        Embedding and head have none under Megatron FSDP, where they are no units of their own.
        """
        found: list[Wholes] = []
        if chunk.embedding:
            found += [NO_WHOLES] * len(self._tower_units())
            found.append(self._end_wholes("embedding", stage))
        kinds = [layer.kind for layer in chunk.layers]
        size = 1
        if (
            choice.recompute_granularity == FULL
            and choice.recompute_method == "uniform"
            and choice.per_layer is None
        ):
            size = max(choice.recompute_num_layers or 1, 1)
        found += [
            _whole([self.tape(kind) for kind in kinds[first : first + size]], self)
            for first in range(0, len(kinds), size)
        ]
        if chunk.final_norm:
            found.append(self._end_wholes("final_norm", stage))
        found += [_whole([self.tape(layer.kind)], self) for layer in chunk.mtp]
        if chunk.head:
            found.append(self._end_wholes("head", stage))
        return tuple(found)

    def _end_wholes(self, name: str, stage: Stage) -> Wholes:
        tape, _ = self.end(name, stage)
        whole = _whole([tape], self)
        if self.job.ddp is not None and self.job.ddp.use_megatron_fsdp:
            return Wholes(weights=(0,), gradients=whole.gradients, elements=(0,))
        return whole

    def _tower_units(self) -> tuple[Unit, ...]:
        """Return the vision tower as units under its own recompute fields."""
        if self.tower is None:
            return ()
        book, stage = self.tower
        return tuple(book.layer_units(stage.chunks[0], stage, choice_of(book.job)))

    def _mtp_profiles(self, chunk: Chunk, choice: RecomputeChoice) -> list[tuple[str, TapeProfile]]:
        return [
            (kind, self.profile(kind, active)) for kind, active in self.mtp_actives(chunk, choice)
        ]

    def mtp_actives(
        self, chunk: Chunk, choice: RecomputeChoice
    ) -> list[tuple[str, frozenset[str]]]:
        """Return kind and active regions of the MTP depths.

        Full recompute checkpoints them under ``uniform`` alone (NVIDIA/Megatron-LM core_v0.19.0
        megatron/core/transformer/multi_token_prediction.py
        MultiTokenPredictionLayer._checkpointed_forward).
        """
        return [
            (
                layer.kind,
                self.active(layer.kind, self._labels(layer, choice, index=None)),
            )
            for layer in chunk.mtp
        ]

    def _labels(
        self, layer: PlacedLayer, choice: RecomputeChoice, *, index: int | None
    ) -> tuple[str, ...]:
        """Return what a choice asks of the layer at a place of its chunk, ``None`` for MTP."""
        if choice.per_layer is not None:
            spans = (s.modules for s in choice.per_layer if s.first <= layer.number <= s.last)
            return next(spans, ())
        if choice.recompute_granularity != FULL:
            return tuple(m for m in choice.recompute_modules if m != FULL)
        counted = index is not None and index < (choice.recompute_num_layers or 0)
        whole = choice.recompute_method == "uniform" or counted
        return (FULL,) if whole else ()

    def layer_units(self, chunk: Chunk, stage: Stage, choice: RecomputeChoice) -> list[Unit]:
        """Return the decoder layers of a chunk as units: layers, or checkpointed groups of them."""
        if choice.recompute_granularity != FULL or choice.per_layer is not None:
            return offloading_units(self, chunk, stage, self.actives(chunk, choice))
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
        return [
            (layer.kind, self.active(layer.kind, self._labels(layer, choice, index=index)))
            for index, layer in enumerate(chunk.layers)
        ]

    def stage_work(self, stage: Stage) -> Replay:
        """Return what one micro-batch's forward of a stage runs."""
        return total((work_of(tape.ops), 1) for _, tape in self.tapes(stage))

    def weight_casts(self, stage: Stage) -> Replay:
        """Return what quantizing a stage's weights moves, once a step."""
        return weight_casts_of(op for tape in self.weights(stage) for op in tape[1].ops)

    def stage_replay(self, stage: Stage, choice: RecomputeChoice) -> Replay:
        """Return what one micro-batch's backward of a stage runs again."""
        pairs: dict[tuple[str, frozenset[str]], int] = {}
        for chunk in stage.chunks:
            for pair in (*self.actives(chunk, choice), *self.mtp_actives(chunk, choice)):
                pairs[pair] = pairs.get(pair, 0) + 1
        return total((self.replay(*pair), times) for pair, times in pairs.items() if pair[1])


def acting_boundaries(job: JobConfig, stages: Iterable[Stage]) -> dict[int, frozenset[str]]:
    """Return the boundaries that do anything on each layer, by its global number; ``full`` is one."""
    book = LayerBook(job, 1, composition=False)
    return {
        layer.number: frozenset(region.label for region in book.tape(layer.kind).regions)
        for stage in stages
        for layer in stage.layers
    }


def _leaving(unit: Unit, gradient: int) -> Unit:
    """Let a unit leave a gradient for the rest of backward."""
    return replace(unit, weight_grads=unit.weight_grads + gradient)


def _whole(tapes: list[Tape], book: LayerBook) -> Wholes:
    act, model = book.shape.act, book.job.model
    elements = tuple(tape.weight_bytes // act for tape in tapes)
    narrow = [
        sum(op.weight_bytes // act for op in tape.ops if op.weight_cache and model.fp8_param)
        for tape in tapes
    ]
    gradient = main_gradient_bytes(book.job, act)
    return Wholes(
        weights=tuple(
            count * act - thin * (act - 1) for count, thin in zip(elements, narrow, strict=True)
        ),
        gradients=tuple(count * gradient for count in elements),
        elements=elements,
    )


def _tower_book(
    job: JobConfig, microbatches: int, *, composition: bool
) -> tuple[LayerBook, Stage] | None:
    """Return the book of a job's vision tower and its layers as one chunk."""
    tower = tower_of(job)
    if tower is None:
        return None
    layers = tuple(
        PlacedLayer(number=number, kind=kind)
        for number, kind in enumerate(layer_kinds(tower.model))
    )
    whole = Chunk(layers=layers, embedding=False, head=False)
    model = replace(tower.model, vision=None)
    book = LayerBook(replace(tower, model=model), microbatches, composition=composition)
    return book, Stage(pp=0, chunks=(whole,))
