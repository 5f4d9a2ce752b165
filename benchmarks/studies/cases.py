"""Jobs of this folder one after the other, in one process on one GPU."""

from __future__ import annotations

import gc
import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from recompute.config.load import load
from recompute.config.normalize import normalize
from recompute.config.schema import JobConfig
from recompute.measure.workload import workload_of
from recompute.megatron import trainer

HERE = Path(__file__).resolve().parent


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One job, ready to be built."""

    name: str
    job: JobConfig
    workload: dict[str, Any]
    place: Any
    """The device."""


def cases(torch: Any, named: Iterable[tuple[str, Iterable[str]]]) -> Iterator[Case]:
    """Yield jobs; the processes are joined at the first, the device's cache is emptied after each.

    Args:
        torch: The module.
        named: Name of the job's file, without its ending, and the overrides.
    """
    place = trainer.device_of(torch, None)
    for index, (name, overrides) in enumerate(named):
        job = normalize(load(str(HERE / f"{name}.yaml"), *overrides))
        workload = {**workload_of(job), "data_seed": 0}
        if index == 0:
            trainer.begin_distributed(torch, workload, place)
        yield Case(name=name, job=job, workload=workload, place=place)
        forget(torch)


def forget(torch: Any) -> None:
    """Give back what models of before have left."""
    gc.collect()
    torch.cuda.empty_cache()


def answer(path: str, found: dict[str, Any], name: str) -> None:
    """Print what was found of one job, and write what was found so far."""
    print(json.dumps({name: found[name]}), flush=True)
    Path(path).write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
