"""Megatron-LM launch scripts, argument lists and MODEL_ARGS files."""

from __future__ import annotations

import textwrap
from pathlib import Path
from typing import Any

import pytest

from recompute.config.load import load
from recompute.errors import ConfigError

EXAMPLES = Path(__file__).parents[4] / "examples"

BASE = (
    "--num-layers 4 --hidden-size 512 --num-attention-heads 8 --seq-length 128 --micro-batch-size 1"
)


def read(text: str, *overrides: str) -> Any:
    return load("-", *overrides, stdin=textwrap.dedent(text).encode())


def args(extra: str = "") -> Any:
    return read(f"{BASE} {extra}\n")


def refused(text: str) -> ConfigError:
    with pytest.raises(ConfigError) as caught:
        read(text)
    assert caught.value.exit_code == 2
    return caught.value


def test_the_example_script() -> None:
    job = load(str(EXAMPLES / "llama3-8b.sh"))
    assert (job.identity.format, job.identity.entry_point) == ("megatron-args", "megatron-lm")
    model = job.model
    assert (model.num_layers, model.ffn_hidden_size, model.num_query_groups) == (32, 14336, 8)
    assert (model.gated_linear_unit, model.activation_func) == (True, "silu")
    assert model.bias_activation_fusion
    assert not model.add_bias_linear
    assert not model.share_embeddings_and_output_weights
    assert model.recompute_modules == ("mlp",)
    assert job.hardware.num_gpus == 16
    assert job.train.global_batch_size == 128
    assert job.environment["CUDA_DEVICE_MAX_CONNECTIONS"] == "1"
    assert job.environment["PYTORCH_CUDA_ALLOC_CONF"] == "expandable_segments:True"
    assert job.ddp is not None
    assert job.ddp.grad_reduce_in_fp32
    assert job.ddp.use_distributed_optimizer
    assert job.given["model.recompute_modules"].endswith("llama3-8b.sh:65")


SLURM = r"""
    #!/bin/bash
    #SBATCH --nodes=4
    #SBATCH --ntasks-per-node=8
    DIR=`pwd`
    NAME="run_$(date +%s)"
    if [ -n "${DEBUG}" ]; then
        BATCH=1
    else
        BATCH=4
    fi
    options=" \
        --num-layers 24 --hidden-size 1024 \
        --num-attention-heads 16 \
        --seq-length 2048 --max-position-embeddings 2048 \
        --micro-batch-size ${BATCH} \
        --tensor-model-parallel-size 2 --pipeline-model-parallel-size 4 \
        --num-layers-per-virtual-pipeline-stage 3 \
        --recompute-activations \
        --save ${DIR}/${NAME} \
        --bf16 "
    run_cmd="python -u ${DIR}/pretrain_gpt.py ${options}"
    srun -l --container-image "image" sh -c "${run_cmd}"
    cat <<'END'
    --num-layers 99
    END
    """


def test_a_slurm_script_with_nested_command() -> None:
    job = read(SLURM)
    assert job.model.num_layers == 24
    assert job.train.micro_batch_size == 4
    assert job.model.virtual_pipeline_model_parallel_size == 2
    assert job.model.overlap_p2p_comm
    assert job.model.recompute_granularity == "selective"
    assert job.model.recompute_modules is None
    assert job.hardware.num_gpus == 32


def test_conditions_that_only_the_shell_can_judge_are_said() -> None:
    job = read(
        f"""
        TP=1
        if [ "$(hostname)" == "login" ]; then TP=2; else TP=4; fi
        python pretrain_gpt.py {BASE} --tensor-model-parallel-size $TP
        """
    )
    assert job.model.tensor_model_parallel_size == 2
    assert any("condition" in item.text for item in job.assumptions)


def test_a_value_from_outside_is_refused_only_when_it_matters() -> None:
    text = f"python pretrain_gpt.py {BASE} --data-path $1 --tensor-model-parallel-size $TP\n"
    error = refused(text)
    assert error.code == "unresolved-variable"
    assert error.data["variable"] == "TP"
    assert "model.tensor_model_parallel_size=" in error.hint
    assert read(text, "model.tensor_model_parallel_size=2").model.tensor_model_parallel_size == 2


