"""What is wrong, and the line that mends it: hints hold what the reader meant to write."""

from __future__ import annotations

from pathlib import Path

import pytest

from recompute.config.foreign_fields import OTHER_NAMES
from recompute.config.known import known_fields
from recompute.config.load import load
from recompute.config.normalize import GPU_COUNT, normalize
from recompute.config.recipe import recipe_named, recipe_names
from recompute.config.require import PLAN, require_complete
from recompute.errors import ConfigError
from recompute.search.plan import plan

JOB = b"""\
model: {num_layers: 8, hidden_size: 4096, num_attention_heads: 32, num_query_groups: 8}
train: {micro_batch_size: 1, global_batch_size: 24}
"""
MOE = ("model.num_moe_experts=8", "model.expert_model_parallel_size=8")


def refused(*overrides: str, job: bytes = JOB) -> ConfigError:
    with pytest.raises(ConfigError) as caught:
        require_complete(load("-", *overrides, stdin=job), PLAN)
    return caught.value


@pytest.mark.parametrize(
    ("override", "hint"),
    [
        ("model.seq_length=4k", "write model.seq_length=4096"),
        ("model.hidden_size=8K", "write model.hidden_size=8192"),
        ("model.vocab_size=128k", "write model.vocab_size=128000"),
        ("model.num_kv_heads=8", "did you mean model.num_query_groups?"),
        ("model.n_heads=8", "did you mean model.num_attention_heads?"),
        ("model.intermediate_size=8", "did you mean model.ffn_hidden_size?"),
        ("model.hidden_dim=8", "did you mean model.hidden_size?"),
        ("seq_length=8192", "did you mean model.seq_length?"),
        ("tp=4", "did you mean model.tensor_model_parallel_size?"),
        ("micro_batch_size=4", "did you mean train.micro_batch_size?"),
        ("modle.num_layers=4", "did you mean model?"),
    ],
)
def test_the_hint_is_what_was_meant(override: str, hint: str) -> None:
    assert refused(override).hint == hint


@pytest.mark.parametrize(("name", "field"), OTHER_NAMES.items())
def test_other_names_lead_to_fields_that_exist_and_hide_none(name: str, field: str) -> None:
    section, _, known = field.partition(".")
    assert known in known_fields()[section]
    assert name not in known_fields()[section]


@pytest.mark.parametrize(
    ("flag", "size"),
    [
        ("--tokenizer-type Llama2Tokenizer", 32000),
        ("--tokenizer-type GPT2BPETokenizer", 50257),
        ("--tokenizer-type HuggingFaceTokenizer --tokenizer-model meta-llama/Llama-3.1-8B", 128256),
    ],
)
def test_a_missing_vocabulary_is_that_of_the_tokenizer(flag: str, size: int) -> None:
    script = (
        f"torchrun pretrain_gpt.py --num-layers 8 --hidden-size 512 --num-attention-heads 8 {flag}"
    )
    error = refused(job=script.encode())
    assert f"model.vocab_size={size} " in error.hint + " "
    assert error.data["missing"] == ["vocabulary", "sequence", "batch", "gpu"]


@pytest.mark.parametrize(
    ("overrides", "count"),
    [
        (("hardware.num_gpus=7", "model.tensor_model_parallel_size=2"), 8),
        (("hardware.num_gpus=7", "model.tensor_model_parallel_size=4"), 8),
        (("hardware.num_gpus=9", "model.tensor_model_parallel_size=4"), 12),
        (("hardware.num_gpus=17", "model.tensor_model_parallel_size=4"), 24),
        (("hardware.num_gpus=12", "model.context_parallel_size=2", *MOE), 16),
        (
            ("hardware.num_gpus=50", "train.global_batch_size=3", "model.context_parallel_size=4"),
            12,
        ),
    ],
)
def test_the_hinted_count_of_gpus_is_accepted(overrides: tuple[str, ...], count: int) -> None:
    error = refused(*overrides)
    assert error.code == "world-size"
    assert error.hint.startswith(f"hardware.num_gpus={count}, ")
    accepted = load("-", *overrides, f"hardware.num_gpus={count}", stdin=JOB)
    assert accepted.hardware.num_gpus == count


def test_sizes_that_are_missing_come_in_one_line() -> None:
    error = refused("model.num_layers=null", "model.hidden_size=null")
    assert error.hint == "add model.num_layers=VALUE model.hidden_size=VALUE"


