"""Bridge-layout YAML: plain files, and what Bridge writes into checkpoints."""

from __future__ import annotations

import textwrap
from pathlib import Path
from typing import Any

import pytest

from recompute.config.load import load
from recompute.errors import ConfigError

EXAMPLES = Path(__file__).parents[4] / "examples"

SMALL = """\
model:
  num_layers: 4
  hidden_size: 512
  num_attention_heads: 8
"""


def read(text: str, *overrides: str) -> Any:
    return load("-", *overrides, stdin=textwrap.dedent(text).encode())


def refused(text: str, *overrides: str) -> ConfigError:
    with pytest.raises(ConfigError) as caught:
        read(text, *overrides)
    assert caught.value.exit_code == 2
    assert caught.value.hint
    return caught.value


RUN_CONFIG = """\
    _target_: megatron.bridge.training.config.ConfigContainer
    checkpoint:
      _target_: megatron.bridge.training.config.CheckpointConfig
      save: /checkpoints/run
      save_interval: 500
      ckpt_format: torch_dist
    comm_overlap: null
    dataset:
      _target_: megatron.bridge.training.config.GPTDatasetConfig
      seq_length: 4096
      random_seed: 1234
    ddp:
      _target_: megatron.core.distributed.distributed_data_parallel_config.DistributedDataParallelConfig
      grad_reduce_in_fp32: true
      overlap_grad_reduce: true
      use_distributed_optimizer: true
    mixed_precision:
      _target_: megatron.bridge.training.mixed_precision.MixedPrecisionConfig
      bf16: true
      grad_reduce_in_fp32: true
      params_dtype: {_call_: false, _target_: torch.bfloat16}
    model:
      _target_: megatron.bridge.models.llama.llama_provider.Llama3ModelProvider8B
      activation_func: {_call_: false, _target_: torch.nn.functional.silu}
      attention_backend:
        _args_: [5]
        _call_: true
        _name_: auto
        _target_: megatron.core.transformer.enums.AttnBackend
      bf16: true
      cuda_graph_scope:
      - _args_: [2]
        _call_: true
        _name_: attn
        _target_: megatron.core.transformer.enums.CudaGraphScope
      ffn_hidden_size: 14336
      gated_linear_unit: true
      generation_config:
        _call_: true
        _target_: transformers.generation.configuration_utils.GenerationConfig.from_dict
        config_dict: {bos_token_id: 128000}
      hidden_size: 4096
      init_method:
        _args_: []
        _partial_: true
        _target_: torch.nn.init.normal_
        mean: 0.0
        std: 0.01
      num_attention_heads: 32
      num_layers: 32
      num_query_groups: 8
      params_dtype: {_call_: false, _target_: torch.bfloat16}
      recompute_granularity: full
      recompute_method: block
      recompute_num_layers: 5
      seq_length: 4096
      transformer_layer_spec:
        _call_: false
        _target_: megatron.bridge.models.gpt_provider.local_layer_spec
      vocab_size: 128256
    optimizer:
      _target_: megatron.core.optimizer.optimizer_config.OptimizerConfig
      exp_avg_dtype: {_call_: false, _target_: torch.uint8}
      lr: 3.0e-04
      use_distributed_optimizer: true
      use_precision_aware_optimizer: true
    peft:
      _target_: megatron.bridge.peft.lora.LoRA
      dim: 8
      target_modules: [linear_qkv, linear_proj]
    train:
      _target_: megatron.bridge.training.config.TrainingConfig
      global_batch_size: 128
      micro_batch_size: 1
    """


def test_what_bridge_writes_is_read_as_data() -> None:
    job = read(RUN_CONFIG)
    assert job.identity.format == "bridge-yaml"
    assert job.model.activation_func == "silu"
    assert job.model.attention_backend == "auto"
    assert job.model.cuda_graph_scope == ("attn",)
    assert job.model.params_dtype == "bf16"
    assert job.model.transformer_impl == "local"
    assert job.model.recompute_num_layers == 5
    assert job.optimizer is not None
    assert job.optimizer.exp_avg_dtype == "fp8"
    assert job.peft is not None
    assert (job.peft.scheme, job.peft.dim) == ("lora", 8)
    assert job.unmodelled["checkpoint.save_interval"] == 500
    assert job.unmodelled["model.init_method"] == {"mean": 0.0, "std": 0.01}


NESTED = """\
    model:
      _target_: megatron.bridge.models.gpt.gpt_builder.GPTModelConfig
      seq_length: 2048
      vocab_size: 1000
      transformer:
        _target_: megatron.bridge.models.transformer_config.TransformerConfig
        num_layers: 4
        hidden_size: 512
        num_attention_heads: 8
        activation_func: {_call_: false, _target_: torch.nn.functional.silu}
    """


