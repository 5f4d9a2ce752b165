"""One public report on recompute settings, and the fields that several of them share."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from recompute.rules.types import Entry

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
