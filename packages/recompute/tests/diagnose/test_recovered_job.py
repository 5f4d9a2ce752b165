"""The job that a log printed is read back, and actions are legal on it."""

from __future__ import annotations

from pathlib import Path

import pytest

from recompute.cli.diagnose import predicted_actions
from recompute.config.choice import NO_RECOMPUTE
from recompute.config.load import load
from recompute.config.normalize import normalize
from recompute.config.revision import Revision
from recompute.config.schema import JobConfig
from recompute.diagnose.legality import already_set, applied, why_illegal
from recompute.diagnose.run import Answer, diagnose
from recompute.search.lever_edits import Before
from recompute.search.levers import LEVERS
from recompute.search.plan import plan
from recompute.timeline.predict import Predictor

ARGUMENTS = {
    "num_layers": "4",
    "hidden_size": "1024",
    "num_attention_heads": "16",
    "ffn_hidden_size": "4096",
    "seq_length": "2048",
    "max_position_embeddings": "2048",
    "micro_batch_size": "2",
    "global_batch_size": "32",
    "train_iters": "100",
    "tensor_model_parallel_size": "2",
    "sequence_parallel": "True",
    "bf16": "True",
    "swiglu": "False",
    "lr": "0.0001",
    "recompute_granularity": "None",
    "recompute_modules": "None",
    "use_distributed_optimizer": "True",
    "params_dtype": "torch.bfloat16",
    "vocab_size": "32000",
    "num_experts": "None",
    "data_path": "['/data/a b']",
    "tokenizer_type": "NullTokenizer",
}
FAILURE = (
    "[rank1]: Traceback (most recent call last):\n"
    '[rank1]:   File "/opt/megatron/training/training.py", line 1400, in train_step\n'
    '[rank1]:   File "/opt/megatron/core/transformer/{file}", line 12, in forward\n'
    "[rank1]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 1 has a total capacity of 79.11 GiB of which 1.00 GiB is free. "
    "Of the allocated memory 76.00 GiB is allocated by PyTorch, and 0.50 GiB is reserved by PyTorch but unallocated.\n"
)


def dump(changes: dict[str, str] | None = None, prefix: str = "") -> str:
    values = ARGUMENTS | (changes or {})
    lines = ["------------------------ arguments ------------------------"]
    lines += [
        f"  {name} {'.' * (48 - len(name))} {value}" for name, value in sorted(values.items())
    ]
    lines += ["-------------------- end of arguments ---------------------"]
    return "".join(f"{prefix}{line}\n" for line in lines)


def run(tmp_path: Path, text: str, **options: object) -> Answer:
    path = tmp_path / "train.log"
    path.write_text(text, encoding="utf-8")
    return diagnose((str(path),), **options)  # type: ignore[arg-type]


@pytest.mark.parametrize("prefix", ["", "[default0]:", "0: ", "[rank0]: "])
def test_megatron_lm_prints_its_arguments(tmp_path: Path, prefix: str) -> None:
    job = run(tmp_path, dump(prefix=prefix) + FAILURE.format(file="mlp.py")).job
    assert job is not None
    assert (job.model.num_layers, job.model.hidden_size, job.model.seq_length) == (4, 1024, 2048)
    assert (job.train.micro_batch_size, job.model.tensor_model_parallel_size) == (2, 2)
    assert job.model.bf16
    assert job.model.sequence_parallel
    assert job.optimizer is not None
    assert job.optimizer.use_distributed_optimizer
    assert job.identity.path.endswith("train.log")


def test_bridge_prints_its_container_as_yaml(tmp_path: Path) -> None:
    text = (
        "INFO start\n_target_: megatron.bridge.training.config.ConfigContainer\nmodel:\n  _target_: megatron.bridge.models.gpt_provider.GPTModelProvider\n"
        "  num_layers: 6\n  hidden_size: 512\n  num_attention_heads: 8\n  seq_length: 1024\n  vocab_size: 1000\ntrain:\n  micro_batch_size: 1\n  global_batch_size: 8\n\n"
    )
    job = run(tmp_path, text + FAILURE.format(file="mlp.py")).job
    assert job is not None
    assert (job.model.num_layers, job.train.global_batch_size) == (6, 8)


