"""The configurations that are put to the oracle: values that the rules read, legal and illegal."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from hypothesis import strategies as st

LABELS: Final = (
    "core_attn",
    "moe_act",
    "layernorm",
    "mla_up_proj",
    "mlp",
    "moe",
    "shared_experts",
    "gdn_norm_out",
    "mhc",
    "moe_layer",
)
OFFLOADS: Final = (
    "core_attn",
    "attn_proj",
    "expert_fc1",
    "moe_act",
    "attn_norm",
    "mlp_norm",
    "qkv_linear",
    "fused_group_mlp",
    "nothing_of_the_kind",
)
SCOPES: Final = ("attn", "mlp", "moe", "moe_router", "moe_preprocess", "mamba", "full_iteration")

FIELDS: Final[Mapping[str, tuple[Any, ...]]] = {
    "recompute_granularity": (None, "full", "selective", "none", "Full"),
    "recompute_method": (None, "uniform", "block", "balanced"),
    "recompute_num_layers": (None, None, 1, 2, 0),
    "distribute_saved_activations": (False, False, True),
    "moe_layer_recompute": (False, False, False, True),
    "moe_grouped_gemm": (False, True),
    "num_moe_experts": (None, None, 1, 8),
    "moe_layer_freq": (1, 2, (0, 1, 1, 1)),
    "moe_token_dispatcher_type": ("allgather", "alltoall", "flex"),
    "moe_shared_expert_intermediate_size": (None, None, 64),
    "moe_shared_expert_overlap": (False, False, True),
    "moe_expert_capacity_factor": (None, None, 1.0),
    "moe_pad_expert_input_to_capacity": (False, True),
    "moe_input_jitter_eps": (None, None, 0.01),
    "mtp_num_layers": (None, None, 0, 1, 2),
    "fp8": (None, None, "hybrid", "e4m3"),
    "fp8_recipe": ("delayed", "tensorwise", "mxfp8", "blockwise"),
    "fp4": (None, None, None, "e2m1"),
    "bf16": (True, True, False),
    "cpu_offloading": (False, False, False, True),
    "cpu_offloading_num_layers": (0, 2, 4, -1),
    "fine_grained_activation_offloading": (False, False, True),
    "cuda_graph_impl": ("none", "none", "local", "transformer_engine", "full_iteration", "other"),
    "enable_cuda_graph": (False,) * 6 + (True,),
    "external_cuda_graph": (False,) * 6 + (True,),
    "cuda_graph_warmup_steps": (3, 3, 0),
    "attention_dropout": (0.0, 0.1),
    "hidden_dropout": (0.0, 0.1),
    "overlap_moe_expert_parallel_comm": (False, False, True),
    "delay_wgrad_compute": (False,) * 4 + (True,),
    "ep_overlap_early_attn_memory_release": (False,) * 4 + (True,),
    "tensor_model_parallel_size": (1, 2),
    "pipeline_model_parallel_size": (1, 1, 2),
    "virtual_pipeline_model_parallel_size": (None, 2),
    "expert_model_parallel_size": (1, 2),
    "sequence_parallel": (False, True),
}
"""Field -> values, the more frequent ones named more than once."""

DEFAULTS: Final[Mapping[str, tuple[Any, ...]]] = {
    "recompute_modules": (None,),
    "cuda_graph_scope": (None,),
    "cuda_graph_modules": (None,),
}
"""What a list field is when a configuration leaves it alone."""

TE_VERSIONS: Final = (None, "2.4.0", "2.6.0", "2.11.0")


def _lists(names: tuple[str, ...]) -> st.SearchStrategy[tuple[str, ...]]:
    return st.lists(st.sampled_from(names), max_size=3).map(tuple)


@st.composite
def configurations(
    draw: st.DrawFn, *, modern: bool = False
) -> tuple[dict[str, Any], bool, str | None]:
    """Draw the fields, whether the model has multi-latent attention, and the TE version.

    Args:
        draw: Hypothesis' source of choices.
        modern: Draw ``cuda_graph_modules`` too, which 0.18 introduced.
    """
    fields = {name: draw(st.sampled_from(values)) for name, values in FIELDS.items()}
    fields["recompute_modules"] = draw(st.none() | _lists(LABELS[:7]) | _lists(LABELS))
    fields["offload_modules"] = draw(_lists(OFFLOADS[:7]) | _lists(OFFLOADS))
    fields["cuda_graph_scope"] = draw(st.none() | st.none() | _lists(SCOPES))
    if modern:
        fields["cuda_graph_modules"] = draw(st.none() | _lists(SCOPES[:6]) | _lists(SCOPES))
    _make_consistent(fields)
    latent = draw(st.booleans())
    return fields, latent, draw(st.sampled_from(TE_VERSIONS))


def _make_consistent(fields: dict[str, Any]) -> None:
    """Take out what other validators refuse for reasons that are not ours."""
    if fields["tensor_model_parallel_size"] == 1:
        fields["sequence_parallel"] = False
    if fields["num_moe_experts"] is None:
        fields["expert_model_parallel_size"] = 1
    if fields["moe_expert_capacity_factor"] is None:
        fields["moe_pad_expert_input_to_capacity"] = False
    if fields["moe_token_dispatcher_type"] != "alltoall":
        fields["moe_shared_expert_overlap"] = False
    if fields["moe_token_dispatcher_type"] == "flex":
        fields["moe_pad_expert_input_to_capacity"] = False


def sparse(fields: Mapping[str, Any], kept: frozenset[str]) -> dict[str, Any]:
    """Return the fields with all but ``kept`` set to the first value of their range."""
    chosen = {
        name: value if name in kept else FIELDS.get(name, DEFAULTS.get(name, ((),)))[0]
        for name, value in fields.items()
    }
    _make_consistent(chosen)
    return chosen
