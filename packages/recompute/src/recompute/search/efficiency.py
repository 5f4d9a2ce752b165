"""What fraction of a GPU's peak rates training reaches: named inputs with reasons, not fitted per run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True, kw_only=True)
class Efficiencies:
    """Fractions of peak, and fixed costs. Change one with ``dataclasses.replace``."""

    gemm: float
    """Large GEMMs, of the peak of their dtype, at sustained clocks."""
    gemm_edge: int = 128
    """A dimension of this size loses half: two tiles of 64, or one of 128, leave units idle."""
    attention: float
    """Fused attention forward, of the 16-bit peak."""
    memory: float
    """Elementwise, norm and optimizer kernels, of the memory bandwidth."""
    nvlink: float = 0.75
    """Collectives inside a domain, of the link rate of one direction; nccl-tests bus bandwidth of
    340 to 370 GB/s on 450 GB/s links."""
    network: float = 0.80
    """Collectives over the network, of the NIC rate; nccl-tests across nodes."""
    launch_seconds: float = 2e-6
    """Gap on the GPU between two kernels of one stream in a GPU-bound run."""
    host_seconds: float = 0.45e-3
    """Time of the host for one operation of a tape, forward and backward: Python, dispatch and its
    several kernels. Three runs that the host bounds give 0.41 (Llama 3 70B layers at TP 8 on B200,
    SimuMax), 0.49 (Moonlight on 8 H100, Megatron Bridge's recompute study) and 0.55 ms (our MLA and
    MoE model on one H200). CUDA graphs take it away."""
    overlap_tensor: float = 0.30
    """Fraction of tensor-parallel communication that stays visible with ``tp_comm_overlap``."""
    overlap_context: float = 0.30
    """Fraction of ring attention's communication that stays visible: a step of the ring runs beside
    the attention of the step before."""
    overlap_expert: float = 0.30
    """Fraction of dispatch and combine that stays visible with
    ``overlap_moe_expert_parallel_comm``."""
    overlap_data: float = 0.10
    """Fraction of gradient reduction and parameter gathering that stays visible when overlapped."""
    overlap_pipeline: float = 0.10
    """Fraction of the sends between pipeline stages that stays visible with ``overlap_p2p_comm``, which
    the interleaved schedule runs beside the compute of another chunk; without it all of it does."""
    send_seconds: float = 20e-6
    """One exchange between two stages beyond its bytes: a launch, the meeting of two ranks, and the
    device synchronisation behind it (``batch_p2p_sync``). Stated; public nccl-tests ``sendrecv`` figures
    for small messages are 10 to 25 microseconds."""
    source: str
    """Where the three device fractions come from."""


EFFICIENCIES: Final[Mapping[str, Efficiencies]] = {
    "ampere": Efficiencies(
        gemm=0.75,
        attention=0.60,
        memory=0.80,
        source="FlashAttention-2 paper, table of A100 forward passes (about 190 of 312 TFLOP/s); "
        "cuBLAS bf16 GEMMs at 230 to 250 TFLOP/s in public A100 benchmarks",
    ),
    "hopper": Efficiencies(
        gemm=0.66,
        attention=0.45,
        memory=0.80,
        source="one H200, Megatron Core 0.19.2 with Transformer Engine 2.20.2: MLP replays of a "
        "4096-wide model run at 600 to 650 TFLOP/s with clocks under load; cuDNN causal attention of "
        "head size 128 at 4096 tokens near 450 TFLOP/s; fused Adam at 3.8 TB/s",
    ),
    "blackwell": Efficiencies(
        gemm=0.50,
        attention=0.40,
        memory=0.80,
        source="what the step times of the two dense rows without tensor parallelism in "
        "github.com/MooreThreads/SimuMax 4dcaae51 docs/b200 (Llama 3 70B and 405B layers, TP 1 PP 2, no "
        "overlap) leave for GEMMs at 2250 TFLOP/s; attention from its 131,072-token rows",
    ),
    "cdna3": Efficiencies(
        gemm=0.50,
        attention=0.30,
        memory=0.75,
        source="stated: public hipBLASLt benchmarks of MI300X reach 600 to 700 of 1307 TFLOP/s",
    ),
}
"""Architecture -> fractions."""

FORWARD_SHARE: Final = 1 / 3
"""Of the host's time for an operation, what its forward takes."""
BACKWARD_GEMM: Final = 2.0
"""Two GEMMs of the same size: gradients of input and of weight."""
BACKWARD_GEMM_FROZEN: Final = 1.0
"""A frozen weight needs the gradient of its input only; adapters are too small to count."""
BACKWARD_ATTENTION: Final = 2.5
"""Five products against two, one of them a replay (FlashAttention-2 paper, section 3)."""
BACKWARD_MEMORY: Final = 2.0
"""An elementwise backward reads input and gradient and writes a gradient for each input."""
BACKWARD_COMM: Final = 1.0
"""The conjugate collective of each one in forward."""
BACKWARD_TENSOR_SEQUENCE: Final = 1.5
"""Sequence parallelism: column linears gather their input a second time in backward
(megatron/core/tensor_parallel/layers.py)."""
