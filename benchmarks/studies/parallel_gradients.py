"""Plans put on models that are split over processes, several of them on one GPU: gradients with and without.

usage: PYTHONPATH=packages/recompute/src torchrun --nproc-per-node=2 \
    benchmarks/studies/parallel_gradients.py OUT.json [CASE...]

The real parallel layers, dispatchers and pipeline schedules of Megatron Core run with Transformer Engine's
spec; what they send to each other goes through host memory and gloo, since NCCL takes one process a GPU. Two
equal runs of the unpatched model are compared first: kernels need not be deterministic. A figure is the
largest relative difference, by norm, of any parameter's gradient on any rank.
"""

from __future__ import annotations

import gc
import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from recompute.config.choice import NO_RECOMPUTE
from recompute.config.load import load
from recompute.config.normalize import normalize
from recompute.measure.workload import workload_of
from recompute.megatron import apply, trainer
from recompute.megatron.build import config_of, model_of

sys.path.insert(0, str(Path(__file__).resolve().parent))
import host_groups

HERE = Path(__file__).resolve().parent
SMALL = (
    *("model.hidden_size=1024", "model.num_attention_heads=8", "model.num_query_groups=4"),
    *("model.num_layers=4", "model.ffn_hidden_size=2048", "model.vocab_size=4096"),
    *("model.seq_length=1024", "train.micro_batch_size=1", "hardware.num_gpus=2"),
)
EXPERTS = (
    *("model.num_moe_experts=8", "model.moe_router_topk=2", "model.moe_ffn_hidden_size=512"),
    "model.moe_router_force_load_balancing=false",
)
DENSE_PLANS = ("[mlp]", "[core_attn]", "full/uniform/1", "per-layer/0-0=full/1-3=mlp_act")
EXPERT_PLANS = (
    "[moe_act]",
    "[moe]",
    "[core_attn]",
    "full/uniform/1",
    "per-layer/0-1=moe/2-3=moe_act",
)
CP = ("model.context_parallel_size=2", "train.global_batch_size=2")
CASES = {
    "ep2-alltoall": (
        "gqa-moe",
        (*EXPERTS, "model.expert_model_parallel_size=2", "train.global_batch_size=4"),
        EXPERT_PLANS,
    ),
    "cp2-p2p": ("dense-gqa", (*CP, "model.cp_comm_type=p2p"), DENSE_PLANS),
    "cp2-a2a": ("dense-gqa", (*CP, "model.cp_comm_type=a2a"), DENSE_PLANS),
    "pp2-vpp2": (
        "dense-gqa",
        (
            *("model.pipeline_model_parallel_size=2", "train.global_batch_size=4"),
            "model.virtual_pipeline_model_parallel_size=2",
        ),
        DENSE_PLANS,
    ),
    "tp2-sp": (
        "dense-gqa",
        (
            *("model.tensor_model_parallel_size=2", "model.sequence_parallel=true"),
            "train.global_batch_size=2",
        ),
        DENSE_PLANS,
    ),
}
"""Case -> study whose job it starts from, what is changed in it, plans."""
DROPOUT = {"none": "model.hidden_dropout=0.0", "0.1": "model.hidden_dropout=0.1"}


def gradients(
    torch: Any, chunks: list[Any], workload: dict[str, Any], place: Any
) -> dict[str, Any]:
    """Return this rank's gradients of one step of Megatron's schedule, random numbers begun anew."""
    from megatron.core.pipeline_parallel import get_forward_backward_func
    from megatron.core.tensor_parallel.random import model_parallel_cuda_manual_seed

    torch.manual_seed(3)
    model_parallel_cuda_manual_seed(3)
    for chunk in chunks:
        chunk.zero_grad(set_to_none=True)
    several = len(chunks) > 1
    get_forward_backward_func()(
        forward_step_func=trainer._forward_step(torch, workload, place, 0),  # noqa: SLF001 - the trainer's own
        data_iterator=[None] * len(chunks) if several else None,
        model=chunks if several else chunks[0],
        num_microbatches=workload["microbatches"],
        seq_length=workload["seq_length"],
        micro_batch_size=workload["micro_batch_size"],
        forward_only=False,
    )
    return {
        f"{number}.{name}": one.grad
        for number, chunk in enumerate(chunks)
        for name, one in chunk.named_parameters()
        if one.grad is not None
    }


def difference(torch: Any, one: dict[str, Any], other: dict[str, Any]) -> float:
    """Return the largest relative difference of any gradient on any rank, by norm."""
    same = one.keys() == other.keys()
    norms = [
        float((one[n].float() - other[n].float()).norm() / one[n].float().norm().clamp_min(1e-20))
        for n in (one if same else ())
    ]
    worst = torch.tensor(max(norms, default=0.0) if same and one else float("inf"))
    torch.distributed.all_reduce(worst, op=torch.distributed.ReduceOp.MAX)
    return float(worst)


def with_plan(torch: Any, chunks: list[Any], plan: str, reference: Any, run: Any) -> float | str:
    """Return how far gradients with a plan are from those without, or how it was refused."""
    try:
        applied = apply(chunks, plan)
    except Exception as error:  # noqa: BLE001 - a refusal is an answer, the same on every rank
        return f"{type(error).__name__}: {error}"[:200]
    with applied:
        return difference(torch, reference, run())


def case(torch: Any, name: str, dropout: str, place: Any) -> dict[str, Any]:
    """Compare every plan of one case."""
    from megatron.core import parallel_state
    from megatron.core.tensor_parallel.random import model_parallel_cuda_manual_seed

    study, changes, plans = CASES[name]
    extra = tuple(filter(None, os.environ.get("CASE_OVERRIDES", "").split()))
    job = normalize(load(str(HERE / f"{study}.yaml"), *SMALL, *changes, DROPOUT[dropout], *extra))
    workload = {**workload_of(job), "data_seed": 0}
    trainer.split_processes(workload)
    torch.manual_seed(1)
    model_parallel_cuda_manual_seed(1)
    config = config_of(torch, workload, NO_RECOMPUTE)
    chunks = model_of(workload, config, place)

    def run() -> dict[str, Any]:
        return gradients(torch, chunks, workload, place)

    run()  # the first one compiles
    reference = run()
    found: dict[str, Any] = {"equal runs": max(difference(torch, reference, run()) for _ in "12")}
    for plan in plans:
        found[plan] = with_plan(torch, chunks, plan, reference, run)
    found["taken off"] = difference(torch, reference, run())
    parallel_state.destroy_model_parallel()
    return found


def main(device: str | None = None, names: Sequence[str] = ()) -> None:
    """Run the cases; rank 0 writes what was found."""
    os.environ.setdefault(trainer.CONNECTIONS, "1")
    import torch

    place = torch.device(device or "cuda:0")  # every rank on the same one
    if device is None:
        torch.cuda.set_device(place)
    torch.distributed.init_process_group("gloo")
    found: dict[str, Any] = {}
    with host_groups.staged(torch):
        for name in names or sys.argv[2:] or CASES:
            for dropout in DROPOUT:
                found[f"{name}, dropout {dropout}"] = case(torch, name, dropout, place)
                if torch.distributed.get_rank() == 0:
                    print(json.dumps(found), flush=True)
                    text = json.dumps(found, indent=1) + "\n"
                    Path(sys.argv[1]).write_text(text, encoding="utf-8")
                gc.collect()
    torch.distributed.barrier()
    os._exit(0)


if __name__ == "__main__":
    main()
