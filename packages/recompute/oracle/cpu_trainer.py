"""The built-in trainer on the CPU: Megatron Core's CUDA calls are redirected, gloo joins the processes."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from typing import Any
from unittest import mock

sys.path.insert(0, str(Path(__file__).parent))
import cpu_layers
import torch
from megatron.core.tensor_parallel import random as rng
from torch.overrides import TorchFunctionMode

from recompute.megatron import build, trainer


class OnCpu(TorchFunctionMode):
    """Makes on the CPU what is asked for on a GPU."""

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = dict(kwargs or {})
        if str(kwargs.get("device", "")).startswith("cuda"):
            kwargs["device"] = "cpu"
        if func is torch.Tensor.cuda:
            return args[0]
        if func is torch.Tensor.type and len(args) == 1:  # the distributed optimizer wants CUDA's
            return func(*args).replace("torch.", "torch.cuda.")
        return func(*args, **kwargs)


def config_on_cpu(real: Any) -> Any:
    """Return a builder of configs without what needs a GPU."""

    def make(torch_: Any, workload: dict[str, Any], choice: Any) -> Any:
        config = real(torch_, workload, choice)
        config.use_cpu_initialization = True
        config.masked_softmax_fusion = config.bias_dropout_fusion = False
        config.gradient_accumulation_fusion = config.persist_layer_norm = False
        return config

    return make


def misbehave() -> None:
    """Do what a test asks of the rank that it names: ``KIND:RANK:CANDIDATE``."""
    wanted = os.environ.get("TEST_FAULT", "")
    if not wanted:
        return
    kind, rank, candidate = wanted.split(":")
    real = trainer._step

    def step(*arguments: Any) -> Any:
        mine = os.environ.get("RANK", "0") == rank
        if mine and f'"{candidate}"' in os.environ["RECOMPUTE_RUN"] and arguments[4] == 3:
            if kind == "oom":
                raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")
            if kind == "kill":
                os.kill(os.getpid(), 9)
            time.sleep(600)  # a hang
        return real(*arguments)

    trainer._step = step


def main() -> None:
    """Run the trainer with everything redirected."""
    misbehave()
    torch.set_num_threads(1)
    seed = mock.patch.object(rng, "model_parallel_cuda_manual_seed", return_value=None)
    config = mock.patch.object(trainer, "config_of", config_on_cpu(build.config_of))
    with cpu_layers.redirected(), seed, config, OnCpu():
        trainer.main("cpu")


if __name__ == "__main__":
    main()
