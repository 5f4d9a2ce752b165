"""Buffers that live for the whole run beside parameters and states: GEMM workspaces, shared buffers.

They are allocated the first time something needs them, which is within the first step, and never freed.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from recompute.config.gpus import GPUS
from recompute.config.schema import JobConfig
from recompute.config.versions import core_at_least
from recompute.model.shape import Shape, head_dim
from recompute.model.tape import Op
from recompute.units import KIB, MIB

TORCH_THREADS: Final = 2
"""Threads with a cuBLAS handle: the one that runs forward and autograd's own. Each handle has one
workspace for its stream (pytorch aten/src/ATen/cuda/CublasHandlePool.cpp)."""

TORCH_WORKSPACE: Final = {True: 32 * MIB, False: 2 * 4096 * KIB + 8 * 16 * KIB}
"""Bytes of one of those from Hopper on, and before it (there ``parseChosenWorkspaceSize``)."""

ENGINE_WORKSPACE: Final = {True: 32 * MIB, False: 4 * MIB}
"""Bytes of one of Transformer Engine's from Hopper on, and before it (TransformerEngine v2.20
transformer_engine/pytorch/cpp_extensions/gemm.py ``get_cublas_workspace_size_bytes``)."""

GROUPED_STREAMS: Final = 4
"""Streams over which a grouped GEMM spreads its experts, each with a workspace (TransformerEngine v2.20
transformer_engine/common/util/multi_stream.cpp)."""

OVERLAP_STREAMS: Final = 3
"""Streams of a GEMM that overlaps its communication (``_NUM_MAX_UB_STREAMS`` in gemm.py)."""

BATCH_BYTES_PER_TOKEN: Final = 28
"""Tokens, labels and positions (int64) and the loss mask (FP32) of one micro-batch."""

_CONFIG: Final = re.compile(r":(\d{1,9}):(\d{1,9})")


@dataclass(frozen=True, slots=True, kw_only=True)
class RankParts:
    """What of a pipeline rank decides which of these buffers it has."""

    ops: Sequence[Op]
    """Operations with weights."""
    has_head: bool
    """It computes logits, of the model or of a multi-token-prediction depth."""


def standing_bytes(job: JobConfig, shape: Shape, parts: RankParts) -> int:
    """Return workspaces, shared buffers, the cached rotary table and the input batch of a rank."""
    rotates = job.model.position_embedding_type != "learned_absolute"
    rotary = job.seq_length * head_dim(job.model) * 4 if rotates else 0
    batch = shape.tokens * BATCH_BYTES_PER_TOKEN
    return _workspaces(job, parts) + _global_buffer(job, shape, parts) + rotary + batch


def _workspaces(job: JobConfig, parts: RankParts) -> int:
    """Return cuBLAS workspaces: PyTorch's, Transformer Engine's, and those of its grouped GEMMs.

    With the local spec the engine's own GEMM still runs the routers from core 0.13 on
    (NVIDIA/Megatron-LM core_v0.19.0 megatron/core/transformer/moe/moe_utils.py
    RouterGatingLinearFunction).
    """
    model, hopper = job.model, _from_hopper_on(job)
    local = model.transformer_impl == "local"
    routes = any(op.expert for op in parts.ops) and core_at_least(job, (0, 13))
    engines = 0
    if not local or routes:
        engines += 1
    if not local and model.moe_grouped_gemm and any(op.expert for op in parts.ops):
        engines += GROUPED_STREAMS
    if not local and model.tp_comm_overlap:
        engines += OVERLAP_STREAMS
    own = _configured(job.environment.get("CUBLAS_WORKSPACE_CONFIG", ""))
    return TORCH_THREADS * (own or TORCH_WORKSPACE[hopper]) + engines * ENGINE_WORKSPACE[hopper]


def _from_hopper_on(job: JobConfig) -> bool:
    """Say whether the GPU is a Hopper or newer; one that is not named is taken to be."""
    name = (job.hardware.gpu or "").lower()
    return not any(gpu.name == name and gpu.architecture == "ampere" for gpu in GPUS)


def _configured(text: str) -> int:
    """Return the bytes that ``CUBLAS_WORKSPACE_CONFIG`` asks for: ``:KIB:COUNT`` pairs."""
    return sum(int(size) * int(count) * KIB for size, count in _CONFIG.findall(text))


def _global_buffer(job: JobConfig, shape: Shape, parts: RankParts) -> int:
    """Return the bytes of Megatron's one shared buffer, as large as its largest user needs.

    Megatron's own column-parallel linears gather their sequence-parallel input into it: the output
    layer always, every such layer with the local spec. The local attention reserves its scores in it,
    of which the kernel reads nothing (NVIDIA/Megatron-LM core_v0.19.0
    megatron/core/tensor_parallel/layers.py ``get_global_memory_buffer().get_tensor(..., "mpu")``,
    megatron/core/transformer/dot_product_attention.py ``matmul_input_buffer``).
    """
    local = job.model.transformer_impl == "local"
    gathered = scores = 0
    if shape.sequence_parallel and shape.tp > 1 and (local or parts.has_head):
        gathered = shape.tokens * shape.hidden * shape.act
    if local and any(op.name.startswith("self_attention.") for op in parts.ops):
        scores = shape.tokens * shape.heads * shape.seq * shape.act
    return max(gathered, scores)
