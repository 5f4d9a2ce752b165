"""Public reports on recompute settings, in our own words, and the verdict each deserves.

A row is one configuration that somebody ran, or that follows from the source named; ``None`` for the rule
means that nothing may be said beyond notes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest

from recompute.config.revision import Revision
from recompute.rules.check import check
from recompute.rules.examples import job_of
from recompute.rules.types import Entry, Example

LM = "https://github.com/NVIDIA/Megatron-LM"
MB = "https://github.com/NVIDIA-NeMo/Megatron-Bridge"
CORE = f"{LM}/tree/main/megatron/core/transformer/transformer_config.py"
MOE = {"num_moe_experts": 8, "moe_grouped_gemm": True, "moe_token_dispatcher_type": "alltoall"}
FULL = {
    "recompute_granularity": "full",
    "recompute_method": "uniform",
    "recompute_num_layers": 1,
}
EP = {**MOE, "overlap_moe_expert_parallel_comm": True, "expert_model_parallel_size": 2}
OFFLOAD = {
    "fine_grained_activation_offloading": True,
    "environment": {"NVTE_CPU_OFFLOAD_V1": "1"},
}
SEVEN_OF_24 = {**FULL, "recompute_num_layers": 7, "num_layers": 24}


def sel(*labels: str, **fields: Any) -> dict[str, Any]:
    return {"recompute_granularity": "selective", "recompute_modules": labels, **fields}


@dataclass(frozen=True)
class Report:
    name: str
    url: str
    revision: str
    fields: dict[str, Any]
    rule: str | None
    severity: str = "error"
    field: str = ""
    entry: Entry = "bridge"


REPORTS = [
    Report(
        "uniform group past the end",
        f"{LM}/issues/2294",
        "0.16",
        SEVEN_OF_24,
        "uniform-nondividing",
        field="model.recompute_num_layers",
    ),
    Report(
        "the same after the clamp",
        f"{LM}/issues/2294",
        "0.17",
        SEVEN_OF_24,
        "uniform-nondividing-ok",
        "warning",
        field="model.recompute_num_layers",
    ),
    Report(
        "a block class with its own loop",
        "https://github.com/NVIDIA-NeMo/Speech/pull/12517",
        "0.19",
        {
            **FULL,
            "recompute_num_layers": 4,
            "num_layers": 25,
            "unmodelled": {"model._target_": "nemo.collections.llm.HyenaModel"},
        },
        "uniform-own-loop",
        field="model.recompute_num_layers",
    ),
    Report(
        "full through a wrapper that has no method",
        "https://github.com/alibaba/ChatLearn/pull/362",
        "0.19",
        {"recompute_granularity": "full"},
        "full-needs-method",
        field="model.recompute_method",
    ),
    Report(
        "full without a count",
        "https://github.com/alibaba/ChatLearn/pull/362",
        "0.16",
        {"recompute_granularity": "full", "recompute_method": "uniform"},
        "full-needs-num-layers",
        field="model.recompute_num_layers",
    ),
    Report(
        "uniform with 0 never ends",
        CORE,
        "0.19",
        {**FULL, "recompute_num_layers": 0},
        "uniform-zero",
        field="model.recompute_num_layers",
    ),
    Report(
        "block with 99 of 8 layers",
        CORE,
        "0.16",
        {**FULL, "recompute_method": "block", "recompute_num_layers": 99},
        "block-larger-than-stage",
        "warning",
        field="model.recompute_num_layers",
    ),
    Report(
        "block with -1",
        CORE,
        "0.19",
        {**FULL, "recompute_method": "block", "recompute_num_layers": -1},
        "block-zero",
        "warning",
        field="model.recompute_num_layers",
    ),
    Report(
        "a method with selective, Megatron-LM's scripts",
        f"{LM}/tree/main/megatron/training/arguments.py",
        "main",
        sel("mlp", recompute_method="uniform"),
        "selective-forbids-method-cli",
        field="model.recompute_method",
        entry="megatron-lm",
    ),
    Report(
        "the same through Bridge, NeMo or verl",
        CORE,
        "main",
        sel("mlp", recompute_method="uniform"),
        "selective-method-ignored",
        "warning",
        field="model.recompute_method",
    ),
    Report(
        "the word none for off",
        "https://github.com/verl-project/verl/pull/5466",
        "0.19",
        {"recompute_granularity": "none"},
        "granularity-value",
        field="model.recompute_granularity",
    ),
    Report(
        "the deprecated MoE switch, whose warning names a label that does not exist",
        CORE,
        "0.19",
        {**MOE, "moe_layer_recompute": True},
        "moe-layer-recompute-deprecated",
        field="model.moe_layer_recompute",
    ),
    Report(
        "the label that the warning names",
        CORE,
        "0.16",
        {**MOE, **sel("moe_layer")},
        "unknown-label",
        field="model.recompute_modules",
    ),
    Report(
        "moe_act with sequential experts",
        CORE,
        "0.16",
        sel("moe_act", num_moe_experts=4),
        "moe-act-needs-grouped-gemm",
        field="model.moe_grouped_gemm",
    ),
    Report(
        "shared_experts with their overlap",
        CORE,
        "0.19",
        {
            **MOE,
            **sel("shared_experts"),
            "moe_shared_expert_overlap": True,
            "moe_shared_expert_intermediate_size": 512,
        },
        "shared-experts-vs-overlap",
        field="model.moe_shared_expert_overlap",
    ),
    Report(
        "the same, size not given",
        CORE,
        "0.19",
        {**sel("shared_experts"), "moe_shared_expert_overlap": True},
        "shared-experts-overlap-absent",
        field="model.moe_shared_expert_overlap",
    ),
    Report(
        "a fork's layer ids meet the MTP layer",
        "https://github.com/AMD-AGI/Primus/pull/965",
        "0.16",
        {
            "recompute_granularity": "full",
            "mtp_num_layers": 1,
            "unmodelled": {"model.recompute_layer_ids": "0,3,4,51"},
        },
        "mtp-method",
        field="model.mtp_num_layers",
    ),
    Report(
        "distributed saves with selective, Megatron-LM's scripts",
        f"{LM}/tree/main/megatron/training/arguments.py",
        "0.16",
        sel("mlp", distribute_saved_activations=True, tensor_model_parallel_size=2),
        "distribute-needs-full",
        field="model.distribute_saved_activations",
        entry="megatron-lm",
    ),
    Report(
        "the same through the API",
        CORE,
        "0.16",
        sel("mlp", distribute_saved_activations=True, tensor_model_parallel_size=2),
        "distribute-no-op",
        "warning",
        field="model.distribute_saved_activations",
    ),
    Report(
        "distributed saves, no recompute at all",
        CORE,
        "0.19",
        {
            "distribute_saved_activations": True,
            "tensor_model_parallel_size": 2,
            "sequence_parallel": True,
        },
        "distribute-no-op",
        "warning",
        field="model.distribute_saved_activations",
    ),
    Report(
        "selective saves next to nothing on fused attention",
        f"{LM}/issues/1225",
        "0.9",
        {"recompute_granularity": "selective"},
        "selective-fused-before-labels",
        "warning",
        entry="megatron-lm",
    ),
    Report(
        "core_attn keeps mixed QKV alive",
        f"{LM}/issues/1886",
        "0.14",
        sel("core_attn"),
        "core-attn-warning",
        "warning",
        field="model.recompute_modules",
    ),
    Report(
        "core_attn raises the peak on an MoE model",
        f"{MB}/pull/3880",
        "pin",
        {**MOE, **sel("core_attn")},
        "core-attn-warning",
        "warning",
        field="model.recompute_modules",
    ),
    Report(
        "labels without a granularity",
        CORE,
        "0.16",
        {**MOE, "recompute_modules": ("mlp", "moe_act")},
        "modules-without-granularity",
        field="model.recompute_granularity",
    ),
    Report(
        "full with a list of nonsense",
        CORE,
        "0.19",
        {**FULL, "recompute_modules": ("nonsense",)},
        "full-ignores-modules",
        "warning",
        field="model.recompute_modules",
    ),
    Report(
        "mlp on an all-MoE stack",
        f"{MB}/blob/main/skills/nemo-mbridge-perf-activation-recompute/SKILL.md",
        "0.19",
        sel("mlp", num_moe_experts=128, moe_layer_freq=1),
        "mlp-on-moe",
        "warning",
        field="model.recompute_modules",
    ),
    Report(
        "moe on a dense model",
        CORE,
        "0.16",
        sel("moe"),
        "moe-on-dense",
        "warning",
        field="model.recompute_modules",
    ),
    Report(
        "a policy that names an operator packet",
        "https://github.com/pytorch/pytorch/issues/176065",
        "0.19",
        {"unmodelled": {"model.policy": "set contains aten.mm instead of aten.mm.default"}},
        "sac-op-packet",
        "warning",
    ),
    Report(
        "the short flag beside full",
        f"{LM}/issues/1487",
        "0.19",
        {**FULL, "unmodelled": {"model.recompute_activations": True}},
        "recompute-activations-overrides",
        field="model.recompute_granularity",
        entry="megatron-lm",
    ),
    Report(
        "names from before the rename",
        f"{LM}/pull/237",
        "0.19",
        {"unmodelled": {"model.activations_checkpoint_method": "uniform"}},
        "renamed-fields",
        field="model.recompute_method",
    ),
    Report(
        "LoRA, full, one stage, before the hook",
        f"{MB}/issues/1750",
        "0.16",
        {**FULL, "peft": True, "framework.megatron_bridge": "0.2.0"},
        "peft-frozen-pp1",
        field="model.recompute_granularity",
    ),
    Report(
        "the same with the hook",
        f"{MB}/pull/1762",
        "0.17",
        {**FULL, "peft": True, "framework.megatron_bridge": "0.4.0"},
        "peft-patch-log",
        "note",
        field="model.recompute_granularity",
    ),
    Report(
        "multi-LoRA under the hook's filter",
        f"{MB}/pull/5963",
        "0.19",
        {
            **FULL,
            "recompute_method": "block",
            "peft": {"scheme": "multi_lora"},
            "framework.megatron_bridge": "0.6.0",
        },
        "peft-multi-lora-filter",
        field="peft.scheme",
    ),
    Report(
        "LoRA on another Megatron trainer",
        "https://github.com/modelscope/ms-swift/issues/5714",
        "0.14",
        {**FULL, "peft": True},
        "peft-frozen-pp1-unknown",
        "warning",
        field="peft",
        entry="core",
    ),
    Report(
        "checkpointing kwargs set on the model, not on the trainer",
        "https://github.com/huggingface/transformers/issues/26221",
        "0.19",
        {"peft": True, "unmodelled": {"train.gradient_checkpointing": True}},
        "hf-trainer-kwargs",
    ),
    Report(
        "dropout without preserved random state",
        "https://github.com/allenai/OLMo-core/pull/828",
        "0.19",
        {
            "unmodelled": {
                "model.activation_checkpointing": True,
                "model.preserve_rng_state": False,
                "model.residual_dropout": 0.1,
            }
        },
        "preserve-rng-off",
        field="preserve_rng_state",
    ),
    Report(
        "FSDP version 2 prefetches in the replay",
        f"{LM}/pull/6153",
        "0.19",
        {
            **FULL,
            "ddp.use_megatron_fsdp": True,
            "unmodelled": {"ddp.megatron_fsdp_version": "v2"},
        },
        "mfsdp-v2-stale-prefetch",
        "warning",
        field="ddp.megatron_fsdp_version",
    ),
    Report(
        "full with per-layer graphs",
        CORE,
        "0.16",
        {**FULL, "cuda_graph_impl": "transformer_engine"},
        "cg-full-needs-full-iteration",
        field="model.cuda_graph_impl",
    ),
    Report(
        "the same, local",
        CORE,
        "0.19",
        {**FULL, "cuda_graph_impl": "local"},
        "cg-full-needs-full-iteration",
        field="model.cuda_graph_impl",
        entry="core",
    ),
    Report(
        "default dropout in a captured attention",
        CORE,
        "0.16",
        sel("core_attn", cuda_graph_impl="transformer_engine", attention_dropout=0.1),
        "cg-dropout-attn",
        field="model.attention_dropout",
    ),
    Report(
        "hidden dropout in a captured MLP",
        CORE,
        "0.19",
        sel("mlp", cuda_graph_impl="transformer_engine", hidden_dropout=0.1),
        "cg-dropout-mlp-moe",
        field="model.hidden_dropout",
    ),
    Report(
        "the captured producer of hyper-connections",
        f"{LM}/pull/5841",
        "dev",
        {
            **EP,
            **sel("mhc"),
            "enable_hyper_connections": True,
            "cuda_graph_impl": "transformer_engine",
            "cuda_graph_modules": ("attn",),
        },
        "mhc-captured-producer",
        "warning",
        field="model.cuda_graph_modules",
    ),
    Report(
        "layernorm with delayed scaling",
        CORE,
        "0.16",
        sel("layernorm", fp8="hybrid", fp8_recipe="delayed"),
        "fp8-delayed-act-norm",
        field="model.fp8_recipe",
    ),
    Report(
        "backward scales that never update",
        "https://github.com/NVIDIA/TransformerEngine/issues/1190",
        "0.9",
        {**FULL, "fp8": "hybrid", "framework.transformer_engine": "1.9.0"},
        "te-checkpoint-first-module",
        "warning",
        field="framework.transformer_engine",
    ),
    Report(
        "block over a frozen front with fp8",
        f"{LM}/tree/main/megatron/core/recompute.py",
        "main",
        {
            **FULL,
            "recompute_method": "block",
            "recompute_num_layers": 2,
            "fp8": "hybrid",
            "fp8_recipe": "mxfp8",
            "peft": True,
        },
        "block-fp-skip",
        "warning",
        field="model.recompute_method",
    ),
    Report(
        "moe beside the expert overlap",
        f"{MB}/pull/4971",
        "0.19",
        {**EP, **sel("moe")},
        "a2a-moe-label",
        field="model.recompute_modules",
    ),
    Report(
        "the same without a granularity",
        f"{MB}/pull/4971",
        "0.19",
        {**EP, "recompute_modules": ("moe",)},
        "a2a-moe-label",
        field="model.recompute_modules",
    ),
    Report(
        "the same where it is accepted",
        f"{MB}/pull/4971",
        "0.16",
        {**EP, **sel("moe")},
        "a2a-moe-label-unchecked",
        "warning",
        field="model.recompute_modules",
    ),
    Report(
        "layer offload beside selective",
        CORE,
        "0.19",
        sel("mlp", cpu_offloading=True, cpu_offloading_num_layers=2),
        "cpu-offload-vs-recompute",
        field="model.cpu_offloading",
    ),
    Report(
        "layer offload with four stages",
        f"{MB}/blob/main/skills/nemo-mbridge-perf-memory-tuning/SKILL.md",
        "0.16",
        {
            "cpu_offloading": True,
            "cpu_offloading_num_layers": 2,
            "pipeline_model_parallel_size": 4,
        },
        "cpu-offload-pp",
        field="model.pipeline_model_parallel_size",
    ),
    Report(
        "offload inside a replayed MoE layer",
        CORE,
        "0.19",
        {**MOE, **OFFLOAD, **sel("moe"), "offload_modules": ("moe_act",)},
        "offload-inside-moe",
        field="model.offload_modules",
    ),
    Report(
        "the same where it is accepted",
        CORE,
        "0.16",
        {**MOE, **OFFLOAD, **sel("moe"), "offload_modules": ("moe_act",)},
        "offload-inside-moe-unchecked",
        "warning",
        field="model.offload_modules",
    ),
    Report(
        "two owners of the projection's input",
        f"{LM}/pull/7237",
        "0.19",
        {**OFFLOAD, **sel("core_attn"), "offload_modules": ("core_attn", "attn_proj")},
        "offload-core-attn-under-recompute",
        "warning",
        field="model.offload_modules",
    ),
    Report(
        "full with MTP on 0.18",
        f"{LM}/pull/6367",
        "0.18",
        {**FULL, "mtp_num_layers": 1},
        "mtp-padding-mask",
        field="model.mtp_num_layers",
    ),
    Report(
        "uniform groups with MTP",
        f"{LM}/tree/main/megatron/core/transformer/multi_token_prediction.py",
        "main",
        {**FULL, "recompute_num_layers": 4, "mtp_num_layers": 1},
        "mtp-uniform-1",
        field="model.recompute_num_layers",
    ),
    Report(
        "block with MTP",
        f"{LM}/tree/main/megatron/core/transformer/multi_token_prediction.py",
        "main",
        {**FULL, "recompute_method": "block", "recompute_num_layers": 4, "mtp_num_layers": 1},
        "mtp-block-skip",
        "warning",
        field="model.mtp_num_layers",
    ),
    Report(
        "two rotary embeddings under full",
        f"{LM}/issues/5323",
        "0.18",
        {**FULL, "unmodelled": {"model.model_type": "gemma4"}},
        "packed-rope-tuple",
        field="model.recompute_granularity",
        entry="core",
    ),
    Report(
        "a checkpoint around a compiled region",
        "https://github.com/pytorch/pytorch/issues/143176",
        "0.19",
        {"unmodelled": {"model.order": "checkpoint(fn) outside torch.compile"}},
        "checkpoint-outside-compile",
        "warning",
    ),
    Report(
        "uniform with 1 is group size, not group count",
        "https://github.com/NovaSky-AI/SkyRL/pull/368",
        "0.16",
        {**FULL, **MOE, "num_layers": 48},
        None,
    ),
    Report(
        "absorbed attention with fp8",
        f"{LM}/issues/6392",
        "0.19",
        {
            **sel("mla_up_proj"),
            "multi_latent_attention": True,
            "experimental_attention_variant": "dsa",
            "fp8": "hybrid",
            "fp8_recipe": "mxfp8",
        },
        "absorbed-mla-fp8",
        field="model.recompute_modules",
    ),
    Report(
        "cache with checkpointing",
        "https://github.com/huggingface/transformers/issues/23808",
        "0.19",
        {"unmodelled": {"model.gradient_checkpointing": True, "model.use_cache": True}},
        "hf-use-cache",
        "note",
        field="use_cache",
    ),
]

GATES = [
    Report("no own error after the MTP fix", "", "0.19", {**FULL, "mtp_num_layers": 1}, None),
    Report("absorbed attention on dev", "", "dev", REPORTS[-2].fields, None),
    Report(
        "two rotary embeddings, fixed",
        "",
        "0.19",
        {**FULL, "unmodelled": {"model.model_type": "gemma4"}},
        None,
        entry="core",
    ),
    Report(
        "FSDP version 2, fixed",
        "",
        "pin",
        {**FULL, "ddp.use_megatron_fsdp": True, "unmodelled": {"ddp.megatron_fsdp_version": "v2"}},
        None,
    ),
]
"""The other side of each version gate that the reports above do not show themselves."""


def told(report: Report) -> dict[str, Any]:
    job = job_of(Example(revision=report.revision, entry=report.entry, fields=report.fields))
    return {finding.rule: finding for finding in check(job, Revision(report.revision))}


@pytest.mark.parametrize("report", [pytest.param(r, id=r.name) for r in REPORTS])
def test_the_verdict_is_the_one_the_report_deserves(report: Report) -> None:
    findings = told(report)
    if report.rule is None:
        assert [f for f in findings.values() if f.severity != "note"] == []
        return
    assert report.rule in findings, sorted(findings)
    finding = findings[report.rule]
    assert finding.severity == report.severity
    if report.field:
        assert report.field in finding.fields


@pytest.mark.parametrize("report", [pytest.param(r, id=r.name) for r in GATES])
def test_the_other_side_of_a_gate_is_quiet(report: Report) -> None:
    assert [f for f in told(report).values() if f.severity == "error"] == []
