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
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final

os.environ.update(
    MASTER_ADDR="127.0.0.1",
    MASTER_PORT="29512",
    RANK="0",
    WORLD_SIZE="1",
    LOCAL_RANK="0",
    CUDA_DEVICE_MAX_CONNECTIONS="1",
)

BASE: dict[str, Any] = {
    "add_bias_linear": False,
    "normalization": "RMSNorm",
    "gated_linear_unit": True,
    "activation_func": "silu",
    "hidden_dropout": 0.0,
    "attention_dropout": 0.0,
    "bias_dropout_fusion": True,
}

MODELS: dict[str, dict[str, Any]] = {
    "dense_gqa": {
        "num_layers": 8,
        "hidden_size": 4096,
        "num_attention_heads": 32,
        "num_query_groups": 8,
        "ffn_hidden_size": 14336,
    },
    "gpt3": {
        "num_layers": 8,
        "hidden_size": 3072,
        "num_attention_heads": 24,
        "ffn_hidden_size": 12288,
        "normalization": "LayerNorm",
        "add_bias_linear": True,
        "gated_linear_unit": False,
        "activation_func": "gelu",
        "hidden_dropout": 0.1,
        "attention_dropout": 0.1,
    },
    "qwen3": {
        "num_layers": 10,
        "hidden_size": 2560,
        "num_attention_heads": 32,
        "num_query_groups": 8,
        "kv_channels": 128,
        "ffn_hidden_size": 9728,
        "qk_layernorm": True,
        "bias_activation_fusion": True,
        "apply_rope_fusion": True,
        "cross_entropy_loss_fusion": True,
        "cross_entropy_fusion_impl": "te",
    },
    "qwen3_moe": {
        "num_layers": 6,
        "hidden_size": 2048,
        "num_attention_heads": 32,
        "num_query_groups": 4,
        "kv_channels": 128,
        "ffn_hidden_size": 6144,
        "qk_layernorm": True,
        "num_moe_experts": 32,
        "moe_router_topk": 8,
        "moe_ffn_hidden_size": 768,
        "moe_grouped_gemm": True,
        "moe_token_dispatcher_type": "alltoall",
        "moe_permute_fusion": True,
        "moe_router_force_load_balancing": True,
        "moe_aux_loss_coeff": 0.001,
        "bias_activation_fusion": True,
        "apply_rope_fusion": True,
    },
    "mla_moe": {
        "num_layers": 6,
        "hidden_size": 3072,
        "num_attention_heads": 24,
        "ffn_hidden_size": 8192,
        "multi_latent_attention": True,
        "q_lora_rank": 1024,
        "kv_lora_rank": 512,
        "qk_head_dim": 128,
        "qk_pos_emb_head_dim": 64,
        "v_head_dim": 128,
        "qk_layernorm": True,
        "num_moe_experts": 16,
        "moe_router_topk": 4,
        "moe_ffn_hidden_size": 1536,
        "moe_shared_expert_intermediate_size": 1536,
        "moe_grouped_gemm": True,
        "moe_layer_freq": [0, 1, 1, 1, 1, 1],
        "moe_token_dispatcher_type": "alltoall",
        "moe_permute_fusion": True,
        "moe_router_force_load_balancing": True,
        "moe_router_score_function": "sigmoid",
        "moe_router_dtype": "fp32",
        "bias_activation_fusion": True,
        "rope_type": "rope",
    },
    "dense_local": {
        "num_layers": 6,
        "hidden_size": 2048,
        "num_attention_heads": 16,
        "num_query_groups": 4,
        "ffn_hidden_size": 5632,
    },
}

