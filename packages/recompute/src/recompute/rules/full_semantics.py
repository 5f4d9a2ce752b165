"""What full recompute leaves out: MTP, hybrid stacks before 0.18, evaluation, other towers."""

from __future__ import annotations

from typing import Final

from recompute.config.revision import ORDER
from recompute.rules.case import Case
from recompute.rules.edits import put
from recompute.rules.types import ALL, MEGATRON, Rule, Source, between, ex, on, since

_UNIFORM: Final = {
    "recompute_granularity": "full",
    "recompute_method": "uniform",
    "recompute_num_layers": 1,
}
_FIRST: Final = {**_UNIFORM, "recompute_method": "block", "recompute_num_layers": 4}
_MTP: Final = "megatron/core/transformer/multi_token_prediction.py"
_SHARED: Final = "megatron/core/recompute.py"
_HYBRID: Final = {"hybrid_override_pattern": "M*M-M*M-"}
_EVAL_FLAGS: Final = (
    "freeze_vision_model",
    "freeze_vision_encoder",
    "force_eval_mode",
    "force_eval_mode_vision",
    "vision_force_eval",
    "radio_force_eval_mode",
)


def _mtp(case: Case) -> bool:
    layers = case.model.mtp_num_layers
    return isinstance(layers, int) and layers > 0


def _dual_rope(case: Case) -> bool:
    name = case.architecture
    return any(word in name for word in ("gemma4", "gemma-4", "gemma_4")) or bool(
        case.foreign("dual_rope")
    )


def _sound(case: Case) -> bool:
    return any(key.rpartition(".")[2].startswith("sound_") for key in case.job.unmodelled)


