"""What Megatron fills in, each as a visible change."""

from __future__ import annotations

from typing import Any

import pytest

from recompute.config.load import load
from recompute.config.normalize import normalize, revision_of
from recompute.config.revision import (
    BRIDGE_PINS,
    NAMES,
    Revision,
    parse_bridge_version,
    parse_revision,
)
from recompute.errors import ConfigError

BASE = "model: {num_layers: 4, hidden_size: 512, num_attention_heads: 8, vocab_size: 1000}\n"


def job(*overrides: str) -> Any:
    return load("-", *overrides, stdin=BASE.encode())


def changed(before: Any, revision: str = "0.19") -> Any:
    after = normalize(before, Revision(revision))
    return {change.field: change.after for change in after.changes}, after


@pytest.mark.parametrize(
    ("overrides", "field", "after"),
    [
        ([], "model.ffn_hidden_size", 2048),
        ([], "model.kv_channels", 64),
        ([], "model.num_query_groups", 8),
        (["model.tensor_model_parallel_size=4"], "model.expert_tensor_parallel_size", 4),
        (["model.pipeline_model_parallel_size=2"], "model.microbatch_group_size_per_vp_stage", 2),
        (["model.tensor_model_parallel_size=4"], "model.vocab_size", 1024),
        (
            ["model.num_moe_experts=4", "model.ffn_hidden_size=768"],
            "model.moe_ffn_hidden_size",
            768,
        ),
        ([], "model.recompute_modules", ("core_attn",)),
        (["model.multi_latent_attention=true"], "model.normalization", "RMSNorm"),
        (
            ["model.apply_query_key_layer_scaling=true", "model.attention_softmax_in_fp32=false"],
            "model.attention_softmax_in_fp32",
            True,
        ),
        (["model.bf16=true"], "model.params_dtype", "bf16"),
        (["model.hybrid_override_pattern=MM*-"], "model.mamba_num_heads", 16),
        (["model.hybrid_override_pattern=MM*-"], "model.is_hybrid_model", True),
        (["model.external_cuda_graph=true"], "model.cuda_graph_impl", "transformer_engine"),
        (
            ["model.cuda_graph_scope=[attn]", "model.cuda_graph_impl=transformer_engine"],
            "model.cuda_graph_modules",
            ("attn",),
        ),
        (
            ["model.cuda_graph_scope=[full_iteration]", "model.cuda_graph_impl=local"],
            "model.cuda_graph_impl",
            "full_iteration",
        ),
        (
            ["model.moe_router_padding_for_fp8=true"],
            "model.moe_router_padding_for_quantization",
            True,
        ),
        (["ddp.use_distributed_optimizer=true"], "optimizer.use_distributed_optimizer", True),
        (["optimizer.overlap_param_gather=true"], "ddp.overlap_param_gather", True),
        (["ddp.use_megatron_fsdp=true"], "ddp.use_distributed_optimizer", True),
        (
            [
                "comm_overlap.tp_comm_overlap=true",
                "model.tensor_model_parallel_size=2",
                "model.sequence_parallel=true",
                "model.seq_length=64",
            ],
            "model.tp_comm_overlap",
            True,
        ),
        (
            [
                "comm_overlap.tp_comm_overlap=false",
                "ddp.use_distributed_optimizer=true",
                "hardware.num_gpus=8",
            ],
            "ddp.bucket_size",
            128 << 20,
        ),
    ],
)
def test_what_is_filled_in(overrides: Any, field: Any, after: Any) -> None:
    changes, normal = changed(job(*overrides))
    assert changes[field] == after
    section, _, name = field.partition(".")
    assert getattr(getattr(normal, section), name) == after
    assert all(change.why and change.source for change in normal.changes)


