"""What a recorded stack says: stage, owner, and which label regions it is inside of.

Regions follow the boundaries of NVIDIA/Megatron-LM core_v0.19.0: ``attention.py``
``_checkpointed_attention_forward``, ``multi_latent_attention.py`` ``qkv_up_proj_and_rope_apply``,
``transformer_layer.py`` ``_run_mlp`` and the two norms, ``moe/moe_layer.py`` ``forward`` and
``shared_experts_compute``, ``moe/experts.py`` between FC1 and FC2, ``gated_delta_net`` output norm.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final, Literal, NamedTuple

from recompute.diagnose.frames import (
    OWNERS,
    STAGES,
    Frame,
    Owner,
    owner_row_matches,
    stage_row_matches,
)
from recompute.diagnose.snapshot.compact import Stack
from recompute.diagnose.types import Stage


@dataclass(frozen=True, slots=True, kw_only=True)
class RegionRow:
    """Where a label's checkpoint lies, by frames."""

    label: str
    function: str
    file: str
    needs: str = ""
    """Another frame's file that must be on the stack too."""
    not_function: str = ""
    """A frame that takes the allocation out of the region."""
    scope: str = ""
    """Functions that run between the region and the tensor whose gradient starts the replay."""
    holds: str = ""
    """Functions whose tensors enter the region as views: a checkpoint keeps their whole storage."""
    keeps: Literal["nothing", "last", "attention"] = "nothing"
    """Which output stays because its consumer saves it."""
    passing: tuple[tuple[str, str], ...]
    """(file, function) innermost first, inside."""
    failing: tuple[tuple[str, str], ...]


_LAYER: Final = ("megatron/core/transformer/transformer_layer.py", "forward")
_ATTENTION: Final = ("megatron/core/transformer/attention.py", "forward")

