"""``model._target_``: the provider's own defaults hold for the fields that a job leaves out."""

from __future__ import annotations

import dataclasses

import pytest

from recompute.config.build import build
from recompute.config.draft import Draft
from recompute.config.load import load
from recompute.config.normalize import normalize
from recompute.config.provider import ARCHITECTURE, UNKNOWN_PROVIDER, apply_provider, providers
from recompute.config.schema import JobConfig, JobIdentity, ModelConfig
from recompute.search.explain import explain

SIZES = """\
  num_layers: 8
  hidden_size: 4096
  num_attention_heads: 32
  ffn_hidden_size: 14336
  num_moe_experts: 8
  moe_router_topk: 2
  vocab_size: 32000
  seq_length: 4096
  bf16: true
train: {micro_batch_size: 1, global_batch_size: 8}
hardware: {gpu: h200, num_gpus: 1}
"""


def read(target: str, *overrides: str, rest: str = SIZES) -> JobConfig:
    text = f"model:\n  _target_: {target}\n{rest}"
    return load("-", *overrides, stdin=text.encode())


MIXTRAL = "megatron.bridge.models.MixtralModelProvider"


def test_mixtral_is_swiglu_rmsnorm_rope_and_without_biases() -> None:
    model = read(MIXTRAL).model
    assert (model.gated_linear_unit, model.activation_func) == (True, "silu")
    assert model.normalization == "RMSNorm"
    assert model.position_embedding_type == "rope"
    assert not model.add_bias_linear
    assert not model.share_embeddings_and_output_weights
    assert (model.hidden_dropout, model.attention_dropout) == (0.0, 0.0)
    assert model.num_query_groups == 8
    assert (model.moe_ffn_hidden_size, model.moe_grouped_gemm) == (14336, True)
    assert model.num_layers == 8, "what the job gives stays"


def test_the_defaults_are_visible_changes_with_their_source() -> None:
    job = read(MIXTRAL)
    change = next(item for item in job.changes if item.field == "model.gated_linear_unit")
    assert (change.before, change.after) == (None, True)
    assert "mixtral_provider.py MixtralModelProvider" in change.source
    assert "provider-defaults" in {item.id for item in job.assumptions}


def test_the_peak_is_that_of_the_fields_written_out() -> None:
    written = read(
        "somewhere.Own",
        *("model.gated_linear_unit=true", "model.activation_func=silu"),
        *("model.normalization=RMSNorm", "model.position_embedding_type=rope"),
        *("model.add_bias_linear=false", "model.share_embeddings_and_output_weights=false"),
        *("model.hidden_dropout=0", "model.attention_dropout=0", "model.num_query_groups=8"),
        *("model.moe_ffn_hidden_size=14336", "model.moe_grouped_gemm=true"),
        *("model.moe_token_dispatcher_type=alltoall", "model.moe_permute_fusion=true"),
        *("model.moe_router_pre_softmax=true", "model.moe_router_load_balancing_type=none"),
        *("model.moe_aux_loss_coeff=0.01", "model.attention_softmax_in_fp32=false"),
        *("model.cross_entropy_loss_fusion=true", "model.deallocate_pipeline_outputs=true"),
        *("model.masked_softmax_fusion=true", "model.should_pad_vocab=false"),
    )
    plain = read("somewhere.Own")
    peaks = [explain(job).prediction.hot.peak.peak_bytes for job in (read(MIXTRAL), written, plain)]
    assert peaks[0] == peaks[1]
    assert peaks[0] > peaks[2], "a gated feed-forward holds more than a plain one"


def test_overrides_win_over_the_provider() -> None:
    assert read(MIXTRAL, "model.activation_func=gelu").model.activation_func == "gelu"


def test_the_sequence_of_the_dataset_wins_over_the_provider() -> None:
    rest = SIZES.replace("  seq_length: 4096\n", "") + "dataset: {seq_length: 2048}\n"
    assert read(MIXTRAL, rest=rest).model.seq_length == 2048
    without = SIZES.replace("  seq_length: 4096\n", "")
    assert read(MIXTRAL, rest=without).model.seq_length == 32768


def test_an_unknown_provider_is_an_assumption_that_names_what_fell_to_gpt() -> None:
    job = read("my.company.OwnProvider")
    text = next(item.text for item in job.assumptions if item.id == UNKNOWN_PROVIDER)
    assert "my.company.OwnProvider is not known" in text
    assert "gated_linear_unit" in text
    assert not job.model.gated_linear_unit


def test_an_unknown_provider_with_every_field_needs_no_warning() -> None:
    ours = {item.name: item.default for item in dataclasses.fields(ModelConfig)}
    rest = "".join(f"  {name}: {ours[name]}\n" for name in ARCHITECTURE) + SIZES
    job = read("my.company.OwnProvider", rest=rest)
    assert UNKNOWN_PROVIDER not in {item.id for item in job.assumptions}


def test_multi_latent_attention_of_deepseek() -> None:
    model = normalize(read("megatron.bridge.models.deepseek.DeepSeekV3ModelProvider")).model
    assert model.multi_latent_attention
    assert (model.num_moe_experts, model.normalization) == (8, "RMSNorm")


@pytest.mark.parametrize("name", sorted(providers()))
def test_every_default_of_the_catalogue_is_a_value_of_the_job(name: str) -> None:
    draft = Draft()
    draft.provider = f"megatron.bridge.models.{name}"
    draft.set("model", "hidden_dropout", 0.25, "here")
    apply_provider(draft)
    model = build(draft, JobIdentity(path="-", sha256="", format="bridge-yaml")).model
    assert model.hidden_dropout == 0.25
    plain = ModelConfig(hidden_dropout=0.25)
    for field in providers()[name]["fields"]:
        assert field == "hidden_dropout" or getattr(model, field) != getattr(plain, field)


@pytest.mark.parametrize("name", ["GPTModelProvider", "MixtralModelProvider", "LlamaModelProvider"])
def test_the_catalogue_names_where_it_was_read(name: str) -> None:
    source = providers()[name]["source"]
    assert source.endswith("_provider.py")
    assert " src/megatron/bridge/models/" in source
