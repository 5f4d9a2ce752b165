"""Reports from other trainers, engines and libraries, whose settings a job may carry."""

from __future__ import annotations

from .report_row import FULL, MOE, Report

REPORTS = [
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
        "the word none for off",
        "https://github.com/verl-project/verl/pull/5466",
        "0.19",
        {"recompute_granularity": "none"},
        "granularity-value",
        field="model.recompute_granularity",
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
        "a policy that names an operator packet",
        "https://github.com/pytorch/pytorch/issues/176065",
        "0.19",
        {"unmodelled": {"model.policy": "set contains aten.mm instead of aten.mm.default"}},
        "sac-op-packet",
        "warning",
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
        "backward scales that never update",
        "https://github.com/NVIDIA/TransformerEngine/issues/1190",
        "0.9",
        {**FULL, "fp8": "hybrid", "framework.transformer_engine": "1.9.0"},
        "te-checkpoint-first-module",
        "warning",
        field="framework.transformer_engine",
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
        "cache with checkpointing",
        "https://github.com/huggingface/transformers/issues/23808",
        "0.19",
        {"unmodelled": {"model.gradient_checkpointing": True, "model.use_cache": True}},
        "hf-use-cache",
        "note",
        field="use_cache",
    ),
]
