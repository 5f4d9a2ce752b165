"""The built-in workload of ``recompute measure``: a few steps of the job on mock data.

``python -m recompute.megatron.trainer`` under ``RECOMPUTE_RUN``, alone or under torchrun. Needs torch and
Megatron Core and nothing else of the command line. What it builds is what the job says: the real
GPTModel with Transformer Engine's or the local layer spec, Megatron's schedules, DDP and optimizer.
"""

from __future__ import annotations

import contextlib
import json
import os
from pathlib import Path
from typing import Any, Final

from recompute.config.choice import RecomputeChoice
from recompute.errors import ConfigError
from recompute.measure.candidate import choice_of_text
from recompute.measure.launch import GATE
from recompute.megatron.applied import apply
from recompute.megatron.build import config_of, model_of, optimizer_of
from recompute.megatron.kernels import kernel_seconds
from recompute.megatron.probe import RUN, MemoryProbe

CONNECTIONS: Final = "CUDA_DEVICE_MAX_CONNECTIONS"
LOADED_AHEAD: Final = (
    "torch._dynamo",
    "transformer_engine.pytorch",
    "megatron.core.models.gpt.gpt_layer_specs",
    "megatron.core.optimizer",
    "torch.profiler",
)
"""What takes seconds to import and touches no GPU."""


def main(device: str | None = None) -> None:
    """Run the case that ``RECOMPUTE_RUN`` names.

    Args:
        device: ``cpu`` for runs without a GPU; by default this rank's GPU.

    Raises:
        ConfigError: ``no-gpu``; ``bad-run-variable``.
    """
    os.environ.setdefault(CONNECTIONS, "1")
    import torch

    told, workload = _case()
    _wait_for_turn()
    place = device_of(torch, device)
    with MemoryProbe() as probe:
        begin_distributed(torch, workload, place)
        train(torch, told, workload, place, probe)
    torch.distributed.destroy_process_group()


def train(
    torch: Any, told: dict[str, Any], workload: dict[str, Any], place: Any, probe: MemoryProbe
) -> None:
    """Build the model of one case and take its steps, then one more that is profiled."""
    probe.enter("model_build")
    chunks = _built(
        torch, workload, choice_of_text(told["candidate"]), place, int(told.get("seed", 0))
    )
    update = optimizer_of(torch, workload, chunks)
    probe.watch(update.model, update.optimizer)
    steps = int(told["steps"])
    for number in range(steps):
        probe.step_begins()
        loss = _step(torch, workload, update, place, number)
        probe.step_ends(loss)
    probe.kernels_took(kernel_seconds(torch, lambda: _step(torch, workload, update, place, steps)))


def _case() -> tuple[dict[str, Any], dict[str, Any]]:
    try:
        told = json.loads(os.environ[RUN])
        path = Path(told["ledger"], "workload.json")
        workload = json.loads(path.read_text("utf-8"))
        return told, {**workload, "data_seed": int(told.get("data_seed", 0))}
    except (KeyError, ValueError, TypeError, OSError) as error:
        raise ConfigError(
            "bad-run-variable",
            f"{RUN} names no case of recompute measure",
            hint="start it through recompute measure",
        ) from error


def _wait_for_turn() -> None:
    """Load everything and wait, where the launcher started this run ahead of its turn."""
    gate = os.environ.pop(GATE, "")
    if not gate.isdigit():
        return
    import importlib

    for name in LOADED_AHEAD:
        with contextlib.suppress(ImportError):
            importlib.import_module(name)
    try:
        turn = os.read(int(gate), 1)
        os.close(int(gate))
    except OSError:
        turn = b""
    if not turn:  # the launcher is gone, or has given this run up
        raise SystemExit(1)


def device_of(torch: Any, wanted: str | None) -> Any:
    """Return the device of that name, or this rank's GPU.

    Raises:
        ConfigError: ``no-gpu``.
    """
    if wanted is not None:
        return torch.device(wanted)
    if not torch.cuda.is_available():
        raise ConfigError(
            "no-gpu",
            "the built-in trainer needs a CUDA device",
            hint="run it on a GPU machine, or give --entry with a script of your own",
        )
    index = int(os.environ.get("LOCAL_RANK", "0"))
    torch.cuda.set_device(index)
    return torch.device("cuda", index)