def test_words_quotes_and_expansions() -> None:
    job = read(
        r"""
        A=(--num-layers 4 --hidden-size=512)
        A+=(--num-attention-heads 8)   # heads
        B='--seq-length 128'
        C=${MISSING:-"--micro-batch-size 1"}
        torchrun --nproc-per-node=8 --nnodes $((1 + 1)) train.py "${A[@]}" $B ${C} \
            --moe-layer-freq '([0]*1+[1]*3)' --num-experts "8" --window-size '(127, 0)' > log 2>&1 &
        """
    )
    assert job.model.moe_layer_freq == (0, 1, 1, 1)
    assert job.model.window_size == (127, 0)
    assert job.model.num_moe_experts == 8
    assert job.hardware.num_gpus == 16


def test_one_flag_per_line_is_one_argument_list() -> None:
    assert read(BASE.replace(" --", "\n--") + "\n").model.hidden_size == 512


@pytest.mark.parametrize(
    ("extra", "read_back"),
    [
        (
            "",
            lambda job: (
                job.model.gradient_accumulation_fusion and job.model.deallocate_pipeline_outputs
            ),
        ),
        ("", lambda job: job.model.persist_layer_norm and job.model.bias_dropout_fusion),
        ("", lambda job: job.model.attention_softmax_in_fp32 is False),
        ("", lambda job: job.model.params_dtype == "fp32" and not job.ddp.grad_reduce_in_fp32),
        (
            "--no-gradient-accumulation-fusion",
            lambda job: not job.model.gradient_accumulation_fusion,
        ),
        ("--no-persist-layer-norm", lambda job: not job.model.persist_layer_norm),
        ("--swiglu", lambda job: job.model.ffn_hidden_size == int(4 * 512 * 2 / 3 / 64) * 64),
        ("", lambda job: job.model.ffn_hidden_size == 2048),
        ("--swiglu --no-bias-swiglu-fusion", lambda job: not job.model.bias_activation_fusion),
        ("--disable-bias-linear", lambda job: not job.model.bias_activation_fusion),
        ("--swiglu --disable-bias-linear", lambda job: job.model.bias_activation_fusion),
        ("--squared-relu", lambda job: job.model.activation_func == "squared_relu"),
        ("--bf16", lambda job: job.model.params_dtype == "bf16" and job.ddp.grad_reduce_in_fp32),
        ("--bf16 --grad-reduce-in-bf16", lambda job: not job.ddp.grad_reduce_in_fp32),
        (
            "--bf16 --use-distributed-optimizer --use-precision-aware-optimizer --main-grads-dtype bf16",
            lambda job: (
                not job.ddp.grad_reduce_in_fp32 and job.optimizer.main_grads_dtype == "bf16"
            ),
        ),
        ("--num-query-groups 4", lambda job: job.model.num_query_groups is None),
        (
            "--group-query-attention --num-query-groups 4",
            lambda job: job.model.num_query_groups == 4,
        ),
        ("--position-embedding-type rope", lambda job: job.model.apply_rope_fusion),
        ("", lambda job: not job.model.apply_rope_fusion),
        ("--sequence-parallel", lambda job: not job.model.sequence_parallel),
        ("--use-flash-attn", lambda job: job.model.attention_backend == "flash"),
        ("--transformer-impl local", lambda job: job.model.transformer_impl == "local"),
        ("--recompute-modules", lambda job: job.model.recompute_modules == ()),
        (
            "--recompute-modules mlp core_attn",
            lambda job: job.model.recompute_modules == ("mlp", "core_attn"),
        ),
        (
            "--recompute-modules mlp,core_attn",
            lambda job: job.model.recompute_modules == ("mlp,core_attn",),
        ),
        (
            "--recompute-granularity full --recompute-method block --recompute-num-layers 0",
            lambda job: job.model.recompute_num_layers == 0,
        ),
        (
            "--recompute-granularity full --recompute-activations",
            lambda job: job.model.recompute_granularity == "selective",
        ),
        ("--cpu-offloading-num-layers 2", lambda job: job.model.cpu_offloading),
        (
            "--num-virtual-stages-per-pipeline-rank 2 --pipeline-model-parallel-size 2",
            lambda job: job.model.overlap_p2p_comm,
        ),
        (
            "--fp8-format hybrid --fp8-param-gather",
            lambda job: job.model.fp8_param and job.ddp.fp8_param_gather,
        ),
        ("--exp-avg-dtype fp8", lambda job: job.optimizer.exp_avg_dtype == "fp8"),
        (
            "--padded-vocab-size 50304",
            lambda job: (job.model.vocab_size, job.model.should_pad_vocab) == (50304, False),
        ),
        (
            "--vocab-size 1000 --tokenizer-type NullTokenizer",
            lambda job: job.model.vocab_size == 1001,
        ),
        (
            "--moe-router-load-balancing-type none --num-experts 4",
            lambda job: job.model.moe_router_load_balancing_type == "none",
        ),
        (
            "--num-experts 4 --expert-model-parallel-size 2 --tensor-model-parallel-size 2",
            lambda job: job.model.expert_tensor_parallel_size is None,
        ),
        (
            "--decoder-first-pipeline-num-layers 1 --pipeline-model-parallel-size 4",
            lambda job: job.model.num_layers_in_first_pipeline_stage == 1,
        ),
        (
            "--use-megatron-fsdp",
            lambda job: job.ddp.use_megatron_fsdp and job.ddp.use_distributed_optimizer,
        ),
        ("--lr 1e-4 --exit-duration-in-mins 5", lambda job: job.unmodelled["optimizer.lr"] == 1e-4),
    ],
)
def test_flags_and_what_megatron_sets_beside_them(extra: Any, read_back: Any) -> None:
    assert read_back(args(extra))


