#!/bin/sh
# Megatron-LM's own pretrain_gpt.py under `recompute measure`, on one GPU, its script unchanged:
#
#   sh benchmarks/studies/real_loops.sh MEGATRON_LM OUT [NAME...]
#
# MEGATRON_LM is a checkout of NVIDIA/Megatron-LM with megatron/core/datasets built; torch and
# transformer-engine are there. The second study goes out of memory on purpose: its control does not fit.
# Their ledgers stand beside this file (docs/explanation/measured-studies.md).
# PYTHON names another interpreter than python3. The end status is the worst of the studies'.
set -u
here=$(cd "$(dirname "$0")" && pwd)
root=$(cd -- "$1" && pwd) || exit 2
mkdir -p -- "$2" && out=$(cd -- "$2" && pwd) || exit 2
python=$(command -v "${PYTHON:-python3}") || exit 2
case $python in /*) ;; *) python=$PWD/$python ;; esac
shift 2
PYTHONPATH="$root:${PYTHONPATH:-}"
export PYTHONPATH CUDA_DEVICE_MAX_CONNECTIONS=1

wanted=${*:-all}
worst=0

study() { # NAME CANDIDATES [more arguments of the script] [more options]
  case " $wanted " in *" all "* | *" $1 "*) ;; *) return 0 ;; esac
  args="$out/$1.args"
  { cat "$here/megatron-lm.args"; echo "${3:-}"; } >"$args"
  (cd "$root" && "$python" -m recompute measure "$args" hardware.gpu=h200 --out "$out/$1" \
    --candidates "$2" --steps 8 --warmup 2 --launcher torchrun --limit 150 ${4:-} \
    --entry "-m recompute.megatron.follow pretrain_gpt.py $(tr '\n' ' ' <"$args")") && return 0
  status=$?
  echo "study $1: exit status $status" >&2
  [ "$status" -le "$worst" ] || worst=$status
}

study megatron-lm "mlp,core_attn"
study megatron-lm-oom "full/uniform/1" "--micro-batch-size 12 --global-batch-size 12" "--repeats 1"
exit "$worst"
