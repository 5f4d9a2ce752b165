"""A predictor whose every figure a test sets, and small jobs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from recompute.config.choice import RecomputeChoice
from recompute.config.schema import (
    DdpConfig,
    HardwareConfig,
    JobConfig,
    JobIdentity,
    ModelConfig,
    OptimizerConfig,
    TrainConfig,
)
from recompute.model.tape import OpClass
from recompute.timeline.stages import Stage, stages_of
from recompute.timeline.types import (
    OwnedBytes,
    Phase,
    PhasePeak,
    Prediction,
    RankPeak,
    Replay,
    StaticBytes,
)

GIB = 1 << 30


@dataclass
class FakePredictor:
    """Peak and replayed GEMM operations of a choice come from functions."""

    job: JobConfig
    peak: Callable[[RecomputeChoice], int | Sequence[int]]
    replay: Callable[[RecomputeChoice], int]
    active: Mapping[str, int] = field(default_factory=dict)
    phase: Phase = Phase.BACKWARD
    asked: list[RecomputeChoice] = field(default_factory=list)

    @property
    def stages(self) -> tuple[Stage, ...]:
        return stages_of(self.job)

    def active_layers(self) -> Mapping[str, int]:
        return self.active

    def predict(self, choice: RecomputeChoice, *, composition: bool = False) -> Prediction:
        self.asked.append(choice)
        peaks = self.peak(choice)
        rows = [peaks] if isinstance(peaks, int) else list(peaks)
        flops = self.replay(choice)
        return Prediction(
            choice=choice,
            ranks=tuple(
                rank_peak(pp, peak, flops, self.phase, composition=composition)
                for pp, peak in enumerate(rows)
            ),
        )


def rank_peak(
    pp: int, peak: int, replay_flops: int, phase: Phase, *, composition: bool = False
) -> RankPeak:
    static = StaticBytes(parameters=4, gradients=4, optimizer=8, other=0)
    return RankPeak(
        rank=(("pp", pp),),
        global_ranks=(pp,),
        static=static,
        phases=(PhasePeak(phase=phase, peak_bytes=peak),),
        activation_bytes_after_forward=max(peak - static.total, 0),
        alive_at_peak=(OwnedBytes(owner="mlp.linear_fc1", bytes=peak),) if composition else (),
        step_work=Replay(flops=((OpClass.GEMM, 10**15),), kernels=1),
        replay=Replay(
            flops=((OpClass.GEMM, replay_flops),) if replay_flops else (),
            kernels=1 if replay_flops else 0,
        ),
    )


MODEL = ModelConfig(
    num_layers=4,
    hidden_size=1024,
    num_attention_heads=8,
    ffn_hidden_size=4096,
    vocab_size=32768,
    seq_length=2048,
    hidden_dropout=0.0,
    attention_dropout=0.0,
    bf16=True,
    params_dtype="bf16",
    normalization="RMSNorm",
    add_bias_linear=False,
    gated_linear_unit=True,
    activation_func="silu",
    position_embedding_type="rope",
    share_embeddings_and_output_weights=False,
)


def small_job(**changes: Any) -> JobConfig:
    """Return a small dense job; ``section.field`` names a field, a bare name one of ``model``."""
    job = JobConfig(
        identity=JobIdentity(path="job.yaml", sha256="0" * 64, format="bridge-yaml"),
        model=MODEL,
        train=TrainConfig(micro_batch_size=1, global_batch_size=8),
        optimizer=OptimizerConfig(),
        ddp=DdpConfig(),
        hardware=HardwareConfig(),
    )
    for name, value in changes.items():
        section, _, key = name.rpartition(".")
        part = section or "model"
        if part == "environment":
            job = replace(job, environment={**job.environment, key: value})
            continue
        job = replace(job, **{part: replace(getattr(job, part), **{key: value})})
    return job
