"""Steps of a model on the CPU under a probe, and the row that they leave."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import torch

from recompute.measure.ledger import read_ledger
from recompute.measure.row import Row
from recompute.megatron import MemoryProbe

sys.path.insert(0, str(Path(__file__).parent))
import cpu_model


def train(probe: MemoryProbe, model: Any, steps: int, optimizer: Any = None) -> None:
    optimizer = optimizer or torch.optim.AdamW(model.parameters(), lr=1e-4)
    probe.watch(model, optimizer)
    for _ in range(steps):
        with probe.step():
            optimizer.zero_grad(set_to_none=True)
            loss = cpu_model.loss_of(model)
            loss.backward()
            optimizer.step()


def only_row(root: Path) -> Row:
    (row,) = read_ledger(str(root)).rows
    return row
