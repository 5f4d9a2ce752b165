"""Step time from work: classes over rates, comm over links, the critical stage over the pipeline.

Absolute times are estimates; what the planner uses is the ratio of two of them, in which most of the
error cancels. See docs/explanation/cost-model.md.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from recompute.config.gpus import Gpu
from recompute.config.pipeline import chunk_count
from recompute.model.layer import layer_kinds
from recompute.model.shape import DTYPE_BYTES, activation_dtype
from recompute.model.tape import Link, OpClass
from recompute.search import efficiency as eff
from recompute.search.efficiency import EFFICIENCIES, Efficiencies
from recompute.search.sends import Sends
from recompute.timeline.static import is_distributed, microbatches_of, parallelism_of
from recompute.timeline.types import Prediction, RankPeak, Replay

if TYPE_CHECKING:
    from recompute.config.schema import JobConfig

MODEL_ERROR = 0.02
"""Stated error of an overhead, as a fraction of the control's step: two points in the median."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StageTime:
    """Seconds of one step on one pipeline position, without waiting for others."""

    forward: float
    backward: float
    replay: float
    host: float
    """What the host needs to launch all of it."""

    @property
    def kernels(self) -> float:
        """What the GPU needs: the sum of the three."""
        return self.forward + self.backward + self.replay

    @property
    def total(self) -> float:
        """Whichever takes longer, the GPU or the host."""
        return max(self.kernels, self.host)


