"""The verdict table: which evidence is asked first, each row with an input it takes and one it leaves.

Order is strength: faults that are not memory, the allocator's own numbers, stacks and series of
measurements, libraries without numbers, then what people write, then what is left over.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from recompute.diagnose import find_faults, find_numbers, find_series, find_stacks, find_words
from recompute.diagnose.finding import Finding
from recompute.diagnose.observation import Observation


@dataclass(frozen=True, slots=True, kw_only=True)
class VerdictRow:
    """One kind of evidence."""

    id: str
    test: Callable[[Observation], Finding | None]
    passing: str
    """An input for which the row speaks."""
    failing: str
    """An input for which it must not."""


def _new(
    request: str,
    total: str,
    free: str,
    allocated: str,
    slack: str,
    *,
    extra: str = "",
    clause: str = "",
) -> str:
    return (
        f"torch.OutOfMemoryError: CUDA out of memory. Tried to allocate {request}. GPU 0 has a total capacity of {total} of which "
        f"{free} is free. {clause}Of the allocated memory {allocated} is allocated by PyTorch, {extra}and {slack} is reserved by PyTorch but unallocated."
    )


def _trace(*frames: tuple[str, str]) -> str:
    lines = [f'  File "{file}", line 10, in {function}' for file, function in frames]
    return "\n".join(["Traceback (most recent call last):", *lines]) + "\n"


_FULL: Final = _new("2.00 GiB", "79.11 GiB", "1.00 GiB", "76.00 GiB", "0.50 GiB")
_TRAIN: Final = ("megatron/training/training.py", "train_step")
_FORWARD: Final = ("megatron/core/models/gpt/gpt_model.py", "forward")
_ITERATION: Final = " iteration {n}/ 100 | consumed samples: 8 | elapsed time per iteration (ms): {ms} | number of skipped iterations: 0 | number of nan iterations: 0 |"


def _memory(iteration: int, allocated: int, rank: int = 0, reserved: int = 0) -> str:
    top = reserved or allocated
    return f"[Rank {rank}] (after {iteration} iterations) memory (MB) | allocated: {allocated}.00 | max allocated: {allocated}.00 | reserved: {top}.00 | max reserved: {top}.00"


_GROWING: Final = "\n".join(_memory(step, 20000 + 900 * step) for step in range(1, 9))
_FLAT: Final = "\n".join(_memory(step, 20000 + step % 2) for step in range(1, 9))
_SLOW: Final = "\n".join(
    _ITERATION.format(n=n, ms=2800.0 if n < 6 else 16980.0) for n in range(1, 12)
)


def _expert(rank: int, request: str) -> str:
    text = _trace(_TRAIN, ("megatron/core/transformer/moe/experts.py", "forward"))
    text += _new(request, "79.11 GiB", "0.90 GiB", "76.00 GiB", "0.50 GiB")
    return "".join(f"[rank{rank}]: {line}\n" for line in text.splitlines())


TABLE: Final[tuple[VerdictRow, ...]] = (
    VerdictRow(
        id="recompute-fault",
        test=find_faults.recompute_fault,
        passing="torch.utils.checkpoint.CheckpointError: torch.utils.checkpoint: Recomputed values for the following tensors have different metadata than during the forward pass.",
        failing=_FULL,
    ),
    VerdictRow(
        id="host-memory",
        test=find_faults.host_memory,
        passing="slurmstepd: error: Detected 1 oom_kill event in StepId=9.0.",
        failing=_FULL,
    ),
    VerdictRow(
        id="corrupt-size",
        test=find_numbers.corrupt_size,
        passing="RuntimeError: CUDA out of memory. Tried to allocate more than 1EB memory.",
        failing=_FULL,
    ),
    VerdictRow(
        id="impossible-request",
        test=find_numbers.impossible_request,
        passing=_new("238.17 GiB", "79.11 GiB", "66.51 GiB", "10.46 GiB", "0.13 GiB"),
        failing=_FULL,
    ),
    VerdictRow(
        id="device-limit",
        test=find_numbers.device_limit,
        passing=_new("2.00 MiB", "287.98 GiB", "203.49 GiB", "68.63 GiB", "14.93 GiB"),
        failing=_FULL,
    ),
    VerdictRow(
        id="sleeping-engine",
        test=find_faults.sleeping_engine,
        passing="RuntimeError: CUDA Error: out of memory at /vllm/csrc/cumem_allocator.cpp:62",
        failing=_FULL,
    ),
    VerdictRow(
        id="other-process",
        test=find_numbers.other_process,
        passing=_new("2.63 GiB", "79.11 GiB", "2.61 GiB", "48.15 GiB", "3.49 GiB"),
        failing=_FULL,
    ),
    VerdictRow(
        id="own-non-torch",
        test=find_numbers.own_non_torch,
        passing=_new(
            "2.00 GiB",
            "79.11 GiB",
            "1.00 GiB",
            "60.00 GiB",
            "1.00 GiB",
            clause="Including non-PyTorch memory, this process has 78.00 GiB memory in use. ",
        ),
        failing=_FULL,
    ),
    VerdictRow(
        id="graph-pools",
        test=find_stacks.graph_pools,
        passing=_new(
            "2.00 GiB",
            "139.80 GiB",
            "1.00 GiB",
            "136.00 GiB",
            "1.00 GiB",
            extra="with 60.00 GiB allocated in private pools (e.g., CUDA Graphs), ",
        ),
        failing=_FULL,
    ),
    VerdictRow(id="growth", test=find_series.growth, passing=_GROWING, failing=_FLAT),
    VerdictRow(
        id="fragmentation",
        test=find_numbers.fragmentation,
        passing=_new("2.00 GiB", "79.11 GiB", "1.00 GiB", "58.00 GiB", "19.00 GiB"),
        failing=_FULL,
    ),
    VerdictRow(
        id="optimizer-stack",
        test=find_stacks.optimizer_stack,
        passing=_trace(
            _TRAIN,
            ("megatron/core/optimizer/optimizer.py", "step"),
            ("torch/optim/adam.py", "_init_group"),
        )
        + _FULL,
        failing=_trace(_TRAIN, _FORWARD) + _FULL,
    ),
    VerdictRow(
        id="gradient-buffer",
        test=find_stacks.gradient_buffer,
        passing=_trace(_TRAIN, ("megatron/core/distributed/param_and_grad_buffer.py", "__init__"))
        + _FULL,
        failing=_trace(_TRAIN, _FORWARD) + _FULL,
    ),
    VerdictRow(
        id="load-stack",
        test=find_stacks.load_stack,
        passing=_trace(
            ("pretrain_gpt.py", "model_provider"),
            ("megatron/core/tensor_parallel/layers.py", "__init__"),
        )
        + _FULL,
        failing=_trace(_TRAIN, _FORWARD) + _FULL,
    ),
    VerdictRow(
        id="second-step",
        test=find_stacks.second_step,
        passing=_ITERATION.format(n=1, ms=900.0) + "\n" + _trace(_TRAIN, _FORWARD) + _FULL,
        failing=_ITERATION.format(n=300, ms=900.0) + "\n" + _trace(_TRAIN, _FORWARD) + _FULL,
    ),
    VerdictRow(
        id="logits-stack",
        test=find_stacks.logits_stack,
        passing=_trace(_TRAIN, ("megatron/core/tensor_parallel/cross_entropy.py", "forward"))
        + _FULL,
        failing=_trace(_TRAIN, ("megatron/core/transformer/mlp.py", "forward")) + _FULL,
    ),
    VerdictRow(
        id="skewed-ranks",
        test=find_stacks.skewed_ranks,
        passing="\n".join(_memory(2, 40000, rank) for rank in range(4))
        + "\n"
        + _memory(2, 70000, 5)
        + "\n"
        + _trace(_TRAIN, ("megatron/core/transformer/moe/experts.py", "forward"))
        + _FULL,
        failing="\n".join(_memory(2, 40000, rank) for rank in range(4))
        + "\n"
        + _trace(_TRAIN, ("megatron/core/transformer/moe/experts.py", "forward"))
        + _FULL,
    ),
    VerdictRow(
        id="uneven-requests",
        test=find_stacks.uneven_requests,
        passing=_expert(1, "1.10 GiB") + _expert(6, "2.30 GiB"),
        failing=_expert(1, "1.10 GiB") + _expert(6, "1.10 GiB"),
    ),
    VerdictRow(
        id="activation-stack",
        test=find_stacks.activation_stack,
        passing=_trace(_TRAIN, ("megatron/core/transformer/mlp.py", "forward")) + _FULL,
        failing=_FULL,
    ),
    VerdictRow(
        id="non-torch",
        test=find_faults.non_torch,
        passing="host:1:2 [0] include/alloc.h:206 NCCL WARN Failed to CUDA calloc async 24 bytes",
        failing=_FULL,
    ),
    VerdictRow(
        id="thrash",
        test=find_series.thrash,
        passing=_memory(2, 70279, reserved=75594) + "\n" + _SLOW,
        failing=_memory(2, 30000) + "\n" + _SLOW,
    ),
    VerdictRow(
        id="request-like-logits",
        test=find_numbers.request_like_logits,
        passing="torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 58.15 GiB.",
        failing=_FULL,
    ),
    VerdictRow(
        id="phrase",
        test=find_words.phrase,
        passing="Uneven routing sends most tokens to one rank.\nCUDA out of memory",
        failing="CUDA out of memory",
    ),
    VerdictRow(id="capacity", test=find_numbers.capacity, passing=_FULL, failing=_FLAT),
    VerdictRow(
        id="hang",
        test=find_faults.hang,
        passing="[Rank 3] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=1)",
        failing=_FULL,
    ),
    VerdictRow(
        id="nccl-unclear",
        test=find_faults.nccl_unclear,
        passing="torch.distributed.DistBackendError: NCCL error in: a.cpp:1, unhandled cuda error",
        failing=_FULL,
    ),
    VerdictRow(
        id="other-crash",
        test=find_faults.other_crash,
        passing=_trace(_TRAIN) + "ValueError: batch size 3 is not divisible by 2",
        failing=_FLAT,
    ),
    VerdictRow(
        id="tip-only",
        test=find_words.tip_only,
        passing="If reserved but unallocated memory is large try setting PYTORCH_ALLOC_CONF=expandable_segments:True to avoid fragmentation.",
        failing=_FULL,
    ),
    VerdictRow(
        id="no-error-stated",
        test=find_words.no_error_stated,
        passing="The value arrives as given.\n(no error)",
        failing=_FULL,
    ),
    VerdictRow(
        id="failure-in-prose",
        test=find_words.failure_in_prose,
        passing="Works at 64k, crashes in get_batch at 128k.",
        failing=_FLAT,
    ),
    VerdictRow(id="healthy", test=find_words.healthy, passing=_SLOW, failing="x"),
)
"""The first row that speaks decides."""


LEFT_OVER: Final = frozenset(
    {
        "device-full",
        "healthy",
        "no-failure-seen",
        "failure-unexplained",
        "failure-before-model",
        "no-error-stated",
    }
)
"""Rows that decide only when nothing else does and add nothing to what does."""


def judge(seen: Observation) -> list[Finding]:
    """Return what the rows find, the deciding one first; at most four more for the record."""
    found: list[Finding] = []
    for row in TABLE:
        finding = row.test(seen)
        if finding is None or finding.rule in {other.rule for other in found}:
            continue
        if not found or finding.rule not in LEFT_OVER:
            found.append(finding)
    return found[:5]
