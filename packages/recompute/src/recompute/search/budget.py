"""How much memory there is, what is compared with it, and how much stays free."""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

from recompute.config.gpus import CONTEXT_BYTES, NCCL_BYTES_PER_GROUP, find_gpu, gpu_names
from recompute.errors import ConfigError
from recompute.search.reserved import AllocatorModel, reserved_range
from recompute.units import GIB, format_gib, parse_bytes

if TYPE_CHECKING:
    from recompute.config.schema import JobConfig

MAX_BYTES = 1 << 50
"""Largest budget that is taken seriously: a petabyte on one GPU is a slip of the pen."""


class Compared(StrEnum):
    """Which figure must stay within the budget."""

    ALLOCATED = "allocated"
    """``max_memory_allocated``: a budget that the user states."""
    RESERVED = "reserved"
    """Upper end of the reserved range: a device's memory."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Budget:
    """What a rank may take."""

    limit_bytes: int
    compared: Compared
    margin_bytes: int
    """Kept free; for a device this is the allowance for memory outside torch."""
    name: str
    """For people: ``76.00 GiB`` or ``h100-80gb``."""

    def over(self, peak_bytes: int, allocator: AllocatorModel, pools: int = 0) -> int:
        """Return how far a peak is over the budget; zero or less means that it fits.

        Args:
            peak_bytes: Allocated.
            allocator: What it reserves beyond that.
            pools: Most that pools of CUDA graphs reserve besides; no allocated byte shows them.
        """
        held = peak_bytes
        if self.compared is Compared.RESERVED:
            held = reserved_range(peak_bytes, allocator)[1] + pools
        return held + self.margin_bytes - self.limit_bytes

    def allowed_peak(self, allocator: AllocatorModel, pools: int = 0) -> int:
        """Return the highest allocated peak that fits; arguments as for :meth:`over`."""
        room = self.limit_bytes - self.margin_bytes
        return int((room - pools) / allocator.high) if self.compared is Compared.RESERVED else room


def budget_of(
    job: JobConfig,
    budget: str | int | None = None,
    *,
    gpu: str | None = None,
    margin: str | float | None = None,
) -> Budget:
    """Work out the budget that a command asks for.

    Args:
        job: Names a GPU or a memory size in ``hardware`` where the arguments do not.
        budget: Allocated bytes, as a number or as text such as ``76GiB``.
        gpu: A GPU of the table; its memory is the budget unless ``budget`` is given.
        margin: Bytes, text such as ``2GiB``, or a fraction of the budget such as ``0.05`` or ``5%``.

    Raises:
        ConfigError: ``bad-size``, ``bad-margin``, ``unknown-gpu`` or ``missing-budget``.
    """
    if budget is not None:
        limit = _size(budget)
        kept = 0 if margin is None else parse_margin(margin, limit)
        return Budget(
            limit_bytes=limit,
            compared=Compared.ALLOCATED,
            margin_bytes=kept,
            name=format_gib(limit),
        )
    name = gpu or job.hardware.gpu
    if gpu is None and job.hardware.memory_bytes is not None:
        limit = job.hardware.memory_bytes
    elif name is not None:
        limit = find_gpu(name).memory_bytes
    else:
        raise ConfigError(
            "missing-budget",
            "neither the job nor the command names a GPU or a budget",
            hint="add to the command, with your own value: --budget 76GiB or --gpu h100-80gb",
        )
    kept = allowance_bytes(job) if margin is None else parse_margin(margin, limit)
    return Budget(
        limit_bytes=limit,
        compared=Compared.RESERVED,
        margin_bytes=kept,
        name=(name or format_gib(limit)).lower(),
    )


def allowance_bytes(job: JobConfig) -> int:
    """Return the stated allowance for memory outside torch: context, and communicators by family."""
    model = job.model
    replica = (
        model.tensor_model_parallel_size
        * model.pipeline_model_parallel_size
        * model.context_parallel_size
    )
    families = (
        model.tensor_model_parallel_size > 1,
        model.pipeline_model_parallel_size > 1,
        model.context_parallel_size > 1,
        model.expert_model_parallel_size > 1,
        (job.hardware.num_gpus or replica) > replica,
    )
    return CONTEXT_BYTES + NCCL_BYTES_PER_GROUP * sum(families)


def parse_margin(margin: str | float, limit: int) -> int:
    """Return a margin in bytes.

    Args:
        margin: An integer or sized text is bytes; a float, ``0.05`` or ``5%`` a fraction.
        limit: The budget, for fractions.

    Raises:
        ConfigError: ``bad-margin``.
    """
    text = str(margin).strip()
    kept = None
    if text.endswith("%"):
        kept = _fraction(text[:-1], 100.0, limit)
    elif isinstance(margin, float) or (text.replace(".", "", 1).isdigit() and "." in text):
        kept = _fraction(text, 1.0, limit)
    else:
        kept = parse_bytes(text)
    if kept is None or not 0 <= kept <= limit:
        raise ConfigError(
            "bad-margin",
            f"margin {text[:40]!r} is no size below the budget and no fraction below 1",
            hint="write bytes, 2GiB, 0.05 or 5%",
        )
    return int(kept)


def _fraction(text: str, unit: float, limit: int) -> int | None:
    try:
        value = float(text) / unit
    except ValueError:
        return None
    return int(value * limit) if 0.0 <= value < 1.0 else None


def _size(budget: str | int) -> int:
    size = parse_bytes(budget) if isinstance(budget, str) else budget
    shown = str(budget).strip()[:40]
    if isinstance(size, bool) or size is None or not 0 < size <= MAX_BYTES:
        short = _SHORT_UNIT.fullmatch(shown)
        hint = "write 76GiB (2^30), 80GB (10^9) or a bare number of bytes"
        if short is not None:
            number, letter = short[1], short[2].upper()
            hint = (
                f"write {number}{letter}iB (powers of 1024) or {number}{letter}B (powers of 1000)"
            )
        elif shown.lower() in gpu_names():
            hint = f"a GPU is named by --gpu {shown}; {hint}"
        raise ConfigError("bad-size", f"budget {shown!r} is no size in bytes", hint=hint)
    if isinstance(budget, str) and size < GIB:
        meant = f"{shown}GiB" if shown.isdigit() and len(shown) <= 4 else "76GiB"
        raise ConfigError(
            "bad-size",
            f"budget {shown!r} is {size} bytes, in which no training step fits",
            hint=f"did you mean {meant}? A bare number is bytes",
            data={"budget_bytes": size},
        )
    return int(size)


_SHORT_UNIT = re.compile(r"([0-9.]{1,20})\s*([kKmMgGtT])i?")
"""A size whose unit does not say whether it is decimal."""
