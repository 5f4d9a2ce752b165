"""Which rank a probe takes itself for, as launchers say it, before and after its loop has joined its processes."""

from __future__ import annotations

import types
from pathlib import Path
from typing import Any

import pytest

from recompute.measure.ledger import read_ledger
from recompute.megatron import MemoryProbe
from recompute.megatron.environment import LAUNCHERS, place


@pytest.fixture(autouse=True)
def no_launcher(monkeypatch: pytest.MonkeyPatch) -> None:
    for names in LAUNCHERS:
        for name in names:
            monkeypatch.delenv(name, raising=False)


@pytest.mark.parametrize(
    ("variables", "found"),
    [
        ({}, (0, 1)),
        ({"RANK": "3", "WORLD_SIZE": "8"}, (3, 8)),
        ({"SLURM_PROCID": "5", "SLURM_STEP_NUM_TASKS": "8"}, (5, 8)),
        ({"SLURM_PROCID": "0", "SLURM_NTASKS": "8"}, (0, 1)),  # the batch script itself
        ({"OMPI_COMM_WORLD_RANK": "1", "OMPI_COMM_WORLD_SIZE": "2"}, (1, 2)),
        (
            {"RANK": "9", "WORLD_SIZE": "16", "SLURM_PROCID": "1", "SLURM_STEP_NUM_TASKS": "2"},
            (9, 16),
        ),  # torchrun below srun
        ({"RANK": "-1", "WORLD_SIZE": "2"}, (0, 1)),
        ({"RANK": "2", "WORLD_SIZE": "2"}, (0, 1)),
        ({"RANK": "one", "WORLD_SIZE": "\u00b2"}, (0, 1)),
    ],
)
def test_what_launchers_say(
    monkeypatch: pytest.MonkeyPatch, variables: dict[str, str], found: tuple[int, int]
) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert place() == found


def joined(rank: int, world: int, *, there: bool = True) -> Any:
    """Return what stands for a torch whose processes are joined."""
    return types.SimpleNamespace(
        distributed=types.SimpleNamespace(
            is_available=lambda: True,
            is_initialized=lambda: there,
            get_rank=lambda: rank,
            get_world_size=lambda: world,
        )
    )


def test_joined_processes_know_better_than_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert place(joined(5, 8)) == (5, 8)
    assert place(joined(5, 8, there=False)) == (1, 2)


def test_a_probe_that_was_made_before_its_processes_joined_is_of_the_right_rank(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    probe = MemoryProbe(str(tmp_path), candidate="[]")
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    with probe, probe.step():
        pass
    (row,) = read_ledger(str(tmp_path)).rows
    assert (row.rank, row.world_size) == (1, 2)
    assert (tmp_path / "rows" / "rank-00001.jsonl").exists()
