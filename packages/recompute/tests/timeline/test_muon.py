"""States under Muon: one moment for a matrix, whole tensors for a rank."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from recompute.config.schema import FrameworkConfig, JobConfig, OptimizerConfig
from recompute.timeline.muon import Part, muon_states
from recompute.timeline.predict import Predictor

from .jobs import megatron_job

PARTS = st.lists(
    st.builds(Part, elements=st.integers(1, 10**6), matrix=st.booleans(), expert=st.booleans()),
    min_size=1,
    max_size=40,
)


def muon(name: str = "muon", core: str | None = None, *, packed: bool = True) -> JobConfig:
    return replace(
        megatron_job(),
        optimizer=OptimizerConfig(
            optimizer=name, use_distributed_optimizer=True, use_layer_wise_param_layout=packed
        ),
        framework=FrameworkConfig(megatron_core=core),
    )


def test_tables_and_norms_stay_with_adam() -> None:
    job = megatron_job()
    optimizer = OptimizerConfig(optimizer="muon", use_distributed_optimizer=False)
    plain = replace(job, ddp=replace(job.ddp, use_distributed_optimizer=False))
    states = [
        Predictor(replace(plain, optimizer=o))._states[0].static.optimizer
        for o in (optimizer, replace(optimizer, optimizer="adam"))
    ]
    model = job.model
    layer = 4096 * (4096 + 2 * 1024 + 4096) + 3 * 4096 * 14336  # qkv, projection, gated MLP
    assert states[1] - states[0] == 4 * layer * model.num_layers


def test_the_rank_with_the_table_is_the_one_that_counts() -> None:
    parts = [Part(elements=10, matrix=True, expert=False)] * 7
    parts.append(Part(elements=1000, matrix=False, expert=False))
    assert muon_states(muon(core="0.17"), parts, (4, 1), 2) == 1000 * 12 + 10 * 8
    assert muon_states(muon(packed=False), parts, (4, 1), 2) == 1000 * 12 + 10 * 8
    assert muon_states(muon(), parts, (4, 1), 2) == (7 * 10 * 8 + 1000 * 12) // 4


@pytest.mark.parametrize(("name", "bytes_"), [("muon", 8), ("adaptive_muon", 12)])
def test_moments_by_name(name: str, bytes_: int) -> None:
    part = Part(elements=100, matrix=True, expert=True)
    assert muon_states(muon(name), [part], (1, 1), 2) == 100 * bytes_


@given(PARTS, st.integers(1, 16))
def test_whole_tensors_are_never_better_than_even_shards(parts: list[Part], ranks: int) -> None:
    even = muon_states(muon(), parts, (ranks, ranks), 2)
    dealt = muon_states(muon(packed=False), parts, (ranks, ranks), 2)
    everything = muon_states(muon(), parts, (1, 1), 2)
    assert even <= dealt <= everything