RULES: Final[tuple[Rule, ...]] = (
    Rule(
        id="mtp-uniform-1",
        severity="error",
        raised="forward",
        title="full, uniform, N other than 1 with an MTP layer: assertion in the first forward",
        revisions=since("0.14"),
        gate="full",
        when=lambda c: (
            _mtp(c) and c.model.recompute_method == "uniform" and c.count not in (None, 1)
        ),
        message="with an MTP layer (mtp_num_layers={m.mtp_num_layers}) uniform allows "
        "recompute_num_layers=1 only; {m.recompute_num_layers} ends in an assertion in the first "
        "forward",
        fields=("model.recompute_num_layers", "model.mtp_num_layers"),
        fix=put(recompute_num_layers=1),
        source=Source(path=_MTP, where="MultiTokenPredictionLayer._checkpointed_forward"),
        bad=ex("0.19", **{**_UNIFORM, "recompute_num_layers": 4}, mtp_num_layers=1),
        good=ex("0.19", **_UNIFORM, mtp_num_layers=1),
    ),
    Rule(
        id="mtp-method",
        severity="error",
        raised="forward",
        title="full without a method on a fork with layer ids and an MTP layer",
        revisions=since("0.14"),
        gate="full",
        when=lambda c: _mtp(c) and c.foreign("recompute_layer_ids") is not None,
        message="recompute_layer_ids is a field of a fork (Primus) that wants recompute_method null; "
        "the MTP layer knows only uniform and block and raises in the first forward",
        fields=("model.recompute_layer_ids", "model.mtp_num_layers"),
        advice="use a fork version whose MTP layer knows layer ids (Primus pull request 965), or "
        "uniform with 1",
        source=Source(
            repository="AMD-AGI/Primus", revision="#965", path="pull request", where="MTP layer"
        ),
        basis="report",
        bad=ex(
            "0.19",
            **{**_UNIFORM, "recompute_method": None},
            mtp_num_layers=1,
            unmodelled={"model.recompute_layer_ids": "0,3,4"},
        ),
        good=ex("0.19", **_UNIFORM, mtp_num_layers=1),
    ),
    Rule(
        id="mtp-padding-mask",
        severity="error",
        raised="forward",
        title="0.18: full with an MTP layer: TypeError in the first forward",
        revisions=on("0.18"),
        gate="full",
        when=_mtp,
        message="in Megatron Core 0.18.x (0.18.0 to 0.18.2) full with mtp_num_layers="
        "{m.mtp_num_layers} ends in a TypeError over padding_mask in the first forward",
        fields=("model.recompute_granularity", "model.mtp_num_layers"),
        fix=lambda c: {
            "model.recompute_granularity": "selective",
            "model.recompute_modules": ("moe",) if c.layers.moe else ("mlp",),
            "model.recompute_method": None,
            "model.recompute_num_layers": None,
        },
        advice="or use 0.19, or train without the MTP layer",
        source=Source(
            repository=MEGATRON, revision="#6367", path="pull request", where="issue 4933, 3457"
        ),
        basis="report",
        bad=ex("0.18", **_UNIFORM, mtp_num_layers=1),
        good=ex("0.19", **_UNIFORM, mtp_num_layers=1),
    ),
    Rule(
        id="mtp-block-skip",
        severity="warning",
        raised="forward",
        title="full, block with an MTP layer: the MTP layer is not replayed",
        revisions=since("0.14"),
        gate="full",
        when=lambda c: _mtp(c) and c.model.recompute_method == "block",
        message="with block the MTP layer (mtp_num_layers={m.mtp_num_layers}) keeps all its "
        "activations; it sits on the last stage beside the loss",
        fields=("model.recompute_method", "model.mtp_num_layers"),
        advice="uniform with 1 replays it; count its activations on the last stage otherwise",
        source=Source(path=_MTP, where="MultiTokenPredictionLayer._checkpointed_forward"),
        bad=ex("0.19", **_FIRST, mtp_num_layers=1),
        good=ex("0.19", **_UNIFORM, mtp_num_layers=1),
    ),
    Rule(
        id="mtp-not-recomputed",
        severity="warning",
        raised="never",
        title="0.12 and 0.13: the MTP layer is never replayed",
        revisions=between("0.12", "0.13"),
        gate="full",
        when=_mtp,
        message="Megatron Core {c.name} does not replay the MTP layer (mtp_num_layers="
        "{m.mtp_num_layers}) under full",
        fields=("model.mtp_num_layers",),
        advice="0.14 and newer replay it with uniform and 1",
        source=Source(path=_MTP, where="MultiTokenPredictionLayer.forward"),
        bad=ex("0.13", **_UNIFORM, mtp_num_layers=1),
        good=ex("0.14", **_UNIFORM, mtp_num_layers=1),
    ),
    Rule(
        id="mtp-fp8-delayed",
        severity="warning",
        raised="backward",
        title="full with an MTP layer and delayed fp8 before 0.18: a lookup in TE can fail",
        revisions=between("0.14", "0.17"),
        gate="full",
        when=lambda c: (
            _mtp(c)
            and bool(c.model.fp8)
            and c.model.fp8_recipe == "delayed"
            and c.model.recompute_method == "uniform"
        ),
        message="the MTP layer's checkpoint is entered outside the fp8 context before 0.18: with "
        "delayed scaling Transformer Engine can miss its saved scales in backward (KeyError)",
        fields=("model.fp8_recipe", "model.mtp_num_layers"),
        advice="use 0.18 or newer, or another fp8 recipe",
        source=Source(path=_MTP, where="MultiTokenPredictionLayer._checkpointed_forward"),
        bad=ex("0.17", **_UNIFORM, mtp_num_layers=1, fp8="hybrid"),
        good=ex("0.19", **_UNIFORM, mtp_num_layers=1, fp8="hybrid"),
    ),
    Rule(
        id="hybrid-full-ignored",
        severity="warning",
        raised="never",
        title="full on a Mamba or hybrid stack before 0.18: ignored",
        revisions=between("0.8", "0.17"),
        gate="full",
        when=lambda c: c.hybrid,
        message="the Mamba and hybrid stack of Megatron Core {c.name} has no recompute code: full is "
        "accepted and nothing is replayed (0.18 and newer replay it)",
        fields=("model.recompute_granularity",),
        advice="use 0.18 or newer, or selective labels",
        source=Source(path="megatron/core/ssm/mamba_block.py", where="MambaStack.forward"),
        bad=ex("0.17", **_UNIFORM, **_HYBRID),
        good=ex("0.18", **_UNIFORM, **_HYBRID),
    ),
    Rule(
        id="hybrid-unit",
        severity="note",
        raised="never",
        title="in a hybrid stack one layer is one symbol of the pattern",
        revisions=since("0.18"),
        gate="full",
        when=lambda c: c.hybrid,
        message="recompute_num_layers={m.recompute_num_layers} counts symbols of the pattern (Mamba, "
        "attention, MLP, MoE), {c.layers.total} in all, not transformer layers",
        fields=("model.recompute_num_layers", "model.hybrid_override_pattern"),
        source=Source(path=_SHARED, where="checkpointed_forward"),
        bad=ex("0.19", **_UNIFORM, **_HYBRID),
        good=ex("0.19", **_UNIFORM),
    ),
    Rule(
        id="hybrid-mtp-nested",
        severity="note",
        raised="never",
        title="hybrid MTP under full: its inner stack is checkpointed inside the MTP checkpoint",
        revisions=since("0.18"),
        gate="full",
        when=lambda c: c.hybrid and _mtp(c),
        message="the hybrid MTP layer's inner stack enters the full path again inside the MTP "
        "checkpoint: its layers are replayed twice",
        fields=("model.mtp_num_layers",),
        source=Source(path=_SHARED, where="checkpointed_forward"),
        basis="inferred",
        bad=ex("0.19", **_UNIFORM, **_HYBRID, mtp_num_layers=1),
        good=ex("0.19", **_UNIFORM, **_HYBRID),
    ),
    Rule(
        id="full-eval",
        severity="note",
        raised="never",
        title="full acts in training mode only: a tower forced to eval is not replayed",
        revisions=ALL,
        gate="full",
        when=lambda c: any(c.foreign(name) for name in _EVAL_FLAGS),
        message="full is gated on training mode: a tower that is frozen or forced to eval keeps its "
        "activations whatever the setting",
        fields=("model.recompute_granularity",),
        advice="keep the tower in train mode, or plan its activations as they are",
        source=Source(path=_SHARED, where="checkpointed_forward"),
        bad=ex("0.19", **_UNIFORM, unmodelled={"model.freeze_vision_model": True}),
        good=ex("0.19", **_UNIFORM),
    ),
    Rule(
        id="extract-uniform",
        severity="note",
        raised="never",
        title="feature extraction under uniform happens at group ends only",
        revisions=since("0.17"),
        gate="full",
        when=lambda c: (
            c.model.recompute_method == "uniform"
            and (c.count or 0) > 1
            and bool(c.foreign("extract_layer_indices"))
        ),
        message="features of layers are taken at the ends of groups of "
        "{m.recompute_num_layers} layers only; layers in between are missed",
        fields=("model.recompute_method",),
        advice="use block, or groups of 1",
        source=Source(path=_SHARED, where="checkpointed_forward"),
        bad=ex(
            "0.19",
            **{**_UNIFORM, "recompute_num_layers": 2},
            unmodelled={"model.extract_layer_indices": (3,)},
        ),
        good=ex("0.19", **_UNIFORM, unmodelled={"model.extract_layer_indices": (3,)}),
    ),
    Rule(
        id="packed-rope-tuple",
        severity="error",
        raised="forward",
        title="full on models with two rotary embeddings (Gemma 4) before 2026-07-17: fails",
        revisions=frozenset({*between("0.8", "0.18"), "dev"}),
        gate="full",
        entries=frozenset({"megatron-lm", "core"}),
        when=_dual_rope,
        message="models with two rotary embeddings hand them over as a pair, and the full path of "
        "Megatron Core {c.name} takes one tensor: it fails in the first forward",
        fields=("model.recompute_granularity",),
        fix=put(
            recompute_granularity="selective",
            recompute_modules=("mlp",),
            recompute_method=None,
            recompute_num_layers=None,
        ),
        advice="or use a Megatron Core with commit acc7e64457 (in 0.19)",
        source=Source(
            repository=MEGATRON, revision="acc7e64457", path=_SHARED, where="checkpointed_forward"
        ),
        basis="report",
        bad=ex("0.18", "core", **_UNIFORM, unmodelled={"model.model_type": "gemma4"}),
        good=ex("0.19", "core", **_UNIFORM, unmodelled={"model.model_type": "gemma4"}),
    ),
    Rule(
        id="hf-audio-any",
        severity="note",
        raised="never",
        title="Hugging Face sound encoder: any granularity checkpoints the whole encoder",
        revisions=since("0.18"),
        when=lambda c: c.effective in ("selective", "full") and _sound(c),
        message="the Hugging Face sound encoder turns gradient checkpointing of the whole encoder on "
        "for any granularity, selective included",
        fields=("model.recompute_granularity",),
        source=Source(
            path="megatron/core/models/huggingface/fastconformer_model.py",
            where="ParakeetHuggingFaceModel.__init__",
        ),
        bad=ex(
            "0.19",
            recompute_granularity="selective",
            recompute_modules=("mlp",),
            unmodelled={"model.sound_model_type": "fastconformer"},
        ),
        good=ex("0.19", recompute_granularity="selective", recompute_modules=("mlp",)),
    ),
    Rule(
        id="partial-checkpoint-microbatches",
        severity="warning",
        raised="never",
        title="num_microbatches_with_partial_activation_checkpoints: no model code reads it",
        revisions=ALL,
        when=lambda c: (
            c.foreign("num_microbatches_with_partial_activation_checkpoints") is not None
        ),
        message="num_microbatches_with_partial_activation_checkpoints only hands a flag to your own "
        "forward step; no model of Megatron Core reads it",
        fields=("model.num_microbatches_with_partial_activation_checkpoints",),
        source=Source(path="megatron/core/pipeline_parallel/schedules.py", where="forward_step"),
        bad=ex(
            "0.19",
            unmodelled={"model.num_microbatches_with_partial_activation_checkpoints": 2},
        ),
        good=ex("0.19", **_UNIFORM),
    ),
    Rule(
        id="full-moe-replay-references",
        severity="note",
        raised="never",
        title="full on MoE before 2026-08-07: replayed activations outlive their layer",
        revisions=frozenset({*between("0.8", "0.19"), "dev"}),
        gate="full",
        when=lambda c: c.layers.moe > 0 and c.index >= ORDER["0.12"],
        message="the token dispatcher of Megatron Core {c.name} keeps references to replayed expert "
        "activations until the next iteration; the peak can be far above one layer's",
        fields=("model.recompute_granularity", "model.num_moe_experts"),
        advice="use a Megatron Core with commit 07a0de65ad (2026-08-07)",
        source=Source(
            repository=MEGATRON, revision="07a0de65ad", path="megatron/core", where="#5197"
        ),
        basis="report",
        bad=ex("0.19", **_UNIFORM, num_moe_experts=8),
        good=ex("pin", **_UNIFORM, num_moe_experts=8),
    ),
)
"""Rows on what full recompute covers."""
