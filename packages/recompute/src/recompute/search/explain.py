"""Where the peak is, what is alive there, and what each label alone would save and cost."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from recompute.config.choice import (
    LABELS,
    NO_RECOMPUTE,
    RecomputeChoice,
    choice_of,
    full,
    selective,
)
from recompute.config.gpus import DEFAULT_GPU, find_gpu
from recompute.config.normalize import normalize, revision_of
from recompute.config.require import EXPLAIN, require_complete
from recompute.config.schema import Assumption
from recompute.errors import ConfigError
from recompute.search.cost import CostModel
from recompute.search.outcome import new_predictor
from recompute.search.space import is_legal, known_errors
from recompute.search.types import Predicts
from recompute.timeline.types import Phase, Prediction, RankPeak
from recompute.units import format_gib

if TYPE_CHECKING:
    from recompute.config.revision import Revision
    from recompute.config.schema import JobConfig

NOTES = {
    "core_attn": "fused attention keeps its output, statistics and inputs, not the scores; unfused and "
    "sparse attention keep those",
    "layernorm": "acts on norms that are modules of their own; Transformer Engine fuses dense ones "
    "into the linear",
    "moe_act": "the activation between the experts' linears",
    "mla_up_proj": "queries, keys and values are expanded again from the latents",
    "mlp": "dense MLPs only: no effect on mixture-of-experts layers",
    "moe": "the whole mixture, dispatch and combine included",
    "shared_experts": "the shared expert's MLP",
    "gdn_norm_out": "gated norm and its exchange over the context group",
}
"""Label -> what to know about it."""


SENSITIVE = 0.02
"""Relative change of a label's effect from which it is said to depend on the expert load."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LabelEffect:
    """One label alone against no recompute."""

    label: str
    active_layers: int
    peak_delta_bytes: int
    """Change of the highest peak; positive is worse."""
    saved_after_forward_bytes: int
    """Bytes that are no longer held after forward on the control's hot rank; negative is worse."""
    replay_flops: int
    """Operations replayed in one step on the rank that replays most."""
    replay_comm_bytes: int
    """Bytes sent again in one step on that rank."""
    step_time_overhead: float
    note: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Explanation:
    """The answer to: where is my peak, and what would each label do there?"""

    job: JobConfig
    choice: RecomputeChoice
    """What the job does now; ranks are those of this choice."""
    prediction: Prediction
    control: Prediction
    """No recompute."""
    labels: tuple[LabelEffect, ...]
    rank: int | None
    """The global rank that was asked for."""
    assumptions: tuple[Assumption, ...]
    full: LabelEffect | None = None
    """Every layer recomputed as a whole, one at a time, to hold the labels against."""

    @property
    def shown(self) -> tuple[RankPeak, ...]:
        """The rows asked for: all, or the one that stands for the global rank."""
        if self.rank is None:
            return self.prediction.ranks
        return tuple(row for row in self.prediction.ranks if self.rank in row.global_ranks)


def explain(
    job: JobConfig,
    *,
    rank: int | None = None,
    predictor_of: Callable[[JobConfig], Predicts] | None = None,
    balanced_of: Callable[[JobConfig], Predicts] | None = None,
) -> Explanation:
    """Explain a job's peak.

    Args:
        job: A complete job, as loaded; it is normalized here.
        rank: Show the row of this global rank only.
        predictor_of: What predicts; by default :class:`recompute.timeline.predict.Predictor`.
        balanced_of: What predicts with an equal share of routed tokens on every rank; then the labels'
            notes say which of them depend on the share.

    Raises:
        ConfigError: ``unknown-rank``, or the job does not say enough.
        UnsupportedError: The job holds something that is not modelled.
    """
    require_complete(job, EXPLAIN)
    revision, _ = revision_of(job)
    acted = normalize(job)
    predictor = (predictor_of or new_predictor)(acted)
    rates = find_gpu(job.hardware.gpu or DEFAULT_GPU)
    choice = choice_of(job)
    control = predictor.predict(NO_RECOMPUTE, composition=choice == NO_RECOMPUTE)
    prediction = control
    if choice != NO_RECOMPUTE:
        prediction = predictor.predict(choice, composition=True)
    _check_rank(prediction, rank)
    cost = CostModel(acted, rates)
    rated = Assumption(id="step-time-rates", text=f"step times use the rates of {rates.name}")
    labels = _effects(job, predictor, control, cost, revision)
    if balanced_of is not None:
        labels = _with_sensitivity(labels, balanced_of(acted))
    return Explanation(
        job=acted,
        choice=choice,
        prediction=prediction,
        control=control,
        labels=labels,
        rank=rank,
        assumptions=(*acted.assumptions, *prediction.assumptions, rated),
        full=_full(job, predictor, control, cost, revision),
    )


