"""Measure real Megatron Core layers on one GPU: bytes and step times of many recompute choices.

usage: gpu_study.py OUT.jsonl [SECONDS] [PATTERN]
       gpu_study.py OUT.jsonl [SECONDS] planning     (every choice of one dense model)
       gpu_study.py OUT.jsonl [SECONDS] snapshots    (records allocator histories beside OUT.jsonl)

Needs torch with CUDA, megatron-core and transformer-engine. One process, one row of JSON per case:
the case, its environment, bytes over the allocation at the step's start, step times, and how much of
the step the GPU was busy. A case that fails is a row with its error. The committed rows are replayed
as regression data by benchmarks/accuracy.py.
"""

from __future__ import annotations

import functools
import gc
import itertools
import json
import os
import sys
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

from gpu_study_cases import (
    BASE,
    INPUTS,
    MODELS,
    Case,
    cases,
    planning_cases,
    snapshot_cases,
)

os.environ.update(
    MASTER_ADDR="127.0.0.1",
    MASTER_PORT="29512",
    RANK="0",
    WORLD_SIZE="1",
    LOCAL_RANK="0",
    CUDA_DEVICE_MAX_CONNECTIONS="1",
)


def config_of(case: Case) -> tuple[Any, dict[str, Any]]:
    """Build the real configuration object of a case and the plain fields it was made from."""
    import torch
    from megatron.core.transformer.transformer_config import MLATransformerConfig, TransformerConfig
    from torch.nn import functional

    fields = {**BASE, **MODELS[case.model], **case.recompute, **case.extra}
    spelled = dict(fields)
    functions = {"silu": functional.silu, "gelu": functional.gelu}
    fields["activation_func"] = functions[fields["activation_func"]]
    fields.update(bf16=True, params_dtype=torch.bfloat16, pipeline_dtype=torch.bfloat16)
    mla = fields.get("multi_latent_attention", False)
    return (MLATransformerConfig if mla else TransformerConfig)(**fields), spelled


def build(case: Case) -> tuple[Any, dict[str, Any]]:
    """Build a GPTModel on the GPU."""
    import torch
    from megatron.core.models.gpt import gpt_layer_specs as specs
    from megatron.core.models.gpt.gpt_model import GPTModel
    from megatron.core.tensor_parallel.random import model_parallel_cuda_manual_seed

    config, fields = config_of(case)
    local = case.model.endswith("_local")
    if config.num_moe_experts:
        spec = specs.get_gpt_decoder_block_spec(config, use_transformer_engine=not local)
    elif local:
        spec = specs.get_gpt_layer_local_spec(normalization=config.normalization)
    else:
        spec = specs.get_gpt_layer_with_transformer_engine_spec(
            qk_layernorm=config.qk_layernorm, multi_latent_attention=config.multi_latent_attention
        )
    torch.manual_seed(1)
    model_parallel_cuda_manual_seed(1)
    inputs = INPUTS[case.model]
    learned = case.model == "gpt3"
    model = GPTModel(
        config,
        spec,
        vocab_size=inputs["vocab_size"],
        max_sequence_length=inputs["seq_length"],
        position_embedding_type="learned_absolute" if learned else "rope",
        share_embeddings_and_output_weights=case.model in ("gpt3", "qwen3"),
        parallel_output=True,
    )
    return model.cuda().bfloat16(), fields


def stepper(case: Case, model: Any) -> tuple[Any, Any, Any]:
    """Return forward, backward-and-zero hooks and the optimizer step of a case."""
    import torch

    if case.wrapper == "plain":
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5, fused=True)

        def finish() -> None:
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)

        return model, lambda: None, finish
    from megatron.core.distributed import (
        DistributedDataParallel,
        DistributedDataParallelConfig,
        finalize_model_grads,
    )
    from megatron.core.optimizer import OptimizerConfig, get_megatron_optimizer

    wrapped = DistributedDataParallel(
        model.config, DistributedDataParallelConfig(**case.ddp), model
    )
    options = {k: torch.bfloat16 if v == "bf16" else v for k, v in case.optimizer.items()}
    settings = OptimizerConfig(
        optimizer="adam", lr=1e-5, bf16=True, params_dtype=torch.bfloat16,
        use_distributed_optimizer=True, **options,
    )  # fmt: skip
    distributed = get_megatron_optimizer(settings, [wrapped])

    def start() -> None:
        wrapped.zero_grad_buffer()
        distributed.zero_grad()

    def end() -> None:
        finalize_model_grads([wrapped])
        distributed.step()

    return wrapped, start, end


def measure(case: Case) -> dict[str, Any]:
    """Run one case and return its figures."""
    import torch

    model, fields = build(case)
    model.train()
    if case.mlp_layers is not None:
        for index, layer in enumerate(model.decoder.layers):
            layer.recompute_mlp = index < case.mlp_layers
    parameters = sum(p.numel() for p in model.parameters())
    wrapped, start, finish = stepper(case, model)
    inputs = INPUTS[case.model]
    seq, batch, vocab = inputs["seq_length"], inputs["micro_batch_size"], inputs["vocab_size"]
    tokens = torch.randint(0, vocab, (batch, seq + 1), device="cuda")
    positions = torch.arange(seq, device="cuda").expand(batch, seq)
    local = case.model.endswith("_local")
    mask = (
        torch.triu(torch.ones(1, 1, seq, seq, dtype=torch.bool, device="cuda"), 1)
        if local
        else None
    )

    def forward() -> Any:
        text, target = tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous()
        return wrapped(text, positions, mask, labels=target).float().mean()

    def step() -> None:
        start()
        for _ in range(case.microbatches):
            forward().backward()
        finish()

    for _ in range(3):
        step()
    if case.snapshot:
        return snapshot(case, step)
    result = peaks(forward, start, finish, case.microbatches)
    result |= times(step, case.steps)
    result["parameters"] = parameters
    result["fields"] = {k: v for k, v in fields.items() if not callable(v)}
    return result


