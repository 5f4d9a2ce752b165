#!/bin/sh
# Run the studies of this folder on a GPU machine with torch, megatron-core and transformer-engine:
#
#   sh benchmarks/studies/run.sh OUT [NAME...]
#
# Each is one `recompute measure`; ledgers go to OUT/NAME. A study that was cut short goes on where it was.
# PYTHON names the interpreter; RECOMPUTE_OPTIONS is added to every command.
set -u
here=$(cd "$(dirname "$0")" && pwd)
out=$1
shift
wanted=${*:-all}

study() { # NAME CANDIDATES [repeats of the control]
  case " $wanted " in *" all "* | *" $1 "*) ;; *) return 0 ;; esac
  echo "== $1" >&2
  ${PYTHON:-python3} -m recompute measure "$here/$1.yaml" --out "$out/$1" --candidates "$2" \
    --repeats "${3:-2}" --steps 8 --warmup 2 --ahead 4 --limit 120 ${RECOMPUTE_OPTIONS:-} ||
    echo "study $1: exit status $?" >&2
}

study dense-gqa "mlp,core_attn,full/uniform/1,full/uniform/4,full/block/1,full/block/2,full/block/3,full/block/4,\
full/block/5,full/block/6,full/block/7,per-layer/0-1=mlp_act,per-layer/0-4=mlp_act,per-layer/0-0=full/1-7=mlp_act,\
per-layer/0-2=full/3-7=mlp_act,per-layer/0-5=mlp/6-7=mlp_act,per-layer/0-3=full/4-7=mlp" 3
study gqa-moe "moe_act,core_attn,layernorm,moe,moe_act+layernorm,full/uniform/1,full/uniform/2,full/block/2,\
per-layer/0-0=moe/1-3=moe_act,per-layer/0-1=layernorm+moe/2-3=moe_act"
study mla-moe "mla_up_proj,core_attn,layernorm,moe_act,moe,shared_experts,mlp,moe_act+layernorm+mla_up_proj,\
full/uniform/1,per-layer/0-0=layernorm+mla_up_proj+mlp_act/1-3=moe_act+layernorm,full/block/2"
study dense-bias "core_attn,full/uniform/1,full/block/2,full/block/4,per-layer/0-5=mlp_act,per-layer/0-1=full/2-5=mlp_act"
study dense-fp8 "mlp,full/uniform/1,full/block/4,core_attn"
