#!/bin/sh
# Settings that no other study has met, bytes first (one_process.py):
#
#   sh benchmarks/studies/features.sh OUT
#
# gdn needs fla-core (0.5 here), mamba needs mamba-ssm and causal-conv1d beside torch, megatron-core and
# transformer-engine. Building causal-conv1d takes many minutes even for one architecture: bring it built.
# Triton kernels are not tuned (triton_configs.py).
set -u
here=$(cd "$(dirname "$0")" && pwd)
export NVTE_CPU_OFFLOAD_V1=1
exec "${PYTHON:-python3}" "$here/one_process.py" "$1" \
  dense-window=core_attn,mlp,full/uniform/1 \
  dense-mtp=mlp,full/uniform/1 \
  moe-capacity=moe_act,moe,full/uniform/1 \
  dense-fp8-delayed=mlp,full/uniform/1 \
  dense-fp8-blockwise=mlp,full/uniform/1 \
  gdn=core_attn,mlp,gdn_norm_out,full/uniform/1 \
  gdn-mtp=mlp,gdn_norm_out,full/uniform/1 \
  dense-offload=mlp \
  moe-offload=moe_act \
  mamba=core_attn,mlp,full/uniform/1 \
  mamba-batch=core_attn,mlp,full/uniform/1
