"""A vision tower as a block of its own: the same layers, under its own fields and its own recompute.

Source: NVIDIA-NeMo/Megatron-Bridge 067f987d src/megatron/bridge/models/ (a vision-language provider
holds a second TransformerConfig for its tower; precision and tensor parallelism are the language
model's, pipeline stages and context parallelism do not split it).
"""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any, Final

from recompute.config.schema import JobConfig, ModelConfig
from recompute.errors import UnsupportedError

INHERITED: Final = (
    "bf16",
    "fp16",
    "params_dtype",
    "transformer_impl",
    "attention_backend",
    "tensor_model_parallel_size",
    "sequence_parallel",
    "gradient_accumulation_fusion",
)
"""Fields that a tower takes from the language model unless it has its own."""


def tower_of(job: JobConfig) -> JobConfig | None:
    """Return the vision tower of a job as a job, ``None`` without one.

    Its ``seq_length`` is the number of patches of one sample, its layers are dense and attend to all
    patches.

    Raises:
        UnsupportedError: ``unsupported-vision``: a field that a tower cannot have, or no
            ``seq_length``.
    """
    given = job.model.vision
    if given is None:
        return None
    known = {field.name for field in fields(ModelConfig)}
    unknown = sorted(set(given) - known)
    if unknown:
        raise _unsupported(f"field {unknown[0]!r} of a vision tower", f"model.vision.{unknown[0]}")
    if not given.get("seq_length"):
        raise _unsupported(
            "a vision tower without its number of patches", "model.vision.seq_length"
        )
    taken: dict[str, Any] = {name: getattr(job.model, name) for name in INHERITED}
    plain: dict[str, Any] = {"position_embedding_type": "none", "vocab_size": None}
    tower = ModelConfig(**{**taken, **plain, **given})
    if tower.num_moe_experts is not None:
        raise _unsupported("a vision tower with experts", "model.vision.num_moe_experts")
    return replace(job, model=tower)


def _unsupported(what: str, field: str) -> UnsupportedError:
    return UnsupportedError(
        "unsupported-vision",
        f"{what} is not modelled",
        hint="give the tower's own TransformerConfig fields and seq_length, its patches a sample",
        data={"field": field},
    )
