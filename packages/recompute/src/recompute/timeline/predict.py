"""Predict the peak of every rank and phase for one choice.

The peak is a maximum over phases, never a sum of savings: forward with the most micro-batches in
flight, the loss, each layer's backward with its replay, gradient sync, optimizer initialisation and
step.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from operator import mul

from recompute.config.choice import RecomputeChoice
from recompute.config.schema import Assumption, JobConfig
from recompute.model.run import Owners
from recompute.timeline.layers import FULL, LayerBook
from recompute.timeline.moments import Moment, moments_of
from recompute.timeline.schedule import InFlight, Schedule, schedule
from recompute.timeline.stages import Chunk, Stage, stages_of
from recompute.timeline.static import (
    ParameterCount,
    StateBytes,
    dummy_gradients,
    microbatches_of,
    parallelism_of,
    state_bytes,
)
from recompute.timeline.types import (
    OwnedBytes,
    Phase,
    PhasePeak,
    Prediction,
    RankPeak,
    Replay,
)
from recompute.timeline.units_of_work import (
    ChunkPeak,
    Unit,
    alive_in_backward,
    alive_in_forward,
    chunk_peak,
)
from recompute.timeline.work import total

MODEL_ERROR = 0.03
"""Stated error of the activation part, as a fraction: the bound that measured rows must meet."""

ASSUMPTIONS = (
    Assumption(
        id="workspaces",
        text="cuBLAS workspaces of 32 MiB each: three with Transformer Engine, one without",
    ),
    Assumption(id="balanced-sequences", text="every micro-batch has seq_length tokens, unpacked"),
)


class Predictor:
    """Predictions for one job; what choices share (tapes, profiles, static bytes) is computed once.

    Args:
        job: A complete, normalised job.

    Raises:
        UnsupportedError: The job holds a layer or setting that is not modelled.
    """

    def __init__(self, job: JobConfig) -> None:
        self.job = job
        self.microbatches = microbatches_of(job)
        self.stages = stages_of(job)
        self._book = LayerBook(job, self.microbatches, composition=False)
        self._detailed: LayerBook | None = None
        self._states = [self._state(stage) for stage in self.stages]
        self._schedules = [self._schedule(stage) for stage in self.stages]
        self._step_work = self._work()

    def predict(self, choice: RecomputeChoice, *, composition: bool = False) -> Prediction:
        """Predict one choice.

        Args:
            choice: What to recompute; legality is not checked here.
            composition: Also say what is alive at each rank's peak.

        Returns:
            One row per pipeline rank.
        """
        book = self._detail() if composition else self._book
        chunks: dict[object, tuple[tuple[Unit, ...], ChunkPeak]] = {}
        replays: dict[object, Replay] = {}
        ranks = []
        for stage in self.stages:
            parts = []
            for chunk in stage.chunks:
                key = self._signature(chunk, stage, choice)
                if key not in chunks:
                    units = book.units(chunk, stage, choice)
                    chunks[key] = (units, chunk_peak(units))
                parts.append(chunks[key])
            signature = tuple(self._signature(c, stage, choice) for c in stage.chunks)
            if signature not in replays:
                replays[signature] = total([(book.stage_replay(stage, choice), self.microbatches)])
            ranks.append(self._rank(stage, parts, replays[signature], composition=composition))
        return Prediction(choice=choice, ranks=tuple(ranks), assumptions=ASSUMPTIONS)

    def active_layers(self) -> dict[str, int]:
        """Count the layers of all ranks on which each label does anything; labels without one are absent."""
        counts: dict[str, int] = {}
        for stage in self.stages:
            for chunk in stage.chunks:
                for layer in chunk.layers:
                    regions = self._book.tape(layer.kind).regions
                    for label in {region.label for region in regions} - {FULL}:
                        counts[label] = counts.get(label, 0) + 1
        return counts

    def moments(self, choice: RecomputeChoice, pp: int) -> tuple[Moment, ...]:
        """Return one step of a pipeline rank as a row of moments, for pictures.

        The micro-batch shown is the one that runs while most others are in flight.
        """
        stage, state, plan = self.stages[pp], self._states[pp], self._schedules[pp]
        units = [self._detail().units(chunk, stage, choice) for chunk in stage.chunks]
        peaks = [chunk_peak(row) for row in units]
        held = [p.saved + self._held_output(c) for p, c in zip(peaks, stage.chunks, strict=True)]
        own = [max(p.backward, p.forward, p.loss) for p in peaks]
        at = max(plan.backward, key=lambda s: _height(s, held, own))
        others = _height(at, held, [0] * len(held))
        static = state.static
        always: Owners = (
            ("parameters", static.parameters),
            ("gradients", static.gradients),
            ("optimizer states", static.optimizer),
            ("workspaces and batch", static.other),
        )
        if self.microbatches > 1:
            always = (*always, ("gradients without DDP", state.gradients_in_backward))
        step: Owners = (("FP32 gradient copy", state.step_transient),)
        if self.microbatches == 1:
            step = (*step, ("weight gradients", state.gradients_in_backward))
        return moments_of(always, (others, others), units[at.chunk], step)

    # --- shared parts

    def _detail(self) -> LayerBook:
        if self._detailed is None:
            self._detailed = LayerBook(self.job, self.microbatches, composition=True)
        return self._detailed

    def _signature(self, chunk: Chunk, stage: Stage, choice: RecomputeChoice) -> object:
        layers: object = tuple(layer.kind for layer in chunk.layers)
        if choice.per_layer is not None:
            layers = tuple((layer.kind, layer.number) for layer in chunk.layers)
        both = stage.has_embedding and stage.has_head
        return (layers, chunk.embedding, chunk.head, both)

    def _state(self, stage: Stage) -> StateBytes:
        """Count the parameters of a stage and what they cost all step long."""
        tapes = [self._book.tape(layer.kind) for chunk in stage.chunks for layer in chunk.layers]
        for name, present in (("embedding", stage.has_embedding), ("head", stage.has_head)):
            if present:
                tapes.append(self._book.end(name, stage)[0])
        act = self._book.shape.act
        ops = [op for tape in tapes for op in tape.ops if op.weight_bytes]
        expert = sum(op.weight_bytes for op in ops if op.expert) // act
        every = sum(op.weight_bytes for op in ops) // act
        count = ParameterCount(dense=every - expert, expert=expert)
        return state_bytes(self.job, count, dummy_gradients(self.job, ops))

    def _schedule(self, stage: Stage) -> Schedule:
        model = self.job.model
        ranks = model.pipeline_model_parallel_size
        return schedule(
            pp=stage.pp,
            ranks=ranks,
            chunks=len(stage.chunks),
            microbatches=self.microbatches,
            group=model.microbatch_group_size_per_vp_stage or ranks,
        )

    def _work(self) -> list[Replay]:
        seen: dict[object, Replay] = {}
        result = []
        for stage in self.stages:
            key = tuple(
                (tuple(x.kind for x in c.layers), c.embedding, c.head) for c in stage.chunks
            )
            if key not in seen:
                seen[key] = total([(self._book.stage_work(stage), self.microbatches)])
            result.append(seen[key])
        return result

    # --- one rank

    def _rank(
        self,
        stage: Stage,
        parts: Sequence[tuple[tuple[Unit, ...], ChunkPeak]],
        replay: Replay,
        *,
        composition: bool,
    ) -> RankPeak:
        state, plan = self._states[stage.pp], self._schedules[stage.pp]
        peaks = [peak for _, peak in parts]
        held = [
            peak.saved + self._held_output(c) for peak, c in zip(peaks, stage.chunks, strict=True)
        ]
        base = state.static.total
        if self.microbatches > 1:
            base += state.gradients_in_backward
        forward = _highest(plan.forward, held, [peak.forward for peak in peaks])
        loss = _highest(plan.forward, held, [peak.loss for peak in peaks])
        backward = _highest(plan.backward, held, [peak.backward for peak in peaks])
        phases = _phases(
            state,
            base,
            forward,
            loss if stage.has_head else None,
            backward,
            ddp=self.job.ddp is not None,
        )
        after = max(sum(map(mul, counts, held)) for counts in plan.deepest)
        result = RankPeak(
            rank=(("pp", stage.pp),),
            global_ranks=self._global_ranks(stage.pp),
            static=state.static,
            phases=phases,
            activation_bytes_after_forward=after,
            peak_range_bytes=(0, 0),
            step_work=self._step_work[stage.pp],
            replay=replay,
        )
        return _finished(
            result, self._alive(result, state, plan, parts, held) if composition else ()
        )

    def _held_output(self, chunk: Chunk) -> int:
        """Bytes of a chunk's output that stay with each micro-batch in flight until its backward."""
        model = self.job.model
        pipelined = model.pipeline_model_parallel_size > 1
        if not pipelined or chunk.head or model.deallocate_pipeline_outputs:
            return 0
        return self._book.shape.stream

    def _global_ranks(self, pp: int) -> tuple[int, ...]:
        """Ranks of one pipeline position in Megatron's order tp-cp-ep-dp-pp: pp is outermost."""
        world = parallelism_of(self.job).world
        size = world // self.job.model.pipeline_model_parallel_size
        return tuple(range(pp * size, (pp + 1) * size))

    def _alive(
        self,
        row: RankPeak,
        state: StateBytes,
        plan: Schedule,
        parts: Sequence[tuple[tuple[Unit, ...], ChunkPeak]],
        held: Sequence[int],
    ) -> tuple[OwnedBytes, ...]:
        """Say what is alive at a rank's peak; parts sum to the peak but for rounding."""
        static = state.static
        alive = [
            ("parameters", static.parameters),
            ("gradients", static.gradients),
            ("optimizer states", static.optimizer),
            ("workspaces and batch", static.other),
        ]
        phase = row.peak.phase
        if phase in (Phase.FORWARD, Phase.LOSS, Phase.BACKWARD):
            states = plan.backward if phase is Phase.BACKWARD else plan.forward
            at = max(states, key=lambda s: _height(s, held, [_of(phase, p) for _, p in parts]))
            units, peak = parts[at.chunk]
            others = sum(c * size for c, size in zip(at.others, held, strict=True))
            alive.append(("activations of other micro-batches", others))
            if phase is Phase.BACKWARD:
                own = alive_in_backward(units, peak.backward_unit)
            elif phase is Phase.LOSS:
                own = alive_in_forward(units, len(units) - 1)
            else:
                own = alive_in_forward(units, peak.forward_unit)
            if self.microbatches > 1 and state.gradients_in_backward:
                alive.append(("gradients", state.gradients_in_backward))
            alive += own
        else:
            alive.append(("gradients", state.gradients_in_backward))
            alive.append(("FP32 gradient copy", state.step_transient))
        return tuple(OwnedBytes(owner=owner, bytes=size) for owner, size in alive if size)


