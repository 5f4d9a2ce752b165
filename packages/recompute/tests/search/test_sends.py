"""Sends between pipeline stages: size, link, who waits, what overlap hides."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from recompute.config.choice import NO_RECOMPUTE
from recompute.config.gpus import find_gpu
from recompute.search.cost import CostModel
from recompute.search.efficiency import EFFICIENCIES
from recompute.search.sends import Sends, stream_bytes
from recompute.timeline.predict import Predictor

from .fakes import small_job

H200 = find_gpu("h200")
USE = EFFICIENCIES["hopper"]


def job(stages: int, gpus: int, **more: Any) -> Any:
    fields = {"pipeline_model_parallel_size": stages, "hardware.num_gpus": gpus, **more}
    return small_job(num_layers=16, **fields)


def test_a_stage_sends_its_share_of_the_stream() -> None:
    whole = stream_bytes(job(4, 4))
    assert whole == 2048 * 1024 * 2
    both = job(4, 16, tensor_model_parallel_size=2, sequence_parallel=True, context_parallel_size=2)
    assert stream_bytes(both) == whole // 4
    unsplit = replace(both, model=replace(both.model, sequence_parallel=False))
    assert stream_bytes(unsplit) == whole // 2


def test_the_ends_of_the_plain_schedule_have_one_neighbour() -> None:
    sends = Sends(job(4, 4), H200, USE)
    first, second, third, last = (sends.exchanges(stage) for stage in range(4))
    assert first == last == pytest.approx(second / 2)
    assert second == third
    expected = stream_bytes(job(4, 4)) / (H200.nvlink * USE.nvlink) + USE.send_seconds
    assert first == pytest.approx(expected)


def test_the_last_stage_hands_its_chunks_to_the_first_when_interleaved() -> None:
    sends = Sends(job(4, 4, virtual_pipeline_model_parallel_size=2), H200, USE)
    assert len({sends.exchanges(stage) for stage in range(4)}) == 1


def test_the_network_is_used_where_two_stages_do_not_share_a_domain() -> None:
    size = stream_bytes(job(4, 16))
    near = size / (H200.nvlink * USE.nvlink) + USE.send_seconds
    far = size / (H200.network * USE.network) + USE.send_seconds
    sends = Sends(job(4, 16), H200, USE)  # four ranks a stage: stages 0 and 1 share a host of eight
    assert sends.exchanges(0) == pytest.approx(near)
    assert sends.exchanges(1) == pytest.approx(near + far)
    rack = Sends(job(4, 16), find_gpu("gb200"), EFFICIENCIES["blackwell"])
    assert rack.exchanges(0) == pytest.approx(rack.exchanges(1) / 2)


@given(stages=st.integers(2, 12), each=st.integers(1, 12), domain=st.sampled_from([4, 8, 72]))
def test_a_border_is_near_exactly_when_every_pair_of_peers_shares_a_domain(
    stages: int, each: int, domain: int
) -> None:
    sends = Sends(job(stages, stages * each), replace(H200, domain=domain), USE)
    for stage in range(stages - 1):
        ranks = range(stage * each, (stage + 1) * each)
        near = all(rank // domain == (rank + each) // domain for rank in ranks)
        assert sends._is_near(stage, stage + 1) is near


def test_one_stage_sends_nothing() -> None:
    assert Sends(job(1, 8), H200, USE).exchanges(0) == 0.0


def test_sends_lengthen_the_step_and_overlap_hides_most_of_them() -> None:
    fields = {"virtual_pipeline_model_parallel_size": 2, "train.global_batch_size": 64}
    plain = job(8, 64, **fields)
    hidden = replace(plain, model=replace(plain.model, overlap_p2p_comm=True))
    prediction = Predictor(plain).predict(NO_RECOMPUTE)
    free = replace(USE, send_seconds=0.0)
    fast = replace(H200, network=1e30, nvlink=1e30)
    visible = CostModel(plain, H200, free).step_seconds(prediction)
    covered = CostModel(hidden, H200, free).step_seconds(prediction)
    none = CostModel(plain, fast, free).step_seconds(prediction)
    assert none < covered < visible
    turns = 8 * 2
    both = 2 * stream_bytes(plain) / (H200.network * USE.network)
    steady, filling = turns * both, 7 * both
    gap = visible - covered
    assert gap == pytest.approx(steady * (1 - USE.overlap_pipeline))
    assert visible - none >= steady + filling
