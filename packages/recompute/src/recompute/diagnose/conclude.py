"""From findings to the answer: evidence quoted, actions made legal, notes added."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from recompute.diagnose import accounting
from recompute.diagnose.actions import ACTIONS, keys_for, render
from recompute.diagnose.events import Kind
from recompute.diagnose.finding import Finding, rank_skew
from recompute.diagnose.frames import Owner
from recompute.diagnose.observation import Observation, Oom, Place, first_oom, when
from recompute.diagnose.types import Diagnosis, Evidence, NextAction, Numbers, Stage, Verdict
from recompute.diagnose.verdicts import judge
from recompute.diagnose.wall import moved_wall
from recompute.errors import RecomputeError
from recompute.units import format_gib

if TYPE_CHECKING:
    from recompute.config.schema import JobConfig

Predict = Callable[["JobConfig", "int | None"], tuple[NextAction, ...]]
"""Hook for the command line: job and needed bytes -> actions of the plan with predicted peaks."""
Legal = Callable[["JobConfig", tuple[str, ...]], str | None]
"""Why an action's overrides are illegal on the job, or ``None``."""

MAX_EVIDENCE: Final = 6
SKEW_SHOWN: Final = 0.01
"""Share over the median rank from which a hot rank is worth a line."""
AFTER_BACKWARD: Final = frozenset((Stage.OPTIMIZER_INIT, Stage.OPTIMIZER_STEP))
"""Stages that hold no activation, so that no recompute can help."""
RECOMPUTES: Final = frozenset(("recompute-modules", "recompute-unknown-owner", "recompute-full"))
"""Actions that recompute more."""

LABELS: Final[dict[Owner, tuple[str, ...]]] = {
    Owner.ATTENTION: ("core_attn",),
    Owner.MLA: ("mla_up_proj",),
    Owner.MLP: ("mlp",),
    Owner.EXPERT: ("moe_act",),
    Owner.MOE: ("moe_act",),
    Owner.SHARED_EXPERT: ("shared_experts",),
    Owner.NORM: ("layernorm",),
}
"""Owner on the stack -> the narrowest label that covers it."""


def conclude(
    seen: Observation,
    *,
    job: JobConfig | None = None,
    legal: Legal | None = None,
    predict: Predict | None = None,
) -> Diagnosis:
    """Judge an observation.

    Args:
        seen: What was read.
        job: The job, recovered from the log or given.
        legal: Tells whether overrides are legal on the job.
        predict: Gives actions of the plan, most useful first.
    """
    found = judge(seen)
    if not found:
        return Diagnosis(
            verdict=Verdict.UNKNOWN,
            next_actions=(render("collect-logs", ()),),
            rules=("nothing-readable",),
            summary="nothing in the input says what happened",
            notes=_notes(seen, None),
        )
    chosen = found[0]
    oom = chosen.oom
    predicted, silence = _predicted(chosen, job, predict)
    return Diagnosis(
        verdict=chosen.verdict,
        stage=chosen.stage,
        rank=chosen.rank,
        numbers=accounting.numbers_of(oom.message) if oom else Numbers(),
        evidence=_evidence(seen, found),
        next_actions=_actions(seen, chosen, job, legal, predicted),
        rules=tuple(finding.rule for finding in found),
        summary=chosen.summary,
        notes=(*_notes(seen, oom), *silence),
    )


def _evidence(seen: Observation, found: list[Finding]) -> tuple[Evidence, ...]:
    """Quote the deciding lines first, then the first of the other ranks."""
    places: list[Place] = list(found[0].places)
    oom = found[0].oom or first_oom(seen.ooms)
    for finding in found[1:]:
        if finding.verdict is not Verdict.CAPACITY:
            places += finding.places
    if oom is not None:
        places.append(oom.place)
        places += [
            other.place
            for other in sorted(seen.ooms, key=when)
            if other.place.rank != oom.place.rank
        ][:1]
    if found[0].verdict is Verdict.FRAGMENTATION and seen.expandable_segments is not None:
        places.append(seen.expandable_segments)
    quoted = [place.evidence() for place in places]
    frame = found[0].oom.owner_evidence() if found[0].oom is not None else None
    if frame is not None:
        quoted.insert(1, frame)
    unique: dict[tuple[str, int], Evidence] = {}
    for item in quoted:
        unique.setdefault((item.file, item.line), item)
    return tuple(unique.values())[:MAX_EVIDENCE]


def labels_for(oom: Oom | None, job: JobConfig | None) -> tuple[str, ...]:
    """Return the labels that cover what the stack names, else what the model has, else ``mlp``."""
    owner = oom.owner[0] if oom is not None else Owner.OTHER
    if owner in LABELS:
        return LABELS[owner]
    if job is None:
        return ("mlp",)
    model = job.model
    if model.num_moe_experts:
        return ("moe_act",) if model.moe_grouped_gemm else ("moe",)
    if model.multi_latent_attention:
        return ("mla_up_proj",)
    return ("core_attn",) if model.attention_backend in {"unfused", "local"} else ("mlp",)