def _check_rank(prediction: Prediction, rank: int | None) -> None:
    known = sum(len(row.global_ranks) for row in prediction.ranks)
    if rank is not None and not any(rank in row.global_ranks for row in prediction.ranks):
        raise ConfigError(
            "unknown-rank",
            f"rank {rank} is not one of the job's {known}",
            hint=f"give a global rank from 0 to {known - 1}; hardware.num_gpus sets how many",
            data={"rank": rank, "ranks": known},
        )


def _effects(
    job: JobConfig,
    predictor: Predicts,
    control: Prediction,
    cost: CostModel,
    revision: Revision,
) -> tuple[LabelEffect, ...]:
    """Predict every legal label alone; one that acts nowhere changes nothing."""
    active, known = predictor.active_layers(), known_errors(job, revision)
    found = []
    for label in LABELS:
        choice = selective(label)
        if not is_legal(job, choice, revision, known):
            continue
        count = active.get(label, 0)
        if count == 0:
            found.append(_no_effect(label))
            continue
        found.append(_effect(label, count, predictor.predict(choice), control, cost))
    return tuple(found)


def _full(
    job: JobConfig, predictor: Predicts, control: Prediction, cost: CostModel, revision: Revision
) -> LabelEffect | None:
    """Predict ``full/uniform/1``, where it is legal."""
    choice = full("uniform", 1)
    if not is_legal(job, choice, revision, known_errors(job, revision)):
        return None
    layers = sum(len(chunk.layers) for stage in predictor.stages for chunk in stage.chunks)
    effect = _effect(choice.label(), layers, predictor.predict(choice), control, cost)
    return replace(effect, note="for comparison: whole layers, one at a time")


def _with_sensitivity(
    labels: tuple[LabelEffect, ...], balanced: Predicts
) -> tuple[LabelEffect, ...]:
    """Say of each label whether what it does depends on the hot rank's share of the tokens."""
    even = balanced.predict(NO_RECOMPUTE).hot.peak.peak_bytes
    return tuple(
        _told(effect, balanced.predict(selective(effect.label)).hot.peak.peak_bytes - even, even)
        if effect.active_layers
        else effect
        for effect in labels
    )


def _told(effect: LabelEffect, delta: int, even: int) -> LabelEffect:
    apart = abs(effect.peak_delta_bytes - delta) > SENSITIVE * max(abs(delta), even // 100)
    said = "does not depend on the expert load"
    if apart:
        said = f"depends on the expert load: {_signed_gib(delta)} when balanced"
    return replace(effect, note=f"{effect.note}; {said}" if effect.note else said)


def _signed_gib(size: int) -> str:
    return ("-" if size < 0 else "+") + format_gib(abs(size))


def _no_effect(label: str) -> LabelEffect:
    note = "no layer of this job has this boundary"
    if label in NOTES:
        note += f": {NOTES[label]}"
    return LabelEffect(
        label=label,
        active_layers=0,
        peak_delta_bytes=0,
        saved_after_forward_bytes=0,
        replay_flops=0,
        replay_comm_bytes=0,
        step_time_overhead=0.0,
        note=note,
    )


def _effect(
    label: str, count: int, alone: Prediction, control: Prediction, cost: CostModel
) -> LabelEffect:
    same = next((row for row in alone.ranks if row.rank == control.hot.rank), alone.hot)
    most = max(alone.ranks, key=lambda row: cost.stage(row).replay)
    delta = alone.hot.peak.peak_bytes - control.hot.peak.peak_bytes
    saved = control.hot.activation_bytes_after_forward - same.activation_bytes_after_forward
    return LabelEffect(
        label=label,
        active_layers=count,
        peak_delta_bytes=delta,
        saved_after_forward_bytes=saved,
        replay_flops=sum(amount for _, amount in most.replay.flops),
        replay_comm_bytes=sum(amount for _, amount in most.replay.comm),
        step_time_overhead=round(cost.overhead(control, alone), 9),
        note=_note(label, delta, saved, alone),
    )


def _note(label: str, delta: int, saved: int, alone: Prediction) -> str:
    if delta > 0:
        what = "worse than none: " + NOTES.get(label, "it keeps more than it frees")
    elif delta == 0 and saved > 0:
        what = "frees memory after forward, but not at the peak"
    elif delta == 0:
        what = "changes nothing at the peak"
    else:
        hot = alone.hot
        moved = hot.peak.phase not in {Phase.FORWARD, Phase.LOSS, Phase.BACKWARD}
        what = NOTES.get(label, "")
        if moved:
            what += f"; the peak moves to {hot.peak.phase}"
    return what
