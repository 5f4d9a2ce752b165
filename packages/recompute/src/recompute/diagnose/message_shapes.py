"""Out-of-memory messages by device and allocator generation: one row per shape, numbers exact.

Sources: literal strings of ``libc10_cuda.so`` in the published torch wheels 1.3.1 to 2.13.0; clause
order from pytorch/pytorch ``c10/cuda/CUDACachingAllocator.cpp``; ROCm, NPU, XPU, JAX and
``cudaMallocAsync`` from public logs. How to add a row: docs/how-to/add-a-message-shape.md.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from recompute.units import parse_bytes

NO_LIMIT: Final = 1 << 56
"""``cudaMallocAsync`` prints 17179869184 GiB for "no limit"; anything this large is not a size."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Process:
    """One ``Process N has X memory in use`` clause."""

    pid: int | None
    """``None`` for this process, or where the text has a placeholder."""
    own: bool
    in_use_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class OomMessage:
    """One message of an allocator. Sizes in bytes; ``None`` where the message does not say."""

    shape: str
    device_kind: str
    """``cuda``, ``hip``, ``npu``, ``xpu``, ``tpu`` or ``unknown``."""
    device: int | None = None
    requested: int | None = None
    total: int | None = None
    free: int | None = None
    allocated: int | None = None
    reserved_unallocated: int | None = None
    private_pools: int | None = None
    allowed: int | None = None
    """Limit that ``set_per_process_memory_fraction`` or ``allowed`` states."""
    processes: tuple[Process, ...] = ()
    truncated: bool = False
    corrupt_size: bool = False
    """``more than 1EB``: the size itself is garbage."""

    @property
    def non_torch(self) -> int | None:
        """``total - free - allocated - slack``: what this allocator does not hold, bytes."""
        parts = (self.total, self.free, self.allocated)
        if any(part is None for part in parts):
            return None
        slack = self.reserved_unallocated or 0
        rest = (self.total or 0) - (self.free or 0) - (self.allocated or 0) - slack
        return max(rest, 0)

    @property
    def numbers_known(self) -> int:
        """How many of the sizes the message gave."""
        return sum(
            value is not None
            for value in (
                self.requested,
                self.total,
                self.free,
                self.allocated,
                self.reserved_unallocated,
            )
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """One row: how a message looks, and one text that it reads and one that it must not."""

    id: str
    versions: str
    pattern: re.Pattern[str]
    read: Callable[[re.Match[str], str], OomMessage]
    passing: str
    failing: str


_S: Final = r"([0-9]{1,15}(?:\.[0-9]{1,6})? ?(?:bytes|[KMGT]i?B))"
_HEAD: Final = r"(CUDA|HIP|XPU|NPU|MUSA|MPS) out of memory\.?\s{1,4}Tried to allocate "
_OLD: Final = re.compile(
    _HEAD
    + _S
    + r"\s{1,4}\((?:GPU|NPU|MUSA) ([0-9]{1,4}); "
    + _S
    + r" total capacity; "
    + _S
    + r" already allocated; (?:"
    + _S
    + r" current active; )?"
    + _S
    + r" free; (?:"
    + _S
    + r" allowed; )?"
    + _S
    + r" (reserved in total by PyTorch|cached)\)"
)
_NEW: Final = re.compile(
    _HEAD
    + _S
    + r"\.\s{1,4}(?:GPU|NPU|MUSA) ([0-9]{1,4}) has a total capaci?ty of "
    + _S
    + r"(?:\s+of which\s+"
    + _S
    + r"\s+is free)?"
)
_HEAD_ONLY: Final = re.compile(_HEAD + _S)
_EXABYTE: Final = re.compile(_HEAD + r"more than 1EB memory")
_FRACTION: Final = re.compile(
    r"(CUDA|HIP|XPU|NPU) out of memory\. Allocation was preemptively rejected because it would exceed "
    r"per_process_memory_fraction limit\.(?: Requested size: (?:" + _S + r"|([0-9]{1,18})))?"
)
_ASYNC: Final = re.compile(
    r"Allocation on device ([0-9]{1,4}) would exceed allowed memory\. \(out of memory\)"
    r"(?:\s{1,8}Currently allocated\s{0,12}: ?"
    + _S
    + r")?(?:\s{1,8}Requested\s{0,20}: ?"
    + _S
    + r")?(?:\s{1,8}Device limit\s{0,20}: ?"
    + _S
    + r")?(?:\s{1,8}Free \(according to CUDA\): ?"
    + _S
    + r")?"
    r"(?:\s{1,8}PyTorch limit \(set by user-supplied memory fraction\)\s{0,40}: ?" + _S + r")?"
)
_ASYNC_SHORT: Final = re.compile(r"\bAllocation on device\b(?! [0-9]+ would)")
_MPS: Final = re.compile(
    r"MPS backend out of memory \(MPS allocated: "
    + _S
    + r", other allocations: "
    + _S
    + r", max allowed: "
    + _S
    + r"\)\.\s{0,4}Tried to allocate "
    + _S
)
_JAX: Final = re.compile(
    r"RESOURCE_EXHAUSTED: (?:[A-Z][A-Za-z]* )?[Oo]ut of memory(?: while trying to allocate| allocating)"
    r" (?:([0-9]{1,18}) bytes|" + _S + r")"
)
_TENSORFLOW: Final = re.compile(
    r"(?:ResourceExhaustedError|OOM when allocating tensor with shape\[[0-9,]{1,80}\])"
)
_RUNTIME2: Final = re.compile(r"cuda runtime error \(2\) ?: out of memory at ")
_BARE: Final = re.compile(
    r"\b(CUDA|HIP|XPU|NPU)(?: error)?:? (?:OOM\b|out of memory)|\bOutOfMemoryError\b|\bOOMs?\b|\b[Oo]ut[ -]of[ -]memory\b|\bCUDA_ERROR_OUT_OF_MEMORY\b"
)

_SLACK: Final = re.compile(
    r"Of the allocated memory "
    + _S
    + r" is allocated by PyTorch,?\s{0,4}(?:with "
    + _S
    + r" allocated in private pools \(e\.g\., (?:CUDA|HIP|XPU) Graphs\),\s{0,4})?(?:and "
    + _S
    + r" is reserved by PyTorch but unallocated)?"
)
_ALLOWED: Final = re.compile(_S + r" allowed;")
_PROCESS: Final = re.compile(
    r"(?:(Including non-PyTorch memory, this process)|Process ([0-9]{1,10}|<[a-z]+>)) has "
    + _S
    + r" memory in use"
)


def size(text: str | None) -> int | None:
    """Read one size of a message: ``20.00 MiB``, ``0 bytes``."""
    return None if text is None else parse_bytes(text)


def _kind(word: str) -> str:
    return word.lower()


def _old(match: re.Match[str], _text: str) -> OomMessage:
    word, requested, device, total, allocated, _, free, allowed, reserved, _ = match.groups()
    used, held = size(allocated), size(reserved)
    return OomMessage(
        shape="old-parenthesis",
        device_kind=_kind(word),
        device=int(device),
        requested=size(requested),
        total=size(total),
        free=size(free),
        allocated=used,
        reserved_unallocated=None if used is None or held is None else max(held - used, 0),
        allowed=size(allowed),
    )


def _new(match: re.Match[str], text: str) -> OomMessage:
    word, requested, device, total, free = match.groups()
    tail = text[match.end() : match.end() + 4000]
    again = _HEAD_ONLY.search(tail)
    tail = tail[: again.start()] if again else tail
    slack = _SLACK.search(tail)
    allowed = _ALLOWED.search(tail)
    return OomMessage(
        shape="of-which-is-free",
        device_kind=_kind(word),
        device=int(device),
        requested=size(requested),
        total=size(total),
        free=size(free),
        allocated=size(slack[1]) if slack else None,
        private_pools=size(slack[2]) if slack else None,
        reserved_unallocated=size(slack[3]) if slack else None,
        allowed=size(allowed[1]) if allowed else None,
        processes=_processes(tail),
        truncated=slack is None or slack[3] is None,
    )


def _processes(text: str) -> tuple[Process, ...]:
    return tuple(
        Process(
            pid=int(match[2]) if match[2] and match[2].isdigit() else None,
            own=match[1] is not None,
            in_use_bytes=size(match[3]) or 0,
        )
        for match in _PROCESS.finditer(text)
    )


def _head_only(match: re.Match[str], text: str) -> OomMessage:
    """Read what a truncated or paraphrased message still says."""
    tail = text[match.end() : match.end() + 2000]
    allowed = _ALLOWED.search(tail)
    return OomMessage(
        shape="request-only",
        device_kind=_kind(match[1]),
        requested=size(match[2]),
        allowed=size(allowed[1]) if allowed else None,
        processes=_processes(tail),
        truncated=True,
    )


def _exabyte(match: re.Match[str], _text: str) -> OomMessage:
    return OomMessage(shape="exabyte", device_kind=_kind(match[1]), corrupt_size=True)


def _fraction(match: re.Match[str], _text: str) -> OomMessage:
    requested = size(match[2]) if match[2] else (int(match[3]) if match[3] else None)
    return OomMessage(
        shape="fraction-limit", device_kind=_kind(match[1]), requested=requested, allowed=0
    )


def _async(match: re.Match[str], _text: str) -> OomMessage:
    device, allocated, requested, limit, free, fraction = match.groups()
    allowed = size(fraction)
    return OomMessage(
        shape="cuda-malloc-async",
        device_kind="cuda",
        device=int(device),
        requested=size(requested),
        total=size(limit),
        free=size(free),
        allocated=size(allocated),
        allowed=None if allowed is None or allowed > NO_LIMIT else allowed,
    )


def _async_short(_match: re.Match[str], _text: str) -> OomMessage:
    return OomMessage(shape="cuda-malloc-async-short", device_kind="cuda", truncated=True)


def _mps(match: re.Match[str], _text: str) -> OomMessage:
    allocated, _, limit, requested = (size(group) for group in match.groups())
    return OomMessage(
        shape="mps", device_kind="mps", requested=requested, allocated=allocated, allowed=limit
    )


def _jax(match: re.Match[str], _text: str) -> OomMessage:
    requested = int(match[1]) if match[1] else size(match[2])
    return OomMessage(shape="xla", device_kind="unknown", requested=requested)


def _no_numbers(shape: str) -> Callable[[re.Match[str], str], OomMessage]:
    def read(match: re.Match[str], text: str) -> OomMessage:
        word = match[1] if match.re.groups and match[1] else "unknown"
        allowed = _ALLOWED.search(text, match.end(), match.end() + 2000)
        return OomMessage(
            shape=shape,
            device_kind=_kind(word),
            allowed=size(allowed[1]) if allowed else None,
            processes=_processes(text[match.start() : match.start() + 2000]),
            truncated=True,
        )

    return read


SHAPES: Final[tuple[Shape, ...]] = (
    Shape(
        id="old-parenthesis",
        versions="torch 1.3 to 2.0; torch_npu",
        pattern=_OLD,
        read=_old,
        passing="CUDA out of memory. Tried to allocate 2.00 MiB (GPU 0; 31.74 GiB total capacity; 30.00 GiB already allocated; 1.00 MiB free; 30.50 GiB cached)",
        failing="CUDA out of memory. Tried to allocate 2.00 MiB (GPU 0; 31.74 GiB total",
    ),
    Shape(
        id="of-which-is-free",
        versions="torch 2.1 to 2.13, ROCm, XPU",
        pattern=_NEW,
        read=_new,
        passing="HIP out of memory. Tried to allocate 1.00 GiB. GPU 3 has a total capacty of 63.98 GiB of which 0 bytes is free. Of the allocated memory 60.00 GiB is allocated by PyTorch, and 1.00 GiB is reserved by PyTorch but unallocated.",
        failing="HIP out of memory. Tried to allocate 1.00 GiB. GPU",
    ),
    Shape(
        id="exabyte",
        versions="torch 1.13 to 2.13",
        pattern=_EXABYTE,
        read=_exabyte,
        passing="CUDA out of memory. Tried to allocate more than 1EB memory.",
        failing="CUDA out of memory. Tried to allocate 1.00 TiB.",
    ),
    Shape(
        id="fraction-limit",
        versions="torch 2.12 and later",
        pattern=_FRACTION,
        read=_fraction,
        passing="CUDA out of memory. Allocation was preemptively rejected because it would exceed per_process_memory_fraction limit. Requested size: 1.00 GiB",
        failing="CUDA out of memory. Allocation was refused",
    ),
    Shape(
        id="cuda-malloc-async",
        versions="torch 2.0 and later, backend:cudaMallocAsync",
        pattern=_ASYNC,
        read=_async,
        passing="Allocation on device 0 would exceed allowed memory. (out of memory)\nCurrently allocated     : 14.00 GiB\nRequested               : 2.00 GiB\nDevice limit            : 15.77 GiB\nFree (according to CUDA): 20.00 MiB",
        failing="Allocation on device",
    ),
    Shape(
        id="mps",
        versions="torch on Apple GPUs",
        pattern=_MPS,
        read=_mps,
        passing="MPS backend out of memory (MPS allocated: 17.00 GB, other allocations: 1.00 GB, max allowed: 18.13 GB). Tried to allocate 512.00 MB on private pool.",
        failing="MPS backend was enabled",
    ),
    Shape(
        id="xla",
        versions="JAX, XLA",
        pattern=_JAX,
        read=_jax,
        passing="RESOURCE_EXHAUSTED: Out of memory while trying to allocate 17179869184 bytes.",
        failing="RESOURCE_EXHAUSTED: quota",
    ),
    Shape(
        id="request-only",
        versions="truncated messages",
        pattern=_HEAD_ONLY,
        read=_head_only,
        passing="CUDA out of memory. Tried to allocate 3725.29 GiB. GPU",
        failing="Tried to allocate a port",
    ),
    Shape(
        id="cuda-malloc-async-short",
        versions="front ends that cut the message",
        pattern=_ASYNC_SHORT,
        read=_async_short,
        passing="torch.cuda.OutOfMemoryError: Allocation on device",
        failing="allocation of ports on devices",
    ),
    Shape(
        id="cuda-runtime-2",
        versions="torch 0.3 to 1.2",
        pattern=_RUNTIME2,
        read=_no_numbers("cuda-runtime-2"),
        passing="cuda runtime error (2) : out of memory at THCStorage.cu:58",
        failing="cuda runtime error (59) : device-side assert triggered at x.cu:1",
    ),
    Shape(
        id="tensorflow",
        versions="TensorFlow",
        pattern=_TENSORFLOW,
        read=_no_numbers("tensorflow"),
        passing="OOM when allocating tensor with shape[8,1024,4096]",
        failing="allocating tensor",
    ),
    Shape(
        id="bare",
        versions="any, without numbers",
        pattern=_BARE,
        read=_no_numbers("bare"),
        passing="RuntimeError: CUDA error: out of memory",
        failing="there is room in memory",
    ),
)
"""Most specific first: the first row that matches reads the text."""

HEADS: Final = re.compile(
    r"out[ -]of[ -]memory|OutOfMemory|\bOOM|Allocation on device|RESOURCE_EXHAUSTED|ResourceExhausted|OUT_OF_MEMORY",
    re.IGNORECASE,
)
"""A cheap test that a text may hold a message."""


def read_message(text: str) -> OomMessage | None:
    """Return the first, most complete message in ``text``.

    Args:
        text: One message, its wrapped lines joined by newlines or spaces.
    """
    if HEADS.search(text) is None:
        return None
    for shape in SHAPES:
        match = shape.pattern.search(text)
        if match is not None:
            return shape.read(match, text)
    return None
