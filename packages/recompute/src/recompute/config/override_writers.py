"""A recompute choice as text to paste: Bridge Python, Hydra, Megatron-LM flags, YAML.

Reading a text back onto any job gives the choice, whatever the job had before: a selective choice nulls
the method and the number of layers that a full one left behind, and a full one drops the labels.

Sources: Megatron Core takes ``selective`` with leftover ``recompute_num_layers`` for an error (NVIDIA/Megatron-LM
core_v0.19.0 megatron/core/transformer/transformer_config.py ``TransformerConfig.__post_init__``); from 0.16 on
``--recompute-modules`` takes one label or more (megatron/training/argument_utils.py ``ArgumentGroupFactory``).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from recompute.config.choice import RecomputeChoice, granularity_in
from recompute.config.schema import JobConfig
from recompute.config.yaml_text import yaml_value

FLAGS: Final = (
    "--recompute-activations",
    "--recompute-granularity",
    "--recompute-method",
    "--recompute-num-layers",
    "--recompute-modules",
    "--moe-layer-recompute",
)
"""Flags to take out of the command before adding those of a choice."""


def overrides_for(choice: RecomputeChoice, job: JobConfig) -> dict[str, str]:
    """Return the texts by target: ``bridge_python``, ``hydra``, ``megatron_lm`` and ``yaml``.

    Args:
        choice: A choice that stock Megatron can make; one with ``per_layer`` has no setting there.
        job: The job that the choice is for: fields that it does not use are not mentioned.
    """
    assert choice.per_layer is None
    fields = dict(_fields(choice, job))
    return {
        "bridge_python": "\n".join(f"cfg.model.{k} = {_python(v)}" for k, v in fields.items()),
        "hydra": " ".join(f"model.{k}={_hydra(v)}" for k, v in fields.items()),
        "megatron_lm": _flags(choice, job),
        "yaml": "model:\n" + "".join(f"  {k}: {yaml_value(v)}\n" for k, v in fields.items()),
    }


def _fields(choice: RecomputeChoice, job: JobConfig) -> Iterator[tuple[str, Any]]:
    granularity = granularity_in(job, choice)
    yield "recompute_granularity", granularity
    # Full ignores labels, but a list left behind reads as if it did something.
    yield "recompute_modules", choice.recompute_modules if granularity == "selective" else None
    yield "recompute_method", choice.recompute_method
    yield "recompute_num_layers", choice.recompute_num_layers
    if job.model.moe_layer_recompute:
        yield "moe_layer_recompute", False


def _python(value: Any) -> str:
    return repr(list(value) if isinstance(value, tuple) else value).replace("'", '"')


def _hydra(value: Any) -> str:
    if isinstance(value, tuple):
        return "[" + ",".join(value) + "]"
    return "null" if value is None else yaml_value(value)


def _flags(choice: RecomputeChoice, job: JobConfig) -> str:
    """Return the flags; for no recompute there are none, and the text says which to drop."""
    words: list[str] = []
    if choice.recompute_granularity == "full":
        words = [
            "--recompute-granularity full",
            f"--recompute-method {choice.recompute_method}",
            f"--recompute-num-layers {choice.recompute_num_layers}",
        ]
    elif choice.recompute_modules:
        words = [
            "--recompute-granularity selective",
            "--recompute-modules " + " ".join(choice.recompute_modules),
        ]
    had = any(
        f"model.recompute_{name}" in job.given
        for name in ("granularity", "method", "num_layers", "modules")
    )
    if words and not had:
        return " ".join(words)
    drop = "# first drop " + " ".join(FLAGS) if words else "# drop " + " ".join(FLAGS)
    return "\n".join([*([" ".join(words)] if words else []), drop])
