"""The recipe catalogue against what Bridge's recipe functions say."""

from __future__ import annotations

from typing import Any

import pytest

from recompute.config.load import load
from recompute.config.normalize import normalize, revision_of
from recompute.config.recipe import _catalogue, recipe_names
from recompute.config.require import EXPLAIN, missing
from recompute.errors import ConfigError, UnsupportedError
from recompute.model.layer import layer_kinds

BROKEN = {
    "deepseek_v3_pretrain_256gpu_gb200_fp8mx_partial_cg_dev_config",
    "deepseek_v3_pretrain_256gpu_gb300_fp8mx_partial_cg_dev_config",
}
"""Recipes whose layout has 16 cells on 4 ranks with 2 chunks each: Megatron Core refuses them too."""


def test_every_recipe_can_be_read() -> None:
    names = recipe_names()
    assert len(names) > 700
    for name in names:
        if name in BROKEN:
            with pytest.raises(ConfigError) as caught:
                load(f"recipe:{name}")
            assert caught.value.code == "pipeline-layout"
        else:
            assert normalize(load(f"recipe:{name}")).model.recompute_modules is not None


def test_the_recompute_settings_of_the_catalogue() -> None:
    """A separate reading of the recipes, blind to ``if``, counts 37 full and 110 selective settings."""
    entries = {name: text for name, text in _catalogue().items() if "same_as" not in text}
    jobs = {name: load(f"recipe:{name}") for name in entries if name not in BROKEN}
    full = [job.model for job in jobs.values() if job.model.recompute_granularity == "full"]
    blocks = {model.recompute_num_layers for model in full if model.recompute_method == "block"}
    assert (len(full), blocks) == (39, {1, 5, 8})
    assert {
        model.recompute_num_layers for model in full if model.recompute_method == "uniform"
    } == {1}
    selective = [job for job in jobs.values() if job.model.recompute_granularity == "selective"]
    assert len(selective) == 110
    labels = {label for job in selective for label in job.model.recompute_modules or ()}
    assert labels == {
        "core_attn",
        "gdn_norm_out",
        "layernorm",
        "mhc",
        "mla_up_proj",
        "mlp",
        "moe",
        "moe_act",
        "shared_experts",
    }


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        (
            "llama3_8b_pretrain_8gpu_h100_fp8cs",
            {
                "recompute_granularity": "full",
                "recompute_method": "block",
                "recompute_num_layers": 5,
                "fp8": "hybrid",
                "num_layers": 32,
                "first_last_layers_bf16": False,
            },
        ),
        (
            "qwen3_30b_a3b_pretrain_8gpu_h100_bf16",
            {
                "tensor_model_parallel_size": 4,
                "pipeline_model_parallel_size": 2,
                "expert_model_parallel_size": 4,
                "expert_tensor_parallel_size": 1,
                "recompute_granularity": "full",
                "num_moe_experts": 128,
            },
        ),
        (
            "deepseek_v3_pretrain_256gpu_b200_fp8mx",
            {
                "pipeline_model_parallel_size": 8,
                "virtual_pipeline_model_parallel_size": 2,
                "recompute_modules": ("mla_up_proj", "mlp"),
                "cuda_graph_impl": "transformer_engine",
                "cuda_graph_scope": ("attn", "moe_router", "moe_preprocess"),
                "fp8_recipe": "mxfp8",
                "mtp_num_layers": 1,
            },
        ),
        (
            "nemotron_3_nano_pretrain_16gpu_h100_bf16",
            {
                "recompute_modules": ("moe", "layernorm"),
                "is_hybrid_model": True,
                "expert_model_parallel_size": 8,
            },
        ),
        (
            "moonlight_16b_pretrain_8gpu_h100_bf16",
            {"recompute_granularity": "selective", "recompute_modules": None},
        ),
        (
            "deepseek_v3_pretrain_64gpu_gb300_fp8mx_fsdp",
            {
                "recompute_modules": ("layernorm", "mla_up_proj", "moe_act"),
                "offload_modules": ("core_attn", "attn_proj"),
                "fine_grained_activation_offloading": True,
            },
        ),
        (
            "deepseek_v4_pro_pretrain_256gpu_gb300_fp8mx",
            {"recompute_modules": ("mla_up_proj", "mhc")},
        ),
    ],
)
def test_recipes_that_were_read_by_hand(name: Any, expected: Any) -> None:
    model = load(f"recipe:{name}").model
    assert {field: getattr(model, field) for field in expected} == expected


