"""What a run was measured with: revisions and device, as far as they can be read."""

from __future__ import annotations

import os
import platform
import sys
from importlib import metadata
from pathlib import Path
from typing import Any, Final

DISTRIBUTIONS: Final = (
    ("megatron_core", "megatron-core"),
    ("megatron_bridge", "megatron-bridge"),
    ("transformer_engine", "transformer-engine"),
)
DRIVER: Final = Path("/proc/driver/nvidia/version")


LAUNCHERS: Final = (
    ("RANK", "WORLD_SIZE"),
    ("SLURM_PROCID", "SLURM_STEP_NUM_TASKS"),
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
)
"""Variables in which torchrun, srun and mpirun say which of how many a process is. Slurm's batch script has the
first of its two but not the second: it is no task of a step."""


def place(torch: Any = None) -> tuple[int, int]:
    """Return global rank and world size: of torch.distributed, else as the launcher says.

    Args:
        torch: The module, where it is there.
    """
    if torch is not None and torch.distributed.is_available():
        distributed = torch.distributed
        if distributed.is_initialized():
            return int(distributed.get_rank()), int(distributed.get_world_size())
    for rank, world in LAUNCHERS:
        said = (os.environ.get(rank, ""), os.environ.get(world, ""))
        if all(text.isdecimal() for text in said) and int(said[0]) < int(said[1]):
            return int(said[0]), int(said[1])
    return 0, 1


def environment(torch: Any = None) -> dict[str, str]:
    """Return names and versions; what is absent is left out.

    Args:
        torch: The module, where it is there.
    """
    found = {"python": platform.python_version()}
    if torch is not None:
        found["torch"] = str(torch.__version__)
        if torch.version.cuda:
            found["cuda"] = str(torch.version.cuda)
        if torch.cuda.is_initialized():  # else asking would choose the first device for the loop
            found["gpu"] = str(torch.cuda.get_device_name())
    for name, distribution in DISTRIBUTIONS:
        if version := _version(distribution, name):
            found[name] = version
    if driver := _driver():
        found["driver"] = driver
    return found


def _version(distribution: str, module: str) -> str | None:
    """Return the version of what is loaded: a checkout on the path may stand before what is installed."""
    loaded = sys.modules.get(module.replace("megatron_", "megatron."))
    version = getattr(loaded, "__version__", None)
    if version is not None:
        return str(version)
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return None


def _driver() -> str | None:
    """Return the driver's version from a line such as ``NVRM version: ... Module  570.1  ...``."""
    try:
        words = DRIVER.read_text(encoding="ascii", errors="replace").splitlines()[0].split()
    except (OSError, IndexError):
        return None
    return next((word for word in words if word[0].isdigit() and word.count(".") >= 1), None)
