"""What Megatron would fill in or rewrite before it builds the model, each as a visible change.

``normalize`` is a step of its own: rules look at the job as given, the memory model at the job as Megatron
acts on it. Each step is a function that yields ``(field, value, why, source)``; the steps run in
Megatron's order, so a later one sees what an earlier one set. Normalizing twice changes nothing more.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any, Final

from recompute.config.geometry import data_parallel_size, model_parallel_size
from recompute.config.revision import (
    NEWEST_RELEASE,
    Revision,
    parse_bridge_version,
    parse_revision,
)
from recompute.config.schema import Assumption, Change, FrozenValue, JobConfig
from recompute.config.section_types import SCHEMAS

Step = tuple[str, FrozenValue, str, str]
"""Field, value, why, source."""

CORE: Final = "NVIDIA/Megatron-LM core_v0.19.0 megatron/core/"
POST_INIT: Final = CORE + "transformer/transformer_config.py TransformerConfig.__post_init__"
PARALLEL: Final = CORE + "model_parallel_config.py ModelParallelConfig.__post_init__"
BRIDGE: Final = "NVIDIA-NeMo/Megatron-Bridge 067f987d src/megatron/bridge/training/"

GPU_COUNT: Final = "default:hardware.num_gpus"
"""Id of the assumption on the number of GPUs; the texts print it with the verdict."""

_FIRST_WITH_MODULES: Final = Revision("0.12")
_FIRST_WITH_GRAPH_IMPL: Final = Revision("0.15")
_FIRST_WITH_GRAPH_MODULES: Final = Revision("0.18")
_LAST_WITH_WEIGHT_OFFLOAD: Final = Revision("0.14")


def revision_of(job: JobConfig) -> tuple[Revision, Assumption | None]:
    """Return the Megatron Core revision that a job is for, and what had to be assumed for it.

    Raises:
        ConfigError: ``unknown-revision``.
    """
    if job.framework.megatron_core is not None:
        return parse_revision(job.framework.megatron_core), None
    if job.framework.megatron_bridge is not None:
        revision = parse_bridge_version(job.framework.megatron_bridge)
        text = f"Megatron Core {revision.name}, which Megatron Bridge {job.framework.megatron_bridge} pins"
        return revision, Assumption(id="mcore-revision", text=text)
    text = f"Megatron Core {NEWEST_RELEASE.name}, the newest release known; --mcore or framework.megatron_core says otherwise"
    return NEWEST_RELEASE, Assumption(id="mcore-revision", text=text)


def normalize(job: JobConfig, revision: Revision | None = None) -> JobConfig:
    """Return the job as Megatron would act on it.

    Args:
        job: As loaded.
        revision: The Megatron Core to act like; the job's own when left out.

    Raises:
        ConfigError: ``unknown-revision``.
    """
    assumed: list[Assumption] = []
    if revision is None:
        revision, assumption = revision_of(job)
        assumed += [assumption] if assumption is not None else []
    assumed += _parallel_defaults(job)
    for step in STEPS:
        for name, after, why, source in step(job, revision):
            job = _with_field(job, name, after, why, source)
    known = {item.id for item in job.assumptions}
    extra = tuple(item for item in assumed if item.id not in known)
    return replace(job, assumptions=(*job.assumptions, *extra))


def _with_field(job: JobConfig, name: str, after: FrozenValue, why: str, source: str) -> JobConfig:
    section, _, field = name.partition(".")
    value = getattr(job, section)
    if value is None:
        return job
    before = getattr(value, field)
    if before == after and type(before) is type(after):
        return job
    change = Change(field=name, before=before, after=after, why=why, source=source)
    sections: dict[str, Any] = {section: replace(value, **{field: after})}
    return replace(job, **sections, changes=(*job.changes, change))


def _parallel_defaults(job: JobConfig) -> list[Assumption]:
    names = (
        "tensor_model_parallel_size",
        "pipeline_model_parallel_size",
        "context_parallel_size",
        *(("expert_model_parallel_size",) if job.model.num_moe_experts is not None else ()),
    )
    found = [
        Assumption(id=f"default:model.{name}", text=f"model.{name} is not given; 1")
        for name in names
        if f"model.{name}" not in job.given
    ]
    if job.hardware.num_gpus is None:
        found.append(Assumption(id=GPU_COUNT, text=_gpu_count(job)))
    return found


def _gpu_count(job: JobConfig) -> str:
    """Say how many GPUs the answer is for: one replica of the model, or of its experts where larger."""
    model = job.model
    sizes = (
        model.tensor_model_parallel_size,
        model.pipeline_model_parallel_size,
        model.context_parallel_size,
    )
    count, names = model_parallel_size(model), "TP x PP x CP"
    if model.num_moe_experts is not None:
        expert_tp = model.expert_tensor_parallel_size or model.tensor_model_parallel_size
        expert = (expert_tp, model.expert_model_parallel_size, model.pipeline_model_parallel_size)
        if math.prod(expert) > count:
            count, names, sizes = math.prod(expert), "ETP x EP x PP", expert
    product = " x ".join(str(size) for size in sizes)
    return f"planned for {count} GPU{'s' * (count != 1)} ({names} = {product}; hardware.num_gpus is not given)"


def _sizes(job: JobConfig, revision: Revision) -> Iterator[Step]:  # noqa: ARG001 - a step's signature
    model = job.model
    if model.ffn_hidden_size is None and model.hidden_size:
        yield (
            "model.ffn_hidden_size",
            4 * model.hidden_size,
            "four times the hidden size",
            POST_INIT,
        )
    heads = model.num_attention_heads
    if heads and model.kv_channels is None:
        yield "model.kv_channels", model.hidden_size // heads, "hidden size / heads", POST_INIT
    if heads and model.num_query_groups is None:
        yield "model.num_query_groups", heads, "one group per head", POST_INIT
    if model.expert_tensor_parallel_size is None:
        yield (
            "model.expert_tensor_parallel_size",
            model.tensor_model_parallel_size,
            "as the tensor parallel size",
            PARALLEL,
        )
    if model.microbatch_group_size_per_vp_stage is None:
        yield (
            "model.microbatch_group_size_per_vp_stage",
            model.pipeline_model_parallel_size,
            "as the pipeline parallel size",
            PARALLEL,
        )


def _experts(job: JobConfig, revision: Revision) -> Iterator[Step]:  # noqa: ARG001 - a step's signature
    model = job.model
    if model.num_moe_experts is not None and model.moe_ffn_hidden_size is None:
        yield (
            "model.moe_ffn_hidden_size",
            model.ffn_hidden_size,
            "as the dense feed-forward size",
            POST_INIT,
        )
    if model.moe_enable_deepep and model.moe_flex_dispatcher_backend != "deepep":
        yield "model.moe_flex_dispatcher_backend", "deepep", "moe_enable_deepep", POST_INIT
    if model.moe_router_padding_for_fp8 and not model.moe_router_padding_for_quantization:
        yield (
            "model.moe_router_padding_for_quantization",
            True,
            "moe_router_padding_for_fp8 is its older name",
            POST_INIT,
        )


def _vocabulary(job: JobConfig, revision: Revision) -> Iterator[Step]:  # noqa: ARG001 - a step's signature
    model = job.model
    if model.vocab_size is None or not model.should_pad_vocab:
        return
    multiple = model.make_vocab_size_divisible_by * model.tensor_model_parallel_size
    yield (
        "model.vocab_size",
        -(-model.vocab_size // multiple) * multiple,
        f"padded to a multiple of {model.make_vocab_size_divisible_by} x TP",
        "NVIDIA/Megatron-LM core_v0.19.0 megatron/training/vocab_utils.py calculate_padded_vocab_size",
    )


def _attention(job: JobConfig, revision: Revision) -> Iterator[Step]:  # noqa: ARG001 - a step's signature
    model = job.model
    if model.apply_query_key_layer_scaling and not model.attention_softmax_in_fp32:
        yield "model.attention_softmax_in_fp32", True, "apply_query_key_layer_scaling", POST_INIT
    plain = job.identity.entry_point == "bridge" and "model.normalization" not in job.given
    if model.multi_latent_attention and plain:
        yield (
            "model.normalization",
            "RMSNorm",
            "the default of multi-latent attention",
            CORE + "transformer/transformer_config.py MLATransformerConfig",
        )


def _hybrid(job: JobConfig, revision: Revision) -> Iterator[Step]:  # noqa: ARG001 - a step's signature
    model = job.model
    if model.hybrid_override_pattern is None:
        return
    source = "NVIDIA/Megatron-LM core_v0.19.0 megatron/training/arguments.py validate_args"
    yield "model.is_hybrid_model", True, "a layer pattern is given", source
    length = len(model.hybrid_override_pattern.partition("/")[0].replace("|", ""))
    yield "model.num_layers", length, "one layer per symbol of the pattern", source
    if model.mamba_num_heads is None and model.hidden_size:
        yield (
            "model.mamba_num_heads",
            2 * model.hidden_size // model.mamba_head_dim,
            "twice the hidden size / head size",
            CORE + "ssm/mamba_mixer.py MambaMixer.__init__",
        )


def _precision(job: JobConfig, revision: Revision) -> Iterator[Step]:  # noqa: ARG001 - a step's signature
    model = job.model
    for name in ("bf16", "fp16"):
        if getattr(model, name) and model.params_dtype == "fp32":
            yield (
                "model.params_dtype",
                name,
                f"{name} casts every parameter",
                CORE + "transformer/module.py Float16Module",
            )


def _recompute(job: JobConfig, revision: Revision) -> Iterator[Step]:
    model = job.model
    modules = model.recompute_modules
    if modules is None:
        why = (
            "null means core attention"
            if revision >= _FIRST_WITH_MODULES
            else "before 0.12 selective recomputes core attention and has no labels"
        )
        modules = ("core_attn",)
        yield "model.recompute_modules", modules, why, POST_INIT
    if not model.moe_layer_recompute or model.recompute_granularity == "full":
        return
    if revision < _FIRST_WITH_MODULES:
        return
    why = "moe_layer_recompute is the older name of the label moe"
    yield "model.recompute_granularity", "selective", why, POST_INIT
    if "moe" not in modules:
        yield "model.recompute_modules", (*modules, "moe"), why, POST_INIT


def _offload(job: JobConfig, revision: Revision) -> Iterator[Step]:
    weights_given = "model.cpu_offloading_weights" in job.given
    if job.model.cpu_offloading and revision <= _LAST_WITH_WEIGHT_OFFLOAD and not weights_given:
        yield (
            "model.cpu_offloading_weights",
            True,
            "on by default up to 0.14",
            "NVIDIA/Megatron-LM core_v0.14.0 megatron/core/model_parallel_config.py",
        )


def _graphs(job: JobConfig, revision: Revision) -> Iterator[Step]:
    model = job.model
    if revision < _FIRST_WITH_GRAPH_IMPL:
        return
    why = "the older switch stands for it"
    if model.cuda_graph_impl == "none" and model.enable_cuda_graph != model.external_cuda_graph:
        impl = "local" if model.enable_cuda_graph else "transformer_engine"
        yield "model.cuda_graph_impl", impl, why, POST_INIT
        yield "model.enable_cuda_graph", False, why, POST_INIT
        yield "model.external_cuda_graph", False, why, POST_INIT
    if revision < _FIRST_WITH_GRAPH_MODULES:
        return
    if model.cuda_graph_scope is not None and not model.cuda_graph_modules:
        yield (
            "model.cuda_graph_modules",
            model.cuda_graph_scope,
            "cuda_graph_scope is older",
            POST_INIT,
        )
        yield "model.cuda_graph_scope", None, "moved to cuda_graph_modules", POST_INIT


def _graph_modules(job: JobConfig, revision: Revision) -> Iterator[Step]:
    modules = job.model.cuda_graph_modules
    if revision < _FIRST_WITH_GRAPH_MODULES or modules is None:
        return
    if "full_iteration" in modules and job.model.cuda_graph_impl == "local":
        yield (
            "model.cuda_graph_impl",
            "full_iteration",
            "full_iteration was a module of the local implementation",
            POST_INIT,
        )
    kept = tuple(name for name in modules if name not in {"full", "full_iteration"})
    yield (
        "model.cuda_graph_modules",
        kept,
        "full and full_iteration are no longer modules",
        POST_INIT,
    )


def _fsdp(job: JobConfig, revision: Revision) -> Iterator[Step]:  # noqa: ARG001 - a step's signature
    if job.ddp is None or job.optimizer is None or job.identity.entry_point != "bridge":
        return
    if job.ddp.use_megatron_fsdp and not job.ddp.use_distributed_optimizer:
        source = BRIDGE + "config.py _validate_and_apply_megatron_fsdp_v1_configs"
        yield "ddp.use_distributed_optimizer", True, "Megatron FSDP needs it", source
        yield "optimizer.use_distributed_optimizer", True, "Megatron FSDP needs it", source


def _overlap(job: JobConfig, revision: Revision) -> Iterator[Step]:  # noqa: ARG001 - a step's signature
    """Apply what ``comm_overlap`` writes over ``model``, ``ddp`` and ``optimizer``."""
    overlap = job.comm_overlap
    if overlap is None or job.identity.entry_point != "bridge":
        return
    source = BRIDGE + "comm_overlap.py CommOverlapConfig.setup"
    model = job.model
    wants = bool(overlap.get("tp_comm_overlap")) and model.sequence_parallel
    values: dict[str, FrozenValue] = {
        "model.tp_comm_overlap": wants and model.tensor_model_parallel_size > 1,
        "model.overlap_p2p_comm": model.pipeline_model_parallel_size > 1
        and (model.virtual_pipeline_model_parallel_size or 1) > 1,
        "model.defer_embedding_wgrad_compute": False,
        "model.overlap_moe_expert_parallel_comm": False,
        "model.delay_wgrad_compute": False,
    }
    ranks = data_parallel_size(job)
    if ranks is not None and job.ddp is not None and job.ddp.use_distributed_optimizer:
        parallel = ranks > 1
        values["ddp.bucket_size"] = 128 << 20 if parallel else None
        for target in ("ddp.overlap_grad_reduce", "ddp.overlap_param_gather"):
            values[target] = parallel
        values["optimizer.overlap_param_gather"] = parallel
        values["optimizer.overlap_param_gather_with_optimizer_step"] = False
    for target, value in values.items():
        user = overlap.get(target.partition(".")[2])
        keep = user is not None and not target.endswith("tp_comm_overlap")
        yield target, user if keep else value, "comm_overlap sets it", source


STEPS: Final[tuple[Callable[[JobConfig, Revision], Iterator[Step]], ...]] = (
    _fsdp,
    _overlap,
    _hybrid,
    _sizes,
    _experts,
    _vocabulary,
    _attention,
    _precision,
    _recompute,
    _offload,
    _graphs,
    _graph_modules,
)
"""In Megatron's order."""


def differing_fields(job: JobConfig) -> Mapping[str, FrozenValue]:
    """Return ``section.field -> value`` for everything that is not the schema's default."""
    found: dict[str, FrozenValue] = {}
    for section, schema in SCHEMAS.items():
        value = getattr(job, section)
        if value is None:
            continue
        plain = schema()
        for name in schema.__dataclass_fields__:
            if getattr(value, name) != getattr(plain, name):
                found[f"{section}.{name}"] = getattr(value, name)
    return found