class CostModel:
    """Step times of one job on one GPU.

    Args:
        job: A complete job.
        gpu: Rates and links.
        efficiencies: Fractions of peak; by default those of the GPU's architecture.
        scale: Factor on every step time, from a measured step; overheads do not depend on it.
    """

    def __init__(
        self,
        job: JobConfig,
        gpu: Gpu,
        efficiencies: Efficiencies | None = None,
        *,
        scale: float = 1.0,
    ) -> None:
        self.job = job
        self.gpu = gpu
        self.scale = scale
        self.efficiencies = efficiencies or EFFICIENCIES[gpu.architecture]
        self.microbatches = microbatches_of(job)
        self._chunks = chunk_count(job.model)
        self._rates = self._class_rates()
        gemm = eff.BACKWARD_GEMM if job.peft is None else eff.BACKWARD_GEMM_FROZEN
        self._backward = {
            OpClass.GEMM: gemm,
            OpClass.NARROW_GEMM: gemm,
            OpClass.CAST: 0.0,
            OpClass.GRADIENT_CAST: 1.0,
            OpClass.ATTENTION: eff.BACKWARD_ATTENTION,
        }
        self._links = {link: self._link_seconds(link) for link in Link}
        self.sends = Sends(job, gpu, self.efficiencies)
        self._known: dict[tuple[Replay, bool], float] = {}

    def overhead(self, control: Prediction, candidate: Prediction) -> float:
        """Return the candidate's step time over the control's, minus one.

        A choice that replays nothing costs exactly nothing.
        """
        return self.overhead_of(control, [rank.replay for rank in candidate.ranks])

    def overhead_of(self, control: Prediction, replays: Sequence[Replay]) -> float:
        """Return what :meth:`overhead` returns, given only what runs again on each rank."""
        if not any(replay.kernels or replay.comm for replay in replays):
            return 0.0
        return self._step(control.ranks, replays) / self.step_seconds(control) - 1.0

    def step_seconds(self, prediction: Prediction) -> float:
        """Return one optimizer step: the slowest stage, fill and drain, sync and optimizer.

        With M micro-batches, P stages and V chunks each, the slowest stage works all the time and
        the others' share of one micro-batch shows once, divided by V: ``max(t) + (sum(t) - max(t)) /
        (M V)`` for stage times ``t`` of a whole step (1F1B; NVIDIA/Megatron-LM core_v0.19.0
        megatron/core/pipeline_parallel/schedules.py). Sends between stages are part of a stage's
        time as far as they are visible, and whole while the pipeline fills and drains.
        """
        return self._step(prediction.ranks, [rank.replay for rank in prediction.ranks])

    def _step(self, ranks: Sequence[RankPeak], replays: Sequence[Replay]) -> float:
        turns = self.microbatches * self._chunks
        work = [self._stage(*pair).total for pair in zip(ranks, replays, strict=True)]
        sends = [self.sends.exchanges(dict(rank.rank).get("pp", 0)) for rank in ranks]
        times = [w + turns * s * self.sends.visible for w, s in zip(work, sends, strict=True)]
        slowest = max(range(len(times)), key=times.__getitem__)
        weights = self._stages_per_row(ranks)
        once = (w / turns + s for w, s in zip(work, sends, strict=True))
        filling = sum(t * n for t, n in zip(once, weights, strict=True))
        filling -= work[slowest] / turns + sends[slowest]
        rank = ranks[slowest]
        once_a_step = self._optimizer(rank) + self._gradient_sync(rank)
        return (times[slowest] + filling + once_a_step) * self.scale

    def is_host_bound(self, prediction: Prediction) -> bool:
        """Say whether the host takes longer than the kernels on the slowest stage."""
        slowest = max((self.stage(rank) for rank in prediction.ranks), key=lambda t: t.total)
        return slowest.host > slowest.kernels

    def stage(self, rank: RankPeak) -> StageTime:
        """Return the times of one pipeline position for all micro-batches of a step, sends left out."""
        return self._stage(rank, rank.replay)

    def _stage(self, rank: RankPeak, replay: Replay) -> StageTime:
        return StageTime(
            forward=self.seconds(rank.step_work),
            backward=self.seconds(rank.step_work, backward=True),
            replay=self.seconds(replay),
            host=self._host(rank.step_work, replay),
        )

    def _host(self, work: Replay, replay: Replay) -> float:
        """Return the host's time: operations run forward and backward, replayed ones forward only."""
        model = self.job.model
        if model.enable_cuda_graph or model.cuda_graph_impl != "none":
            return 0.0
        operations = work.kernels + eff.FORWARD_SHARE * replay.kernels
        return operations * self.efficiencies.host_seconds

    def seconds(self, work: Replay, *, backward: bool = False) -> float:
        """Return how long some work takes, or its backward.

        Each class takes the longer of its operations at their rate and its bytes at memory
        bandwidth; classes and links follow one another on one stream.
        """
        key = (work, backward)
        if key not in self._known:
            self._known[key] = self._seconds(work, backward=backward)
        return self._known[key]

    def _seconds(self, work: Replay, *, backward: bool) -> float:
        flops, traffic = dict(work.flops), dict(work.traffic)
        memory = self.gpu.bandwidth * self.efficiencies.memory
        total = 0.0
        for kind in OpClass:  # one order in every process: sums of floats depend on it
            if kind not in flops and kind not in traffic:
                continue
            if kind is OpClass.GRADIENT_CAST and not backward:
                continue
            rate = self._rates.get(kind)
            compute = flops.get(kind, 0) / rate if rate else 0.0
            once = max(compute, traffic.get(kind, 0) / memory)
            total += once * (self._backward.get(kind, eff.BACKWARD_MEMORY) if backward else 1.0)
        for link, size in work.comm:
            total += size * self._links[link] * (self._backward_comm(link) if backward else 1.0)
        launches = 2 * work.kernels if backward else work.kernels
        return total + launches * self.efficiencies.launch_seconds

    # --- rates

    def _class_rates(self) -> dict[OpClass, float]:
        """Return the rate of the classes whose operations can bound them; others are memory-bound."""
        model, use = self.job.model, self.efficiencies
        wide = "bf16" if model.bf16 or model.fp16 or model.params_dtype != "fp32" else "fp32"
        narrow = "fp4" if model.fp4 else "fp8" if model.fp8 else wide
        return {
            OpClass.GEMM: self.gpu.flops(wide) * use.gemm * self._size_factor(),
            OpClass.NARROW_GEMM: self.gpu.flops(narrow) * use.gemm * self._size_factor(),
            OpClass.ATTENTION: self.gpu.flops(wide) * use.attention,
        }

    def _size_factor(self) -> float:
        """Return what the job's own sizes leave of a large GEMM's efficiency.

        The rows of a GEMM are the tokens of a micro-batch (of one expert, where experts hold most
        operations), its narrowest width the attention's or the feed-forward's on one rank.
        """
        model, edge = self.job.model, self.efficiencies.gemm_edge
        rows = self.job.seq_length * self.job.micro_batch_size / model.context_parallel_size
        widths = [float(model.hidden_size)]
        if model.num_moe_experts:
            expert_tp = model.expert_tensor_parallel_size or model.tensor_model_parallel_size
            rows *= model.moe_router_topk * model.expert_model_parallel_size
            rows /= model.num_moe_experts
            if model.sequence_parallel and expert_tp == 1:
                rows /= model.tensor_model_parallel_size
            ffn = model.moe_ffn_hidden_size or model.ffn_hidden_size or 4 * model.hidden_size
            widths.append(ffn / expert_tp)
        else:
            heads = model.num_attention_heads
            channels = model.kv_channels or model.hidden_size // max(heads, 1)
            widths.append(heads * channels / model.tensor_model_parallel_size)
            ffn = model.ffn_hidden_size or 4 * model.hidden_size
            widths.append(ffn / model.tensor_model_parallel_size)
        narrowest = min(widths)
        return rows / (rows + edge) * narrowest / (narrowest + edge)

    def _link_seconds(self, link: Link) -> float:
        """Return the visible seconds of one byte sent in a group."""
        model, use = self.job.model, self.efficiencies
        tensor, context = model.tensor_model_parallel_size, model.context_parallel_size
        expert_tp = model.expert_tensor_parallel_size or tensor
        spans = {
            Link.TENSOR: tensor,
            Link.CONTEXT: tensor * context,
            Link.EXPERT: expert_tp * model.expert_model_parallel_size,
        }
        visible = {
            Link.TENSOR: use.overlap_tensor if model.tp_comm_overlap else 1.0,
            Link.CONTEXT: use.overlap_context,
            Link.EXPERT: use.overlap_expert if model.overlap_moe_expert_parallel_comm else 1.0,
        }
        return visible[link] / self._rate_over(spans[link])

    def _rate_over(self, span: int) -> float:
        """Return bytes a second for a group over ``span`` neighbouring ranks (order tp-cp-ep-dp-pp)."""
        if span <= self.gpu.domain:
            return self.gpu.nvlink * self.efficiencies.nvlink
        return self.gpu.network * self.efficiencies.network

    def _backward_comm(self, link: Link) -> float:
        if link is Link.TENSOR and self.job.model.sequence_parallel:
            return eff.BACKWARD_TENSOR_SEQUENCE
        return eff.BACKWARD_COMM

    # --- once a step

    def _optimizer(self, rank: RankPeak) -> float:
        """States and parameters are read and written, gradients read; sharded ones by their shard."""
        groups = parallelism_of(self.job)
        shards = groups.dense_shards if is_distributed(self.job) else 1
        static = rank.static
        gradients = static.gradients or static.parameters
        moved = 2 * static.optimizer + (2 * static.parameters + gradients) / shards
        return moved / (self.gpu.bandwidth * self.efficiencies.memory)

    def _gradient_sync(self, rank: RankPeak) -> float:
        """Gradients are reduced and parameters gathered over the data-parallel groups.

        Routed experts have a group of their own. A ring over several domains enters each through as
        many network interfaces as it has ranks there.
        """
        groups, model, ddp = parallelism_of(self.job), self.job.model, self.job.ddp
        if ddp is None:
            return 0.0
        sharded = is_distributed(self.job)
        moved = rank.static.gradients * (1 if sharded else 2)
        moved += rank.static.parameters if sharded else 0
        visible = self.efficiencies.overlap_data if ddp.overlap_grad_reduce else 1.0
        share = self._expert_share(rank)
        tensor = model.tensor_model_parallel_size
        expert = (model.expert_tensor_parallel_size or tensor) * model.expert_model_parallel_size
        seconds = 0.0
        for part, size, stride in (
            (1.0 - share, groups.data * model.context_parallel_size, tensor),
            (share, groups.expert_shards, expert),
        ):
            if size > 1:
                once = part * moved * (size - 1) / size
                seconds += visible * once / self._ring_rate(size, stride)
        return seconds

    def _ring_rate(self, size: int, stride: int) -> float:
        """Return bytes a second of a ring over ``size`` ranks that are ``stride`` apart."""
        fast = self.gpu.nvlink * self.efficiencies.nvlink
        if size * stride <= self.gpu.domain:
            return fast
        inside = max(1, self.gpu.domain // stride)
        return min(fast, self.gpu.network * self.efficiencies.network * inside)

    def _expert_share(self, rank: RankPeak) -> float:
        """Return the share of routed experts in a rank's parameters."""
        model = self.job.model
        if not model.num_moe_experts:
            return 0.0
        count = sum("moe" in kind for kind in layer_kinds(model))
        expert_tp = model.expert_tensor_parallel_size or model.tensor_model_parallel_size
        width = model.moe_ffn_hidden_size or model.ffn_hidden_size or 4 * model.hidden_size
        matrices = 3 if model.gated_linear_unit else 2
        held = count * model.num_moe_experts / model.expert_model_parallel_size
        held /= model.pipeline_model_parallel_size
        elements = held * matrices * model.hidden_size * width / expert_tp
        size = DTYPE_BYTES[activation_dtype(model)]
        return min(1.0, elements * size / max(rank.static.parameters, 1))

    def _stages_per_row(self, ranks: Sequence[RankPeak]) -> list[float]:
        """Return how many pipeline stages each row stands for."""
        stages = self.job.model.pipeline_model_parallel_size
        counts = [len(rank.global_ranks) for rank in ranks]
        if not all(counts):
            return [stages / len(ranks)] * len(ranks)
        return [stages * count / sum(counts) for count in counts]
