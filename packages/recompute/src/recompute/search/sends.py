"""What pipeline stages send each other: the stream of one micro-batch, forward and its gradient backward.

Sources, NVIDIA/Megatron-LM core_v0.19.0: sizes in megatron/core/pipeline_parallel/schedules.py
``get_tensor_shapes``; who waits for whom in megatron/core/pipeline_parallel/p2p_communication.py
``P2PCommunicator`` and in the two schedules of schedules.py.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from recompute.config.gpus import Gpu
from recompute.config.pipeline import chunk_count
from recompute.model.shape import DTYPE_BYTES, activation_dtype
from recompute.search.efficiency import Efficiencies
from recompute.timeline.static import parallelism_of

if TYPE_CHECKING:
    from recompute.config.schema import JobConfig


class Sends:
    """Sends between the pipeline stages of one job.

    Stage ``s`` and the next one exchange an output against a gradient, both at once on a link of two
    directions. In 1F1B each meets its two neighbours once for every micro-batch; interleaved, once for
    every chunk of it, and the last stage hands its chunks on to the first. Ranks of neighbouring stages
    are ``world / PP`` apart (order tp-cp-ep-dp-pp): the link is the fast one where all of them lie in
    one domain, else the network, over which each GPU has its own interface.

    Args:
        job: A complete job.
        gpu: Rates and links.
        use: Fractions of the link rates, and what an exchange costs beyond its bytes.
    """

    def __init__(self, job: JobConfig, gpu: Gpu, use: Efficiencies) -> None:
        model = job.model
        self.stages = model.pipeline_model_parallel_size
        self._interleaved = chunk_count(model) > 1
        self.visible = use.overlap_pipeline if model.overlap_p2p_comm else 1.0
        self._size = stream_bytes(job)
        self._stride = max(1, parallelism_of(job).world // self.stages)
        self._domain, self._latency = gpu.domain, use.send_seconds
        self._fast, self._slow = gpu.nvlink * use.nvlink, gpu.network * use.network
        borders = [self._border(stage) for stage in range(self.stages)]
        self._exchanges = tuple(borders[s - 1] + borders[s] for s in range(self.stages))

    def exchanges(self, stage: int) -> float:
        """Return the seconds that a stage exchanges for one chunk of one micro-batch, both neighbours."""
        return self._exchanges[stage] if stage < self.stages else 0.0

    def _border(self, stage: int) -> float:
        """Return the seconds of one exchange of a stage with the next one."""
        is_last = stage == self.stages - 1
        if self.stages == 1 or (is_last and not self._interleaved):
            return 0.0
        after = 0 if is_last else stage + 1
        rate = self._fast if self._is_near(stage, after) else self._slow
        return self._size / rate + self._latency

    def _is_near(self, stage: int, after: int) -> bool:
        """Say whether all ranks of two stages lie in one domain."""
        low, high = sorted((stage, after))
        return low * self._stride // self._domain == ((high + 1) * self._stride - 1) // self._domain


def stream_bytes(job: JobConfig) -> int:
    """Return the bytes that one rank sends for one micro-batch: its share of the residual stream."""
    model = job.model
    tokens = job.seq_length * job.micro_batch_size // model.context_parallel_size
    if model.sequence_parallel:
        tokens //= model.tensor_model_parallel_size
    return tokens * model.hidden_size * DTYPE_BYTES[activation_dtype(model)]
