"""The example of a row as a whole job: a small valid one with the example's fields in place."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from recompute.config.schema import JobConfig, JobIdentity, ModelConfig, PeftConfig
from recompute.rules.edits import apply
from recompute.rules.types import Example

BASE: Final = JobConfig(
    identity=JobIdentity(path="example.yaml", sha256="0" * 64, format="bridge-yaml"),
    model=ModelConfig(
        num_layers=8,
        hidden_size=1024,
        num_attention_heads=8,
        seq_length=4096,
        vocab_size=32000,
        bf16=True,
        add_bias_linear=False,
        params_dtype="bf16",
        hidden_dropout=0.0,
        attention_dropout=0.0,
        attention_backend="flash",
    ),
)
"""A dense model of eight layers that no rule objects to."""

WHOLE: Final = frozenset({"unmodelled", "environment", "given"})
"""Fields of the job itself that an example may replace."""


def job_of(example: Example) -> JobConfig:
    """Return the job that an example stands for."""
    import dataclasses

    fields = dict(example.fields)
    whole = {name: fields.pop(name) for name in WHOLE & fields.keys()}
    if "given" in whole:
        whole["given"] = {f"model.{name}": where for name, where in whole["given"].items()}
    if "peft" in fields:
        given = fields.pop("peft")
        whole["peft"] = PeftConfig(**given) if isinstance(given, Mapping) else PeftConfig()
    if "comm_overlap" in fields:
        whole["comm_overlap"] = fields.pop("comm_overlap")
    identity = dataclasses.replace(
        BASE.identity,
        entry_point=example.entry,
        **{name: fields.pop(name) for name in ("path", "format") if name in fields},
    )
    job = dataclasses.replace(BASE, identity=identity, **whole)
    return apply(job, _dotted(fields))


def _dotted(fields: Mapping[str, Any]) -> dict[str, Any]:
    return {name if "." in name else f"model.{name}": value for name, value in fields.items()}