REGIONS: Final[tuple[RegionRow, ...]] = (
    RegionRow(
        label="core_attn",
        keeps="attention",
        holds=r"get_query_key_value_tensors|qkv_up_proj_and_rope_apply",
        function=r"forward|_checkpointed_attention_forward|custom_forward|__call__",
        file=r"dot_product_attention|/dsa\.py|flash_attn_interface|fused_softmax",
        needs=r"transformer/(?:attention|multi_latent_attention|absorbed_mla)\.py",
        not_function=r"linear_\w+|qkv_up_proj_and_rope_apply|get_query_key_value_tensors|apply_rotary\w*|_apply_linear|column_parallel\w*",
        passing=(
            ("megatron/core/transformer/dot_product_attention.py", "forward"),
            _ATTENTION,
            _LAYER,
        ),
        failing=(("megatron/core/tensor_parallel/layers.py", "forward"), _ATTENTION, _LAYER),
    ),
    RegionRow(
        label="moe_act",
        function=r"bias_act_func|activation_func\w*|weighted_bias_swiglu_impl|weighted_\w+_impl|swiglu\w*|glu|bias_act\w*|activation_checkpoint\w*",
        file=r"moe/experts|fused_bias_swiglu|fused_weighted|fusions/|experts\.py",
        needs=r"moe/experts|experts\.py",
        scope=r"forward",
        passing=(
            ("megatron/core/transformer/moe/experts.py", "bias_act_func"),
            ("megatron/core/transformer/moe/experts.py", "forward"),
            _LAYER,
        ),
        failing=(("megatron/core/transformer/mlp.py", "bias_act_func"), _LAYER),
    ),
    RegionRow(
        label="layernorm",
        function=r"_run_input_layernorm|_forward_pre_mlp_layernorm|forward|apply_module|apply_layernorm",
        file=r"layernorm|layer_norm|rmsnorm|normalization|torch_norm",
        needs=r"transformer/transformer_layer|hybrid_",
        not_function=r"linear_fc1|linear_qkv|_apply_linear|q_layernorm|k_layernorm|core_attention",
        passing=(("transformer_engine/pytorch/module/rmsnorm.py", "forward"), _LAYER),
        failing=(
            ("transformer_engine/pytorch/module/layernorm_linear.py", "linear_qkv"),
            _ATTENTION,
            _LAYER,
        ),
    ),
    RegionRow(
        label="mla_up_proj",
        function=r"qkv_up_proj_and_rope_apply\w*|mla_up_proj\w*|_qkv_up_proj\w*",
        file=r"multi_latent_attention|absorbed_mla",
        scope=r"core_attention|_checkpointed_attention_forward",
        passing=(
            ("megatron/core/transformer/multi_latent_attention.py", "qkv_up_proj_and_rope_apply"),
            _LAYER,
        ),
        failing=(("megatron/core/transformer/multi_latent_attention.py", "forward"), _LAYER),
    ),
    RegionRow(
        label="mlp",
        function=r"forward|_run_mlp|bias_act_func|__call__",
        file=r"transformer/mlp\.py|layernorm_mlp\.py",
        needs=r"transformer/transformer_layer|hybrid_|multi_token_prediction",
        not_function=r"shared_experts_compute|routed_experts_compute|moe_layer_forward",
        passing=(("megatron/core/transformer/mlp.py", "forward"), _LAYER),
        failing=(("megatron/core/transformer/attention.py", "forward"), _LAYER),
    ),
    RegionRow(
        label="moe",
        function=r"forward|custom_forward|router_and_preprocess|route|dispatch|routed_experts_compute|combine|shared_experts_compute|postprocess",
        file=r"moe/moe_layer\.py",
        passing=(
            ("megatron/core/transformer/moe/experts.py", "forward"),
            ("megatron/core/transformer/moe/moe_layer.py", "forward"),
            _LAYER,
        ),
        failing=(("megatron/core/transformer/mlp.py", "forward"), _LAYER),
    ),
    RegionRow(
        label="shared_experts",
        function=r"forward|shared_experts_compute",
        file=r"moe/shared_experts\.py",
        passing=(("megatron/core/transformer/moe/shared_experts.py", "forward"), _LAYER),
        failing=(("megatron/core/transformer/moe/experts.py", "forward"), _LAYER),
    ),
    RegionRow(
        label="gdn_norm_out",
        function=r"_apply_gated_norm\w*|gated_norm\w*|_norm_out\w*",
        file=r"gated_delta|gdn",
        passing=(("megatron/core/ssm/gated_delta_net/gdn.py", "_apply_gated_norm"), _LAYER),
        failing=(("megatron/core/ssm/gated_delta_net/gdn.py", "forward"), _LAYER),
    ),
    RegionRow(
        label="full",
        keeps="last",
        function=r"forward|__call__|_forward_attention|_forward_mlp",
        file=r"transformer/transformer_layer\.py|hybrid/hybrid_block\.py$",
        passing=(("megatron/core/transformer/mlp.py", "forward"), _LAYER),
        failing=(("megatron/core/models/gpt/gpt_model.py", "forward"),),
    ),
)
"""Label -> frames. ``full`` stands for full/uniform/1."""

_REPLAY: Final = re.compile(r"(?:backward|unpack_hook|recompute_fn|_recompute|recompute)\Z")
_FUSED: Final = re.compile(r"flash|fused_attn|fusedattention|cudnn", re.IGNORECASE)
_OPTIMIZER_STAGES: Final = frozenset({Stage.OPTIMIZER_INIT, Stage.OPTIMIZER_STEP})


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """What one stack says."""

    stage: Stage
    owner: Owner
    where: str
    """``function file:line`` of the frame that names the owner."""
    regions: int
    """Bit per row of :data:`REGIONS`."""
    scopes: int
    """Bit per row: inside what still runs before the hook's tensor."""
    holds: int
    """Bit per row: a tensor that may enter the region as a view."""
    forward: bool
    """In a forward pass proper: no backward and no replay on the stack."""
    backward: bool
    fused: bool


class _FrameReading(NamedTuple):
    """What one frame says; the masks have a bit per row of :data:`REGIONS`."""

    frame: Frame
    row: int
    owner: Owner | None
    region: int
    need: int
    drop: int
    scope: int
    hold: int
    replay: bool
    fused: bool


