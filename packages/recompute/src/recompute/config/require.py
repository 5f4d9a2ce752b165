"""What a command needs and a job does not say: one error, with one line to paste.

``check`` and ``show`` need nothing beyond the job; ``explain`` needs the batch and the sequence; ``plan``
also needs a GPU or a budget.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from recompute.config.schema import JobConfig
from recompute.errors import ConfigError


@dataclass(frozen=True, slots=True, kw_only=True)
class Need:
    """One thing that a command may need."""

    present: Callable[[JobConfig], bool]
    paste: str
    """The override to add."""
    what: str
    """In words."""


NEEDS: Final[Mapping[str, Need]] = {
    "architecture": Need(
        present=lambda job: job.model.num_layers > 0 and job.model.hidden_size > 0,
        paste="model.num_layers=32 model.hidden_size=4096 model.num_attention_heads=32",
        what="the model's sizes",
    ),
    "vocabulary": Need(
        present=lambda job: job.model.vocab_size is not None,
        paste="model.vocab_size=128256",
        what="the vocabulary",
    ),
    "sequence": Need(
        present=lambda job: job.model.seq_length is not None,
        paste="model.seq_length=8192",
        what="the sequence length",
    ),
    "batch": Need(
        present=lambda job: job.train.micro_batch_size is not None,
        paste="train.micro_batch_size=1",
        what="the micro-batch",
    ),
    "gpu": Need(
        present=lambda job: job.hardware.gpu is not None or job.hardware.memory_bytes is not None,
        paste="hardware.gpu=h100-80gb",
        what="the GPU or a budget",
    ),
}
"""Name of a need -> how to tell, and what to paste."""

TOKENIZERS: Final[tuple[tuple[str, int], ...]] = (
    ("llama2tokenizer", 32000),
    ("llama-2", 32000),
    ("llama-3", 128256),
    ("llama3", 128256),
    ("gpt2bpe", 50257),
    ("gpt2", 50257),
    ("mixtral", 32000),
    ("mistral-7b-v0.3", 32768),
    ("mistral", 32000),
    ("qwen3", 151936),
    ("qwen2", 151936),
    ("deepseek", 129280),
    ("gemma-3", 262144),
    ("gemma", 256000),
    ("bertwordpiece", 30522),
)
"""Part of a tokenizer's type or model, lower case -> its vocabulary as the model's config.json gives it;
the first that is found counts."""


def vocabulary_of(job: JobConfig) -> int | None:
    """Return the vocabulary that the job's tokenizer suggests, for a hint; ``None`` when it says none."""
    names = " ".join(
        str(value).lower()
        for key, value in job.unmodelled.items()
        if "tokenizer" in key and isinstance(value, str)
    )
    return next((size for part, size in TOKENIZERS if part in names), None)


EXPLAIN: Final = ("architecture", "vocabulary", "sequence", "batch")
PLAN: Final = (*EXPLAIN, "gpu")


def missing(job: JobConfig, needs: Iterable[str]) -> tuple[str, ...]:
    """Return the needs that the job does not meet."""
    return tuple(name for name in needs if not NEEDS[name].present(job))


def require_complete(job: JobConfig, needs: Iterable[str]) -> JobConfig:
    """Return the job when it says everything that a command needs.

    Args:
        job: As loaded.
        needs: Names of :data:`NEEDS`.

    Raises:
        ConfigError: ``incomplete-job``; the hint is the line that completes the command.
    """
    absent = missing(job, needs)
    if not absent:
        return job
    path = job.identity.path
    pastes = {name: NEEDS[name].paste for name in absent}
    size = vocabulary_of(job)
    if size is not None and "vocabulary" in pastes:
        pastes["vocabulary"] = f"model.vocab_size={size}"
    paste = " ".join(pastes.values())
    whole = job.identity.format == "recipe" and "architecture" in absent
    raise ConfigError(
        "incomplete-job",
        f"{path} does not say " + ", ".join(NEEDS[name].what for name in absent),
        hint=f"add to the command, with your own values: {paste}"
        + (", and what else the model sets; or give the run_config.yaml of a run" if whole else ""),
        data={"missing": list(absent), "overrides": paste.split()},
    )