@pytest.mark.parametrize("name", ["run_config.yaml", "config.json"])
def test_a_folder_names_the_job_file_in_it(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_text("{}")
    with pytest.raises(ConfigError) as caught:
        load(str(tmp_path))
    assert caught.value.hint.endswith(f"{tmp_path}/{name}")


@pytest.mark.parametrize(
    ("overrides", "text"),
    [
        (("model.tensor_model_parallel_size=2",), "planned for 2 GPUs (TP x PP x CP = 2 x 1 x 1;"),
        (MOE, "planned for 8 GPUs (ETP x EP x PP = 1 x 8 x 1;"),
        ((), "planned for 1 GPU (TP x PP x CP = 1 x 1 x 1;"),
    ],
)
def test_a_count_of_gpus_that_is_not_given_is_an_assumption(
    overrides: tuple[str, ...], text: str
) -> None:
    job = normalize(load("-", *overrides, stdin=JOB))
    (found,) = (item.text for item in job.assumptions if item.id == GPU_COUNT)
    assert found.startswith(text)
    given = normalize(load("-", *overrides, "hardware.num_gpus=8", stdin=JOB))
    assert GPU_COUNT not in {item.id for item in given.assumptions}


@pytest.mark.parametrize(
    ("path", "hint"),
    [
        ("llama3_8b_pretrain_8gpu_h100_bf16_config", "did you mean recipe:llama3_8b_pretrain_8gpu"),
        ("llama3_8b_pretrain_8gpu_h100_bf16", "did you mean recipe:llama3_8b_pretrain_8gpu"),
        ("meta-llama/Llama-3.1-8B", "give its config.json as a file"),
        ("deepseek-ai/DeepSeek-V3", "give its config.json as a file"),
        ("jobs/llama.yaml", "give a job file, recipe:NAME"),
        ("here/llama-8b", "give a job file, recipe:NAME"),
        ("llama3_8b", "give a job file, recipe:NAME"),
    ],
)
def test_a_name_that_is_no_file_is_read_as_what_it_may_be(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, path: str, hint: str
) -> None:
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError) as caught:
        load(path)
    assert caught.value.code == "not-found"
    assert hint in caught.value.hint


def test_every_recipe_is_offered_by_its_bare_name() -> None:
    names = recipe_names()
    assert {recipe_named(name) for name in names} == set(names)
    assert recipe_named("train.yaml") is None


@pytest.mark.parametrize(
    ("files", "named"),
    [
        (("a.yaml", "config.json"), "config.json"),
        (("notes.md", "train_70b.sh"), "train_70b.sh"),
        (("b.yml", "a.yaml"), "a.yaml"),
    ],
)
def test_a_folder_names_the_job_file_that_it_holds(
    tmp_path: Path, files: tuple[str, ...], named: str
) -> None:
    for name in files:
        (tmp_path / name).touch()
    with pytest.raises(ConfigError) as caught:
        load(str(tmp_path))
    assert caught.value.hint == f"give the job file in it, for example {tmp_path}/{named}"


def test_a_folder_without_a_job_file_names_none(tmp_path: Path) -> None:
    (tmp_path / "notes.md").touch()
    with pytest.raises(ConfigError) as caught:
        load(str(tmp_path))
    assert caught.value.code == "not-a-file"
    assert str(tmp_path) not in caught.value.hint


@pytest.mark.parametrize("job", [b"model:\n\tnum_layers: 4\n", b"model:\n  \tnum_layers: 4\n"])
def test_a_tab_in_the_indentation_is_called_one(job: bytes) -> None:
    with pytest.raises(ConfigError) as caught:
        load("-", stdin=job)
    assert caught.value.code == "yaml-syntax"
    assert "a tab in the indentation" in caught.value.message
    assert caught.value.message.startswith("-:2:")
    assert "spaces" in caught.value.hint


def test_an_override_in_two_words_is_shown_in_one() -> None:
    hint = refused("train.micro_batch_size", "2").hint
    assert "train.micro_batch_size=VALUE" in hint


def test_a_gpu_given_as_a_budget_is_led_to_its_option() -> None:
    job = load("-", "model.seq_length=4096", "model.vocab_size=32000", stdin=JOB)
    with pytest.raises(ConfigError) as caught:
        plan(job, "H100-80GB")
    assert "--gpu H100-80GB" in caught.value.hint