class Classifier:
    """Reads stacks, each frame and each stack once."""

    def __init__(self) -> None:
        self._frames: dict[int, _FrameReading] = {}
        self._stacks: dict[int, tuple[Stack, Reading]] = {}

    def read(self, stack: Stack) -> Reading:
        """Return what a stack says. Stacks and frames must be interned."""
        known = self._stacks.get(id(stack))
        if known is None:
            known = self._stacks[id(stack)] = (stack, self._read(stack))
        return known[1]

    def _read(self, stack: Stack) -> Reading:
        row = len(STAGES)
        owner, where = Owner.OTHER, ""
        inside = needed = taken = scopes = holds = 0
        replay = fused = False
        for frame in stack:
            one = self._frame(frame)
            row = min(row, one.row)
            if owner is Owner.OTHER and one.owner not in {None, Owner.AUTOGRAD}:
                owner, where = one.owner or Owner.OTHER, _where(frame)
            inside |= one.region
            needed |= one.need
            taken |= one.drop
            scopes |= one.scope
            holds |= one.hold
            replay = replay or one.replay
            fused = fused or one.fused
        stage = STAGES[row].stage if row < len(STAGES) else Stage.UNKNOWN
        if not where and stack:
            where = _where(stack[0])
        python = any(frame.file.endswith(".py") for frame in stack)
        backward = stage is Stage.BACKWARD or replay or (not python)
        return Reading(
            stage=Stage.BACKWARD if not stack or (not python and stage is Stage.UNKNOWN) else stage,
            owner=owner if stack else Owner.AUTOGRAD,
            where=where,
            regions=inside & needed & ~taken,
            scopes=scopes,
            holds=holds,
            forward=stage in {Stage.FORWARD, Stage.LOSS} and not replay,
            backward=backward and stage not in _OPTIMIZER_STAGES,
            fused=fused,
        )

    def _frame(self, frame: Frame) -> _FrameReading:
        known = self._frames.get(id(frame))
        if known is not None:
            return known
        path = frame.file.replace("\\", "/")
        row = next(
            (
                index
                for index in range(len(STAGES))
                if stage_row_matches(index, path, frame.function)
            ),
            len(STAGES),
        )
        owner = next(
            (
                item.owner
                for index, item in enumerate(OWNERS)
                if owner_row_matches(index, path, frame.function)
            ),
            None,
        )
        region = need = drop = scope = hold = 0
        for index, item in enumerate(_ROWS):
            bit = 1 << index
            region |= bit * (
                item.function.match(frame.function) is not None
                and item.file.search(path) is not None
            )
            need |= bit * (item.needs is None or item.needs.search(path) is not None)
            drop |= bit * (item.drop is not None and item.drop.match(frame.function) is not None)
            scope |= bit * (
                item.scope is not None
                and item.scope.match(frame.function) is not None
                and item.file.search(path) is not None
            )
            hold |= bit * (item.holds is not None and item.holds.match(frame.function) is not None)
        value = _FrameReading(
            frame,
            row,
            owner,
            region,
            need,
            drop,
            scope,
            hold,
            _REPLAY.search(frame.function) is not None,
            _FUSED.search(path + frame.function) is not None,
        )
        self._frames[id(frame)] = value
        return value


@dataclass(frozen=True, slots=True)
class _Compiled:
    function: re.Pattern[str]
    file: re.Pattern[str]
    needs: re.Pattern[str] | None
    drop: re.Pattern[str] | None
    scope: re.Pattern[str] | None
    holds: re.Pattern[str] | None


def _whole(pattern: str) -> re.Pattern[str] | None:
    return re.compile(rf"(?:{pattern})\Z") if pattern else None


_ROWS: Final = tuple(
    _Compiled(
        re.compile(rf"(?:{row.function})\Z"),
        re.compile(row.file),
        re.compile(row.needs) if row.needs else None,
        _whole(row.not_function),
        _whole(row.scope),
        _whole(row.holds),
    )
    for row in REGIONS
)


def _where(frame: Frame) -> str:
    return f"{frame.function} {frame.file.replace(chr(92), '/').rsplit('/', 1)[-1]}:{frame.line}"
