"""Settings that change memory and are not, or not wholly, modelled: refused or listed, never ignored.

Each row has a condition over the job; ``refuse`` names what makes the answer wrong by more than a
transient, ``listed`` what is of second order and comes with the answer as an assumption.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from recompute.config.schema import Assumption, JobConfig
from recompute.config.versions import core_at_least, transformer_engine_at_least
from recompute.errors import UnsupportedError
from recompute.model.shape import DTYPE_BYTES, activation_dtype
from recompute.timeline.graph_pools import has_graphs
from recompute.timeline.reduction import accumulates_partly
from recompute.timeline.sharded import main_gradient_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Refusal:
    """A setting that is not modelled."""

    field: str
    what: str
    hint: str
    when: Callable[[JobConfig], bool]


@dataclass(frozen=True, slots=True, kw_only=True)
class Listed:
    """A setting whose effect is left out, or taken in a simple form."""

    id: str
    text: str
    when: Callable[[JobConfig], bool]


def _unknown(job: JobConfig, name: str) -> object:
    return job.unmodelled.get(f"ddp.{name}")


def _torch_fsdp2(job: JobConfig) -> bool:
    return job.ddp is not None and job.ddp.use_torch_fsdp2


def _hybrid(job: JobConfig) -> bool:
    outer = _unknown(job, "outer_dp_sharding_strategy")
    return job.ddp is not None and job.ddp.use_megatron_fsdp and outer not in {None, "no_shard"}


def _other_grad_dtype(job: JobConfig) -> bool:
    """Say whether Megatron FSDP reduces in another width than it accumulates in."""
    given = str(_unknown(job, "megatron_fsdp_grad_comm_dtype") or "auto").rpartition(".")[2]
    if job.ddp is None or not job.ddp.use_megatron_fsdp or given in {"auto", "None"}:
        return False
    width = 4 if given in {"fp32", "float32"} else 2
    return width != main_gradient_bytes(job, DTYPE_BYTES[activation_dtype(job.model)])


def _sparse(job: JobConfig) -> bool:
    return job.model.experimental_attention_variant == "dsa"


REFUSED: Final = (
    Refusal(
        field="framework.megatron_core",
        what="dsa before core 0.19, over plain multi-latent attention,",
        hint="set framework.megatron_core=0.19 or newer",
        when=lambda job: _sparse(job) and not core_at_least(job, (0, 19)),
    ),
    Refusal(
        field="model.dsa_kernel_backend",
        what="dsa with fused kernels, which decline shapes at run time and then fall back to FP32 "
        "scores of all pairs,",
        hint="set model.dsa_kernel_backend=none for what the fallback keeps",
        when=lambda job: _sparse(job) and job.model.dsa_kernel_backend != "none",
    ),
    Refusal(
        field="model.dsa_indexer_topk_freq",
        what="dsa with chosen keys that several layers share",
        hint="set model.dsa_indexer_topk_freq=1",
        when=lambda job: _sparse(job) and job.model.dsa_indexer_topk_freq != 1,
    ),
    Refusal(
        field="model.context_parallel_size",
        what="dsa under context parallelism",
        hint="set model.context_parallel_size=1",
        when=lambda job: _sparse(job) and job.model.context_parallel_size > 1,
    ),
    Refusal(
        field="model.sequence_parallel",
        what="dsa under tensor parallelism without sequence parallelism, which Megatron refuses,",
        hint="set model.sequence_parallel=true",
        when=lambda job: (
            _sparse(job)
            and job.model.tensor_model_parallel_size > 1
            and not job.model.sequence_parallel
        ),
    ),
    Refusal(
        field="model.fp8",
        what="dsa in FP8 or FP4",
        hint="set model.fp8=null and model.fp4=null",
        when=lambda job: _sparse(job) and (job.model.fp8 or job.model.fp4) is not None,
    ),
    Refusal(
        field="peft",
        what="dsa with adapters, under which the frozen indexer and its loss keep less,",
        hint="leave peft out for full training",
        when=lambda job: _sparse(job) and job.peft is not None,
    ),
    Refusal(
        field="ddp.megatron_fsdp_grad_comm_dtype",
        what="reducing Megatron FSDP's gradients in another dtype than they accumulate in",
        hint="set ddp.megatron_fsdp_grad_comm_dtype=auto",
        when=_other_grad_dtype,
    ),
    Refusal(
        field="ddp.param_name_patterns_for_fp32_local_accumulation",
        what="FP32 accumulation for some parameters, by their names",
        hint="set ddp.param_name_patterns_for_fp32_local_accumulation=[all] or []",
        when=accumulates_partly,
    ),
    Refusal(
        field="ddp.outer_dp_sharding_strategy",
        what="hybrid sharding that also splits states over the outer data-parallel group",
        hint="set ddp.outer_dp_sharding_strategy=no_shard",
        when=_hybrid,
    ),
    Refusal(
        field="ddp.use_torch_fsdp2",
        what="torch FSDP2 with expert parallelism, where one group would shard different experts as one "
        "tensor (Megatron-LM's validate_args refuses it),",
        hint="set model.expert_model_parallel_size=1, or use ddp.use_megatron_fsdp=true, whose expert "
        "groups are modelled",
        when=lambda job: _torch_fsdp2(job) and job.model.expert_model_parallel_size > 1,
    ),
    Refusal(
        field="model.cpu_offloading_weights",
        what="offloading of weights",
        hint="set model.cpu_offloading_weights=false",
        when=lambda job: job.model.cpu_offloading and job.model.cpu_offloading_weights,
    ),
    Refusal(
        field="model.cpu_offloading",
        what="cpu_offloading of Transformer Engine before 2.10 or with NVTE_CPU_OFFLOAD_V1=1",
        hint="set framework.transformer_engine=2.10 or newer, or model.cpu_offloading=false",
        when=lambda job: (
            job.model.cpu_offloading
            and (
                job.environment.get("NVTE_CPU_OFFLOAD_V1") == "1"
                or not transformer_engine_at_least(job, (2, 10))
            )
        ),
    ),
    Refusal(
        field="model.cpu_offloading_double_buffering",
        what="double buffering of reloaded layers",
        hint="set model.cpu_offloading_double_buffering=false",
        when=lambda job: job.model.cpu_offloading and job.model.cpu_offloading_double_buffering,
    ),
    Refusal(
        field="model.moe_paged_stash",
        what="moe_paged_stash",
        hint="set model.moe_paged_stash=false",
        when=lambda job: job.model.moe_paged_stash,
    ),
)

LISTED: Final = (
    Listed(
        id="fp32-reduction",
        text="reduce_scatter_with_fp32_accumulation: the exchanged copies of gradient buckets are in the "
        "gradient sync and, with overlap_grad_reduce, in the upper end of the range",
        when=lambda job: job.ddp is not None and job.ddp.reduce_scatter_with_fp32_accumulation,
    ),
    Listed(
        id="graph-pools",
        text="CUDA graphs: their private pools show in no allocated byte. Against a device's memory the "
        "most that they may reserve beyond it is counted: the working set of the largest captured "
        "region, and in the optimizer step what captured regions saved. A stated --budget is compared "
        "with allocated bytes, without pools; the graphs' own instances are not counted",
        when=has_graphs,
    ),
    Listed(
        id="delayed-weight-gradients",
        text="delay_wgrad_compute: inputs and output gradients that wait for their weight gradient "
        "within one layer's backward are in the upper end of the range, not in the peak",
        when=lambda job: job.model.delay_wgrad_compute,
    ),
    Listed(
        id="overlapped-expert-exchange",
        text="overlap_moe_expert_parallel_comm: the peak is that of the plain schedule, as if one "
        "micro-batch's forward filled what the other's backward frees; the upper end of the range holds "
        "what both have in flight at once",
        when=lambda job: job.model.overlap_moe_expert_parallel_comm,
    ),
    Listed(
        id="offload-keeps-up",
        text="offloaded activations are gone as soon as their group's forward is over, and a layer's are "
        "back before its backward begins: in allocated bytes whatever transfers take, in reserved bytes "
        "and time only where transfers keep up with compute",
        when=lambda job: job.model.cpu_offloading or job.model.fine_grained_activation_offloading,
    ),
    Listed(
        id="fsdp-gathering",
        text="Megatron FSDP: weights gathered ahead and gradients waiting for their reduction fill "
        "their queues (half a billion and a billion elements), as they do when communication is slow",
        when=lambda job: (
            job.ddp is not None
            and job.ddp.use_megatron_fsdp
            and job.ddp.data_parallel_sharding_strategy in {"optim_grads", "optim_grads_params"}
        ),
    ),
    Listed(
        id="tensor-overlap-buffers",
        text="tp_comm_overlap: Transformer Engine takes its communication buffers from CUDA, outside "
        "torch, so they are in no allocated or reserved byte (TransformerEngine v2.18 "
        "transformer_engine/common/comm_gemm_overlap/userbuffers/userbuffers-host.cpp)",
        when=lambda job: job.model.tp_comm_overlap and job.model.tensor_model_parallel_size > 1,
    ),
    Listed(
        id="user-buffers",
        text="nccl_ub: the registered buffers' padding is not counted",
        when=lambda job: job.ddp is not None and job.ddp.nccl_ub,
    ),
    Listed(
        id="sparse-attention-workspaces",
        text="dsa: what it keeps is compared with Megatron's own modules; what its kernels hold for a "
        "moment follows from the lifetimes of their variables in source and is not measured",
        when=_sparse,
    ),
    Listed(
        id="optimizer-offload",
        text="optimizer_cpu_offload: whole parameters move, so the share on the host is "
        "optimizer_offload_fraction up to one parameter",
        when=lambda job: job.optimizer is not None and job.optimizer.optimizer_cpu_offload,
    ),
)


def refuse_unmodelled(job: JobConfig) -> None:
    """Refuse a job that holds something the model would answer wrongly.

    Raises:
        UnsupportedError: ``unsupported-setting``, naming the field.
    """
    for row in REFUSED:
        if row.when(job):
            raise UnsupportedError(
                "unsupported-setting",
                f"{row.what} is not modelled",
                hint=row.hint,
                data={"field": row.field},
            )


def listed(job: JobConfig) -> tuple[Assumption, ...]:
    """Return the assumptions that a job's settings bring."""
    return tuple(Assumption(id=row.id, text=row.text) for row in LISTED if row.when(job))
