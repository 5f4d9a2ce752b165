"""Probe and apply on a real dense GQA model on one GPU: equal gradients, and a ledger to compare.

usage: PYTHONPATH=packages/recompute/src python benchmarks/measure_h200.py OUT [SECONDS]

Needs torch with CUDA, megatron-core and transformer-engine and nothing else. For each plan: the gradients
of one step with the plan on the model against those without it (the largest relative difference is
printed; equal runs without a plan are compared first, which says what the kernels themselves differ by),
then steps under the probe. ``recompute compare OUT/ledger`` afterwards, anywhere.
"""

from __future__ import annotations

import gc
import json
import os
import sys
import time
from pathlib import Path
from typing import Any, Final

sys.path.insert(0, str(Path(__file__).parent))

PLANS: Final = (
    "[]",
    "[core_attn]",
    "[mlp]",
    "per-layer/0-3=mlp",
    "per-layer/0-7=mlp_act",
    "per-layer/0-3=full",
    "per-layer/0-1=full/2-5=mlp",
    "full/uniform/1",
)
CASES: Final = [(plan, 0) for plan in PLANS] + [("[]", 1), ("[mlp]", 1), ("[]", 2)]
STEPS: Final = 10

JOB: Final = """\
# Eight layers of Llama 3 8B's shape on one H200, plain torch Adam, no DDP wrapper, everything in bf16.
model:
  num_layers: 8
  hidden_size: 4096
  num_attention_heads: 32
  num_query_groups: 8
  ffn_hidden_size: 14336
  vocab_size: 32768
  should_pad_vocab: false
  seq_length: 4096
  normalization: RMSNorm
  gated_linear_unit: true
  activation_func: silu
  add_bias_linear: false
  bias_activation_fusion: false
  bias_dropout_fusion: true
  hidden_dropout: 0.0
  attention_dropout: 0.0
  position_embedding_type: rope
  share_embeddings_and_output_weights: false
  transformer_impl: transformer_engine
  bf16: true
  params_dtype: bf16
train:
  micro_batch_size: 2
  global_batch_size: 2
optimizer: null
ddp: null
hardware:
  gpu: h200
  num_gpus: 1
framework:
  megatron_core: 0.19.2
"""


def inputs(torch: Any) -> tuple[Any, Any, Any]:
    """Return tokens, positions and labels, always the same."""
    torch.manual_seed(7)
    tokens = torch.randint(0, 32768, (2, 4097), device="cuda")
    positions = torch.arange(4096, device="cuda").expand(2, 4096)
    return tokens[:, :-1].contiguous(), positions, tokens[:, 1:].contiguous()


def loss_of(model: Any, batch: tuple[Any, Any, Any]) -> Any:
    """Run a forward."""
    text, positions, labels = batch
    return model(text, positions, None, labels=labels).float().mean()


def gradients(torch: Any, model: Any, batch: tuple[Any, Any, Any]) -> dict[str, Any]:
    """Return the gradients of one step."""
    model.zero_grad(set_to_none=True)
    torch.manual_seed(3)
    loss = loss_of(model, batch)
    loss.backward()
    found = {n: p.grad for n, p in model.named_parameters() if p.grad is not None}
    model.zero_grad(set_to_none=True)
    return {**found, "loss": loss.detach()}


def difference(one: dict[str, Any], other: dict[str, Any]) -> float:
    """Return the largest relative difference of any tensor, by norm."""
    assert one.keys() == other.keys()
    return max(
        float((one[name].float() - other[name].float()).norm() / one[name].float().norm())
        for name in one
    )


def train(torch: Any, model: Any, ledger: str, plan: str, repeat: int) -> None:
    """Run steps under the probe, the plan on the model."""
    from recompute.megatron import MemoryProbe, apply

    names = {"run": f"{plan}-{repeat}", "control_id": "[]-0", "candidate": plan}
    batch = inputs(torch)
    with MemoryProbe(ledger, repeat=repeat, warmup_steps=3, **names) as probe, apply(model, plan):
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5, fused=True)
        probe.watch(model, optimizer)
        for _ in range(STEPS):
            with probe.step():
                loss_of(model, batch).backward()
                optimizer.step()
                optimizer.zero_grad(set_to_none=True)


def main() -> None:
    """Read the arguments and run."""
    import torch
    from megatron.core import parallel_state

    import gpu_study
    from recompute.measure.ledger import write_manifest
    from recompute.megatron import apply
    from recompute.megatron.environment import environment

    out, limit = Path(sys.argv[1]), float(sys.argv[2]) if len(sys.argv) > 2 else 540.0
    out.mkdir(parents=True, exist_ok=True)
    began = time.monotonic()
    torch.distributed.init_process_group("nccl", rank=0, world_size=1)
    parallel_state.initialize_model_parallel(1, 1)
    ledger = str(out / "ledger")
    write_manifest(ledger, environment=environment(torch), job_yaml=JOB)
    model, _ = gpu_study.build(gpu_study.Case(model="dense_gqa", recompute=gpu_study.labels()))
    model.train()
    batch = inputs(torch)
    reference = gradients(torch, model, batch)
    found = {"equal runs": difference(reference, gradients(torch, model, batch))}
    for plan in PLANS:
        with apply(model, plan):
            found[plan] = difference(reference, gradients(torch, model, batch))
    print(json.dumps({"largest relative difference of gradients": found}, indent=1), flush=True)
    (out / "gradients.json").write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    del reference
    for plan, repeat in CASES:
        if time.monotonic() - began > limit:
            print("out of time before", plan, repeat, flush=True)
            break
        train(torch, model, ledger, plan, repeat)
        gc.collect()
        torch.cuda.empty_cache()
        print(f"{time.monotonic() - began:6.1f}s {plan} {repeat}", flush=True)
    os._exit(0)


if __name__ == "__main__":
    main()
