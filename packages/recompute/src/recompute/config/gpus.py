"""The GPUs we know: memory, peak rates and links, one row each, every figure with its source.

Adding one is the checklist docs/how-to/add-a-gpu.md. Rows are only added, never changed in name.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from recompute.errors import ConfigError
from recompute.units import GIB

CONTEXT_BYTES: Final = 640 << 20
"""Memory outside torch that every process takes: CUDA context and library workspaces. ``nvidia-smi``
shows 612 and 614 MiB for an idle PyTorch process on H200 and A100 in public out-of-memory reports."""

NCCL_BYTES_PER_GROUP: Final = 512 << 20
"""Memory outside torch of one family of communicators (tensor, pipeline, context, expert, data), a
stated allowance: NVIDIA-NeMo/Megatron-Bridge pull request 6429 reports 79,677 MB on the device with
75,594 MB reserved, 4.1 GB outside torch, with several families and overlap."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Gpu:
    """One GPU as a training job sees it."""

    name: str
    """Lower case, as ``hardware.gpu`` and ``--gpu`` name it."""
    memory_bytes: int
    """What torch reports as total (``torch.cuda.mem_get_info()[1]``); the lowest value seen."""
    memory_source: str
    peak_flops: Mapping[str, float]
    """Dense floating-point operations a second by dtype: ``fp32`` (TF32), ``bf16``, ``fp8``, ``fp4``."""
    bandwidth: float
    """Device memory, bytes a second."""
    nvlink: float
    """Links inside a domain, bytes a second and direction."""
    network: float
    """Network outside a domain, bytes a second and direction for each GPU."""
    domain: int
    """GPUs that reach each other over the fast links."""
    architecture: str
    """``ampere``, ``hopper``, ``blackwell`` or ``cdna3``: which measured efficiencies hold."""
    source: str
    """Where peak rates and links come from."""

    def flops(self, dtype: str) -> float:
        """Return the peak rate of ``dtype``, falling back to the next wider one it has.

        Args:
            dtype: ``fp32``, ``bf16``, ``fp16``, ``fp8`` or ``fp4``.
        """
        order = {"fp4": ("fp4", "fp8", "bf16"), "fp8": ("fp8", "bf16"), "fp32": ("fp32",)}
        for candidate in order.get(dtype, ("bf16",)):
            if candidate in self.peak_flops:
                return self.peak_flops[candidate]
        return self.peak_flops["bf16"]


def _gib(size: float) -> int:
    return int(size * GIB)


_OOM: Final = "total capacity printed by torch.OutOfMemoryError in public reports"
_HOPPER: Final = {"fp32": 494.7e12, "bf16": 989.4e12, "fp8": 1978.9e12}

