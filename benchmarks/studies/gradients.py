"""Gradients of real models with plans applied, against those of the unpatched model, on one GPU.

usage: PYTHONPATH=packages/recompute/src python benchmarks/studies/gradients.py OUT.json "NAME=PLAN PLAN..."...

Kernels need not be deterministic: two equal runs of the unpatched model are compared first. What is printed
is the largest relative difference, by norm, of any parameter's gradient.
"""

from __future__ import annotations

import os
import sys
from typing import Any

from cases import answer, cases

from recompute.config.choice import NO_RECOMPUTE
from recompute.megatron import apply, trainer
from recompute.megatron.build import config_of, model_of


def gradients(torch: Any, model: Any, workload: dict[str, Any], place: Any) -> dict[str, Any]:
    """Return the gradients of one step, random numbers begun anew."""
    from megatron.core.tensor_parallel.random import model_parallel_cuda_manual_seed

    model.zero_grad(set_to_none=True)
    torch.manual_seed(3)
    model_parallel_cuda_manual_seed(3)
    size = (workload["micro_batch_size"], workload["seq_length"] + 1)
    tokens = torch.randint(0, workload["model"]["vocab_size"], size).to(place)
    positions = torch.arange(size[1] - 1, device=place).expand(size[0], size[1] - 1)
    text, labels = tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous()
    loss = model(text, positions, None, labels=labels).float().mean()
    loss.backward()
    found = {n: p.grad for n, p in model.named_parameters() if p.grad is not None}
    model.zero_grad(set_to_none=True)
    return {**found, "loss": loss.detach()}


def difference(one: dict[str, Any], other: dict[str, Any]) -> float:
    """Return the largest relative difference of any tensor, by norm."""
    if one.keys() != other.keys():
        return float("inf")
    norms = ((one[n].float(), other[n].float()) for n in one)
    return max(float((a - b).norm() / a.norm().clamp_min(1e-20)) for a, b in norms)


def study(torch: Any, workload: dict[str, Any], plans: list[str], place: Any) -> dict[str, Any]:
    """Compare every plan on one model."""
    from megatron.core.tensor_parallel.random import model_parallel_cuda_manual_seed

    torch.manual_seed(1)
    model_parallel_cuda_manual_seed(1)
    model = model_of(workload, config_of(torch, workload, NO_RECOMPUTE), place)[0]
    for _ in range(2):  # the first one compiles
        reference = gradients(torch, model, workload, place)
    again = [gradients(torch, model, workload, place) for _ in range(2)]
    found: dict[str, Any] = {"equal runs": max(difference(reference, one) for one in again)}
    del again
    for plan in plans:
        try:
            with apply(model, plan):
                found[plan] = difference(reference, gradients(torch, model, workload, place))
        except Exception as error:  # noqa: BLE001 - a refusal is an answer
            found[plan] = f"{type(error).__name__}: {error}"[:200]
    return found


def main() -> None:
    """Read the arguments and run."""
    os.environ.setdefault(trainer.CONNECTIONS, "1")
    import torch

    asked = [item.partition("=") for item in sys.argv[2:]]
    named = ((name, ("optimizer=null", "ddp=null")) for name, _, _ in asked)
    found: dict[str, Any] = {}
    for case, (_, _, plans) in zip(cases(torch, named), asked, strict=True):
        found[case.name] = study(torch, case.workload, plans.split(), case.place)
        answer(sys.argv[1], found, case.name)
    os._exit(0)


if __name__ == "__main__":
    main()