@pytest.mark.parametrize(
    ("extra", "code", "hint"),
    [
        ("--recompute-granuarity full", "unknown-flag", "--recompute-granularity"),
        ("--checkpoint-activations", "removed-flag", "--recompute-activations"),
        ("--tensor-model-parallel-size two", "bad-flag", ""),
        ("--bf16=1", "bad-flag", ""),
        ("--swiglu 4", "bad-flag", ""),
        ("--ffn-hidden-size", "bad-flag", ""),
        (
            "--pipeline-model-parallel-size 2 --num-layers-per-virtual-pipeline-stage 3",
            "does-not-divide",
            "",
        ),
    ],
)
def test_what_megatron_would_refuse(extra: Any, code: Any, hint: Any) -> None:
    error = refused(f"{BASE} {extra}\n")
    assert error.code == code
    assert hint in error.hint


CASES = r"""
    SCALE=${SCALE:-big}
    case "$SCALE" in
        small|tiny) LAYERS=2
            ;;
        b*)
            LAYERS=8
            HEADS=16 ;;
        *)
            echo "unknown"; exit 1
            ;;
    esac
    torchrun pretrain_gpt.py --num-layers $LAYERS --hidden-size 512 --num-attention-heads $HEADS
    """


def test_case_statements_are_followed() -> None:
    job = read(CASES)
    assert (job.model.num_layers, job.model.num_attention_heads) == (8, 16)
    assert job.assumptions == ()
    small = CASES.replace(":-big", ":-tiny").replace("$HEADS", "8")
    assert read(small).model.num_layers == 2
    outside = read(CASES.replace("${SCALE:-big}", "$(uname)").replace("$HEADS", "8"))
    assert outside.model.num_layers == 2
    assert "case" in outside.assumptions[0].text


def test_an_array_is_split_where_it_is_not_quoted() -> None:
    text = f'A=("--fp8-format hybrid" "--bf16")\ntorchrun t.py {BASE} '
    assert read(text + "${A[@]}\n").model.fp8 == "hybrid"
    assert refused(text + '"${A[@]}"\n').code == "unknown-flag"


def test_a_file_of_arguments_to_source() -> None:
    text = f'MODEL_ARGS=" {BASE} --num-experts 4 --moe-layer-freq ([0]*1+[1]*3) "\nOTHER=1\n'
    job = read(text)
    assert job.model.moe_layer_freq == (0, 1, 1, 1)
    assert "MODEL_ARGS" in job.assumptions[0].text