GPUS: Final[tuple[Gpu, ...]] = (
    Gpu(
        name="a100-40gb",
        memory_bytes=_gib(39.38),
        memory_source=f"39.38 to 39.56 GiB: {_OOM}",
        peak_flops={"fp32": 156e12, "bf16": 312e12},
        bandwidth=1555e9,
        nvlink=300e9,
        network=25e9,
        domain=8,
        architecture="ampere",
        source="NVIDIA A100 Tensor Core GPU datasheet (SXM 40GB); 200 Gb/s a GPU as in DGX A100",
    ),
    Gpu(
        name="a100-80gb",
        memory_bytes=_gib(79.14),
        memory_source=f"79.14 to 79.35 GiB: {_OOM}",
        peak_flops={"fp32": 156e12, "bf16": 312e12},
        bandwidth=2039e9,
        nvlink=300e9,
        network=25e9,
        domain=8,
        architecture="ampere",
        source="NVIDIA A100 Tensor Core GPU datasheet (SXM 80GB); 200 Gb/s a GPU as in DGX A100",
    ),
    Gpu(
        name="h100-80gb",
        memory_bytes=_gib(79.10),
        memory_source=f"79.10 to 79.33 GiB: {_OOM}",
        peak_flops=_HOPPER,
        bandwidth=3350e9,
        nvlink=450e9,
        network=50e9,
        domain=8,
        architecture="hopper",
        source="NVIDIA H100 Tensor Core GPU datasheet (SXM); 400 Gb/s a GPU as in DGX H100",
    ),
    Gpu(
        name="h200",
        memory_bytes=_gib(139.72),
        memory_source=f"139.72 to 139.81 GiB: {_OOM}",
        peak_flops=_HOPPER,
        bandwidth=4800e9,
        nvlink=450e9,
        network=50e9,
        domain=8,
        architecture="hopper",
        source="NVIDIA H200 Tensor Core GPU datasheet (SXM); 400 Gb/s a GPU as in DGX H200",
    ),
    Gpu(
        name="b200",
        memory_bytes=_gib(178.35),
        memory_source="178.35 GiB: device properties in github.com/pytorch/ao/pull/4002",
        peak_flops={"fp32": 1125e12, "bf16": 2250e12, "fp8": 4500e12, "fp4": 9000e12},
        bandwidth=7672e9,
        nvlink=900e9,
        network=50e9,
        domain=8,
        architecture="blackwell",
        source="NVIDIA HGX B200 datasheet; bandwidth from bus width and clock in "
        "github.com/pytorch/ao/pull/4002",
    ),
    Gpu(
        name="b300",
        memory_bytes=_gib(267.0),
        memory_source="nvidia-smi shows 275,040 MiB; torch's total was not seen printed, so lower",
        peak_flops={"fp32": 1125e12, "bf16": 2250e12, "fp8": 4500e12, "fp4": 13500e12},
        bandwidth=7672e9,
        nvlink=900e9,
        network=100e9,
        domain=8,
        architecture="blackwell",
        source="NVIDIA HGX B300 datasheet; bandwidth as b200; 800 Gb/s a GPU",
    ),
    Gpu(
        name="gb200",
        memory_bytes=_gib(184.31),
        memory_source=f"184.31 GiB: {_OOM}",
        peak_flops={"fp32": 1250e12, "bf16": 2500e12, "fp8": 5000e12, "fp4": 10000e12},
        bandwidth=7672e9,
        nvlink=900e9,
        network=50e9,
        domain=72,
        architecture="blackwell",
        source="NVIDIA GB200 NVL72 datasheet; bandwidth as b200; 400 Gb/s a GPU",
    ),
    Gpu(
        name="gb300",
        memory_bytes=_gib(276.50),
        memory_source=f"276.50 GiB: {_OOM}",
        peak_flops={"fp32": 1250e12, "bf16": 2500e12, "fp8": 5000e12, "fp4": 15000e12},
        bandwidth=7672e9,
        nvlink=900e9,
        network=100e9,
        domain=72,
        architecture="blackwell",
        source="NVIDIA GB300 NVL72 datasheet; bandwidth as b200; 800 Gb/s a GPU",
    ),
    Gpu(
        name="mi300x",
        memory_bytes=_gib(191.69),
        memory_source=f"191.69 to 191.98 GiB: {_OOM}",
        peak_flops={"fp32": 653.7e12, "bf16": 1307.4e12, "fp8": 2614.9e12},
        bandwidth=5300e9,
        nvlink=448e9,
        network=50e9,
        domain=8,
        architecture="cdna3",
        source="AMD Instinct MI300X datasheet; seven Infinity Fabric links of 64 GB/s a direction",
    ),
)
"""One row for each GPU that the contract names."""

DEFAULT_GPU: Final = "h100-80gb"
"""Rates assumed for step times when no GPU is named; said as an assumption."""

_BY_NAME: Final[Mapping[str, Gpu]] = {gpu.name: gpu for gpu in GPUS}


def gpu_names() -> tuple[str, ...]:
    """Return every known name, in table order."""
    return tuple(_BY_NAME)


def find_gpu(name: str) -> Gpu:
    """Return the row of a GPU.

    Args:
        name: As the table names it; case does not matter.

    Raises:
        ConfigError: ``unknown-gpu``, naming the nearest known one.
    """
    found = _BY_NAME.get(name.strip().lower())
    if found is not None:
        return found
    near = _nearest(name[:80].strip().lower())
    known = " ".join(_BY_NAME)
    raise ConfigError(
        "unknown-gpu",
        f"{name[:80]!r} is no GPU we know",
        hint=(f"did you mean {' or '.join(near)}? " if near else "")
        + f"known: {known}; for another one "
        "give --budget, or hardware.memory_bytes=BYTES beside the nearest known name",
        data={"gpu": name[:80], "known": list(_BY_NAME)},
    )


def _nearest(name: str) -> list[str]:
    """Return the names that a wrong one may stand for: its variants (a100, h100), else one spelled alike."""
    import difflib
    import re

    words = set(re.findall(r"[a-z]+\d+[a-z]?", name))
    variants = [known for known in _BY_NAME if known.partition("-")[0] in words]
    return variants or difflib.get_close_matches(name, _BY_NAME, n=1, cutoff=0.75)