def test_bridge_prints_a_summary_of_what_is_not_default(tmp_path: Path) -> None:
    text = (
        "=" * 70
        + "\nConfiguration Summary (Non-Default Values vs Megatron Core)\n"
        + "=" * 70
        + "\n\n[model] Non-default values (vs Mcore TransformerConfig):\n  hidden_size: 512  (Mcore default: 0)\n  num_attention_heads: 8  (Mcore default: 0)\n"
        "  num_layers: 6  (Mcore default: 0)\n  recompute_modules: ['mlp']  (Mcore default: None)\n  init_method: <function f at 0x1>  (Mcore default: None)\n\n[train]:\n  micro_batch_size: 3\n\n"
        + "=" * 70
        + "\n  num_layers: 99\n"
    )
    job = run(tmp_path, text + FAILURE.format(file="mlp.py")).job
    assert job is not None
    assert (job.model.num_layers, job.model.recompute_modules, job.train.micro_batch_size) == (
        6,
        ("mlp",),
        3,
    )


def test_a_dump_that_cannot_be_meant_is_a_note_not_an_error(tmp_path: Path) -> None:
    answer = run(tmp_path, dump({"num_attention_heads": "7"}) + FAILURE.format(file="mlp.py"))
    assert answer.job is None
    assert any("not understood" in note for note in answer.diagnosis.notes)
    assert str(answer.diagnosis.verdict) == "activation"


def test_an_action_that_the_rules_forbid_loses_its_overrides(tmp_path: Path) -> None:
    text = dump({"num_experts": "8", "moe_grouped_gemm": "False"}) + FAILURE.format(
        file="moe/experts.py"
    )
    first = run(tmp_path, text).diagnosis.next_actions[0]
    assert first.overrides == ()
    assert "moe" in first.why
    text = dump({"num_experts": "8", "moe_grouped_gemm": "True"}) + FAILURE.format(
        file="moe/experts.py"
    )
    first = run(tmp_path, text).diagnosis.next_actions[0]
    assert "model.recompute_modules=[moe_act]" in first.overrides


def test_an_action_that_is_done_already_is_left_out(tmp_path: Path) -> None:
    text = dump(
        {"recompute_granularity": "selective", "recompute_modules": "['mlp']"}
    ) + FAILURE.format(file="mlp.py")
    actions = run(tmp_path, text).diagnosis.next_actions
    assert all("model.recompute_modules=[mlp]" not in action.overrides for action in actions)


