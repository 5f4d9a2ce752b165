"""Predict the peak of every rank and phase for one choice.

The peak is a maximum over phases, never a sum of savings: forward with the most micro-batches in
flight, the loss, each layer's backward with its replay, gradient sync, optimizer initialisation and
step.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from recompute.config.choice import NO_RECOMPUTE, RecomputeChoice
from recompute.config.schema import Assumption, JobConfig
from recompute.model.arena import Owners
from recompute.timeline.graph_pools import GraphPools
from recompute.timeline.in_flight import Load, load_of
from recompute.timeline.layers import FULL, LayerBook
from recompute.timeline.loads import HIGH_LOAD, load_assumption, may_be_uneven, widened
from recompute.timeline.moments import HELD, WORKSPACES, Moment, moments_of
from recompute.timeline.muon import parts_of, uses_muon
from recompute.timeline.overlapped import overlap_bound
from recompute.timeline.schedule import Schedule, schedule
from recompute.timeline.sharded import (
    kept_buffers,
    queue_bytes,
    sharding_of,
    with_wholes,
)
from recompute.timeline.stages import Chunk, Stage, stages_of
from recompute.timeline.static import (
    ParameterCount,
    StateBytes,
    dummy_gradients,
    microbatches_of,
    parallelism_of,
    state_bytes,
)
from recompute.timeline.supported import listed, refuse_unmodelled
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
    Heights,
    Unit,
    alive_in_backward,
    alive_in_forward,
    chunk_peak,
    held_in_backward,
    held_in_forward,
    with_front,
)
from recompute.timeline.work import total
from recompute.timeline.workspaces import RankParts, standing_bytes

MODEL_ERROR = 0.03
"""Stated error of the activation part, as a fraction: the bound that measured rows must meet."""

ASSUMPTIONS = (
    Assumption(
        id="workspaces",
        text="cuBLAS workspaces: PyTorch's for forward and backward, Transformer Engine's, and four more "
        "for grouped experts; 32 MiB each from Hopper on, 8 and 4 MiB before",
    ),
    Assumption(id="balanced-sequences", text="every micro-batch has seq_length tokens, unpacked"),
)


class Predictor:
    """Predictions for one job; what choices share (tapes, profiles, static bytes) is computed once.

    Args:
        job: A complete, normalised job.
        expert_load: Routed tokens that arrive at the hot rank over their mean; 1 is balance.

    Raises:
        UnsupportedError: The job holds a layer or setting that is not modelled.
    """

    def __init__(self, job: JobConfig, *, expert_load: float = 1.0) -> None:
        refuse_unmodelled(job)
        self.job = job
        self.expert_load = min(expert_load, float(job.model.expert_model_parallel_size))
        self.microbatches = microbatches_of(job)
        self.stages = stages_of(job)
        self._book = self._make_book(composition=False)
        self._pools = GraphPools(job, self._book)
        self._sharding = sharding_of(job)
        self._queue = queue_bytes(job, self._sharding, self._book.shape.act)
        self._detailed: LayerBook | None = None
        self._hot: Predictor | None = None
        self._states = [self._state(stage) for stage in self.stages]
        self._schedules = [self._schedule(stage) for stage in self.stages]
        self._step_work = self._work()

    def predict(self, choice: RecomputeChoice, *, composition: bool = False) -> Prediction:
        """Predict one choice.

        Args:
            choice: What to recompute; legality is not checked here.
            composition: Also say what is alive at each rank's peak, and let ranges reach to a hot
                rank's peak where routing may be uneven.

        Returns:
            One row per pipeline rank.
        """
        book = self._detail() if composition else self._book
        chunks: dict[object, tuple[tuple[Unit, ...], ChunkPeak]] = {}
        replays: dict[object, Replay] = {}
        ranks = []
        for stage in self.stages:
            signature = tuple(self._signature(chunk, stage, choice) for chunk in stage.chunks)
            for key, chunk in zip(signature, stage.chunks, strict=True):
                if key not in chunks:
                    units = self._units(book, chunk, stage, choice)
                    chunks[key] = (units, self._chunk_peak(book, chunk, stage, choice, units))
            parts = [chunks[key] for key in signature]
            if signature not in replays:
                replays[signature] = total([(book.stage_replay(stage, choice), self.microbatches)])
            ranks.append(self._rank(stage, parts, replays[signature], composition=composition))
        made = Prediction(choice=choice, ranks=tuple(ranks), assumptions=self._assumptions())
        return self._with_range(made, choice) if composition else made

    def replays(self, choice: RecomputeChoice) -> tuple[Replay, ...]:
        """Return what a choice runs again on each rank, without working out its bytes.

        Equal to ``replay`` of the rows of :meth:`predict`, in a tenth of its time.
        """
        found: dict[object, Replay] = {}
        rows = []
        for stage in self.stages:
            key = tuple(self._signature(chunk, stage, choice) for chunk in stage.chunks)
            if key not in found:
                found[key] = total([(self._book.stage_replay(stage, choice), self.microbatches)])
            rows.append(found[key])
        return tuple(rows)

    def _assumptions(self) -> tuple[Assumption, ...]:
        model = self.job.model
        found = (*ASSUMPTIONS, *listed(self.job))
        if model.num_moe_experts is None or model.moe_router_force_load_balancing:
            return found
        return (*found, load_assumption(self.job, self.expert_load))

    def _with_range(self, balanced: Prediction, choice: RecomputeChoice) -> Prediction:
        """Let the range of an answer that is shown reach to the hot rank of uneven public runs."""
        if self.expert_load != 1.0 or not may_be_uneven(self.job):
            return balanced
        if self._hot is None:
            self._hot = Predictor(self.job, expert_load=HIGH_LOAD)
        return widened(balanced, self._hot.predict(choice))

    def active_layers(self) -> dict[str, int]:
        """Count the layers of all ranks on which each label does anything; labels without one are absent."""
        counts: dict[str, int] = {}
        for stage in self.stages:
            for layer in stage.layers:
                regions = self._book.tape(layer.kind).regions
                for label in {region.label for region in regions} - {FULL}:
                    counts[label] = counts.get(label, 0) + 1
        return counts

    def moments(self, choice: RecomputeChoice, pp: int) -> tuple[Moment, ...]:
        """Return one step of a pipeline rank as a row of moments, for pictures.

        The micro-batch shown is the one that runs while most others are in flight.
        """
        stage, state, plan = self.stages[pp], self._states[pp], self._schedules[pp]
        units = [self._units(self._detail(), chunk, stage, choice) for chunk in stage.chunks]
        load = load_of(
            tuple(
                self._chunk_peak(self._detail(), chunk, stage, choice, row)
                for chunk, row in zip(stage.chunks, units, strict=True)
            ),
            tuple(self._held_output(chunk) for chunk in stage.chunks),
        )
        at = max(plan.backward, key=lambda s: load.height(s, Phase.BACKWARD))
        others = load.beside(at, Phase.BACKWARD) + load.freed(at.others)
        static, held = state.static, load.held_beside(at)
        always: Owners = (
            ("parameters", static.parameters),
            ("gradients", static.gradients),
            ("optimizer states", static.optimizer),
            (WORKSPACES, static.other - load.left_copies),
            (HELD, held),
        )
        if self.microbatches > 1:
            always = (*always, ("gradients without DDP", state.gradients_in_backward))
        step: Owners = (
            ("FP32 gradient copy", state.step_transient),
            (HELD, load.left_behind - held),
        )
        if self.microbatches == 1:
            step = (*step, ("weight gradients", state.gradients_in_backward))
        return moments_of(always, (others, others), units[at.chunk], step)

    # --- shared parts

    def _units(
        self, book: LayerBook, chunk: Chunk, stage: Stage, choice: RecomputeChoice
    ) -> tuple[Unit, ...]:
        """Return a chunk as units, with the weights and gradients that are whole while they run."""
        units = book.units(chunk, stage, choice)
        shards = parallelism_of(self.job).dense_shards
        if not self._sharding.gradients or shards == 1:
            return units
        return with_wholes(units, book.wholes(chunk, stage, choice), self._sharding, shards)

    def _chunk_peak(
        self,
        book: LayerBook,
        chunk: Chunk,
        stage: Stage,
        choice: RecomputeChoice,
        units: tuple[Unit, ...],
    ) -> ChunkPeak:
        """Walk a chunk; where its last layer stays for the micro-batch that goes back next, only there."""
        peak = chunk_peak(units, self._queue)
        fine = self.job.model.fine_grained_activation_offloading
        if not fine or chunk.head or not stage.runs_back_at_once(chunk):
            return peak
        behind = replace(stage, chunks=tuple(c for c in stage.chunks if not c.head))
        return with_front(peak, chunk_peak(self._units(book, chunk, behind, choice), self._queue))

    def _make_book(self, *, composition: bool) -> LayerBook:
        return LayerBook(
            self.job, self.microbatches, composition=composition, expert_load=self.expert_load
        )

    def _detail(self) -> LayerBook:
        if self._detailed is None:
            self._detailed = self._make_book(composition=True)
        return self._detailed

    def _signature(self, chunk: Chunk, stage: Stage, choice: RecomputeChoice) -> object:
        placed = (*chunk.layers, *chunk.mtp)
        layers: object = tuple(layer.kind for layer in placed)
        if choice.per_layer is not None:
            layers = tuple((layer.kind, layer.number) for layer in placed)
        both = stage.has_embedding and stage.has_head
        offloads = self.job.model.fine_grained_activation_offloading
        kept = offloads and stage.runs_back_at_once(chunk)
        return (layers, chunk.embedding, chunk.final_norm, chunk.head, both, kept)

    def _state(self, stage: Stage) -> StateBytes:
        """Count the parameters of a stage and what they cost all step long."""
        pairs, act = self._book.weights(stage), self._book.shape.act
        every = [op for raw, _ in pairs for op in raw.ops if op.weight_bytes]
        ops = [op for _, trained in pairs for op in trained.ops if op.weight_bytes]
        expert = sum(op.weight_bytes for op in ops if op.expert) // act
        trained = sum(op.weight_bytes for op in ops) // act
        whole = sum(op.weight_bytes for op in every) // act + self._embedding_copy(stage)
        adapters = trained if self.job.peft is not None else 0
        narrow = [op for op in every if op.weight_cache] if self.job.model.fp8_param else []
        count = ParameterCount(
            dense=trained - expert + (0 if adapters else self._embedding_copy(stage)),
            expert=expert,
            frozen=whole if adapters else 0,
            one_byte=sum(op.weight_bytes for op in narrow) // act,
        )
        held = dummy_gradients(self.job, ops) + sum(op.weight_cache for op in every)
        parts = RankParts(ops=every, has_head=stage.has_head or stage.has_mtp)
        held += standing_bytes(self.job, self._book.shape, parts) + self._kept_whole(stage)
        tensors = tuple(parts_of(ops, act)) if uses_muon(self.job) else ()
        return state_bytes(self.job, count, held, tensors)

    def _kept_whole(self, stage: Stage) -> int:
        """Count the weights that Megatron FSDP keeps whole: its ends, and two buffers if asked."""
        sharding, book = self._sharding, self._book
        if not sharding.megatron or not sharding.parameters:
            return 0
        ends = [("embedding", stage.has_embedding), ("head", stage.has_head)]
        kept = sum(book.end(name, stage)[0].weight_bytes for name, there in ends if there)
        wholes = [w for c in stage.chunks for w in book.wholes(c, stage, NO_RECOMPUTE)]
        return kept + kept_buffers(wholes, sharding)

    def _embedding_copy(self, stage: Stage) -> int:
        """Count the second word embedding that MTP needs on a rank without one.

        A tied output layer on that rank is that weight already.
        """
        model = self.job.model
        tied = model.share_embeddings_and_output_weights and stage.has_head
        if not stage.has_mtp or stage.has_embedding or tied:
            return 0
        return self._book.shape.vocab * self._book.shape.hidden

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
            key = (tuple(x.kind for x in stage.layers), stage.has_embedding, stage.has_head)
            if key not in seen:
                once = (self._book.weight_casts(stage), 1)
                seen[key] = total([(self._book.stage_work(stage), self.microbatches), once])
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
        plan = self._schedules[stage.pp]
        load = load_of(
            tuple(peak for _, peak in parts),
            tuple(self._held_output(chunk) for chunk in stage.chunks),
        )
        state = _with_left_behind(self._states[stage.pp], load.left_behind - load.left_copies)
        base = state.static.total
        if self.microbatches > 1:
            base += state.gradients_in_backward
        phases = _phases(
            state,
            base,
            load.highest(plan.forward, Phase.FORWARD),
            load.highest(plan.forward, Phase.LOSS) if stage.has_head else None,
            load.highest(plan.backward, Phase.BACKWARD),
            ddp=self.job.ddp is not None,
        )
        deepest = max(plan.deepest, key=load.in_flight)
        result = RankPeak(
            rank=(("pp", stage.pp),),
            global_ranks=self._global_ranks(stage.pp),
            static=state.static,
            phases=phases,
            activation_bytes_after_forward=load.kept(deepest),
            freed_after_forward=load.freed(deepest),
            graph_pool_bytes=self._pool_bytes(stage, plan, phases),
            step_work=self._step_work[stage.pp],
            replay=replay,
        )
        units = [row for row, _ in parts]
        alive = self._alive(result, state, plan, units, load) if composition else ()
        tapes = [self._book.tape(kind) for kind in {layer.kind for layer in stage.layers}]
        beyond = overlap_bound(self.job, self.microbatches, units, tapes)
        return _finished(result, alive, beyond + state.reduction.in_backward)

    def _pool_bytes(self, stage: Stage, plan: Schedule, phases: Sequence[PhasePeak]) -> int:
        """Bound what pools of CUDA graphs reserve beyond the peak."""
        inside = {Phase.FORWARD, Phase.LOSS, Phase.BACKWARD}
        high = max(row.peak_bytes for row in phases if row.phase in inside)
        step = max(row.peak_bytes for row in phases if row.phase not in inside)
        return self._pools.beyond(stage, plan.deepest, high, step)

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
        units: Sequence[tuple[Unit, ...]],
        load: Load,
    ) -> tuple[OwnedBytes, ...]:
        """Say what is alive at a rank's peak; each part is counted by itself, and they sum to it."""
        static, phase = state.static, row.peak.phase
        alive = [
            ("parameters", static.parameters),
            ("gradients", static.gradients),
            ("optimizer states", static.optimizer),
            (WORKSPACES, static.other - load.left_behind),
        ]
        if phase not in (Phase.FORWARD, Phase.LOSS, Phase.BACKWARD):
            alive.append(("gradients", state.gradients_in_backward))
            alive.append(("FP32 gradient copy", state.step_transient))
            alive.append((HELD, load.left_behind))
            return _owned(alive)
        states = plan.backward if phase is Phase.BACKWARD else plan.forward
        at = max(states, key=lambda s: load.height(s, phase))
        if self.microbatches > 1:
            alive.append(("gradients", state.gradients_in_backward))
        others = load.beside(at, phase) + load.freed(at.others)
        alive.append(("activations of other micro-batches", others))
        own, held = self._running(units[at.chunk], load.heights(at), phase)
        alive += own
        held = 0 if at.others[at.chunk] else held
        alive.append((HELD, load.held_beside(at) + held))
        return _owned(alive)

    def _running(self, units: Sequence[Unit], heights: Heights, phase: Phase) -> tuple[Owners, int]:
        """Say what the running chunk holds at its highest point, and what its modules still hold then."""
        if phase is Phase.BACKWARD:
            unit = heights.backward_unit
            return alive_in_backward(units, unit, self._queue), held_in_backward(units, unit)
        unit = len(units) - 1 if phase is Phase.LOSS else heights.forward_unit
        return alive_in_forward(units, unit), held_in_forward(units, unit)