def test_a_recipe_is_for_the_megatron_core_that_bridge_pins() -> None:
    job = load("recipe:llama3_8b_pretrain_8gpu_h100_bf16")
    revision, assumption = revision_of(job)
    assert revision.name == "pin"
    assert assumption is not None
    assert job.hardware.gpu == "h100-80gb"
    assert job.hardware.num_gpus == 8


def test_other_names_lead_to_the_same_recipe() -> None:
    assert (
        load("recipe:llama3_70b_pretrain_config").model
        == load("recipe:llama3_70b_pretrain_32gpu_h100_bf16").model
    )


def test_a_recipe_without_known_sizes_says_what_is_missing() -> None:
    job = load("recipe:glm52_pretrain_192gpu_gb200_bf16")
    assert missing(job, EXPLAIN)[0] == "architecture"
    assert any("zai-org/GLM-5.2" in item.text for item in job.assumptions)
    assert job.model.recompute_granularity == "full"


@pytest.mark.parametrize("name", ["glm51_sft_416gpu_h100_bf16", "glm52_pretrain_192gpu_gb200_bf16"])
def test_glm_5_attends_sparsely_whatever_sizes_are_given(name: str) -> None:
    """GLM5Bridge.provider_bridge sets ``dsa`` for each of its checkpoints, their recipes the kernels."""
    sizes = ("num_layers=78", "hidden_size=1024", "num_attention_heads=8", "vocab_size=32000")
    job = load(f"recipe:{name}", *(f"model.{size}" for size in sizes))
    assert job.model.multi_latent_attention
    assert job.model.experimental_attention_variant == "dsa"
    assert job.model.dsa_kernel_backend == "cudnn"
    assert job.model.dsa_indexer_loss_coeff == 0.001
    with pytest.raises(UnsupportedError, match="dsa without dsa_indexer_n_heads") as caught:
        layer_kinds(job.model)
    assert caught.value.data == {"field": "model.dsa_indexer_n_heads"}


def test_a_recipe_whose_gpus_do_not_factor_leaves_the_count_open() -> None:
    job = load("recipe:deepseek_v3_pretrain_64gpu_h100_bf16")
    assert job.hardware.num_gpus is None
    assert any(item.id == "recipe-gpu-count" for item in job.assumptions)


def test_unknown_recipes_and_versions() -> None:
    with pytest.raises(ConfigError) as caught:
        load("recipe:llama3_8b_pretrain_8gpu_h100_bf61")
    assert caught.value.code == "unknown-recipe"
    assert "llama3_8b_pretrain_8gpu_h100_bf16" in caught.value.hint
    with pytest.raises(ConfigError) as caught:
        load("recipe:llama3_8b_pretrain_8gpu_h100_bf16@0.1.0")
    assert caught.value.code == "unknown-recipe-version"
    assert load("recipe:llama3_8b_pretrain_8gpu_h100_bf16@main").model.num_layers == 32


def test_overrides_apply_to_recipes() -> None:
    job = load(
        "recipe:llama3_8b_pretrain_8gpu_h100_bf16",
        "model.recompute_granularity=selective",
        "model.recompute_modules=[]",
    )
    assert job.model.recompute_modules == ()


@pytest.mark.parametrize(
    ("name", "first"),
    [
        ("llama3_8b", "llama3_8b_"),
        ("llama70b", "llama3_70b_"),
        ("deepseek v3", "deepseek_v3_pretrain_config"),
        ("qwen3 30b pretrain", "qwen3_30b_a3b_pretrain_config"),
    ],
)
def test_an_unknown_recipe_names_those_with_its_words(name: str, first: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load(f"recipe:{name}")
    assert caught.value.code == "unknown-recipe"
    assert str(caught.value.data["nearest"][0]).startswith(first)
