"""Failures that are no shortage of GPU memory inside torch: replay, host, libraries, hangs."""

from __future__ import annotations

from recompute.diagnose.events import Kind
from recompute.diagnose.finding import Finding, best_event, stage_of_failure
from recompute.diagnose.observation import Observation, first_oom, when
from recompute.diagnose.types import Stage, Verdict


def recompute_fault(seen: Observation) -> Finding | None:
    """A checkpoint that cannot be replayed, before any memory ran out."""
    faults = seen.of_kind(Kind.RECOMPUTE_FAULT)
    if not faults:
        return None
    fault, oom = faults[0], first_oom(seen.ooms)
    if oom is not None and when(oom) < when(fault) and (oom.frames or oom.message.numbers_known):
        return None
    rule = fault.row.id
    text = " ".join(place.text for _, place in seen.phrases) + fault.place.text
    if rule.startswith("checkpoint-") and ("compil" in text or "inductor" in text):
        rule = "recompute-and-compile"
    stage = fault.stage if fault.row.stage is not Stage.UNKNOWN else stage_of_failure(seen, None)
    return Finding(
        rule=rule,
        verdict=Verdict.RECOMPUTE_FAULT,
        stage=stage,
        places=(fault.place,),
        rank=fault.place.rank,
        summary="the replay of a checkpoint failed; memory has nothing to do with it",
    )


def host_memory(seen: Observation) -> Finding | None:
    """Host RAM or a cgroup ran out and no GPU did before."""
    hosts = seen.of_kind(Kind.HOST)
    oom = first_oom(
        [
            oom
            for oom in seen.ooms
            if oom.message.numbers_known or oom.message.device_kind != "unknown"
        ]
    )
    weak = [event for event in hosts if event.row.id != "sigkill"]
    if not hosts or (oom is not None and (not weak or when(oom) < when(weak[0]))):
        return None
    chosen = weak[0] if weak else hosts[0]
    if not weak and seen.of_kind(Kind.NON_TORCH, Kind.RECOMPUTE_FAULT):
        return None
    stage = chosen.stage if chosen.stage is not Stage.UNKNOWN else stage_of_failure(seen, None)
    return Finding(
        rule=chosen.row.id,
        verdict=Verdict.HOST_MEMORY,
        stage=stage,
        places=(chosen.place,),
        rank=chosen.place.rank,
        summary="host memory ran out, not the GPU's",
    )


def sleeping_engine(seen: Observation) -> Finding | None:
    """A colocated inference engine could not map its memory back."""
    events = seen.of_kind(Kind.SLEEPING_ENGINE)
    if not events:
        return None
    return Finding(
        rule="cumem-wake",
        verdict=Verdict.OTHER_PROCESS,
        stage=stage_of_failure(seen, None),
        places=(events[0].place,),
        rank=events[0].place.rank,
        summary="a sleeping inference engine woke up on a card that the trainer still filled",
    )


def non_torch(seen: Observation) -> Finding | None:
    """NCCL, cuBLAS or the driver got no memory."""
    events = seen.of_kind(Kind.NON_TORCH) or seen.of_kind(Kind.DRIVER)
    if not events:
        return None
    oom = first_oom([oom for oom in seen.ooms if oom.message.numbers_known >= 3])
    if oom is not None and when(oom) < when(events[0]):
        return None
    chosen = best_event(events)
    if chosen.row.kind is Kind.DRIVER and any(hit.row.needs != "no_oom" for hit, _ in seen.phrases):
        return None  # the driver's line says nothing more; the report does
    if any(
        "pin_memory" in frame.function or "cudaHostAlloc" in frame.function
        for frame in chosen.frames
    ):
        return Finding(
            rule=chosen.row.id,
            verdict=Verdict.HOST_MEMORY,
            stage=stage_of_failure(seen, None),
            places=(chosen.place,),
            rank=chosen.place.rank,
            summary="pinned host memory ran out",
        )
    stage = chosen.stage if chosen.stage is not Stage.UNKNOWN else stage_of_failure(seen, None)
    if stage is Stage.GRAPH_CAPTURE:
        return Finding(
            rule="graph-capture",
            verdict=Verdict.GRAPH_POOLS,
            stage=stage,
            places=(chosen.place,),
            rank=chosen.place.rank,
            summary="the card filled up while graphs were captured",
        )
    who = {"cublas-alloc": "cuBLAS", "driver-oom": "the CUDA driver"}.get(chosen.row.id, "NCCL")
    return Finding(
        rule=chosen.row.id,
        verdict=Verdict.NON_TORCH_MEMORY,
        stage=stage,
        places=tuple(event.place for event in events[:2]),
        rank=chosen.place.rank,
        summary=f"{who} got no memory outside PyTorch's cache",
    )


def nccl_unclear(seen: Observation) -> Finding | None:
    """An NCCL error that does not say whether memory ran out."""
    events = seen.of_kind(Kind.NCCL_CONTEXT)
    if not events or seen.ooms:
        return None
    return Finding(
        rule="nccl-error",
        verdict=Verdict.UNKNOWN,
        stage=stage_of_failure(seen, None),
        places=(events[0].place,),
        rank=events[0].place.rank,
        summary="NCCL failed; the lines that would say why are not here",
    )


def hang(seen: Observation) -> Finding | None:
    """A time-out, not memory."""
    events = seen.of_kind(Kind.HANG, Kind.CONFIG_CLASH)
    if not events:
        return None
    return Finding(
        rule=events[0].row.id,
        verdict=Verdict.NOT_OOM,
        stage=stage_of_failure(seen, None),
        places=(events[0].place,),
        rank=events[0].place.rank,
        summary="a hang or a configuration clash, not memory",
    )


def other_crash(seen: Observation) -> Finding | None:
    """An exception that is not about memory."""
    if not seen.crashes:
        return None
    crash = min(seen.crashes, key=when)
    stage = crash.stage if crash.stage is not Stage.UNKNOWN else stage_of_failure(seen, None)
    return Finding(
        rule="crash",
        verdict=Verdict.NOT_OOM,
        stage=stage,
        places=(crash.place,),
        rank=crash.place.rank,
        summary=f"the run stopped with {crash.exception}, not for want of memory",
    )