def _owned(alive: Sequence[tuple[str, int]]) -> tuple[OwnedBytes, ...]:
    totals: dict[str, int] = {}
    for owner, size in alive:
        totals[owner] = totals.get(owner, 0) + size
    return tuple(OwnedBytes(owner=owner, bytes=size) for owner, size in totals.items() if size)


def _with_left_behind(state: StateBytes, left: int) -> StateBytes:
    """Add what modules hold between steps to the static bytes."""
    if not left:
        return state
    return replace(state, static=replace(state.static, other=state.static.other + left))


def _phases(
    state: StateBytes, base: int, forward: int, loss: int | None, backward: int, *, ddp: bool
) -> tuple[PhasePeak, ...]:
    """List every phase that a step has, once each."""
    step = state.static.total + state.gradients_in_backward
    found: list[tuple[Phase, int | None]] = [
        (Phase.FORWARD, base + forward),
        (Phase.LOSS, None if loss is None else base + loss),
        (Phase.BACKWARD, base + backward),
        (Phase.GRAD_SYNC, state.static.total + state.reduction.at_sync if ddp else None),
        (Phase.OPTIMIZER_INIT, step + state.step_transient),
        (Phase.OPTIMIZER_STEP, step + state.step_transient),
    ]
    return tuple(PhasePeak(phase=p, peak_bytes=size) for p, size in found if size is not None)


def _finished(row: RankPeak, alive: tuple[OwnedBytes, ...], beyond: int) -> RankPeak:
    """Add the stated range, its upper end with what overlapping may add, and what is alive."""
    error = int(row.activation_bytes_at_peak * MODEL_ERROR)
    peak = row.peak.peak_bytes
    return replace(row, alive_at_peak=alive, peak_range_bytes=(peak - error, peak + error + beyond))
