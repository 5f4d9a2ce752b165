#!/bin/bash
# Llama 3 8B pre-training with Megatron-LM on two nodes of eight GPUs: TP 2, sequence parallel, distributed
# optimizer, the MLP recomputed. Run it as it is; recompute reads it without running it:
#     recompute check examples/llama3-8b.sh
set -euo pipefail

export CUDA_DEVICE_MAX_CONNECTIONS=1
export PYTORCH_CUDA_ALLOC_CONF=${PYTORCH_CUDA_ALLOC_CONF:-expandable_segments:True}

GPUS_PER_NODE=8
NUM_NODES=${NUM_NODES:-2}
NODE_RANK=${NODE_RANK:-0}
MASTER_ADDR=${MASTER_ADDR:-localhost}
WORLD_SIZE=$((GPUS_PER_NODE * NUM_NODES))

TP_SIZE=2
SEQ_LENGTH=8192
MICRO_BATCH_SIZE=1
GLOBAL_BATCH_SIZE=$((MICRO_BATCH_SIZE * WORLD_SIZE / TP_SIZE * 16))

DISTRIBUTED_ARGS=(
    --nproc_per_node "$GPUS_PER_NODE"
    --nnodes "$NUM_NODES"
    --node_rank "$NODE_RANK"
    --master_addr "$MASTER_ADDR"
)

MODEL_ARGS=(
    --num-layers 32
    --hidden-size 4096
    --ffn-hidden-size 14336
    --num-attention-heads 32
    --group-query-attention
    --num-query-groups 8
    --kv-channels 128
    --seq-length "$SEQ_LENGTH"
    --max-position-embeddings "$SEQ_LENGTH"
    --position-embedding-type rope
    --rotary-base 500000
    --normalization RMSNorm
    --swiglu
    --disable-bias-linear
    --untie-embeddings-and-output-weights
    --attention-dropout 0.0
    --hidden-dropout 0.0
    --attention-backend fused
    --vocab-size 128256
)

TRAINING_ARGS=(
    --micro-batch-size "$MICRO_BATCH_SIZE"
    --global-batch-size "$GLOBAL_BATCH_SIZE"
    --train-iters 50000
    --lr 3e-4
    --bf16
    --use-distributed-optimizer
    --overlap-grad-reduce
    --overlap-param-gather
    --tensor-model-parallel-size "$TP_SIZE"
    --sequence-parallel
)

RECOMPUTE_ARGS=(
    --recompute-granularity selective
    --recompute-modules mlp
)

torchrun "${DISTRIBUTED_ARGS[@]}" pretrain_gpt.py \
    "${MODEL_ARGS[@]}" \
    "${TRAINING_ARGS[@]}" \
    "${RECOMPUTE_ARGS[@]}" \
    --mock-data \
    --tokenizer-type HuggingFaceTokenizer \
    --tokenizer-model "${TOKENIZER_MODEL:-meta-llama/Meta-Llama-3-8B}" \
    "$@" 2>&1 | tee training.log