def peaks(forward: Any, start: Any, finish: Any, microbatches: int) -> dict[str, Any]:
    """Measure one step phase by phase, bytes over the allocation at its start."""
    import torch

    cuda = torch.cuda
    start()
    cuda.synchronize()
    static = cuda.memory_allocated()
    result: dict[str, Any] = {"static": static}
    for index in range(microbatches):
        cuda.reset_peak_memory_stats()
        loss = forward()
        cuda.synchronize()
        after, forward_peak = cuda.memory_allocated(), cuda.max_memory_allocated()
        cuda.reset_peak_memory_stats()
        loss.backward()
        cuda.synchronize()
        last = {
            "after_forward": after - static,
            "forward_peak": forward_peak - static,
            "backward_peak": cuda.max_memory_allocated() - static,
            "after_backward": cuda.memory_allocated() - static,
        }
        result |= last if index == microbatches - 1 else {f"first_{k}": v for k, v in last.items()}
        result["loss"] = round(loss.item(), 5)
        del loss
    cuda.reset_peak_memory_stats()
    finish()
    cuda.synchronize()
    result["optimizer_peak"] = cuda.max_memory_allocated() - static
    result["end"] = cuda.memory_allocated() - static
    return result


def times(step: Any, steps: int) -> dict[str, Any]:
    """Time several steps, then profile one for the GPU's busy share."""
    import torch

    events = [torch.cuda.Event(enable_timing=True) for _ in range(steps + 1)]
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    for index in range(steps):
        events[index].record()
        step()
    events[steps].record()
    torch.cuda.synchronize()
    spans = sorted(a.elapsed_time(b) for a, b in itertools.pairwise(events))
    reserved = torch.cuda.max_memory_reserved()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profiler:
        step()
        torch.cuda.synchronize()
    busy = sum(e.self_device_time_total for e in profiler.key_averages()) / 1000
    return {
        "step_ms": [round(span, 2) for span in spans],
        "kernel_ms": round(busy, 2),
        "reserved": reserved,
        "step_peak": torch.cuda.max_memory_allocated(),
    }


def snapshot(case: Case, step: Any) -> dict[str, Any]:
    """Record two steps' allocator history into the file the case names."""
    import torch

    torch.cuda.synchronize()
    static = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    if case.snapshot == "none":
        step()
        step()
        torch.cuda.synchronize()
        return {"static": static, "peak": torch.cuda.max_memory_allocated()}
    torch.cuda.memory._record_memory_history(max_entries=200000, stacks="python")  # noqa: SLF001
    step()
    step()
    torch.cuda.synchronize()
    torch.cuda.memory._dump_snapshot(case.snapshot)  # noqa: SLF001
    torch.cuda.memory._record_memory_history(enabled=None)  # noqa: SLF001
    peak = torch.cuda.max_memory_allocated()
    return {"static": static, "peak": peak, "snapshot": Path(case.snapshot).name}


@functools.cache
def environment() -> dict[str, str]:
    """Name what the rows were measured with."""
    import megatron.core
    import torch
    import transformer_engine

    return {
        "gpu": torch.cuda.get_device_name(0),
        "torch": torch.__version__,
        "cuda": str(torch.version.cuda),
        "megatron_core": megatron.core.__version__,
        "transformer_engine": transformer_engine.__version__,
    }


def run_all(study: list[Case], out: Path, seconds: float, pattern: str) -> None:
    """Measure every case that there is time for; append one line each."""
    import torch
    from megatron.core import parallel_state
    from torch import distributed

    distributed.init_process_group("nccl", rank=0, world_size=1, device_id=torch.device("cuda:0"))
    parallel_state.initialize_model_parallel(1, 1)
    started = time.monotonic()
    with out.open("a", encoding="utf-8") as sink:
        for case in study:
            if pattern and pattern not in case.model:
                continue
            if time.monotonic() - started > seconds:
                print("out of time before", case, flush=True)
                break
            row: dict[str, Any] = {"case": asdict(case), "inputs": INPUTS[case.model]}
            row["environment"] = environment()
            try:
                row["result"] = measure(case)
            except Exception as error:  # noqa: BLE001 - a failure is a row of the study
                row["error"] = f"{type(error).__name__}: {error}"[:400]
            sink.write(json.dumps(row) + "\n")
            sink.flush()
            shown = row.get("result", {}).get("step_ms") or row.get("error", "")
            print(
                f"{time.monotonic() - started:6.1f}s",
                case.model,
                case.recompute,
                case.extra,
                shown,
                flush=True,
            )
            gc.collect()
            torch.cuda.empty_cache()


def main() -> None:
    """Read the arguments and run."""
    out = Path(sys.argv[1])
    seconds = float(sys.argv[2]) if len(sys.argv) > 2 else 3600.0
    pattern = sys.argv[3] if len(sys.argv) > 3 else ""
    if pattern == "snapshots":
        run_all(snapshot_cases(out.parent), out, seconds, "")
    elif pattern == "planning":
        run_all(planning_cases(), out, seconds, "")
    else:
        run_all(cases(), out, seconds, pattern)
    os._exit(0)


if __name__ == "__main__":
    main()
