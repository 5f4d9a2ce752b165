"""Layers per pipeline rank and chunk are those that the real Megatron Core builds."""

from __future__ import annotations

import itertools
import warnings
from typing import Any

import torch
from megatron.core.transformer.transformer_block import get_num_layers_to_build
from megatron.core.transformer.transformer_config import TransformerConfig

from recompute.config.pipeline import layers_per_chunk
from recompute.config.schema import JobConfig, JobIdentity, ModelConfig
from recompute.errors import ConfigError


def ours(fields: dict[str, Any]) -> tuple[tuple[int, ...], ...] | None:
    identity = JobIdentity(path="o", sha256="0" * 64, format="bridge-yaml")
    try:
        return layers_per_chunk(JobConfig(identity=identity, model=ModelConfig(**fields)))
    except ConfigError:
        return None


def theirs(fields: dict[str, Any]) -> tuple[tuple[int, ...], ...] | None:
    given = {name: value for name, value in fields.items() if value is not None}
    stages = given.get("pipeline_model_parallel_size", 1)
    chunks = given.get("virtual_pipeline_model_parallel_size") or 1
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            config = TransformerConfig(
                **given, hidden_size=8, num_attention_heads=1, pipeline_dtype=torch.float32
            )
            return tuple(
                tuple(
                    get_num_layers_to_build(
                        config, vp_stage=chunk if chunks > 1 else None, pp_rank=rank
                    )
                    for chunk in range(chunks if stages > 1 else 1)
                )
                for rank in range(stages)
            )
    except (AssertionError, ValueError):
        return None


def test_every_small_split_agrees() -> None:
    compared = 0
    for layers, stages, chunks, first, last, embedding, loss in itertools.product(
        (4, 6, 7, 8, 12, 14, 16),
        (1, 2, 3, 4),
        (None, 2, 3),
        (None, 2, 3),
        (None, 2, 4),
        (False, True),
        (False, True),
    ):
        if stages == 1 and chunks:
            continue
        if (first or last) and (embedding or loss):
            continue
        if stages < bool(first) + bool(last) or (first or 0) + (last or 0) > layers:
            continue  # Megatron accepts these and counts negative stages or layers
        fields = {
            "num_layers": layers,
            "pipeline_model_parallel_size": stages,
            "virtual_pipeline_model_parallel_size": chunks,
            "num_layers_in_first_pipeline_stage": first,
            "num_layers_in_last_pipeline_stage": last,
            "account_for_embedding_in_pipeline_split": embedding,
            "account_for_loss_in_pipeline_split": loss,
        }
        compared += 1
        assert ours(fields) == theirs(fields), fields
    assert compared > 700


def test_explicit_layouts_agree() -> None:
    for layout, stages, layers in (
        ("Et*3|t*4|t*4|t*3L", 4, 14),
        ("Et*2|t|t*2|tL", 2, 6),
        ("Et*3|(tt|)*5,t|L", 4, 14),
        ("E|t*2|t*2|L", 4, 4),
    ):
        config = TransformerConfig(
            num_layers=layers,
            hidden_size=8,
            num_attention_heads=1,
            pipeline_model_parallel_size=stages,
            pipeline_dtype=torch.float32,
            pipeline_model_parallel_layout=layout,
        )
        cells = config.pipeline_model_parallel_layout.layout
        real = tuple(tuple(sum(p.name == "decoder" for p in cell) for cell in row) for row in cells)
        fields = {
            "num_layers": layers,
            "pipeline_model_parallel_size": stages,
            "pipeline_model_parallel_layout": layout,
        }
        assert ours(fields) == real, layout