def test_the_transformer_config_inside_a_model_config() -> None:
    job = read(
        NESTED, "model.transformer.recompute_granularity=full", "model.recompute_method=block"
    )
    assert (job.model.num_layers, job.model.seq_length) == (4, 2048)
    assert job.model.activation_func == "silu"
    assert (job.model.recompute_granularity, job.model.recompute_method) == ("full", "block")
    assert job.given["model.num_layers"] == "-:7"
    assert refused(NESTED, "model.transformer.num_layer=3").data["nearest"] == "model.num_layers"


def test_given_fields_name_their_line() -> None:
    job = read("model:\n  num_layers: 4\n  hidden_size: 512\n  num_attention_heads: 8\n")
    assert job.given["model.hidden_size"] == "-:3"


def test_null_ddp_and_null_optimizer_are_kept_apart_from_defaults() -> None:
    assert read(SMALL).ddp is not None
    job = read(SMALL + "ddp: null\noptimizer: null\n")
    assert job.ddp is None
    assert job.optimizer is None


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("recompute_modules: null", None),
        ("recompute_modules: []", ()),
        ("recompute_modules: [core_attn]", ("core_attn",)),
    ],
)
def test_the_three_inputs_of_recompute_modules_stay_apart(line: Any, expected: Any) -> None:
    assert read(SMALL + f"  {line}\n").model.recompute_modules == expected


@pytest.mark.parametrize(
    ("line", "name", "expected"),
    [
        ("recompute_granularity: none", "recompute_granularity", "none"),
        ("recompute_granularity: off", "recompute_granularity", "False"),
        ("recompute_num_layers: 0", "recompute_num_layers", 0),
        ("recompute_num_layers: -3", "recompute_num_layers", -3),
        ("recompute_modules: [moe_layer, 7]", "recompute_modules", ("moe_layer", "7")),
        ("recompute_modules: mlp", "recompute_modules", ("m", "l", "p")),
        ("recompute_method: balanced", "recompute_method", "balanced"),
    ],
)
def test_illegal_recompute_values_are_left_for_check(line: Any, name: Any, expected: Any) -> None:
    assert getattr(read(SMALL + f"  {line}\n").model, name) == expected


@pytest.mark.parametrize(
    "line",
    [
        "recompute_num_layers: {a: 1}",
        "recompute_num_layers: [1]",
        "recompute_granularity: [full]",
        "recompute_modules: {mlp: true}",
        "recompute_modules: [[mlp]]",
        "seq_length: long",
        "bf16: 1",
        "hidden_dropout: .nan",
        "hidden_dropout: yes",
        "num_query_groups: 2.5",
        "window_size: [1, 2, 3]",
        "vision: 3",
    ],
)
def test_a_wrong_type_is_refused(line: Any) -> None:
    assert refused(SMALL + f"  {line}\n").code == "wrong-type"


@pytest.mark.parametrize(
    "line",
    [
        "seq_length: 0",
        "tensor_model_parallel_size: -1",
        "hidden_dropout: -0.1",
        "vocab_size: 999999999999999999999",
        "normalization: BatchNorm",
        "activation_func: mish",
        "params_dtype: int4",
        "fp8: e5m2",
        "moe_layer_freq: 0",
    ],
)
def test_a_value_out_of_range_is_refused(line: Any) -> None:
    assert refused(SMALL + f"  {line}\n").code == "bad-value"


@pytest.mark.parametrize(
    ("text", "nearest"),
    [
        ("  recompute_granularty: full\n", "model.recompute_granularity"),
        ("  grad_reduce_in_fp32: true\n", "ddp.grad_reduce_in_fp32"),
        ("  micro_batch_size: 1\n", "train.micro_batch_size"),
        ("ddp:\n  overlap_grad_reduc: true\n", "ddp.overlap_grad_reduce"),
        ("train:\n  seq_lenght: 4096\n", None),
        ("hardware:\n  gpus: 8\n", "hardware.num_gpus"),
    ],
)
def test_an_unknown_field_names_the_nearest_one(text: Any, nearest: Any) -> None:
    error = refused(SMALL + text)
    assert error.code == "unknown-field"
    if nearest is not None:
        assert error.data["nearest"] == nearest
        assert nearest in error.hint


def test_an_unknown_section_names_the_nearest_one() -> None:
    error = refused(SMALL + "optimiser:\n  lr: 1\n")
    assert (error.code, error.data["nearest"]) == ("unknown-section", "optimizer")


