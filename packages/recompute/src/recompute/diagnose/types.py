"""What a diagnosis is: the values that every reader of logs and snapshots fills in."""

from __future__ import annotations

from dataclasses import dataclass, fields
from enum import StrEnum
from typing import Any


class Verdict(StrEnum):
    """Why the run stopped, as far as the input shows it."""

    ACTIVATION = "activation"
    LOGITS = "logits"
    FRAGMENTATION = "fragmentation"
    OPTIMIZER_STATE = "optimizer_state"
    PARAMETERS = "parameters"
    GRADIENTS = "gradients"
    GRAPH_POOLS = "graph_pools"
    IMBALANCE = "imbalance"
    OTHER_PROCESS = "other_process"
    NON_TORCH_MEMORY = "non_torch_memory"
    THRASH = "thrash"
    LEAK = "leak"
    CAPACITY = "capacity"
    IMPOSSIBLE_REQUEST = "impossible_request"
    DEVICE_LIMIT = "device_limit"
    HOST_MEMORY = "host_memory"
    RECOMPUTE_FAULT = "recompute_fault"
    NOT_OOM = "not_oom"
    UNKNOWN = "unknown"


class Stage(StrEnum):
    """Where in the run it stopped."""

    INITIALIZATION = "initialization"
    DATA = "data"
    MODEL_BUILD = "model_build"
    FORWARD = "forward"
    LOSS = "loss"
    BACKWARD = "backward"
    GRAD_SYNC = "grad_sync"
    OPTIMIZER_INIT = "optimizer_init"
    OPTIMIZER_STEP = "optimizer_step"
    GRAPH_CAPTURE = "graph_capture"
    CHECKPOINT = "checkpoint"
    EVALUATION = "evaluation"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """One line that the verdict rests on."""

    file: str
    line: int
    """From 1."""
    text: str
    """As printed, without colour codes, at most 400 characters."""

    def to_document(self) -> dict[str, Any]:
        """Return the JSON object."""
        return {"file": self.file, "line": self.line, "text": self.text}


@dataclass(frozen=True, slots=True, kw_only=True)
class Numbers:
    """The allocator's own account at the failure, bytes; ``None`` where the message does not say."""

    requested_bytes: int | None = None
    total_bytes: int | None = None
    free_bytes: int | None = None
    allocated_bytes: int | None = None
    """Handed out to tensors, private pools included."""
    reserved_unallocated_bytes: int | None = None
    """Inside segments that are partly in use: fragmentation or private pools, never plain cache."""
    private_pool_bytes: int | None = None
    non_torch_bytes: int | None = None
    """total - free - allocated - reserved_unallocated: outside this process's torch allocator."""

    def to_document(self) -> dict[str, int | None]:
        """Return the JSON object, every key present."""
        return {field.name: getattr(self, field.name) for field in fields(self)}


@dataclass(frozen=True, slots=True, kw_only=True)
class NextAction:
    """One thing to do, with what to paste."""

    action: str
    overrides: tuple[str, ...] = ()
    """``section.field=value`` lines and environment assignments."""
    why: str = ""

    def to_document(self) -> dict[str, Any]:
        """Return the JSON object."""
        return {"action": self.action, "overrides": list(self.overrides), "why": self.why}


@dataclass(frozen=True, slots=True, kw_only=True)
class Diagnosis:
    """The answer of ``diagnose``."""

    verdict: Verdict
    stage: Stage = Stage.UNKNOWN
    rank: int | None = None
    """Global rank that failed first, or the hot rank."""
    numbers: Numbers = Numbers()
    evidence: tuple[Evidence, ...] = ()
    next_actions: tuple[NextAction, ...] = ()
    rules: tuple[str, ...] = ()
    """Rows of the tables that fired, the deciding one first."""
    summary: str = ""
    """One sentence for people."""
    notes: tuple[str, ...] = ()
    """Further observations for people, each one sentence."""

    def to_document(self) -> dict[str, Any]:
        """Return the fields of the JSON document."""
        return {
            "verdict": str(self.verdict),
            "stage": str(self.stage),
            "rank": self.rank,
            "numbers": self.numbers.to_document(),
            "evidence": [item.to_document() for item in self.evidence],
            "next_actions": [item.to_document() for item in self.next_actions],
            "rules": list(self.rules),
            "summary": self.summary,
            "notes": list(self.notes),
        }
