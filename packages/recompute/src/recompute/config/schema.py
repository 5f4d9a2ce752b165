"""The job as values: sections and field names of Megatron Bridge's ConfigContainer, frozen.

A field holds what Megatron would see. ``None`` means "not given" exactly where Megatron's own field
may be ``None``; in particular ``recompute_modules`` keeps its three inputs apart: ``None`` (Megatron
fills in ``["core_attn"]``), ``()`` (no recompute) and a list.

Defaults are those of Megatron Core's ``TransformerConfig``, ``MLATransformerConfig``,
``ModelParallelConfig``, ``OptimizerConfig`` and ``DistributedDataParallelConfig`` (NVIDIA/Megatron-LM
core_v0.19.0), and for the fields that only a GPT model has, those of Megatron Bridge's
``GPTModelProvider`` (NVIDIA-NeMo/Megatron-Bridge 067f987d), where Megatron-LM's arguments agree.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

FrozenValue = Any
"""A YAML value with lists turned into tuples and mappings left as read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelConfig:
    """``model``: architecture, parallelism and recompute of one model."""

    # --- architecture
    num_layers: int = 0
    hidden_size: int = 0
    num_attention_heads: int = 0
    num_query_groups: int | None = None
    ffn_hidden_size: int | None = None
    kv_channels: int | None = None
    hidden_dropout: float = 0.1
    attention_dropout: float = 0.1
    fp32_residual_connection: bool = False
    add_bias_linear: bool = True
    add_qkv_bias: bool = False
    gated_linear_unit: bool = False
    activation_func: str = "gelu"
    """``gelu``, ``silu``, ``squared_relu``, ``quick_gelu`` or ``relu``."""
    normalization: str = "LayerNorm"
    layernorm_zero_centered_gamma: bool = False
    qk_layernorm: bool = False
    qk_l2_norm: bool = False
    attention_output_gate: bool = False
    softmax_type: str = "vanilla"
    window_size: tuple[int, int] | None = None
    window_attn_skip_freq: int | tuple[int, ...] | None = None
    no_rope_freq: int | tuple[int, ...] | None = None
    position_embedding_type: str = "learned_absolute"
    share_embeddings_and_output_weights: bool = True
    vocab_size: int | None = None
    should_pad_vocab: bool = True
    make_vocab_size_divisible_by: int = 128
    seq_length: int | None = None
    logit_dtype: str | None = None
    calculate_per_token_loss: bool = False
    # --- implementation
    transformer_impl: str = "transformer_engine"
    attention_backend: str = "auto"
    """``auto``, ``flash``, ``fused``, ``unfused`` or ``local``."""
    attention_softmax_in_fp32: bool = True
    apply_query_key_layer_scaling: bool = False
    bias_activation_fusion: bool = False
    bias_dropout_fusion: bool = False
    masked_softmax_fusion: bool = False
    apply_rope_fusion: bool = False
    fused_single_qkv_rope: bool = False
    fused_residual_rmsnorm: bool = False
    persist_layer_norm: bool = False
    memory_efficient_layer_norm: bool = False
    use_te_activation_func: bool = False
    use_transformer_engine_op_fuser: bool = False
    use_fused_weighted_squared_relu: bool = False
    activation_func_fp8_input_store: bool = False
    cross_entropy_loss_fusion: bool = False
    cross_entropy_fusion_impl: str = "native"
    fp16_lm_cross_entropy: bool = False
    gradient_accumulation_fusion: bool = False
    defer_embedding_wgrad_compute: bool = False
    init_model_with_meta_device: bool = False
    deallocate_pipeline_outputs: bool = False
    # --- precision
    params_dtype: str = "fp32"
    """``fp32``, ``bf16`` or ``fp16``; set to 16 bits by ``bf16``/``fp16``."""
    bf16: bool = False
    fp16: bool = False
    fp8: str | None = None
    fp8_recipe: str = "delayed"
    fp8_param: bool = False
    fp8_margin: int = 0
    fp8_amax_history_len: int = 1
    fp8_wgrad: bool = True
    fp8_dot_product_attention: bool = False
    fp8_multi_head_attention: bool = False
    first_last_layers_bf16: bool = False
    num_layers_at_start_in_bf16: int = 1
    num_layers_at_end_in_bf16: int = 1
    keep_fp8_weight_transpose_cache: bool = False
    disable_parameter_transpose_cache: bool = False
    fp4: str | None = None
    fp4_recipe: str = "nvfp4"
    fp4_param: bool = False
    # --- multi-latent attention
    multi_latent_attention: bool = False
    q_lora_rank: int | None = 512
    kv_lora_rank: int = 512
    qk_head_dim: int = 128
    qk_pos_emb_head_dim: int = 64
    v_head_dim: int = 128
    mla_down_proj_fusion: bool = False
    cache_mla_latents: bool = False
    # --- other mixers
    experimental_attention_variant: str | None = None
    dsa_indexer_n_heads: int | None = None
    dsa_indexer_head_dim: int | None = None
    dsa_indexer_topk: int | None = None
    dsa_indexer_topk_freq: int = 1
    dsa_indexer_loss_coeff: float | None = None
    dsa_indexer_k_norm_fp32: bool = False
    dsa_kernel_backend: str = "none"
    linear_attention_freq: int | tuple[int, ...] | None = None
    linear_conv_kernel_dim: int = 4
    linear_key_head_dim: int = 128
    linear_value_head_dim: int = 128
    linear_num_key_heads: int = 16
    linear_num_value_heads: int = 32
    is_hybrid_model: bool = False
    hybrid_override_pattern: str | None = None
    """One symbol per layer: ``M`` Mamba, ``*`` attention, ``-`` MLP, ``E`` mixture of experts, ``G`` GDN."""
    mamba_state_dim: int = 128
    mamba_head_dim: int = 64
    mamba_num_groups: int = 8
    mamba_num_heads: int | None = None
    # --- mixture of experts
    num_moe_experts: int | None = None
    moe_layer_freq: int | tuple[int, ...] = 1
    moe_ffn_hidden_size: int | None = None
    moe_router_topk: int = 2
    moe_router_dtype: str | None = None
    moe_router_load_balancing_type: str | tuple[str, ...] = "aux_loss"
    moe_router_score_function: str = "softmax"
    moe_router_pre_softmax: bool = False
    moe_router_num_groups: int | None = None
    moe_router_group_topk: int | None = None
    moe_router_enable_expert_bias: bool = False
    moe_router_padding_for_fp8: bool = False
    moe_router_padding_for_quantization: bool = False
    moe_router_fusion: bool = False
    moe_router_force_load_balancing: bool = False
    moe_aux_loss_coeff: float | tuple[float, ...] = 0.0
    moe_z_loss_coeff: float | None = None
    moe_input_jitter_eps: float | None = None
    moe_grouped_gemm: bool = False
    moe_use_legacy_grouped_gemm: bool = False
    moe_token_dispatcher_type: str = "allgather"
    moe_enable_deepep: bool = False
    moe_flex_dispatcher_backend: str = "deepep"
    moe_expert_capacity_factor: float | None = None
    moe_pad_expert_input_to_capacity: bool = False
    moe_token_drop_policy: str = "probs"
    moe_permute_fusion: bool = False
    moe_apply_probs_on_input: bool = False
    moe_latent_size: int | None = None
    moe_shared_expert_intermediate_size: int | None = None
    moe_shared_expert_gate: bool = False
    moe_shared_expert_overlap: bool = False
    # --- multi-token prediction
    mtp_num_layers: int | None = None
    mtp_use_repeated_layer: bool = False
    # --- parallelism
    tensor_model_parallel_size: int = 1
    pipeline_model_parallel_size: int = 1
    virtual_pipeline_model_parallel_size: int | None = None
    context_parallel_size: int = 1
    cp_comm_type: str | tuple[str, ...] | None = None
    expert_model_parallel_size: int = 1
    expert_tensor_parallel_size: int | None = None
    sequence_parallel: bool = False
    num_layers_in_first_pipeline_stage: int | None = None
    num_layers_in_last_pipeline_stage: int | None = None
    account_for_embedding_in_pipeline_split: bool = False
    account_for_loss_in_pipeline_split: bool = False
    pipeline_model_parallel_layout: FrozenValue = None
    microbatch_group_size_per_vp_stage: int | None = None
    overlap_p2p_comm: bool = False
    tp_comm_overlap: bool = False
    overlap_moe_expert_parallel_comm: bool = False
    delay_wgrad_compute: bool = False
    ep_overlap_early_attn_memory_release: bool = False
    # --- recompute
    recompute_granularity: str | None = None
    recompute_method: str | None = None
    recompute_num_layers: int | None = None
    recompute_modules: tuple[str, ...] | None = None
    distribute_saved_activations: bool = False
    moe_layer_recompute: bool = False
    mhc_recompute_layer_num: int | None = None
    enable_mhc_connections: bool = False
    enable_hyper_connections: bool = False
    gdp_num_chunk_states_to_recompute: int = 2
    gdp_cutedsl_kernel: bool = False
    mlp_chunks_for_training: int = 1
    # --- offload
    cpu_offloading: bool = False
    cpu_offloading_num_layers: int = 0
    cpu_offloading_activations: bool = True
    cpu_offloading_weights: bool = False
    cpu_offloading_double_buffering: bool = False
    fine_grained_activation_offloading: bool = False
    offload_modules: tuple[str, ...] = ()
    min_offloaded_tensor_size: int = 1048576
    activation_offload_fraction: float = 1.0
    moe_paged_stash: bool = False
    # --- CUDA graphs
    enable_cuda_graph: bool = False
    external_cuda_graph: bool = False
    cuda_graph_impl: str = "none"
    cuda_graph_scope: tuple[str, ...] | None = None
    cuda_graph_modules: tuple[str, ...] | None = None
    cuda_graph_warmup_steps: int = 3
    use_te_rng_tracker: bool = False
    # --- vision-language towers
    vision: Mapping[str, FrozenValue] | None = None
    """Fields of a vision tower's own TransformerConfig, where the job has one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainConfig:
    """``train``: batch sizes."""

    micro_batch_size: int | None = None
    """Sequences per rank and micro-batch."""
    global_batch_size: int | None = None
    """Sequences per optimizer step over all ranks."""
    train_iters: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class OptimizerConfig:
    """``optimizer``: Megatron's optimizer. A job with ``optimizer: null`` has a plain torch Adam."""

    optimizer: str = "adam"
    use_distributed_optimizer: bool = False
    use_precision_aware_optimizer: bool = False
    store_param_remainders: bool = True
    main_grads_dtype: str = "fp32"
    main_params_dtype: str = "fp32"
    exp_avg_dtype: str = "fp32"
    exp_avg_sq_dtype: str = "fp32"
    fp8_recipe: str | None = None
    """What the framework copies here, with or without FP8: Bridge ``mixed_precision``'s (``tensorwise`` by
    default), Megatron-LM ``--fp8-recipe``. Decides who keeps the masters of a precision-aware optimizer."""
    optimizer_cpu_offload: bool = False
    optimizer_offload_fraction: float = 0.0
    overlap_param_gather: bool = False
    overlap_param_gather_with_optimizer_step: bool = False
    reuse_grad_buf_for_mxfp8_param_ag: bool = False
    use_layer_wise_param_layout: bool = True
    """Muon with a distributed optimizer packs whole matrices into even shards (from core 0.18 on)."""
    clip_grad: float = 1.0
    loss_scale: float | None = None

    @property
    def core_keeps_masters(self) -> bool:
        """Whether Megatron Core keeps FP32 masters itself though the optimizer is precision-aware.

        It does where ``fp8_recipe`` is one that Transformer Engine's Adam cannot apply itself, whether or not
        the model uses FP8. Bridge copies its ``mixed_precision.fp8_recipe`` there, ``tensorwise`` by default, so
        that under Bridge a BF16 job has whole FP32 masters, and in each step an FP32 copy of its gradients.

        Source: NVIDIA/Megatron-LM core_v0.13.0 to core_v0.19.0 megatron/core/optimizer/optimizer_config.py
        ``use_precision_aware_optimizer_no_fp8_or_ds_fp8``, distrib_optimizer.py
        ``_copy_model_grads_to_main_grads``; NVIDIA-NeMo/Megatron-Bridge 600d069b
        src/megatron/bridge/training/config.py ``runtime_config_update``.
        """
        return (
            self.use_precision_aware_optimizer
            and self.main_params_dtype == "fp32"
            and self.fp8_recipe not in (None, "delayed")
            and not self.optimizer_cpu_offload
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class DdpConfig:
    """``ddp``: Megatron's DDP wrapper. A job with ``ddp: null`` has none."""

    use_distributed_optimizer: bool = False
    grad_reduce_in_fp32: bool = False
    overlap_grad_reduce: bool = False
    overlap_param_gather: bool = False
    bucket_size: int | None = None
    num_distributed_optimizer_instances: int = 1
    reduce_scatter_with_fp32_accumulation: bool = False
    param_name_patterns_for_fp32_local_accumulation: tuple[str, ...] = ()
    average_in_collective: bool = False
    check_for_nan_in_grad: bool = False
    fp8_param_gather: bool = False
    reuse_grad_buf_for_mxfp8_param_ag: bool = False
    use_megatron_fsdp: bool = False
    use_torch_fsdp2: bool = False
    data_parallel_sharding_strategy: str = "no_shard"
    keep_fp8_transpose_cache: bool = False
    nccl_ub: bool = False
    fsdp_double_buffer: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class PeftConfig:
    """``peft``: adapters over a frozen base."""

    scheme: str = "lora"
    dim: int = 32
    alpha: int = 32
    dropout: float = 0.0
    target_modules: tuple[str, ...] = ("linear_qkv", "linear_proj", "linear_fc1", "linear_fc2")


@dataclass(frozen=True, slots=True, kw_only=True)
class HardwareConfig:
    """``hardware``: ours. What the job runs on."""

    gpu: str | None = None
    """``a100-40gb a100-80gb h100-80gb h200 b200 b300 gb200 gb300 mi300x``."""
    num_gpus: int | None = None
    memory_bytes: int | None = None
    """Overrides the GPU's usable memory, bytes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FrameworkConfig:
    """``framework``: ours. Revisions, as the job states them."""

    megatron_core: str | None = None
    megatron_bridge: str | None = None
    torch: str | None = None
    transformer_engine: str | None = None
    entry_point: str | None = None
    """``bridge`` or ``megatron-lm``; otherwise told by the format of the job."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """One default that Megatron would fill in, or one rewrite it would make, shown not hidden."""

    field: str
    before: FrozenValue
    after: FrozenValue
    why: str
    source: str
    """Repository, revision, file and function."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Assumption:
    """Something the answer rests on and the job does not say."""

    id: str
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class JobIdentity:
    """Where the job came from (the ``job`` object of every JSON document)."""

    path: str
    sha256: str
    format: str
    """``bridge-yaml``, ``megatron-args``, ``megatron-model-args``, ``huggingface`` or ``recipe``."""
    entry_point: str = "bridge"
    """``bridge`` or ``megatron-lm``: some rules exist only in one entry point."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobConfig:
    """One training job. Frozen: a change is ``dataclasses.replace``."""

    identity: JobIdentity
    model: ModelConfig
    train: TrainConfig = TrainConfig()
    optimizer: OptimizerConfig | None = OptimizerConfig()
    ddp: DdpConfig | None = DdpConfig()
    peft: PeftConfig | None = None
    hardware: HardwareConfig = HardwareConfig()
    framework: FrameworkConfig = FrameworkConfig()
    mixed_precision: Mapping[str, FrozenValue] | str | None = None
    comm_overlap: Mapping[str, FrozenValue] | None = None
    environment: Mapping[str, str] = field(default_factory=dict)
    """Variables that the launch script exports."""
    unmodelled: Mapping[str, FrozenValue] = field(default_factory=dict)
    """``section.field`` -> value, for fields that are known but do not enter the model."""
    given: Mapping[str, str] = field(default_factory=dict)
    """``section.field`` -> where the value was given (``file:line``, ``override``, ``recipe``)."""
    changes: tuple[Change, ...] = ()
    assumptions: tuple[Assumption, ...] = ()

    @property
    def has_unused_optimizer_recipe(self) -> bool:
        """Whether ``optimizer.fp8_recipe`` is one that the optimizer minds and no layer uses."""
        quantized = self.model.fp8 or self.model.fp4
        given = None if self.optimizer is None else self.optimizer.fp8_recipe
        return not quantized and given not in (None, "delayed")

    @property
    def masters_kept_twice(self) -> bool:
        """Whether Megatron Core keeps whole FP32 masters for a recipe that no layer uses.

        Megatron FSDP keeps masters of its own. See :attr:`OptimizerConfig.core_keeps_masters`.
        """
        own = self.ddp is not None and self.ddp.use_megatron_fsdp
        keeps = self.optimizer is not None and self.optimizer.core_keeps_masters
        return keeps and self.has_unused_optimizer_recipe and not own

    @property
    def micro_batch_size(self) -> int:
        """Sequences per micro-batch; loading has made sure that it is there."""
        assert self.train.micro_batch_size is not None
        return self.train.micro_batch_size

    @property
    def seq_length(self) -> int:
        """Tokens per sequence; loading has made sure that it is there."""
        assert self.model.seq_length is not None
        return self.model.seq_length