def test_predicted_actions_come_first(tmp_path: Path) -> None:
    from recompute.diagnose.types import NextAction

    asked = []

    def predict(job: object, needed: int | None) -> tuple[NextAction, ...]:
        asked.append(needed)
        return (NextAction(action="predicted"),)

    answer = run(tmp_path, dump() + FAILURE.format(file="mlp.py"), predict=predict)
    assert answer.diagnosis.next_actions[0].action == "predicted"
    assert asked == [(1 << 29) + (answer.diagnosis.numbers.total_bytes or 0) // 50]


def test_overrides_are_applied_as_hydra_would(tmp_path: Path) -> None:
    job = run(tmp_path, dump() + FAILURE.format(file="mlp.py")).job
    assert job is not None
    changed = applied(
        job,
        (
            "model.recompute_granularity=selective",
            "model.recompute_modules=[mlp]",
            "NCCL_DEBUG=WARN",
        ),
    )
    assert changed is not None
    assert changed.model.recompute_modules == ("mlp",)
    assert applied(job, ("model.no_such_field=1",)) is None
    assert already_set(job, ("model.tensor_model_parallel_size=2",))
    assert not already_set(job, ("model.tensor_model_parallel_size=4",))
    assert (
        why_illegal(
            job,
            ("model.recompute_granularity=selective", "model.recompute_modules=[moe_act]"),
            Revision("0.19"),
        )
        is not None
    )
    without_bias = (
        "model.recompute_granularity=selective",
        "model.recompute_modules=[mlp]",
        "model.add_bias_linear=false",
    )
    assert why_illegal(job, without_bias, Revision("0.19")) is None
    with_bias = why_illegal(job, without_bias[:2], Revision("0.19"))
    assert with_bias is not None
    assert with_bias.startswith("mlp-label-with-bias")
    assert load


JOB = """\
model: {num_layers: 8, hidden_size: 4096, num_attention_heads: 32, vocab_size: 32000, seq_length: 4096, bf16: true}
train: {micro_batch_size: 8, global_batch_size: 64}
ddp: {use_distributed_optimizer: false}
optimizer: {use_distributed_optimizer: false}
"""


def given(*overrides: str) -> JobConfig:
    return load("-", *overrides, stdin=JOB.encode())


def test_a_job_without_a_gpu_gets_its_prediction_first(tmp_path: Path) -> None:
    answer = run(tmp_path, FAILURE.format(file="mlp.py"), job=given(), predict=predicted_actions)
    first = answer.diagnosis.next_actions[0]
    assert "is predicted to bring the hottest rank from" in first.action
    assert first.overrides
    assert "job used: -" in answer.diagnosis.notes


def test_where_no_recompute_is_enough_the_other_changes_come_with_their_figures() -> None:
    job = given("hardware.num_gpus=8")
    now = plan(job, budget=1 << 45, details=False).control.peak_bytes
    least = min(o.peak_bytes for o in plan(job, budget=1 << 45, details=False).alternatives)
    actions = predicted_actions(job, now - least + (1 << 30))
    assert [line for action in actions for line in action.overrides]
    assert all("predicted to change the peak by -" in action.action for action in actions)
    assert "ddp.use_distributed_optimizer=true" in actions[0].overrides


def test_a_job_from_which_no_plan_can_be_made_says_so(tmp_path: Path) -> None:
    job = given("model.vocab_size=null")
    answer = run(tmp_path, FAILURE.format(file="mlp.py"), job=job, predict=predicted_actions)
    (note,) = (n for n in answer.diagnosis.notes if n.startswith("no plan was made from the job"))
    assert "does not say the vocabulary" in note


def test_the_micro_batch_is_halved(tmp_path: Path) -> None:
    actions = run(tmp_path, FAILURE.format(file="mlp.py"), job=given()).diagnosis.next_actions
    proposed = {line for action in actions for line in action.overrides}
    assert "train.micro_batch_size=4" in proposed
    assert "train.micro_batch_size=1" not in proposed


STATES = FAILURE.format(file="mlp.py").replace(
    '/opt/megatron/core/transformer/mlp.py", line 12, in forward',
    '/opt/megatron/core/optimizer/optimizer.py", line 12, in step',
)


def test_sharding_comes_before_narrow_moments(tmp_path: Path) -> None:
    answer = run(tmp_path, STATES, job=given("hardware.num_gpus=8"))
    assert str(answer.diagnosis.verdict) == "optimizer_state"
    lines = [line for action in answer.diagnosis.next_actions for line in action.overrides]
    shard = lines.index("ddp.use_distributed_optimizer=true")
    assert shard < lines.index("optimizer.exp_avg_dtype=bf16")


SLACK = FAILURE.format(file="mlp.py").replace(
    "and 0.50 GiB is reserved", "and 9.00 GiB is reserved"
)


@pytest.mark.parametrize(("graphs", "registers"), [("none", False), ("local", True)])
def test_nccl_registration_is_turned_off_beside_cuda_graphs_only(
    tmp_path: Path, graphs: str, registers: bool
) -> None:
    job = given(f"model.cuda_graph_impl={graphs}")
    answer = run(tmp_path, SLACK, job=job)
    first = answer.diagnosis.next_actions[0]
    assert "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True" in first.overrides
    assert ("NCCL_GRAPH_REGISTER=0" in first.overrides) is registers
    lever = next(lever for lever in LEVERS if lever.name == "expandable-segments")
    edit = lever.edit(Before(job, Predictor(normalize(given())).predict(NO_RECOMPUTE)))
    assert edit is not None
    assert ("environment.NCCL_GRAPH_REGISTER" in edit) is registers
