"""Stack frames to stage and owner: one row per pattern, for tracebacks and for memory snapshots.

Function and file names are those of NVIDIA/Megatron-LM core_v0.8.0 to core_v0.19.0,
NVIDIA-NeMo/Megatron-Bridge 067f987d, NVIDIA/TransformerEngine, pytorch/pytorch and of the trainers
built on them. A stack is read twice: the *stage* is the outermost thing that was going on (a layer
forward below ``backward`` is a replay, so the stage is backward), the *owner* the innermost.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from recompute.diagnose.types import Stage


class Owner(StrEnum):
    """Whose memory it is."""

    LOGITS = "logits"
    ATTENTION = "attention"
    MLA = "mla"
    MLP = "mlp"
    MOE = "moe"
    EXPERT = "expert"
    SHARED_EXPERT = "shared_expert"
    NORM = "norm"
    EMBEDDING = "embedding"
    MIXER = "mixer"
    LAYER = "layer"
    VISION = "vision"
    OPTIMIZER = "optimizer"
    GRAD_BUFFER = "grad_buffer"
    PARAMETERS = "parameters"
    COMMUNICATION = "communication"
    DATA = "data"
    AUTOGRAD = "autograd"
    OTHER = "other"


LAYER_OWNERS: Final = frozenset(
    {
        Owner.ATTENTION,
        Owner.MLA,
        Owner.MLP,
        Owner.MOE,
        Owner.EXPERT,
        Owner.SHARED_EXPERT,
        Owner.NORM,
        Owner.EMBEDDING,
        Owner.MIXER,
        Owner.LAYER,
        Owner.VISION,
    }
)
"""Owners whose tensors are activations."""


@dataclass(frozen=True, slots=True)
class Frame:
    """One stack frame."""

    file: str
    line: int
    function: str


@dataclass(frozen=True, slots=True, kw_only=True)
class StageRow:
    """A frame that fixes the stage. Rows are tried in order, each against the whole stack."""

    id: str
    stage: Stage
    function: str
    """Pattern for the whole function name."""
    file: str = ""
    """Pattern to find in the path; empty for any."""
    passing: tuple[str, str]
    """(file, function) that it takes."""
    failing: tuple[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnerRow:
    """A frame that fixes the owner. Frames are tried from the innermost outward."""

    id: str
    owner: Owner
    function: str = ""
    file: str = ""
    passing: tuple[str, str]
    failing: tuple[str, str]


_TRAIN: Final = "megatron/training/training.py"
_PARALLEL: Final = "megatron/core/pipeline_parallel/schedules.py"

STAGES: Final[tuple[StageRow, ...]] = (
    StageRow(
        id="save",
        stage=Stage.CHECKPOINT,
        function=r"save_checkpoint\w*|save_state_dict|_save_checkpoint|sharded_state_dict|state_dict_for_save\w*",
        passing=("megatron/training/checkpointing.py", "save_checkpoint"),
        failing=(_TRAIN, "train_step"),
    ),
    StageRow(
        id="load",
        stage=Stage.CHECKPOINT,
        function=r"load_checkpoint\w*|_load_base_checkpoint|load_parameter_state\w*|load_hf_weights|load_state_dict|load_weights_hf_to_megatron",
        passing=("megatron/training/checkpointing.py", "load_checkpoint"),
        failing=("torch/serialization.py", "load"),
    ),
    StageRow(
        id="load-pretrained",
        stage=Stage.MODEL_BUILD,
        function=r"from_pretrained|_load_pretrained_model|_load_state_dict_into_meta_model|load_checkpoint_and_dispatch|load_model|load_pretrained",
        passing=("transformers/modeling_utils.py", "from_pretrained"),
        failing=("transformers/trainer.py", "train"),
    ),
    StageRow(
        id="graph",
        stage=Stage.GRAPH_CAPTURE,
        function=r"create_cudagraphs?|make_graphed_callables|_make_graphed_callables|capture_model|create_(?:fwd|bwd)_graph|capture_begin|capture_cudagraph\w*|_capture\w*|cuda_?graph_\w*",
        passing=("megatron/core/transformer/cuda_graphs.py", "create_cudagraphs"),
        failing=("megatron/core/transformer/cuda_graphs.py", "replay_graph_capture_not"),
    ),
    StageRow(
        id="graph-file",
        stage=Stage.GRAPH_CAPTURE,
        function=r"__enter__|__init__|capture_end|graph",
        file=r"torch/cuda/graphs\.py",
        passing=("torch/cuda/graphs.py", "__enter__"),
        failing=("torch/cuda/memory.py", "__enter__"),
    ),
    StageRow(
        id="warm-up",
        stage=Stage.MODEL_BUILD,
        function=r"_warmup_jit_function|set_jit_fusion_options|warmup_jit\w*",
        passing=("megatron/training/initialize.py", "_warmup_jit_function"),
        failing=(_TRAIN, "pretrain"),
    ),
    StageRow(
        id="optimizer-state",
        stage=Stage.OPTIMIZER_INIT,
        function=r"initialize_state|init_state_fn|_init_optimizer_states?\w*|_init_group|initialize_optimizer_states?|_init_state|init_fp32_master\w*|create_fp32_partition\w*|initialize_gradient_partition\w*|set_scaled_state|_initialize_state",
        passing=("transformer_engine/pytorch/optimizers/fused_adam.py", "initialize_state"),
        failing=("torch/optim/adam.py", "step"),
    ),
    StageRow(
        id="optimizer-build",
        stage=Stage.OPTIMIZER_INIT,
        function=r"get_megatron_optimizer\w*|_get_megatron_optimizer\w*|_build_model_and_main_param_groups|build_model_and_main_param_groups|setup_optimizer|configure_optimizers|_init_optimizer|create_optimizer\w*",
        passing=("megatron/core/optimizer/__init__.py", "get_megatron_optimizer"),
        failing=("megatron/core/optimizer/__init__.py", "_helper"),
    ),
    StageRow(
        id="optimizer-step",
        stage=Stage.OPTIMIZER_STEP,
        function=r"step|step_with_ready_grads|prepare_grads|_copy_main_params_to_model_params|_copy_model_grads_to_main_grads|clip_grad\w*|_take_model_step|optimizer_step|adamw?|_(?:multi|single)_tensor_adamw?|multi_tensor_applier|unscale_\w*|get_grad_norm\w*|run_optimizer_step",
        file=r"optim|grad_scaler|zero/|accelerate|multi_tensor_apply|trainer|clip_grads",
        passing=("megatron/core/optimizer/optimizer.py", "step_with_ready_grads"),
        failing=("megatron/core/transformer/moe/router.py", "step"),
    ),
    StageRow(
        id="evaluate",
        stage=Stage.EVALUATION,
        function=r"evaluate|evaluate_and_print_results|evaluation_loop|validation_step|validate|eval_step",
        passing=(_TRAIN, "evaluate_and_print_results"),
        failing=(_TRAIN, "train"),
    ),
    StageRow(
        id="grad-sync",
        stage=Stage.GRAD_SYNC,
        function=r"finalize_model_grads|start_grad_sync|finish_grad_sync|allreduce_gradients|_allreduce_\w*grads|register_grad_ready|reduce_ipg_grads|all_reduce_grads|_reduce_grads|post_backward_\w*|average_tensor|foreach_reduce",
        passing=("megatron/core/distributed/finalize_model_grads.py", "finalize_model_grads"),
        failing=(_PARALLEL, "backward_step"),
    ),
    StageRow(
        id="data",
        stage=Stage.DATA,
        function=r"get_batch\w*|_next_data|__next__|collate\w*|_process_data|next_batch|build_train_valid_test\w*|_get_ltor_masks\w*|get_ltor_masks_and_position_ids|broadcast_data|pack_dataset|_pack\w*",
        file=r"pretrain|gpt_step|data|utils|loader|packing|_step\.py",
        passing=("pretrain_gpt.py", "get_batch"),
        failing=("megatron/core/tensor_parallel/layers.py", "forward"),
    ),
    StageRow(
        id="backward",
        stage=Stage.BACKWARD,
        function=r"backward_step|backward|_engine_run_backward|run_backward|custom_backward|backward_backward|_backward_\w+",
        passing=("torch/autograd/__init__.py", "backward"),
        failing=(_PARALLEL, "forward_step"),
    ),
    StageRow(
        id="loss",
        stage=Stage.LOSS,
        function=r"loss_func\w*|compute_language_model_loss|vocab_parallel_cross_entropy|fused_vocab_parallel_cross_entropy|compute_log_probs|calculate_log_probs\w*|cross_entropy\w*|calculate_(?:predicted_logits|cross_entropy_loss|logits_max)|fused_linear_cross_entropy\w*|log_probs_from_logits\w*|compute_loss|masked_next_token_loss|logprobs_from_logits\w*|get_logp\w*|_get_logps?|selective_log_softmax|log_softmax|entropy_from_logits\w*|compute_entropy\w*",
        passing=("megatron/core/tensor_parallel/cross_entropy.py", "vocab_parallel_cross_entropy"),
        failing=("transformers/trainer.py", "training_step"),
    ),
    StageRow(
        id="forward",
        stage=Stage.FORWARD,
        function=r"forward_step|forward|forward_backward_func|forward_backward_\w+|_call_impl|forward_call|_checkpointed_\w*forward|training_step",
        passing=("megatron/core/models/gpt/gpt_model.py", "forward"),
        failing=(_TRAIN, "setup_model_and_optimizer"),
    ),
    StageRow(
        id="model-build",
        stage=Stage.MODEL_BUILD,
        function=r"get_model|model_provider|build_model|provide(?:_\w+)?|setup_model_and_optimizer|setup_model|_create_model|init_model|build_module|gpt_builder|initialize_model|_initialize_affine_weight\w*|reset_parameters",
        passing=(_TRAIN, "get_model"),
        failing=(_TRAIN, "train"),
    ),
    StageRow(
        id="initialization",
        stage=Stage.INITIALIZATION,
        function=r"initialize_megatron|_initialize_distributed|init_process_group|initialize_model_parallel|_compile_dependencies|_set_random_seed|torch_dist_init",
        passing=("megatron/training/initialize.py", "initialize_megatron"),
        failing=(_TRAIN, "train"),
    ),
)
"""The first row that any frame of the stack matches decides."""

OWNERS: Final[tuple[OwnerRow, ...]] = (
    OwnerRow(
        id="grad-buffer",
        owner=Owner.GRAD_BUFFER,
        file=r"distributed/(?:param_and_grad_buffer|distributed_data_parallel)|main_grad",
        passing=("megatron/core/distributed/param_and_grad_buffer.py", "__init__"),
        failing=("megatron/core/distributed/finalize_model_grads.py", "f"),
    ),
    OwnerRow(
        id="optimizer",
        owner=Owner.OPTIMIZER,
        file=r"(?:core|pytorch|torch)/optim|/optim/|optimizers?/|multi_tensor_apply|fused_adam|deepspeed/runtime/zero",
        passing=("torch/optim/adam.py", "_init_group"),
        failing=("torch/nn/functional.py", "linear"),
    ),
    OwnerRow(
        id="logits",
        owner=Owner.LOGITS,
        function=r"vocab_parallel_cross_entropy|fused_vocab_parallel_cross_entropy|compute_language_model_loss|_?compute_output_layer_and_language_model_loss|calculate_\w*cross_entropy\w*|calculate_predicted_logits|calculate_logits_max|cross_entropy\w*|compute_log_probs|\w*log_?probs?\w*|lm_head|_?compute_logits|logits_processor|float16_to_fp32|entropy_from_logits\w*|log_softmax|fused_linear_cross_entropy\w*",
        passing=("megatron/core/tensor_parallel/cross_entropy.py", "calculate_logits_max"),
        failing=("megatron/core/transformer/mlp.py", "forward"),
    ),
    OwnerRow(
        id="logits-file",
        owner=Owner.LOGITS,
        file=r"cross_entropy|loss/|losses|logits|linear_ce|loss_utils",
        passing=("megatron/core/fusions/fused_cross_entropy.py", "forward"),
        failing=("megatron/core/fusions/fused_softmax.py", "forward"),
    ),
    OwnerRow(
        id="shared-expert",
        owner=Owner.SHARED_EXPERT,
        file=r"moe/shared_experts",
        passing=("megatron/core/transformer/moe/shared_experts.py", "forward"),
        failing=("megatron/core/transformer/moe/experts.py", "forward"),
    ),
    OwnerRow(
        id="expert",
        owner=Owner.EXPERT,
        file=r"moe/experts|grouped_(?:linear|gemm|mlp)|megablocks|fused_moe|scattermoe",
        passing=("megatron/core/transformer/moe/experts.py", "forward"),
        failing=("megatron/core/transformer/moe/router.py", "forward"),
    ),
    OwnerRow(
        id="moe",
        owner=Owner.MOE,
        file=r"/moe/|moe_layer|deep_?ep|token_dispatcher|fused_a2a|_moe\b|moe_utils|permutation",
        function="",
        passing=("megatron/core/transformer/moe/token_dispatcher.py", "token_permutation"),
        failing=("megatron/core/transformer/mlp.py", "forward"),
    ),
    OwnerRow(
        id="moe-function",
        owner=Owner.MOE,
        function=r"token_(?:un)?permut\w*|(?:un)?permute\w*|sort_chunks_by_idxs?\w*|router?|routing|dispatch\w*|moe_\w+",
        passing=("x.py", "sort_chunks_by_idxs"),
        failing=("x.py", "forward"),
    ),
    OwnerRow(
        id="vision",
        owner=Owner.VISION,
        file=r"vision|/vit|radio|clip_model|siglip|visual",
        passing=("megatron/core/models/vision/clip_vit_model.py", "forward"),
        failing=("megatron/core/models/gpt/gpt_model.py", "forward"),
    ),
    OwnerRow(
        id="mla",
        owner=Owner.MLA,
        file=r"multi_latent_attention|absorbed_mla|mla_yarn",
        function="",
        passing=(
            "megatron/core/transformer/multi_latent_attention.py",
            "qkv_up_proj_and_rope_apply",
        ),
        failing=("megatron/core/transformer/attention.py", "forward"),
    ),
    OwnerRow(
        id="attention",
        owner=Owner.ATTENTION,
        file=r"attention|flash_attn|fused_softmax|rope_utils|rotary|fused_mla",
        passing=("megatron/core/transformer/attention.py", "forward"),
        failing=("megatron/core/transformer/mlp.py", "forward"),
    ),
    OwnerRow(
        id="attention-function",
        owner=Owner.ATTENTION,
        function=r"scaled_dot_product\w*|eager_attention\w*|_?flash_attn\w*|self_attention|attn\w*",
        passing=("modeling_llama.py", "eager_attention_forward"),
        failing=("modeling_llama.py", "forward"),
    ),
    OwnerRow(
        id="mlp",
        owner=Owner.MLP,
        file=r"transformer/mlp|fused_bias_(?:swiglu|gelu|geglu)|fused_weighted|layernorm_mlp|activations\.py",
        passing=("megatron/core/transformer/mlp.py", "forward"),
        failing=("megatron/core/tensor_parallel/layers.py", "forward"),
    ),
    OwnerRow(
        id="mlp-function",
        owner=Owner.MLP,
        function=r"bias_(?:swiglu|gelu|geglu|act)\w*|swiglu\w*|gelu\w*|silu|mlp",
        passing=("x.py", "bias_swiglu_impl"),
        failing=("x.py", "forward"),
    ),
    OwnerRow(
        id="mixer",
        owner=Owner.MIXER,
        file=r"/ssm/|mamba|gated_delta|causal_conv1d|fla/",
        passing=("megatron/core/ssm/mamba_mixer.py", "forward"),
        failing=("megatron/core/transformer/mlp.py", "forward"),
    ),
    OwnerRow(
        id="norm",
        owner=Owner.NORM,
        file=r"layer_norm|layernorm|rmsnorm|normalization|fused_layer_norm",
        passing=("megatron/core/fusions/fused_layer_norm.py", "forward"),
        failing=("megatron/core/transformer/mlp.py", "forward"),
    ),
    OwnerRow(
        id="embedding",
        owner=Owner.EMBEDDING,
        file=r"embedding",
        passing=("megatron/core/models/common/embeddings/language_model_embedding.py", "forward"),
        failing=("megatron/core/transformer/mlp.py", "forward"),
    ),
    OwnerRow(
        id="layer",
        owner=Owner.LAYER,
        file=r"transformer_layer|transformer_block|hybrid_(?:block|layer)|modeling_\w+",
        passing=("megatron/core/transformer/transformer_layer.py", "forward"),
        failing=("megatron/core/tensor_parallel/layers.py", "forward"),
    ),
    OwnerRow(
        id="output-layer",
        owner=Owner.LOGITS,
        file=r"models/(?:gpt|mamba|hybrid)/\w*model\.py",
        function=r"forward|_postprocess",
        passing=("megatron/core/models/gpt/gpt_model.py", "_postprocess"),
        failing=("megatron/core/models/gpt/gpt_layer_specs.py", "forward"),
    ),
    OwnerRow(
        id="data",
        owner=Owner.DATA,
        file=r"dataloader|/data/|datasets?[/_.]",
        function="",
        passing=("torch/utils/data/dataloader.py", "__next__"),
        failing=("megatron/core/transformer/mlp.py", "forward"),
    ),
    OwnerRow(
        id="parameters",
        owner=Owner.PARAMETERS,
        function=r"_initialize_affine_weight\w*|reset_parameters|from_pretrained|get_model|load_\w*checkpoint\w*|model_provider|build_model|to_empty|_load_pretrained_model|provide\w*",
        passing=("megatron/training/training.py", "get_model"),
        failing=("megatron/training/training.py", "train"),
    ),
    OwnerRow(
        id="communication",
        owner=Owner.COMMUNICATION,
        file=r"torch/distributed|p2p_communication|tensor_parallel/mappings",
        passing=("torch/distributed/distributed_c10d.py", "all_reduce"),
        failing=("megatron/core/transformer/mlp.py", "forward"),
    ),
    OwnerRow(
        id="autograd",
        owner=Owner.AUTOGRAD,
        file=r"torch/autograd",
        passing=("torch/autograd/__init__.py", "backward"),
        failing=("torch/nn/modules/module.py", "_call_impl"),
    ),
)

_STAGE_PATTERNS: Final = tuple(
    (row, re.compile(rf"(?:{row.function})\Z"), re.compile(row.file) if row.file else None)
    for row in STAGES
)
_OWNER_PATTERNS: Final = tuple(
    (
        row,
        re.compile(rf"(?:{row.function})\Z") if row.function else None,
        re.compile(row.file, re.IGNORECASE) if row.file else None,
    )
    for row in OWNERS
)


def stage_row_matches(row_index: int, file: str, function: str) -> bool:
    """Tell whether one row of :data:`STAGES` takes a frame."""
    _, name, path = _STAGE_PATTERNS[row_index]
    return name.match(function) is not None and (path is None or path.search(file) is not None)


def owner_row_matches(row_index: int, file: str, function: str) -> bool:
    """Tell whether one row of :data:`OWNERS` takes a frame."""
    _, name, path = _OWNER_PATTERNS[row_index]
    return (name is None or name.match(function) is not None) and (
        path is None or path.search(file) is not None
    )


def stage_of(frames: Sequence[Frame]) -> tuple[Stage, str | None]:
    """Return the stage of a stack and the row that says so.

    Args:
        frames: In any order.
    """
    for index, row in enumerate(STAGES):
        if any(stage_row_matches(index, frame.file, frame.function) for frame in frames):
            return row.stage, row.id
    return Stage.UNKNOWN, None


def owner_of(innermost_first: Iterable[Frame]) -> tuple[Owner, Frame | None]:
    """Return the owner of what a stack allocates, and the frame that says so.

    Args:
        innermost_first: The stack, the allocating frame first.
    """
    for frame in innermost_first:
        owner = owner_of_frame(frame.file, frame.function)
        if owner is not None and owner is not Owner.AUTOGRAD:
            return owner, frame
    return Owner.OTHER, None


def owner_of_frame(file: str, function: str) -> Owner | None:
    """Return the owner that one frame names, or ``None``."""
    path = file.replace("\\", "/")
    for index, row in enumerate(OWNERS):
        if owner_row_matches(index, path, function):
            return row.owner
    return None