INPUTS: dict[str, dict[str, int]] = {
    "dense_gqa": {"seq_length": 4096, "micro_batch_size": 2, "vocab_size": 32768},
    "gpt3": {"seq_length": 2048, "micro_batch_size": 4, "vocab_size": 51200},
    "qwen3": {"seq_length": 4096, "micro_batch_size": 2, "vocab_size": 151936},
    "qwen3_moe": {"seq_length": 4096, "micro_batch_size": 2, "vocab_size": 32768},
    "mla_moe": {"seq_length": 4096, "micro_batch_size": 2, "vocab_size": 32768},
    "dense_local": {"seq_length": 1024, "micro_batch_size": 4, "vocab_size": 32768},
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One configuration to measure."""

    model: str
    recompute: dict[str, Any]
    extra: dict[str, Any] = field(default_factory=dict)
    wrapper: str = "plain"
    """``plain``: torch AdamW, no DDP. ``megatron``: Megatron's DDP and distributed optimizer."""
    ddp: dict[str, Any] = field(default_factory=dict)
    optimizer: dict[str, Any] = field(default_factory=dict)
    repeat: int = 0
    microbatches: int = 1
    snapshot: str = ""
    mlp_layers: int | None = None
    """With the ``mlp`` label: only the first so many layers replay it, as a per-layer plan would."""
    steps: int = 5


_NARROW: Final = {"main_grads_dtype": "bf16", "exp_avg_dtype": "bf16", "exp_avg_sq_dtype": "bf16"}
MASTERS: Final[tuple[dict[str, Any], ...]] = tuple(
    {"use_precision_aware_optimizer": True, **options}
    for options in (
        {"fp8_recipe": "tensorwise"},
        _NARROW,
        {**_NARROW, "fp8_recipe": "tensorwise"},
    )
)
"""Who keeps the master weights: Megatron Core where the optimizer's config names such an FP8 recipe."""


def labels(*names: str) -> dict[str, Any]:
    """Return a selective choice."""
    return {"recompute_granularity": "selective", "recompute_modules": list(names)}


def full(method: str, count: int) -> dict[str, Any]:
    """Return a full choice."""
    return {
        "recompute_granularity": "full",
        "recompute_method": method,
        "recompute_num_layers": count,
    }


def cases() -> list[Case]:
    """List the study, most useful rows first."""
    dense = [labels(), labels("core_attn"), labels("mlp"), full("uniform", 1), full("block", 3)]
    moe = [
        labels(),
        labels("core_attn"),
        labels("layernorm"),
        labels("moe_act"),
        labels("moe"),
        labels("moe_act", "layernorm"),
        full("uniform", 1),
        full("uniform", 2),
        full("block", 2),
    ]
    mla = [
        *moe[:5],
        labels("mla_up_proj"),
        labels("mlp"),
        labels("shared_experts"),
        labels("mla_up_proj", "moe_act"),
        labels("core_attn", "mla_up_proj"),
        full("uniform", 1),
    ]
    megatron = {"use_distributed_optimizer": True, "grad_reduce_in_fp32": True}
    half = {"use_distributed_optimizer": True, "grad_reduce_in_fp32": False}
    study = [Case(model="dense_gqa", recompute=c, wrapper="megatron", ddp=megatron) for c in dense]
    study += [
        Case(model="dense_gqa", recompute=labels("mlp"), wrapper="megatron", ddp=half),
        Case(
            model="dense_gqa",
            recompute=labels(),
            wrapper="megatron",
            ddp=half,
            optimizer={"use_precision_aware_optimizer": True},
        ),
        *(
            Case(model="dense_gqa", recompute=c, wrapper="megatron", ddp=half, optimizer=kept)
            for kept in MASTERS
            for c in (labels(), full("uniform", 1))
        ),
        Case(
            model="dense_gqa",
            recompute=labels("mlp"),
            wrapper="megatron",
            ddp=megatron,
            microbatches=2,
        ),
        Case(model="dense_gqa", recompute=labels("mlp"), microbatches=2),
        Case(model="dense_gqa", recompute=labels(), extra={"bias_activation_fusion": True}),
    ]
    study += [Case(model="gpt3", recompute=c) for c in dense]
    study += [Case(model="gpt3", recompute=labels(), extra={"bias_activation_fusion": True})]
    study += [Case(model="qwen3", recompute=c) for c in (*dense, full("uniform", 5), labels())]
    study += [Case(model="qwen3_moe", recompute=c) for c in moe]
    study += [Case(model="mla_moe", recompute=c) for c in mla]
    local = [*dense, labels("layernorm"), labels("layernorm", "mlp")]
    study += [Case(model="dense_local", recompute=c) for c in local]
    for recipe in ("tensorwise", "delayed", "blockwise"):
        fp8 = {"fp8": "hybrid", "fp8_recipe": recipe}
        for choice in (labels(), labels("core_attn"), labels("mlp"), full("uniform", 1)):
            study.append(Case(model="dense_gqa", recompute=choice, extra=fp8))
    for recipe in ("tensorwise", "blockwise"):
        fp8 = {"fp8": "hybrid", "fp8_recipe": recipe, "moe_router_padding_for_fp8": True}
        for choice in (labels(), labels("moe_act"), labels("layernorm"), labels("moe")):
            study.append(Case(model="qwen3_moe", recompute=choice, extra=fp8))
    study += [
        Case(model="qwen3_moe", recompute=c, extra={"moe_permute_fusion": False}) for c in moe[:5]
    ]
    return study


def snapshot_cases(folder: Path) -> list[Case]:
    """List small models whose control is recorded, and their labels' runs to compare with."""
    study: list[Case] = []
    wanted = {
        "dense_gqa": [labels("mlp"), labels("core_attn"), full("uniform", 1)],
        "dense_local": [labels("core_attn"), labels("layernorm"), labels("mlp")],
        "qwen3_moe": [labels("moe_act"), labels("layernorm"), labels("moe"), labels("core_attn")],
        "mla_moe": [
            labels("mla_up_proj"),
            labels("shared_experts"),
            labels("moe_act"),
            labels("mlp"),
            labels("layernorm"),
            labels("moe"),
        ],
    }
    for model, choices in wanted.items():
        layers: dict[str, Any] = {"num_layers": 4}
        if model == "mla_moe":
            layers["moe_layer_freq"] = [0, 1, 1, 1]
        path = str(folder / f"{model}.pickle")
        study.append(Case(model=model, recompute=labels(), extra=layers, snapshot=path))
        study += [
            Case(model=model, recompute=choice, extra=layers, snapshot="none")
            for choice in (labels(), *choices)
        ]
    return study


def planning_cases() -> list[Case]:
    """List every stock choice of one dense model, per-layer plans beside them, the control twice."""
    layers = MODELS["qwen3"]["num_layers"]
    choices = [labels(), labels("core_attn"), labels("mlp"), labels("core_attn", "mlp"), labels()]
    choices += [full("uniform", count) for count in (1, 2, 5, 10)]
    choices += [full("block", count) for count in range(1, layers)]
    study = [Case(model="qwen3", recompute=choice, steps=12) for choice in choices]
    study += [
        Case(model="qwen3", recompute=labels("mlp"), mlp_layers=count, steps=12)
        for count in range(1, layers)
    ]
    return [*study, Case(model="qwen3", recompute=labels(), repeat=1, steps=12)]


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