def test_known_fields_that_are_not_modelled_are_listed_only_when_they_differ() -> None:
    job = read(SMALL + "  init_method_std: 0.5\n  layernorm_epsilon: 1.0e-05\n")
    assert job.unmodelled == {"model.init_method_std": 0.5}
    assert [item.id for item in job.assumptions] == ["unmodelled"]
    assert "model.init_method_std" in job.assumptions[0].text


def test_precision_recipe_is_expanded_visibly() -> None:
    job = read(SMALL + "mixed_precision: bf16_with_fp8_current_scaling_mixed\n")
    assert (job.model.bf16, job.model.fp8, job.model.fp8_recipe) == (True, "hybrid", "tensorwise")
    assert job.model.first_last_layers_bf16
    assert job.ddp is not None
    assert job.ddp.grad_reduce_in_fp32
    changed = {change.field: change for change in job.changes}
    assert changed["model.fp8"].after == "hybrid"
    assert "mixed_precision.py" in changed["model.fp8"].source


def test_precision_recipe_overrides_what_the_sections_say_as_bridge_does() -> None:
    text = (
        SMALL + "  fp8_margin: 3\nddp:\n  grad_reduce_in_fp32: false\nmixed_precision: bf16-mixed\n"
    )
    job = read(text)
    assert job.ddp is not None
    assert job.ddp.grad_reduce_in_fp32
    assert job.model.fp8_margin == 3


def test_precision_recipe_leaves_null_sections_alone() -> None:
    job = read(SMALL + "ddp: null\noptimizer: null\nmixed_precision: bf16_with_mxfp8_mixed\n")
    assert job.ddp is None
    assert job.optimizer is None
    assert job.model.fp8_param


def test_one_field_of_a_named_precision_recipe_can_be_overridden() -> None:
    job = read(SMALL + "mixed_precision: bf16_mixed\n", "mixed_precision.grad_reduce_in_fp32=false")
    assert job.model.bf16
    assert job.ddp is not None
    assert not job.ddp.grad_reduce_in_fp32


def test_the_recipe_of_fp8_reaches_the_optimizer_of_a_job_without_fp8() -> None:
    job = read(SMALL + "mixed_precision: bf16_mixed\n")
    assert job.optimizer is not None
    assert (job.model.fp8, job.model.fp8_recipe, job.optimizer.fp8_recipe) == (
        None,
        "delayed",
        "tensorwise",
    )
    delayed = read(SMALL + "mixed_precision: bf16_mixed\n", "mixed_precision.fp8_recipe=delayed")
    assert delayed.optimizer is not None
    assert delayed.optimizer.fp8_recipe == "delayed"
    untouched = read(SMALL)
    assert untouched.optimizer is not None
    assert untouched.optimizer.fp8_recipe is None


def test_unknown_precision_recipe_names_the_nearest() -> None:
    error = refused(SMALL + "mixed_precision: bf16_with_fp8_current_scalling_mixed\n")
    assert error.code == "unknown-precision"
    assert "bf16_with_fp8_current_scaling_mixed" in error.hint


def test_sequence_length_is_read_from_the_dataset_and_must_agree() -> None:
    assert read(SMALL + "dataset:\n  seq_length: 2048\n").model.seq_length == 2048
    error = refused(SMALL + "  seq_length: 1024\ndataset:\n  seq_length: 2048\n")
    assert error.code == "conflicting-values"
    job = read(SMALL + "  seq_length: 1024\ndataset:\n  seq_length: 1024\n", "model.seq_length=512")
    assert job.model.seq_length == 512


def test_bridge_decides_two_parallel_sizes_before_megatron_does() -> None:
    text = SMALL + "  num_moe_experts: 8\n  expert_model_parallel_size: 4\n"
    text += "  tensor_model_parallel_size: 2\n"
    job = read(text)
    assert job.model.expert_tensor_parallel_size == 1
    assert any(change.field == "model.expert_tensor_parallel_size" for change in job.changes)
    assert read(text, "framework.megatron_bridge=0.5.0").model.expert_tensor_parallel_size is None
    assert not read(SMALL + "  sequence_parallel: true\n").model.sequence_parallel


@pytest.mark.parametrize("path", sorted(EXAMPLES.glob("*.yaml")), ids=lambda path: path.name)
def test_every_example_job_is_complete(path: Any) -> None:
    job = load(str(path), require=("architecture", "vocabulary", "sequence", "batch", "gpu"))
    assert not job.unmodelled


def test_an_incomplete_job_says_what_to_paste() -> None:
    with pytest.raises(ConfigError) as caught:
        load("-", stdin=SMALL.encode(), require=("sequence", "batch"))
    assert caught.value.code == "incomplete-job"
    paste = caught.value.data["overrides"]
    assert load("-", *paste, stdin=SMALL.encode(), require=("sequence", "batch")).seq_length == 8192
