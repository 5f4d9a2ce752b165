"""Asking the real Megatron Core, and asking ours, about the same fields."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
from collections.abc import Iterator, Mapping
from typing import Any
from unittest import mock

import torch
from megatron.core.transformer import transformer_config as real
from packaging.version import Version

from recompute.config.revision import Revision, parse_revision
from recompute.config.schema import FrameworkConfig, JobConfig, JobIdentity, ModelConfig
from recompute.rules.check import check

BASE = {"num_layers": 4, "hidden_size": 64, "num_attention_heads": 4, "add_bias_linear": False}
REFUSALS = (AssertionError, ValueError, NotImplementedError, KeyError, TypeError)


@functools.cache
def revision() -> Revision:
    """Return the revision of the installed Megatron Core."""
    import megatron.core

    return parse_revision(megatron.core.__version__)


@contextlib.contextmanager
def transformer_engine(version: str | None) -> Iterator[None]:
    """Let the validators believe that this Transformer Engine is installed (not stated: the newest)."""
    installed = Version(version or "9.0")

    def at_least(wanted: str, check_equality: bool = True) -> bool:
        return installed >= Version(wanted) if check_equality else installed > Version(wanted)

    with (
        mock.patch.object(real, "is_te_min_version", at_least),
        mock.patch.object(real, "get_te_version", return_value=installed),
    ):
        yield


def refusal(fields: Mapping[str, Any], *, latent: bool, te: str | None) -> str | None:
    """Return why the real config refuses the fields, ``None`` when it accepts them."""
    kind = real.MLATransformerConfig if latent else real.TransformerConfig
    known = {field.name for field in dataclasses.fields(kind)}
    given = {name: _thawed(value) for name, value in fields.items() if name in known}
    if given.get("pipeline_model_parallel_size", 1) > 1:
        given["pipeline_dtype"] = torch.float32
    with transformer_engine(te):
        try:
            kind(**BASE, **given)
        except REFUSALS as error:
            return f"{type(error).__name__}: {error}"[:200]
    return None


def verdict(fields: Mapping[str, Any], *, latent: bool, te: str | None) -> list[str]:
    """Return the ids of our errors that Megatron raises while it builds its config."""
    job = JobConfig(
        identity=JobIdentity(path="o", sha256="0" * 64, format="bridge-yaml", entry_point="core"),
        model=ModelConfig(**BASE, **fields, multi_latent_attention=latent),
        framework=FrameworkConfig(transformer_engine=te),
    )
    findings = check(job, revision(), fixes=False)
    return [f.rule for f in findings if f.severity == "error" and f.raised == "config"]


def _thawed(value: Any) -> Any:
    return [_thawed(item) for item in value] if isinstance(value, tuple) else value