def begin_distributed(torch: Any, workload: dict[str, Any], place: Any) -> None:
    """Join the processes of the run, or be the only one, and split them as the job says."""
    distributed = torch.distributed
    backend = "nccl" if place.type == "cuda" else "gloo"
    if "RANK" in os.environ:
        distributed.init_process_group(backend)
    else:
        distributed.init_process_group(backend, store=distributed.HashStore(), rank=0, world_size=1)
    split_processes(workload)


def split_processes(workload: dict[str, Any]) -> None:
    """Split the processes of the run as the job says."""
    from megatron.core import parallel_state

    model = workload["model"]
    parallel_state.initialize_model_parallel(
        model["tensor_model_parallel_size"],
        model["pipeline_model_parallel_size"],
        virtual_pipeline_model_parallel_size=model["virtual_pipeline_model_parallel_size"],
        context_parallel_size=model["context_parallel_size"],
        expert_model_parallel_size=model["expert_model_parallel_size"],
        expert_tensor_parallel_size=model["expert_tensor_parallel_size"],
    )


def _built(
    torch: Any, workload: dict[str, Any], choice: RecomputeChoice, place: Any, seed: int
) -> list[Any]:
    from megatron.core.tensor_parallel.random import model_parallel_cuda_manual_seed

    torch.manual_seed(1 + seed)
    model_parallel_cuda_manual_seed(1 + seed)
    config = config_of(torch, workload, choice)
    chunks = model_of(workload, config, place)
    if choice.per_layer is not None:
        apply(chunks, choice)
    return chunks


def _step(torch: Any, workload: dict[str, Any], update: Any, place: Any, number: int) -> Any:
    from megatron.core.pipeline_parallel import get_forward_backward_func

    update.begin()
    losses = get_forward_backward_func()(
        forward_step_func=_forward_step(torch, workload, place, number),
        data_iterator=[None] * len(update.model) if len(update.model) > 1 else None,
        model=update.model if len(update.model) > 1 else update.model[0],
        num_microbatches=workload["microbatches"],
        seq_length=workload["seq_length"],
        micro_batch_size=workload["micro_batch_size"],
        forward_only=False,
    )
    update.finish()
    values = [item["loss"] for item in losses if item]
    return torch.stack(values).float().mean() if values else None


def _forward_step(torch: Any, workload: dict[str, Any], place: Any, number: int) -> Any:
    """Return Megatron's forward step over mock tokens, the same on all ranks of a replica."""
    from megatron.core import parallel_state

    sequence, batch = workload["seq_length"], workload["micro_batch_size"]
    replica = parallel_state.get_data_parallel_rank()
    seed = workload["data_seed"] * 1_000_003 + number * 1009 + replica
    source = torch.Generator().manual_seed(seed)
    mask = None
    if workload["model"]["transformer_impl"] == "local":
        side = (1, 1, sequence, sequence)
        mask = torch.triu(torch.ones(side, dtype=torch.bool, device=place), 1)

    def loss_of(output: Any) -> tuple[Any, dict[str, Any]]:
        loss = output.float().mean()
        return loss, {"loss": loss.detach()}

    def forward_step(_: Any, model: Any) -> tuple[Any, Any]:
        shape = (batch, sequence + 1)
        tokens = torch.randint(0, workload["model"]["vocab_size"], shape, generator=source)
        tokens = tokens.to(place, non_blocking=True)
        text, labels = _shard(tokens[:, :-1]), _shard(tokens[:, 1:])
        positions = _shard(torch.arange(sequence, device=place).expand(batch, sequence))
        return model(text, positions, mask, labels=labels), loss_of

    return forward_step


def _shard(tokens: Any) -> Any:
    """Return this rank's part of the sequence: two of ``2 * cp`` chunks, as Megatron cuts it.

    Source: NVIDIA/Megatron-LM core_v0.19.0 megatron/core/utils.py ``get_batch_on_this_cp_rank``.
    """
    from megatron.core import parallel_state

    size = parallel_state.get_context_parallel_world_size()
    if size == 1:
        return tokens.contiguous()
    rank = parallel_state.get_context_parallel_rank()
    chunks = tokens.chunk(2 * size, dim=1)
    import torch

    return torch.cat((chunks[rank], chunks[2 * size - 1 - rank]), dim=1)


if __name__ == "__main__":
    main()
