"""What to do next: every action once, and which verdict rows lead to which, cheapest first."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from recompute.diagnose.types import NextAction, Verdict


@dataclass(frozen=True, slots=True, kw_only=True)
class Action:
    """One action of the table."""

    text: str
    why: str
    overrides: tuple[str, ...] = ()


SEGMENTS: Final = "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True"
SNAPSHOT_COMMAND: Final = "profiling.record_memory_history=true"

ACTIONS: Final[dict[str, Action]] = {
    # --- allocator
    "expandable-segments": Action(
        text="set expandable segments before touching recompute",
        overrides=(SEGMENTS,),
        why="the memory is there but in pieces; this costs no time. NVIDIA-NeMo/Megatron-Bridge#2971 got a 32-GPU Llama-3 70B run through with this alone",
    ),
    "expandable-segments-graphs": Action(
        text="set expandable segments (and NCCL_GRAPH_REGISTER=0, which CUDA graphs need beside them) before touching recompute",
        overrides=(SEGMENTS, "NCCL_GRAPH_REGISTER=0"),
        why="the memory is there but in pieces; this costs no time",
    ),
    "segments-are-on": Action(
        text="expandable segments are already on: leave 1-2 GiB less to activations instead of tuning the allocator",
        why="the tip at the end of the message is fixed text and is printed even then (pytorch/pytorch#173049)",
    ),
    "segments-may-rescue": Action(
        text="expandable segments may rescue this run, but plan for less memory",
        overrides=(SEGMENTS,),
        why="the slack would just cover the request, and it is under 5% of the card",
    ),
    "empty-cache": Action(
        text="leave a 1-2 GiB margin to NCCL and cuBLAS, or call torch.cuda.empty_cache() once before that point (after loading optimizer states, before the optimizer step)",
        why="PyTorch's cache held the rest of the card and the library that allocates outside it got nothing",
    ),
    "nccl-buffers": Action(
        text="shrink NCCL's own buffers and drop user-buffer registration",
        overrides=("NCCL_GRAPH_REGISTER=0", "NCCL_NVLS_ENABLE=0", "ddp.nccl_ub=false"),
        why="each communicator holds buffers of its own; many groups add up to gigabytes",
    ),
    "warm-up-cublas": Action(
        text="leave 1 GiB free and create the cuBLAS handle early (one small matmul before the model is built)",
        why="the handle's workspace is allocated outside PyTorch's cache on first use: out of memory in disguise",
    ),
    "collect-nccl": Action(
        text="run once with NCCL_DEBUG=WARN and read the last-error lines",
        overrides=("NCCL_DEBUG=WARN",),
        why="an unhandled CUDA error in NCCL is out of memory only if they say so",
    ),
    # --- other owners of the card
    "find-other-process": Action(
        text="look for a colocated engine or a left-over process on that GPU (nvidia-smi --query-compute-apps=pid,used_memory --format=csv); lower its share, or run one rank per GPU and fewer workers",
        why="memory that this process's allocator does not hold; recompute cannot reach it",
    ),
    "engine-share": Action(
        text="lower the rollout engine's memory share, or make the trainer release its cache before the engine wakes up",
        overrides=("gpu_memory_utilization=0.5",),
        why="the engine and the trainer take turns on one card and the sleeper's memory was not free",
    ),
    "check-limits": Action(
        text="do not add recompute: read total and allowed in the message, check set_per_process_memory_fraction, MIG or container limits, the driver or ROCm version and address-space limits",
        why="the device had more free memory than the request, so the refusal is a limit and not capacity",
    ),
    "check-shape": Action(
        text="check the shape behind the request: unsharded logits, naive attention, a token cap that does not hold, or a wrongly detected device size",
        why="no setting makes room for a request larger than the device",
    ),
    "earlier-failure": Action(
        text="look for an earlier failure on any rank: the size itself is garbage",
        why="'more than 1EB' is a negative or corrupt size and often follows another error (NVIDIA/nccl#1284)",
    ),
    "whole-message": Action(
        text="get the whole message and the traceback above it",
        why="what is quoted holds the request only",
    ),
    # --- optimizer, gradients, parameters
    "precision-aware-optimizer": Action(
        text="store the moments in 16 bits with the precision-aware optimizer; do not add recompute",
        overrides=(
            "optimizer.use_precision_aware_optimizer=true",
            "optimizer.exp_avg_dtype=bf16",
            "optimizer.exp_avg_sq_dtype=bf16",
        ),
        why="the states stay for the whole run once the first step has allocated them; recompute does not touch them",
    ),
    "shard-optimizer": Action(
        text="shard the optimizer over data parallel ranks, lower the precision of its moments, or offload it to the CPU",
        overrides=(
            "ddp.use_distributed_optimizer=true",
            "optimizer.use_distributed_optimizer=true",
        ),
        why="optimizer states are first allocated at the first step that is applied; recompute will not help much",
    ),
    "offload-optimizer": Action(
        text="offload part of the optimizer to the CPU",
        overrides=(
            "optimizer.optimizer_cpu_offload=true",
            "optimizer.optimizer_offload_fraction=0.5",
        ),
        why="costs step time; use it when more data-parallel ranks are not to be had",
    ),
    "grad-dtype": Action(
        text="keep gradients in 16 bits (or shard them), and use smaller buckets",
        overrides=("ddp.grad_reduce_in_fp32=false",),
        why="the FP32 gradient buffer takes 4 bytes for every parameter of the rank from model build on",
    ),
    "shard-load": Action(
        text="shard the load: build on the meta device and load each rank's shard, or raise tensor, pipeline or expert parallelism",
        overrides=("model.init_model_with_meta_device=true",),
        why="the card was full of weights before a step ran; recompute cannot matter",
    ),
    "save-buffers": Action(
        text="leave a margin for the save: it gathers or copies shards on the GPU beside training; call torch.cuda.empty_cache() before it, or save the distributed format without gathering",
        overrides=("checkpoint.ckpt_format=torch_dist",),
        why="the step itself fits; the save comes on top",
    ),
    "larger-parallelism": Action(
        text="raise model parallelism so that parameters and states are divided further",
        overrides=("model.tensor_model_parallel_size=2",),
        why="static memory is what fills the card",
    ),
    # --- logits
    "fused-linear-ce": Action(
        text="use a fused linear cross entropy, or select the rows that carry loss before the output layer; look at the largest live tensors, not at the request that failed",
        overrides=("model.cross_entropy_loss_fusion=true", "model.cross_entropy_fusion_impl=te"),
        why="tokens x vocabulary / TP x 4 bytes of logits stand at the loss; no recompute label covers them. "
        "The native fusion is for speed and can need more memory; Transformer Engine's works in place, and core 0.19 "
        "warns about its stability: compare the loss",
    ),
    "cap-tokens": Action(
        text="cap the tokens of a micro-batch (check that the cap holds), upgrade, and compute log-probs in chunks",
        overrides=("train.micro_batch_size=1",),
        why="one request of this size is tokens x vocabulary / TP x 4 bytes; recompute is useless here",
    ),
    "smaller-batch": Action(
        text="lower the micro-batch or the sequence length, or raise context parallelism",
        overrides=("train.micro_batch_size=1",),
        why="activations and logits scale with tokens per rank",
    ),
    # --- activations
    "recompute-modules": Action(
        text="recompute the module that the stack names, one label at a time, against recompute_modules=[] (towers included), or shorten the sequence",
        overrides=("model.recompute_granularity=selective", "model.recompute_modules=[{labels}]"),
        why="the smallest replay that fits is the cheapest: run `recompute plan` on the job file for the exact list",
    ),
    "recompute-unknown-owner": Action(
        text="recompute (every tower included), one label at a time against recompute_modules=[], or shorten the sequence",
        overrides=("model.recompute_granularity=selective", "model.recompute_modules=[{labels}]"),
        why="the card was full and nothing shows with what: `recompute plan JOB` names the cheapest list that fits, a snapshot shows what is alive at the peak",
    ),
    "recompute-full": Action(
        text="full recompute, one layer at a time, if no narrow label fits",
        overrides=(
            "model.recompute_granularity=full",
            "model.recompute_method=uniform",
            "model.recompute_num_layers=1",
        ),
        why="keeps one layer input per layer; about a third more compute",
    ),
    "recompute-or-flash": Action(
        text="turn on recompute or use flash/SDPA attention, and cap the longest sequence",
        overrides=(
            "model.recompute_granularity=selective",
            "model.recompute_modules=[core_attn]",
            "model.attention_backend=flash",
        ),
        why="the peak came with the first long batch: unfused scores grow with the square of its length",
    ),
    "log-lengths": Action(
        text="log the longest sequence of every step, then cap or pack it",
        why="the same step in each run means the data of that step: one long batch",
    ),
    "tower-policy": Action(
        text="give every tower (vision encoder, adapter) its own recompute policy, keep it in train mode, and include it in the plan",
        why="the settings do not reach it: recompute is gated on training mode and on each module's own config",
    ),
    "compile-per-block": Action(
        text="break the graph between the blocks (torch._dynamo.graph_break()) or compile each block by itself",
        why="one compiled backward replays many blocks at once",
    ),
    "ac-all-or-none": Action(
        text="use full activation checkpointing or no policy at all, and compare the bytes saved for backward",
        why="a policy that saves more than the partitioner did raises the peak",
    ),
    "skip-warm-up": Action(
        text="lower the sequence length or micro-batch, or switch the fused activation whose warm-up failed off; check what is already on the GPU",
        overrides=("model.bias_activation_fusion=false",),
        why="no training step has run: the warm-up tensors scale with sequence x micro-batch x ffn, and recompute cannot matter",
    ),
    "compare-ranks": Action(
        text="compare the peaks of all ranks and tune the placement (full/block counts, uneven stages, labels) for the stage that is hot now: recompute explain JOB",
        why="the layers per pipeline stage decide which rank is hot; relief on one stage makes another the hottest",
    ),
    "evaluation-batch": Action(
        text="lower the evaluation micro-batch, or run it under no_grad with chunked logits",
        why="recompute is off outside training mode",
    ),
    # --- experts
    "tokens-per-expert": Action(
        text="log the tokens per expert and rank, and raise the balancing loss or set a capacity factor",
        overrides=("model.moe_aux_loss_coeff=0.01", "model.moe_expert_capacity_factor=1.25"),
        why="a rank's expert memory follows the tokens it receives; skew grows it without any leak",
    ),
    "moe-recompute": Action(
        text="recompute the expert activation, which scales with the tokens received",
        overrides=("model.recompute_granularity=selective", "model.recompute_modules=[moe_act]"),
        why="caps the part of the hot rank's peak that skew multiplies",
    ),
    # --- graphs, thrash, leak
    "shrink-graphs": Action(
        text="capture less: narrow the graph scope, fewer micro-batches in flight, or no graphs at all to confirm",
        overrides=("model.cuda_graph_impl=none",),
        why="each captured graph keeps its own private pool for the whole run",
    ),
    "relieve-thrash": Action(
        text="free 2-5% of the card: the smallest recompute label, or expandable segments; do not trust the step time until retries are 0",
        overrides=(SEGMENTS,),
        why="the allocator frees and re-maps its cache in every step: no error, only time",
    ),
    "snapshot-leak": Action(
        text="upgrade, then take two memory snapshots some steps apart and compare them; gc.collect() after the step shows whether reference cycles hold it",
        overrides=(SNAPSHOT_COMMAND,),
        why="memory that is still there when the next step starts is held by a reference",
    ),
    # --- host
    "host-ram": Action(
        text="host RAM, not the GPU: stream the data set or pack it with fewer workers, fewer pinned buffers",
        overrides=("dataset.num_workers=1", "dataset.pin_memory=false"),
        why="the kernel or the CPU allocator refused; no GPU setting changes that",
    ),
    # --- recompute faults
    "input-grads": Action(
        text="enable input gradients (enable_input_require_grads, or requires_grad_ on the decoder input) before adapters are added, or upgrade",
        why="with frozen weights nothing that enters the checkpoint requires grad, so no adapter gets one",
    ),
    "save-routing": Action(
        text="upgrade, or turn activation checkpointing off for the expert block, or save the routing (top-k) instead of replaying it",
        why="the replay took another path than the forward: data-dependent control flow, most often routing",
    ),
    "wrap-order": Action(
        text="change the wrap order: checkpoint outside, per block, and compile the wrapped block",
        why="compile inside the checkpoint changes which tensors are saved",
    ),
    "te-checkpoint": Action(
        text="use transformer_engine.pytorch.checkpoint instead of torch.utils.checkpoint",
        why="torch's checkpoint replays FP8 state updates (NVIDIA/TransformerEngine#415)",
    ),
    "try-selective": Action(
        text="try selective recompute, or upgrade; if it stays, report the model spec",
        overrides=("model.recompute_granularity=selective", "model.recompute_modules=[]"),
        why="the checkpointed forward of this revision does not take one of the arguments",
    ),
    "check-job": Action(
        text="run `recompute check JOB`: it names the rule and the fix for your revision",
        why="the framework refused the setting before any memory was used",
    ),
    "use-backward": Action(
        text="call .backward() instead of torch.autograd.grad, use non-reentrant checkpoints, or keep recompute outside the captured graph",
        why="reentrant checkpoints work with .backward() only",
    ),
    # --- no memory fault
    "toggle-hang": Action(
        text="a hang, not memory: turn expandable segments or CUDA graphs off, one at a time; collect the NCCL flight recorder",
        overrides=(
            "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:False",
            "model.cuda_graph_impl=none",
            "TORCH_NCCL_TRACE_BUFFER_SIZE=2000",
        ),
        why="the two are known to hang together under context parallelism (pytorch/torchtitan#3306)",
    ),
    "set-explicitly": Action(
        text="set the field itself in the configuration instead of the flag",
        overrides=("comm_overlap.overlap_moe_expert_parallel_comm=false",),
        why="the launcher dropped the override; `recompute show JOB` prints what arrives",
    ),
    "ignore-doubled": Action(
        text="ignore it or upgrade; halve the logged value when comparing, and leave the coefficient alone",
        why="under recompute the router runs twice and the tracker adds twice; gradients are right",
    ),
    "compare-grad-norms": Action(
        text="compare loss and grad norm with recompute off for a few steps; upgrade if they differ",
        overrides=("model.recompute_granularity=selective", "model.recompute_modules=[]"),
        why="recompute must not change numerics",
    ),
    "watch-step-time": Action(
        text="upgrade, and watch the step time",
        why="no memory fault is shown; something is kept per forward and walked every step",
    ),
    "compare-control": Action(
        text="measure against recompute_modules=[] and take the label that the peak names (`recompute explain JOB`)",
        overrides=("model.recompute_granularity=selective", "model.recompute_modules=[]"),
        why="a label saves only if the peak holds what it discards",
    ),
    "nothing": Action(text="nothing to do about memory", why="the log shows no memory failure"),
    "read-traceback": Action(
        text="read the traceback: this failure is not about memory",
        why="no allocator, library or kernel refused memory in what was given",
    ),
    "no-mask": Action(
        text="fails before the model: do not build the dense attention mask in the data loader, and check host memory",
        overrides=(
            "dataset.create_attention_mask=false",
            "--no-create-attention-mask-in-dataloader",
        ),
        why="a dense mask is sequence squared bytes: 16 GiB at 131072 tokens",
    ),
    "collect-message": Action(
        text="decide from slack and request, never from the tip; collect the whole message of every rank: grep -rhA12 'out of memory' LOGS",
        why="the tip is fixed text and is printed in every message",
    ),
    "collect-logs": Action(
        text="give the log of the rank that failed first: recompute diagnose DIR_OF_RANK_LOGS",
        why="nothing in the input says what failed",
    ),
    "plan": Action(
        text="run `recompute plan JOB` for the cheapest label list that fits every rank",
        why="the owner is not visible in this input; the plan predicts it from the job",
    ),
    "snapshot": Action(
        text="record a memory snapshot of the hot rank and diagnose that",
        overrides=(SNAPSHOT_COMMAND, "profiling.memory_snapshot_path=snapshot.pickle"),
        why="it shows what is alive at the peak and what each label would have saved there",
    ),
}

PLANS: Final[dict[str, tuple[str, ...]]] = {
    "checkpoint-count": ("save-routing",),
    "checkpoint-metadata": ("save-routing",),
    "checkpoint-error": ("save-routing",),
    "recompute-and-compile": ("wrap-order", "save-routing"),
    "early-stop": ("te-checkpoint",),
    "bucket-no-grad": ("input-grads",),
    "no-grad-inputs": ("input-grads",),
    "none-argument": ("try-selective",),
    "dot-grad": ("use-backward",),
    "twice": ("use-backward",),
    "checkpointed-forward": ("try-selective",),
    "refused-setting": ("check-job",),
    "index-range": ("check-job",),
    "cannot-offload": ("check-job",),
    "says-recompute-only": ("try-selective",),
    "says-missing-grads": ("input-grads",),
    "exabyte": ("earlier-failure", "whole-message"),
    "request-over-total": ("check-shape", "whole-message"),
    "slack-covers-request": ("expandable-segments", "recompute-modules", "snapshot"),
    "private-pools": ("shrink-graphs", "expandable-segments-graphs"),
    "graph-capture": ("shrink-graphs", "recompute-modules"),
    "cumem-wake": ("engine-share", "find-other-process"),
    "outside-torch-own": ("nccl-buffers", "empty-cache"),
    "nccl-calloc": ("empty-cache", "nccl-buffers"),
    "nccl-warn-oom": ("empty-cache", "nccl-buffers"),
    "cublas-alloc": ("warm-up-cublas", "empty-cache"),
    "driver-oom": ("empty-cache", "find-other-process"),
    "nccl-error": ("collect-nccl",),
    "optimizer-stack": ("shard-optimizer", "precision-aware-optimizer", "offload-optimizer"),
    "second-step": ("shard-optimizer", "precision-aware-optimizer", "offload-optimizer"),
    "gradient-buffer": ("grad-dtype", "larger-parallelism"),
    "load-stack": ("shard-load", "larger-parallelism"),
    "save-stack": ("save-buffers", "recompute-unknown-owner"),
    "logits-stack": ("fused-linear-ce", "smaller-batch"),
    "request-like-logits": ("cap-tokens", "fused-linear-ce"),
    "skewed-ranks": ("tokens-per-expert", "moe-recompute"),
    "uneven-requests": ("tokens-per-expert", "moe-recompute"),
    "growth": ("snapshot-leak",),
    "activation-stack": ("recompute-modules", "smaller-batch", "recompute-full"),
    "warm-up-stack": ("skip-warm-up",),
    "evaluation-stack": ("evaluation-batch", "smaller-batch"),
    "data-stack": ("smaller-batch", "no-mask"),
    "says-long-batch": ("recompute-or-flash", "log-lengths"),
    "says-same-step": ("log-lengths", "recompute-modules"),
    "says-late": ("log-lengths", "snapshot"),
    "says-recompute-not-reaching": ("tower-policy", "recompute-modules"),
    "says-compiled-backward": ("compile-per-block",),
    "says-recompute-costs": ("ac-all-or-none",),
    "says-moved-rank": ("compare-ranks", "plan"),
    "says-label-no-help": ("compare-control", "snapshot"),
    "says-got-further": ("shard-optimizer", "precision-aware-optimizer", "snapshot"),
    "says-reserved-gap": ("expandable-segments", "snapshot"),
    "says-warm-up": ("skip-warm-up",),
    "says-evaluation": ("evaluation-batch", "smaller-batch"),
    "says-activation": ("recompute-modules", "smaller-batch"),
    "says-second-step": ("precision-aware-optimizer", "shard-optimizer"),
    "says-optimizer": ("shard-optimizer", "precision-aware-optimizer", "offload-optimizer"),
    "says-few-steps": ("shard-optimizer", "precision-aware-optimizer", "snapshot"),
    "says-leak": ("snapshot-leak",),
    "says-hang": ("toggle-hang",),
    "watchdog": ("toggle-hang",),
    "expandable-pool": ("segments-are-on",),
    "says-override-dropped": ("set-explicitly",),
    "says-numerics": ("compare-grad-norms",),
    "logged-loss-doubled": ("ignore-doubled",),
    "says-slow": ("watch-step-time",),
    "says-no-saving": ("compare-control",),
    "no-error-stated": ("watch-step-time",),
    "tip-only": ("collect-message",),
    "crash": ("read-traceback",),
    "failure-before-model": ("no-mask",),
    "healthy": ("nothing",),
    "no-failure-seen": ("nothing",),
    "nearly-full": ("recompute-unknown-owner", "segments-may-rescue", "smaller-batch", "snapshot"),
}
"""Verdict row -> keys of :data:`ACTIONS`, cheapest first."""

FALLBACK: Final[dict[Verdict, tuple[str, ...]]] = {
    Verdict.ACTIVATION: ("recompute-modules", "smaller-batch", "recompute-full"),
    Verdict.LOGITS: ("fused-linear-ce", "smaller-batch"),
    Verdict.FRAGMENTATION: ("expandable-segments", "snapshot"),
    Verdict.OPTIMIZER_STATE: ("shard-optimizer", "precision-aware-optimizer", "offload-optimizer"),
    Verdict.PARAMETERS: ("shard-load", "larger-parallelism"),
    Verdict.GRADIENTS: ("grad-dtype", "larger-parallelism"),
    Verdict.GRAPH_POOLS: ("shrink-graphs", "recompute-modules"),
    Verdict.IMBALANCE: ("tokens-per-expert", "moe-recompute"),
    Verdict.OTHER_PROCESS: ("find-other-process",),
    Verdict.NON_TORCH_MEMORY: ("empty-cache", "nccl-buffers"),
    Verdict.THRASH: ("relieve-thrash", "recompute-modules"),
    Verdict.LEAK: ("snapshot-leak",),
    Verdict.CAPACITY: ("recompute-unknown-owner", "plan", "snapshot", "smaller-batch"),
    Verdict.IMPOSSIBLE_REQUEST: ("check-shape", "whole-message"),
    Verdict.DEVICE_LIMIT: ("check-limits",),
    Verdict.HOST_MEMORY: ("host-ram",),
    Verdict.RECOMPUTE_FAULT: ("try-selective", "check-job"),
    Verdict.NOT_OOM: ("nothing",),
    Verdict.UNKNOWN: ("collect-logs",),
}


def keys_for(rule: str, verdict: Verdict) -> tuple[str, ...]:
    """Return the action keys of a verdict row."""
    return PLANS.get(rule) or FALLBACK[verdict]


def render(key: str, labels: tuple[str, ...]) -> NextAction:
    """Return one action with the labels that fit the evidence filled in.

    Args:
        key: Of :data:`ACTIONS`.
        labels: Recompute labels that cover the owner; may be empty.
    """
    action = ACTIONS[key]
    shown = ",".join(labels)
    overrides = tuple(
        line.replace("{labels}", shown)
        for line in action.overrides
        if "{labels}" not in line or labels
    )
    if not labels and any("{labels}" in line for line in action.overrides):
        overrides = ()
    return NextAction(action=action.text, overrides=overrides, why=action.why)