def _of(phase: Phase, peak: ChunkPeak) -> int:
    if phase is Phase.BACKWARD:
        return peak.backward
    return peak.loss if phase is Phase.LOSS else peak.forward


def _height(state: InFlight, held: Sequence[int], own: Sequence[int]) -> int:
    return int(sum(map(mul, state.others, held))) + own[state.chunk]


def _highest(states: Sequence[InFlight], held: Sequence[int], own: Sequence[int]) -> int:
    return max((_height(state, held, own) for state in states if own[state.chunk]), default=0)


def _phases(
    state: StateBytes, base: int, forward: int, loss: int | None, backward: int, *, ddp: bool
) -> tuple[PhasePeak, ...]:
    """List every phase that a step has, once each."""
    step = state.static.total + state.gradients_in_backward
    found: list[tuple[Phase, int | None]] = [
        (Phase.FORWARD, base + forward),
        (Phase.LOSS, None if loss is None else base + loss),
        (Phase.BACKWARD, base + backward),
        (Phase.GRAD_SYNC, state.static.total if ddp else None),
        (Phase.OPTIMIZER_INIT, step + state.step_transient),
        (Phase.OPTIMIZER_STEP, step + state.step_transient),
    ]
    return tuple(PhasePeak(phase=p, peak_bytes=size) for p, size in found if size is not None)


def _finished(row: RankPeak, alive: tuple[OwnedBytes, ...]) -> RankPeak:
    """Add the stated range and what is alive."""
    error = int(row.activation_bytes_at_peak * MODEL_ERROR)
    peak = row.peak.peak_bytes
    return replace(row, alive_at_peak=alive, peak_range_bytes=(peak - error, peak + error))