def test_what_does_not_enter_the_job_is_no_reason_to_refuse_it() -> None:
    job = args("--step-batch-size-schedule 0:16 2.4B:320 --seed ten --load")
    assert job.model.num_layers == 4


def test_a_hybrid_pattern_says_how_many_layers_there_are() -> None:
    job = read("--hybrid-layer-pattern M-M*/M --hidden-size 512 --num-attention-heads 8\n")
    assert job.model.num_layers == 4
    assert any(change.field == "model.num_layers" for change in job.changes)
    both = "--hybrid-layer-pattern M-M* --num-layers 9 --hidden-size 512 --num-attention-heads 8\n"
    assert read(both).model.num_layers == 4


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("echo 'no end\n--num-layers 2\n", "shell-syntax"),
        ("A=$(b\n--num-layers 2\n", "shell-syntax"),
        ("#!/bin/bash\necho hello\n", "no-training-command"),
        ("A=xxxxxxxx\n" + "A=$A$A\n" * 60 + f"{BASE} --load $A\n", "shell-limit"),
        ("A=(a b c d)\n" + 'A+=("${A[@]}")\n' * 40 + f"{BASE}\n", "shell-limit"),
    ],
)
def test_scripts_that_cannot_be_read(text: Any, code: Any) -> None:
    assert refused(text).code == code


MODEL_ARGS = """\
    ENV_VARS:
      CUDA_DEVICE_MAX_CONNECTIONS: 1
      NVTE_ALLOW_NONDETERMINISTIC_ALGO: 0
    TEST_TYPE: regular
    MODEL_ARGS:
      --num-layers: 12
      --hidden-size: 512
      --num-attention-heads: 8
      --log-params-norm: true
      --seq-length: 1024
      --micro-batch-size: 4
      --global-batch-size: 32
      --moe-layer-freq: ([0]*3+[1]*9)
      --num-experts: 8
      --bf16: true
      --recompute-granularity: selective
      --recompute-modules: "[moe_act layernorm]"
      --attention-backend: unfused
      --sequence-parallel: false
    """


@pytest.mark.parametrize(
    "labels",
    [
        '"[moe_act layernorm]"',
        "moe_act layernorm",
        "[moe_act, layernorm]",
        '" [moe_act layernorm] "',
    ],
)
def test_model_args_yaml(labels: str) -> None:
    job = read(MODEL_ARGS.replace('"[moe_act layernorm]"', labels))
    assert job.identity.format == "megatron-model-args"
    assert job.identity.entry_point == "megatron-lm"
    assert job.model.recompute_modules == ("moe_act", "layernorm")
    assert job.model.moe_layer_freq == (0, 0, 0, *[1] * 9)
    assert not job.model.sequence_parallel
    assert job.environment["CUDA_DEVICE_MAX_CONNECTIONS"] == "1"
    assert job.given["model.num_layers"] == "-:6"


def test_a_schedule_of_batch_sizes_gives_its_first_one() -> None:
    text = MODEL_ARGS.replace(
        "--global-batch-size: 32", '--step-batch-size-schedule: "0:384 2B:768"'
    )
    assert read(text).train.global_batch_size == 384
    both = MODEL_ARGS.rstrip() + '\n      --step-batch-size-schedule: "0:384 2B:768"\n'
    assert read(both).train.global_batch_size == 32


def test_model_args_repeat_flags_and_leave_values_to_the_runner() -> None:
    text = MODEL_ARGS.replace('"[moe_act layernorm]"', "mlp").rstrip() + "\n"
    job = read(
        text + "      --num-layers: 24\n      --seed: ${REPEAT}\n      --moe-layer-freq: 1\n"
    )
    assert job.model.num_layers == 24
    assert (
        refused(text + "      --tensor-model-parallel-size: ${TP}\n").code == "unresolved-variable"
    )


def test_model_args_must_be_a_mapping() -> None:
    assert refused("MODEL_ARGS: [--num-layers]\n").code == "wrong-type"
