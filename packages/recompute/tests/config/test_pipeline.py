"""How layers split over pipeline ranks and chunks; the oracle compares with Megatron itself."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from recompute.config.pipeline import layers_per_chunk, layout_cells
from recompute.config.schema import JobConfig, JobIdentity, ModelConfig
from recompute.errors import ConfigError


def job(**fields: object) -> JobConfig:
    return JobConfig(
        identity=JobIdentity(path="job.yaml", sha256="0" * 64, format="bridge-yaml"),
        model=ModelConfig(**fields),
    )


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        pytest.param({"num_layers": 8}, ((8,),), id="one-stage"),
        pytest.param(
            {"num_layers": 8, "virtual_pipeline_model_parallel_size": 2}, ((8,),), id="vpp-alone"
        ),
        pytest.param(
            {
                "num_layers": 126,
                "pipeline_model_parallel_size": 16,
                "account_for_embedding_in_pipeline_split": True,
                "account_for_loss_in_pipeline_split": True,
            },
            ((7,), *((8,),) * 14, (7,)),
            id="llama3-405b",
        ),
        pytest.param(
            {
                "num_layers": 61,
                "pipeline_model_parallel_size": 8,
                "num_layers_in_first_pipeline_stage": 6,
                "num_layers_in_last_pipeline_stage": 7,
            },
            ((6,), *((8,),) * 6, (7,)),
            id="uneven",
        ),
        pytest.param(
            {
                "num_layers": 6,
                "pipeline_model_parallel_size": 2,
                "pipeline_model_parallel_layout": "Et*2|t|t*2|tL",
            },
            ((2, 2), (1, 1)),
            id="layout-two-chunks",
        ),
        pytest.param(
            {
                "num_layers": 14,
                "pipeline_model_parallel_size": 2,
                "virtual_pipeline_model_parallel_size": 4,
                "account_for_embedding_in_pipeline_split": True,
                "account_for_loss_in_pipeline_split": True,
            },
            ((1, 2, 2, 2), (2, 2, 2, 1)),
            id="account-for-with-vpp",
        ),
    ],
)
def test_known_splits(fields: dict[str, object], expected: object) -> None:
    assert layers_per_chunk(job(**fields)) == expected


@pytest.mark.parametrize(
    "fields",
    [
        {"num_layers": 7, "pipeline_model_parallel_size": 2},
        {
            "num_layers": 8,
            "pipeline_model_parallel_size": 2,
            "virtual_pipeline_model_parallel_size": 3,
        },
        {
            "num_layers": 8,
            "pipeline_model_parallel_size": 2,
            "num_layers_in_first_pipeline_stage": 9,
        },
        {
            "num_layers": 0,
            "pipeline_model_parallel_size": 1,
            "account_for_loss_in_pipeline_split": True,
            "num_layers_in_first_pipeline_stage": 0,
        },
    ],
)
def test_what_does_not_divide_is_an_input_error(fields: dict[str, object]) -> None:
    with pytest.raises(ConfigError) as caught:
        layers_per_chunk(job(**fields))
    assert caught.value.code == "pipeline-split"
    assert caught.value.hint


@pytest.mark.parametrize(
    "layout",
    ["Et|xL", "(t)*99999999|L", "((t)*999999)*999999", "t*999999", 7, [["decoder"], "loss"], [[3]]],
)
def test_hostile_layouts_are_input_errors(layout: object) -> None:
    with pytest.raises(ConfigError) as caught:
        layout_cells(layout, 1)
    assert caught.value.code == "pipeline-layout"


def test_a_named_layout_equals_its_symbols() -> None:
    named = [["embedding", "decoder"], ["decoder", " MTP ", "loss"]]
    assert layout_cells(named, 2) == layout_cells("Et|tmL", 2)


@given(
    stages=st.integers(1, 6),
    chunks=st.integers(1, 4),
    per_chunk=st.integers(1, 5),
    embedding=st.booleans(),
    loss=st.booleans(),
)
def test_every_layer_is_held_once(
    stages: int, chunks: int, per_chunk: int, embedding: bool, loss: bool
) -> None:
    chunks = chunks if stages > 1 else 1
    layers = stages * chunks * per_chunk - embedding - loss
    if layers < 0 or (stages * chunks == 1 and per_chunk < embedding + loss):
        return
    grid = layers_per_chunk(
        job(
            num_layers=layers,
            pipeline_model_parallel_size=stages,
            virtual_pipeline_model_parallel_size=chunks if chunks > 1 else None,
            account_for_embedding_in_pipeline_split=embedding,
            account_for_loss_in_pipeline_split=loss,
        )
    )
    assert sum(map(sum, grid)) == layers
    assert {len(row) for row in grid} == {chunks}
