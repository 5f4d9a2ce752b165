"""A field that a script gives inside a variable names the line in the variable, not the launcher's."""

from __future__ import annotations

from recompute.config.load import load

SCRIPT = b"""\
#!/bin/bash
GPT_ARGS="
  --num-layers 8
  --hidden-size 512 \\
  --num-attention-heads 8
"
GPT_ARGS+=" --bf16
   --seq-length 1024"
MORE=(
  --micro-batch-size 2
)
export MODEL="--swiglu
  --recompute-granularity full --recompute-method block
  --recompute-num-layers=3"
torchrun --nproc_per_node 8 pretrain_gpt.py $GPT_ARGS "${MORE[@]}" $MODEL \\
   --vocab-size 1024
"""
LINES = {
    "model.num_layers": 3,
    "model.hidden_size": 4,
    "model.num_attention_heads": 5,
    "model.bf16": 7,
    "model.seq_length": 8,
    "train.micro_batch_size": 10,
    "model.recompute_granularity": 13,
    "model.recompute_method": 13,
    "model.recompute_num_layers": 14,
    "model.vocab_size": 16,
}


def test_each_flag_names_its_own_line() -> None:
    given = load("-", stdin=SCRIPT).given
    assert {name: given[name] for name in LINES} == {
        name: f"-:{line}" for name, line in LINES.items()
    }


def test_a_flag_that_a_later_assignment_replaces_names_the_later_line() -> None:
    script = SCRIPT.replace(b"MORE=(", b'GPT_ARGS="$GPT_ARGS --num-layers 4"\nMORE=(')
    job = load("-", stdin=script)
    assert job.model.num_layers == 4
    assert job.given["model.num_layers"] == "-:9"
    assert job.given["model.hidden_size"] == "-:4"