def _actions(
    seen: Observation,
    chosen: Finding,
    job: JobConfig | None,
    legal: Legal | None,
    predicted: tuple[NextAction, ...],
) -> tuple[NextAction, ...]:
    keys = list(keys_for(chosen.rule, chosen.verdict))
    if chosen.stage in AFTER_BACKWARD:
        keys = [key for key in keys if key not in RECOMPUTES]
    for position, key in enumerate(keys):
        if key.startswith("expandable-segments"):
            graphs = "expandable-segments-graphs" if job is not None and _has_graphs(job) else key
            keys[position] = graphs if seen.expandable_segments is None else "segments-are-on"
    if _may_rescue(chosen) and "segments-may-rescue" not in keys:
        keys.append("segments-may-rescue")
    if job is not None and "shard-optimizer" in keys:
        # Sharding is free and a job that has it is not offered it; narrow moments change numerics.
        keys.sort(key=lambda key: key != "shard-optimizer")
    labels = labels_for(chosen.oom, job)
    kept = []
    for key in dict.fromkeys(keys):
        action = _halved(render(key, labels), job)
        if job is not None and not _changes_something(job, action):
            continue
        reason = legal(job, action.overrides) if legal is not None and job is not None else None
        if reason is None:
            kept.append(action)
        elif len(ACTIONS[key].overrides) == len(action.overrides):
            kept.append(
                NextAction(
                    action=action.action,
                    overrides=(),
                    why=f"{action.why}; the overrides are left out: {reason}",
                )
            )
    return (*predicted, *kept) or (render("snapshot", ()),)


PREDICTED: Final = frozenset((Verdict.ACTIVATION, Verdict.CAPACITY, Verdict.IMBALANCE))
"""Verdicts that a plan answers."""
UNASKED: Final = frozenset((Verdict.NOT_OOM, Verdict.UNKNOWN, Verdict.RECOMPUTE_FAULT))
"""Verdicts over which nobody expects a plan."""


def _predicted(
    chosen: Finding, job: JobConfig | None, predict: Predict | None
) -> tuple[tuple[NextAction, ...], tuple[str, ...]]:
    """Return the actions of the plan, and why there is none where a job is known."""
    if job is None or predict is None:
        return (), ()
    if chosen.verdict in UNASKED:
        return (), ()
    if chosen.verdict not in PREDICTED:
        return (), (f"no plan was made: recompute does not answer {chosen.verdict}",)
    try:
        actions = predict(_on_this_card(job, chosen.oom), _needed(chosen.oom))
    except RecomputeError as error:
        return (), (f"no plan was made from the job: {error.message}; {error.hint}".rstrip("; "),)
    if not actions:
        return (), ("the plan knows no choice that lowers this job's peak by what was missing",)
    return actions, ()


def _has_graphs(job: JobConfig) -> bool:
    return job.model.enable_cuda_graph or job.model.cuda_graph_impl != "none"


def _halved(action: NextAction, job: JobConfig | None) -> NextAction:
    """Propose half the job's micro-batch where the table proposes the smallest."""
    size = None if job is None else job.train.micro_batch_size
    smallest = "train.micro_batch_size=1"
    if size is None or size < 2 or smallest not in action.overrides:
        return action
    half = f"train.micro_batch_size={size // 2}"
    return replace(action, overrides=tuple(half if o == smallest else o for o in action.overrides))


def _may_rescue(chosen: Finding) -> bool:
    """Tell whether the last piece would just have fitted into the slack."""
    if chosen.oom is None or chosen.verdict in {Verdict.OTHER_PROCESS, Verdict.NON_TORCH_MEMORY}:
        return False
    return accounting.nearly_full(chosen.oom.message)


def _on_this_card(job: JobConfig, oom: Oom | None) -> JobConfig:
    """Return the job with the card's memory as the message states it, where the job names no GPU."""
    hardware = job.hardware
    total = oom.message.total if oom is not None else None
    if total is None or hardware.gpu is not None or hardware.memory_bytes is not None:
        return job
    return replace(job, hardware=replace(hardware, memory_bytes=total))


def _changes_something(job: JobConfig, action: NextAction) -> bool:
    """Tell whether an action with model overrides would change the job at all."""
    from recompute.diagnose.legality import already_set

    return not already_set(job, action.overrides)


def _needed(oom: Oom | None) -> int | None:
    """Return by how much the peak must come down, bytes, where the message says."""
    if oom is None or oom.message.requested is None:
        return None
    room = (oom.message.free or 0) + (oom.message.reserved_unallocated or 0)
    return max(oom.message.requested - room, 0) + (oom.message.total or 0) // 50


def _notes(seen: Observation, oom: Oom | None) -> tuple[str, ...]:
    notes = [
        f"{file.path} ends in the middle of its compressed data: what came after is missing"
        for file in seen.files
        if file.cut
    ]
    failed = {other.place.rank for other in seen.ooms if other.place.rank is not None}
    if seen.oom_count > 1:
        first = (
            f", rank {oom.place.rank} first"
            if oom is not None and oom.place.rank is not None
            else ""
        )
        notes.append(
            f"{seen.oom_count} out-of-memory messages on {max(len(failed), 1)} rank(s){first}; the others are followers or the same shortage"
        )
    followers = sum(count for row, count in seen.event_counts.items() if row == "follower")
    if followers:
        notes.append(
            f"{followers} line(s) of ranks that only followed (closed connections, SIGTERM)"
        )
    skew = rank_skew(seen)
    if skew is not None and skew[2] >= SKEW_SHOWN:
        notes.append(
            f"hot rank {skew[0]}: {format_gib(skew[1])}, {skew[2]:+.0%} against the median rank"
        )
    if seen.tips and oom is not None:
        notes.append("the allocator's tip is fixed text and was not taken as evidence")
    if oom is not None and oom.message.truncated and oom.message.requested is not None:
        notes.append("the message is cut: only what it still says was used")
    if seen.theory is not None:
        notes.append(
            f"Megatron's own formula says {format_gib(seen.theory.states)} for weights and optimizer"
        )
    moved = moved_wall(seen)
    if moved is not None:
        notes.append(moved)
    if seen.of_kind(Kind.NCCL_CONTEXT) and seen.ooms:
        notes.append("NCCL errors follow the out-of-memory message; they are its effect")
    return tuple(notes)
