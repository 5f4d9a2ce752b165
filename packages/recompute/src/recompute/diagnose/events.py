"""Lines that say what happened without an allocator's numbers: one row per text.

Sources stand in each row. A *follower* is a rank that died because another did; it is never the
cause and only counted.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from recompute.diagnose.types import Stage


class Kind(StrEnum):
    """What sort of event a row stands for."""

    RECOMPUTE_FAULT = "recompute_fault"
    NON_TORCH = "non_torch"
    NCCL_CONTEXT = "nccl_context"
    """An NCCL error that is out of memory only if a last-error line says so."""
    DRIVER = "driver"
    SLEEPING_ENGINE = "sleeping_engine"
    HOST = "host"
    RETRY = "retry"
    CONFIG_CLASH = "config_clash"
    HANG = "hang"
    FOLLOWER = "follower"
    CRASH = "crash"
    GRAPH = "graph"


@dataclass(frozen=True, slots=True, kw_only=True)
class EventRow:
    """One text that means something."""

    id: str
    kind: Kind
    pattern: str
    stage: Stage = Stage.UNKNOWN
    """Where it happens, if the text alone fixes that."""
    source: str
    passing: str
    failing: str


EVENTS: Final[tuple[EventRow, ...]] = (
    # --- faults of recompute itself
    EventRow(
        id="checkpoint-count",
        kind=Kind.RECOMPUTE_FAULT,
        stage=Stage.BACKWARD,
        source="torch/utils/checkpoint.py",
        pattern=r"A different number of tensors was saved during the original forward and recomputation",
        passing="CheckpointError: A different number of tensors was saved during the original forward and recomputation.",
        failing="CheckpointIO saved 12 tensors",
    ),
    EventRow(
        id="checkpoint-metadata",
        kind=Kind.RECOMPUTE_FAULT,
        stage=Stage.BACKWARD,
        source="torch/utils/checkpoint.py",
        pattern=r"Recomputed values for the following tensors have different metadata|have different metadata than during the forward pass",
        passing="Recomputed values for the following tensors have different metadata than during the forward pass.",
        failing="metadata of tensors saved",
    ),
    EventRow(
        id="checkpoint-error",
        kind=Kind.RECOMPUTE_FAULT,
        stage=Stage.BACKWARD,
        source="torch/utils/checkpoint.py",
        pattern=r"\bCheckpointError\b|checkpoint\.CheckpointException|unpack is being triggered for a tensor that was (?:already unpacked|either never recomputed)",
        passing="torch.utils.checkpoint.CheckpointError: torch.utils.checkpoint: Unpack is being triggered",
        failing="CheckpointingException: could not write the checkpoint",
    ),
    EventRow(
        id="early-stop",
        kind=Kind.RECOMPUTE_FAULT,
        stage=Stage.BACKWARD,
        source="torch/utils/checkpoint.py; NVIDIA/TransformerEngine#415",
        pattern=r"if early stop is enabled, we don't expect to reach here",
        passing="AssertionError: if early stop is enabled, we don't expect to reach here",
        failing="early stopping is enabled",
    ),
    EventRow(
        id="bucket-no-grad",
        kind=Kind.RECOMPUTE_FAULT,
        stage=Stage.GRAD_SYNC,
        source="megatron/core/distributed/param_and_grad_buffer.py",
        pattern=r"Communication call has not been issued for this bucket",
        passing="AssertionError: Communication call has not been issued for this bucket (0/12 params have grad available)",
        failing="Communication call issued",
    ),
    EventRow(
        id="no-grad-inputs",
        kind=Kind.RECOMPUTE_FAULT,
        stage=Stage.BACKWARD,
        source="torch/utils/checkpoint.py",
        pattern=r"None of the inputs have requires_grad=True|none of output has requires_grad=True|element 0 of tensors does not require grad|None of the outputs? (?:has|have) requires_grad",
        passing="RuntimeError: element 0 of tensors does not require grad and does not have a grad_fn",
        failing="requires_grad=True for 12 parameters",
    ),
    EventRow(
        id="none-argument",
        kind=Kind.RECOMPUTE_FAULT,
        stage=Stage.FORWARD,
        source="NVIDIA/Megatron-LM#630",
        pattern=r"'NoneType' object has no attribute '(?:requires_grad|detach|is_cuda)'",
        passing="AttributeError: 'NoneType' object has no attribute 'requires_grad'",
        failing="AttributeError: 'NoneType' object has no attribute 'name'",
    ),
    EventRow(
        id="dot-grad",
        kind=Kind.RECOMPUTE_FAULT,
        stage=Stage.BACKWARD,
        source="torch/utils/checkpoint.py",
        pattern=r"Checkpointing is not compatible with \.grad\(\)|when using reentrant checkpoint.{0,40}\.grad\(\)",
        passing="RuntimeError: Checkpointing is not compatible with .grad(), please use .backward() if possible",
        failing="Checkpointing every 1000 steps",
    ),
    EventRow(
        id="twice",
        kind=Kind.RECOMPUTE_FAULT,
        stage=Stage.BACKWARD,
        source="pytorch/pytorch torch/csrc/autograd",
        pattern=r"Expected to mark a variable ready only once|Trying to backward through the graph a second time",
        passing="RuntimeError: Expected to mark a variable ready only once.",
        failing="variable is ready",
    ),
    EventRow(
        id="checkpointed-forward",
        kind=Kind.RECOMPUTE_FAULT,
        stage=Stage.FORWARD,
        source="NVIDIA/Megatron-LM multi_token_prediction.py",
        pattern=r"_checkpointed_\w*forward\(\) got an unexpected keyword argument|Invalid activation recompute method",
        passing="TypeError: MultiTokenPredictionLayer._checkpointed_forward() got an unexpected keyword argument 'padding_mask'",
        failing="TypeError: forward() got an unexpected keyword argument 'x'",
    ),
    EventRow(
        id="refused-setting",
        kind=Kind.RECOMPUTE_FAULT,
        stage=Stage.INITIALIZATION,
        source="megatron/core/transformer/transformer_config.py __post_init__",
        pattern=r"(?:Value|Assertion|NotImplemented)\w{0,20}(?:Error)?: .{0,200}(?:recompute[_ -]?(?:modules|method|granularity|granuarlity|num[_ -]layers)|activation recomput|moe_act and layernorm recompute|(?:full|shared_experts|attention|mHC) recompute|graphed attention recomputation|recomputing granularity)",
        passing="ValueError: moe_act in recompute_modules is only supported with moe_grouped_gemm.",
        failing="ValueError: num_layers must be positive",
    ),
    EventRow(
        id="index-range",
        kind=Kind.RECOMPUTE_FAULT,
        stage=Stage.FORWARD,
        source="NVIDIA/Megatron-LM#2294",
        pattern=r"IndexError: index [0-9]{1,12} is out of range",
        passing="IndexError: index 24 is out of range",
        failing="IndexError: list index out of range",
    ),
    EventRow(
        id="cannot-offload",
        kind=Kind.RECOMPUTE_FAULT,
        stage=Stage.FORWARD,
        source="megatron/core fine-grained offload",
        pattern=r"AssertionError: Cannot offload",
        passing="AssertionError: Cannot offload",
        failing="offload done",
    ),
    # --- memory outside the caching allocator
    EventRow(
        id="nccl-calloc",
        kind=Kind.NON_TORCH,
        source="NCCL src/include/alloc.h",
        pattern=r"Failed to CUDA (?:calloc|malloc)|NCCL.{0,80}\b(?:calloc|alloc(?:ation)?) fail|NCCL (?:cannot|could not|can't) (?:get|allocate)|NCCL.{0,60}out of memory|ncclUnhandledCudaError.{0,200}(?:out of memory|calloc)",
        passing="NCCL WARN Failed to CUDA calloc async 24 bytes",
        failing="NCCL INFO Channel 00",
    ),
    EventRow(
        id="nccl-warn-oom",
        kind=Kind.NON_TORCH,
        source="NCCL src/include/alloc.h",
        pattern=r"NCCL WARN Cuda failure (?:2 )?'out of memory'",
        passing="host:1:2 [0] include/alloc.h:103 NCCL WARN Cuda failure 2 'out of memory'",
        failing="NCCL WARN Cuda failure 999 'unknown error'",
    ),
    EventRow(
        id="cublas-alloc",
        kind=Kind.NON_TORCH,
        source="pytorch/pytorch aten/src/ATen/cuda/CUDABlas.cpp",
        pattern=r"CUBLAS_STATUS_ALLOC_FAILED|CUBLAS_STATUS_NOT_INITIALIZED when calling|CUDNN_STATUS_ALLOC_FAILED|CUSOLVER_STATUS_ALLOC_FAILED|CUFFT_ALLOC_FAILED|HIPBLAS_STATUS_ALLOC_FAILED",
        passing="RuntimeError: CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`",
        failing="CUBLAS_STATUS_SUCCESS",
    ),
    EventRow(
        id="nccl-error",
        kind=Kind.NCCL_CONTEXT,
        source="torch ProcessGroupNCCL",
        pattern=r"DistBackendError: NCCL error|unhandled cuda error|ncclUnhandledCudaError|NCCL error",
        passing="torch.distributed.DistBackendError: NCCL error in: x.cpp:1, unhandled cuda error",
        failing="NCCL version 2.21.5",
    ),
    EventRow(
        id="cumem-wake",
        kind=Kind.SLEEPING_ENGINE,
        source="vllm csrc/cumem_allocator.cpp; vllm-project/vllm#13941",
        pattern=r"CUDA Error: (?:out of memory|invalid argument) at .{0,200}cumem_allocator|cumem_allocator\.cpp:[0-9]{1,12}",
        passing="RuntimeError: CUDA Error: out of memory at /w/csrc/cumem_allocator.cpp:62",
        failing="cumem allocator enabled",
    ),
    EventRow(
        id="driver-oom",
        kind=Kind.DRIVER,
        source="pytorch/pytorch c10/cuda/CUDAException.cpp; CUDA driver",
        pattern=r"(?:CUDA|HIP) (?:driver )?[Ee]rror:? out of memory|CUDA_ERROR_OUT_OF_MEMORY|hipErrorOutOfMemory|cudaErrorMemoryAllocation|AcceleratorError: CUDA error: out of memory",
        passing="torch.AcceleratorError: CUDA error: out of memory",
        failing="CUDA error: an illegal memory access",
    ),
    # --- host
    EventRow(
        id="cpu-allocator",
        kind=Kind.HOST,
        source="c10/core/impl/alloc_cpu.cpp",
        pattern=r"DefaultCPUAllocator: (?:can't allocate|not enough) memory|Cannot allocate memory|std::bad_alloc|\bMemoryError\b|numpy\.core\._exceptions\._ArrayMemoryError|cudaHostAlloc.{0,40}(?:out of memory|fail)|pinned memory.{0,40}(?:fail|out of memory)",
        passing="RuntimeError: [enforce fail at CPUAllocator.cpp:67] . DefaultCPUAllocator: can't allocate memory: you tried to allocate 9 bytes. Error code 12 (Cannot allocate memory)",
        failing="CUDA out of memory.",
    ),
    EventRow(
        id="oom-killer",
        kind=Kind.HOST,
        source="Linux oom_kill.c; Slurm; Kubernetes; Ray",
        pattern=r"oom[-_]kill(?:er)?\b|Out of memory: Kill(?:ed)? process|OOMKilled|OOM Killed|Detected [0-9]{1,12} oom[-_]kill event|killed due to the node running low on memory|ray\.exceptions\.OutOfMemoryError|Memory cgroup out of memory|Exceeded job memory limit|Workers? \(tasks / actors\) killed due to memory pressure",
        passing="slurmstepd: error: Detected 1 oom_kill event in StepId=1.0. Some of the step tasks have been OOM Killed.",
        failing="OOM observer attached",
    ),
    EventRow(
        id="sigkill",
        kind=Kind.HOST,
        source="torch.distributed.elastic",
        pattern=r"exitcode\s*: -9\b|Signal 9 \(SIGKILL\)|DataLoader worker \(pid(?:\(s\))? [0-9, ]+\) (?:is killed by signal: (?:Killed|Bus error)|exited unexpectedly)",
        passing="exitcode  : -9 (pid: 1234)",
        failing="exitcode  : 1 (pid: 1234)",
    ),
    EventRow(
        id="shm",
        kind=Kind.HOST,
        stage=Stage.DATA,
        source="torch DataLoader",
        pattern=r"insufficient shared memory|No space left on device.{0,40}shm|unable to (?:open|mmap) shared memory|Bus error \(core dumped\)",
        passing="ERROR: Unexpected bus error encountered in worker. This might be caused by insufficient shared memory (shm).",
        failing="shared memory enabled",
    ),
    # --- not a failure, but it tells
    EventRow(
        id="allocation-retry",
        kind=Kind.RETRY,
        source="torch.cuda.memory_stats num_alloc_retries; torchtitan metrics",
        pattern=r"(?P<count>[0-9]{1,12}) CUDA memory allocation retries|num_alloc_retries\W+(?P<count2>[1-9][0-9]*)|pytorch allocator cache flushes since last step",
        passing="WARNING 3 CUDA memory allocation retries.",
        failing="0 retries of the download",
    ),
    EventRow(
        id="expandable-pool",
        kind=Kind.CONFIG_CLASH,
        source="vllm device_allocator",
        pattern=r"Expandable segments are not compatible with memory pool",
        passing="AssertionError: Expandable segments are not compatible with memory pool.",
        failing="expandable segments enabled",
    ),
    EventRow(
        id="watchdog",
        kind=Kind.HANG,
        source="torch ProcessGroupNCCL",
        pattern=r"Watchdog caught collective operation timeout|collective operation timeout|\(hang\)|[Ww]atchdog.{0,40}tim(?:ed|e)[ -]?out|Timed? ?out after [0-9]{1,12} ?(?:ms|seconds) waiting",
        passing="[Rank 3] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=1)",
        failing="watchdog started",
    ),
    EventRow(
        id="follower",
        kind=Kind.FOLLOWER,
        source="torch.distributed.elastic; NCCL; gloo",
        pattern=r"Sending process [0-9]{1,12} closing signal|Connection (?:reset|closed) by (?:remote )?peer|ncclRemoteError|Signal 15 \(SIGTERM\)|received SIGTERM|srun: error: .{0,80}: (?:Terminated|Killed|Exited)|remote process exited or there was a network error|ChildFailedError|exitcode\s*: -15",
        passing="[Gloo] Connection closed by peer [10.0.0.1]:2",
        failing="Connected to peer",
    ),
)

_COMPILED: Final = tuple((row, re.compile(row.pattern)) for row in EVENTS)


def read_event(text: str) -> EventRow | None:
    """Return the first row that ``text`` matches."""
    for row, pattern in _COMPILED:
        if pattern.search(text) is not None:
            return row
    return None


def matches(row: EventRow, text: str) -> bool:
    """Tell whether one row takes ``text``."""
    return re.search(row.pattern, text) is not None