@pytest.mark.parametrize(
    ("overrides", "revision", "field"),
    [
        (["model.should_pad_vocab=false"], "0.19", "model.vocab_size"),
        (["model.recompute_modules=[]"], "0.19", "model.recompute_modules"),
        (["model.cuda_graph_scope=[attn]"], "0.17", "model.cuda_graph_modules"),
        (["model.enable_cuda_graph=true"], "0.14", "model.cuda_graph_impl"),
        (
            ["model.cpu_offloading=true", "model.cpu_offloading_num_layers=1"],
            "0.15",
            "model.cpu_offloading_weights",
        ),
        (
            ["model.multi_latent_attention=true", "model.normalization=LayerNorm"],
            "0.19",
            "model.normalization",
        ),
        (
            ["ddp=null", "optimizer.use_distributed_optimizer=true"],
            "0.19",
            "ddp.use_distributed_optimizer",
        ),
    ],
)
def test_what_is_left_alone(overrides: Any, revision: Any, field: Any) -> None:
    changes, _ = changed(job(*overrides), revision)
    assert field not in changes


def test_offloaded_weights_were_on_by_default_up_to_0_14() -> None:
    before = job("model.cpu_offloading=true", "model.cpu_offloading_num_layers=1")
    assert changed(before, "0.14")[1].model.cpu_offloading_weights


def test_moe_layer_recompute_is_the_label_moe_from_0_12_on() -> None:
    before = job("model.moe_layer_recompute=true", "model.num_moe_experts=4")
    model = changed(before)[1].model
    assert (model.recompute_granularity, model.recompute_modules) == (
        "selective",
        ("core_attn", "moe"),
    )
    assert changed(before, "0.11")[1].model.recompute_granularity is None
    full = job(
        "model.moe_layer_recompute=true",
        "model.num_moe_experts=4",
        "model.recompute_granularity=full",
    )
    assert changed(full)[1].model.recompute_granularity == "full"


def test_normalizing_twice_changes_nothing() -> None:
    once = normalize(job("model.tensor_model_parallel_size=4", "comm_overlap.tp_comm_overlap=true"))
    assert normalize(once) == once


def test_parallel_sizes_that_default_to_one_are_listed() -> None:
    ids = {item.id for item in normalize(job("model.tensor_model_parallel_size=1")).assumptions}
    assert "default:model.pipeline_model_parallel_size" in ids
    assert "default:model.tensor_model_parallel_size" not in ids


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("0.16.1", "0.16"),
        ("core_v0.19.0", "0.19"),
        ("core_r0.17.0", "0.17"),
        ("v0.12.3", "0.12"),
        ("0.17.0rc0", "0.17"),
        ("0.19.0+abc.def", "0.19"),
        ("0.20.0", "pin"),
        ("0.20.0.dev1", "pin"),
        ("main", "main"),
        ("DEV", "dev"),
        ("2a75ac12", "pin"),
        ("d98e8a64ddf34856e74b24714e3bedb2f5a39553", "main"),
    ],
)
def test_versions_mean_revisions(text: Any, name: Any) -> None:
    assert parse_revision(text).name == name


@pytest.mark.parametrize(
    "text", ["0.21.0", "1.0", "0.7.0", "latest", "", "abcdef12", "0.1", "0.19; rm", "0.x"]
)
def test_unknown_versions_are_never_guessed(text: Any) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_revision(text)
    assert caught.value.code == "unknown-revision"


def test_yaml_cuts_0_10_short_and_the_hint_says_so() -> None:
    with pytest.raises(ConfigError) as caught:
        parse_revision("0.1")
    assert "quotes" in caught.value.hint


def test_bridge_versions_mean_what_they_pin() -> None:
    assert {parse_bridge_version(name).name for name in BRIDGE_PINS} <= set(NAMES)
    assert parse_bridge_version("v0.4.2").name == "0.17"
    with pytest.raises(ConfigError):
        parse_bridge_version("0.9.0")


def test_the_job_names_its_revision() -> None:
    assert revision_of(job())[0].name == "0.19"
    assert revision_of(job())[1] is not None
    assert revision_of(job("framework.megatron_core='0.16.1'")) == (Revision("0.16"), None)
    assert revision_of(job("framework.megatron_bridge=v0.5.0"))[0].name == "0.18"
