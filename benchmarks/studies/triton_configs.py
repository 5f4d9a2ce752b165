"""Take the first configuration of every Triton kernel that works, instead of timing them all.

Tuning the kernels of Gated DeltaNet and Mamba takes longer than a study's other work. It chooses tile
sizes and warps; what is allocated does not depend on it: the wrappers of flash-linear-attention and
mamba-ssm size their buffers by the problem, by the GPU's count of multiprocessors (the split of ``dB``
in ``_chunk_state_bwd_db``) and by its shared memory (the blocks of ``chunk_bwd_dqkwg``). Step times of
such runs say little of those kernels.
"""

from __future__ import annotations

import contextlib
from typing import Any, Final

KNOWN: Final[dict[int, list[Any]]] = {}
"""Kernel's tuner -> the configuration that worked."""


def take_first() -> None:
    """Let every tuner take its first configuration that compiles and launches."""
    from triton.compiler.errors import CompilationError
    from triton.runtime import autotuner, errors

    plain = autotuner.Autotuner.run
    refused = (errors.OutOfResources, CompilationError, RuntimeError)

    def run(self: Any, *given: Any, **named: Any) -> Any:
        every = KNOWN.get(id(self)) or list(self.configs)
        for index, config in enumerate(every):
            self.configs = [config]
            try:
                result = plain(self, *given, **named)
            except refused:
                if index == len(every) - 1:
                    raise
                continue
            KNOWN[id(self)] = [config]
            return result
        return plain(self, *given, **named)

    autotuner.Autotuner.run = run


def ignore_wrong_gradients() -> None:
    """Let flash-linear-attention run with Triton 3.4 to 3.7.0 on Hopper, which it refuses.

    A gradient's values are wrong there (its issue 640); its size is not.
    """
    with contextlib.suppress(ImportError):
        from fla.ops.common import chunk_o

        chunk_o.TRITON_ABOVE_3_7_1 = True
