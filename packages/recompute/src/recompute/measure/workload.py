"""The job as plain values for the built-in trainer, which runs where only torch and Megatron Core are."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import MISSING, fields
from typing import Any, Final

from recompute.config.schema import JobConfig, ModelConfig
from recompute.errors import UnsupportedError
from recompute.timeline.static import microbatches_of, parallelism_of

SCHEMA: Final = "recompute.workload/1"

UNSUPPORTED: Final[Mapping[str, Callable[[JobConfig], bool]]] = {
    "model.vision": lambda job: job.model.vision is not None,
    "peft": lambda job: job.peft is not None,
    "ddp.use_megatron_fsdp": lambda job: job.ddp is not None and job.ddp.use_megatron_fsdp,
    "ddp.use_torch_fsdp2": lambda job: job.ddp is not None and job.ddp.use_torch_fsdp2,
    "model.cuda_graph_impl": lambda job: job.model.cuda_graph_impl != "none",
    "model.enable_cuda_graph": lambda job: job.model.enable_cuda_graph,
    "ddp and optimizer, one of them null": lambda job: (job.ddp is None) != (job.optimizer is None),
    "ddp: null with data parallelism": lambda job: job.ddp is None and parallelism_of(job).data > 1,
}
"""What the built-in trainer does not build -> whether a job has it."""


def workload_of(job: JobConfig) -> dict[str, Any]:
    """Return the job as JSON types.

    Args:
        job: Complete and normalized.

    Raises:
        UnsupportedError: ``workload-unsupported``: the built-in trainer cannot run it.
    """
    for name, holds in UNSUPPORTED.items():
        if holds(job):
            raise UnsupportedError(
                "workload-unsupported",
                f"the built-in trainer does not run jobs with {name}",
                hint="give --entry with your own training script, which holds a MemoryProbe",
                data={"field": name},
            )
    return {
        "schema": SCHEMA,
        "model": _plain(job.model),
        "given": sorted(name for name in _changed(job.model)),
        "ddp": None if job.ddp is None else _plain(job.ddp),
        "optimizer": None if job.optimizer is None else _plain(job.optimizer),
        "micro_batch_size": job.micro_batch_size,
        "microbatches": microbatches_of(job),
        "seq_length": job.seq_length,
        "world_size": parallelism_of(job).world,
    }


def _changed(model: ModelConfig) -> list[str]:
    """Return the fields that are not at their default: what an older Megatron Core must know."""
    return [
        item.name
        for item in fields(model)
        if item.default is not MISSING and getattr(model, item.name) != item.default
    ]


def _plain(section: Any) -> dict[str, Any]:
    values = {item.name: getattr(section, item.name) for item in fields(section)}
    return {name: _json(value) for name, value in values.items()}


def _json(value: Any) -> Any:
    if isinstance(value, tuple | list):
        return [_json(item) for item in value]
    if isinstance(value, Mapping):
        return {str(key): _json(item) for key, item in value.items()}
    return value
