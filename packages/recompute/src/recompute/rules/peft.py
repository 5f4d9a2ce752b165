"""Adapters over a frozen base: a checkpoint whose input needs no gradient never runs backward."""

from __future__ import annotations

from typing import Final

from recompute.config.revision import ORDER
from recompute.rules.case import Case, below
from recompute.rules.edits import put
from recompute.rules.types import ALL, BRIDGE, Rule, Source, ex, since

_FULL: Final = {
    "recompute_granularity": "full",
    "recompute_method": "uniform",
    "recompute_num_layers": 1,
}
_HOOK: Final = "src/megatron/bridge/peft/recompute.py"
_FC: Final = frozenset({"linear_fc1", "linear_fc2", "fc1", "fc2"})
_HOOK_SINCE: Final = (0, 3)
_AWAY: Final = put(
    recompute_granularity="selective",
    recompute_modules=("core_attn",),
    recompute_method=None,
    recompute_num_layers=None,
)


def _adapters_first_stage(case: Case) -> bool:
    """Whether only adapters train and the embedding's output needs no gradient."""
    return case.job.peft is not None and case.model.pipeline_model_parallel_size <= 1


def _multi(case: Case) -> bool:
    return case.job.peft is not None and "multi" in str(case.job.peft.scheme).lower()


def _hook(case: Case) -> str:
    """Say whether the framework has the input-gradient hook: ``yes``, ``no`` or ``unknown``."""
    if case.entry != "bridge":
        return "unknown"
    if case.bridge is not None:
        return "no" if below(case.bridge, *_HOOK_SINCE) else "yes"
    if case.index <= ORDER["0.15"]:
        return "no"
    return "unknown" if case.name == "0.16" else "yes"


def _only_mlp_adapters(case: Case) -> bool:
    targets = case.job.peft.target_modules if case.job.peft is not None else ()
    return bool(targets) and all(name.rpartition(".")[2] in _FC for name in targets)


RULES: Final[tuple[Rule, ...]] = (
    Rule(
        id="peft-frozen-pp1",
        severity="error",
        raised="never",
        title="adapters, one pipeline stage, full, Bridge before 0.3: adapters get no gradient",
        revisions=ALL,
        gate="full",
        when=lambda c: _adapters_first_stage(c) and not c.hybrid and _hook(c) == "no",
        message="with adapters ({c.job.peft.scheme}) on a frozen base and one pipeline stage the "
        "embedding's output needs no gradient, so the checkpoint's backward never runs: the loss is "
        "finite, grad_norm is 0 and the adapters never change",
        fields=("peft", "model.recompute_granularity", "model.pipeline_model_parallel_size"),
        fix=_AWAY,
        advice="or use Bridge 0.3 or newer (commit 953aabf, 2025-12-27), or call "
        "requires_grad_(True) on the decoder's input; watch grad_norm at step 1",
        source=Source(
            repository=BRIDGE,
            revision="953aabf",
            path=_HOOK,
            where="maybe_enable_recompute_inputs_grad",
        ),
        basis="report",
        bad=ex("0.16", **_FULL, peft=True, framework__megatron_bridge="0.2.0"),
        good=ex("0.16", **_FULL, peft=True, framework__megatron_bridge="0.3.0"),
    ),
    Rule(
        id="peft-frozen-pp1-unknown",
        severity="warning",
        raised="never",
        title="adapters, one pipeline stage, full: whether the framework has the gradient hook is not known",
        revisions=ALL,
        gate="full",
        when=lambda c: _adapters_first_stage(c) and not c.hybrid and _hook(c) == "unknown",
        message="adapters on a frozen base, one pipeline stage and full recompute: without a hook "
        "that makes the decoder's input require a gradient (Bridge has it from 0.3 on) the adapters "
        "get none, and with overlap_grad_reduce the first gradient sync fails",
        fields=("peft", "model.recompute_granularity", "framework.megatron_bridge"),
        advice="state framework.megatron_bridge, or call enable_input_require_grads before adding "
        "adapters; watch grad_norm at step 1",
        source=Source(
            repository=BRIDGE,
            revision="953aabf",
            path=_HOOK,
            where="maybe_enable_recompute_inputs_grad",
        ),
        basis="report",
        bad=ex("0.19", "core", **_FULL, peft=True),
        good=ex("0.19", **_FULL, peft=True, framework__megatron_bridge="0.6.0"),
    ),
    Rule(
        id="peft-patch-log",
        severity="note",
        raised="never",
        title="adapters, one pipeline stage, full, from Bridge 0.3 on: a hook makes it work and logs it",
        revisions=since("0.16"),
        gate="full",
        entries=frozenset({"bridge"}),
        when=lambda c: (
            _adapters_first_stage(c) and not c.hybrid and not _multi(c) and _hook(c) == "yes"
        ),
        message="Bridge makes the decoder's input require a gradient, or the adapters would get "
        "none: the log must hold '[PEFT+Recompute] Patched TransformerBlock.forward'; a line "
        "'[PEFT+Recompute] Warning: Failed to patch TransformerBlock' means that it did not",
        fields=("peft", "model.recompute_granularity"),
        advice="check grad_norm at step 1",
        source=Source(
            repository=BRIDGE,
            revision="067f987d",
            path=_HOOK,
            where="maybe_enable_recompute_inputs_grad",
        ),
        bad=ex("0.19", **_FULL, peft=True),
        good=ex("0.19", **_FULL, peft=True, pipeline_model_parallel_size=2),
    ),
    Rule(
        id="peft-multi-lora-filter",
        severity="error",
        raised="backward",
        title="multi-LoRA, one pipeline stage, full: the hook does not see such adapters",
        revisions=ALL,
        gate="full",
        when=lambda c: (
            _multi(c) and _adapters_first_stage(c) and not (c.bridge and not below(c.bridge, 0, 7))
        ),
        message="the hook looks for adapters by the name .adapter. and multi-LoRA's are "
        ".adapters.<slot>.: uniform fails in backward, block leaves the first layers' adapters "
        "without gradient",
        fields=("peft.scheme", "model.recompute_granularity"),
        fix=_AWAY,
        advice="use a Bridge with pull request 5963; check the gradient norm per layer",
        source=Source(repository=BRIDGE, revision="#5963", path=_HOOK, where="adapter name filter"),
        basis="report",
        bad=ex("0.19", **_FULL, peft={"scheme": "multi_lora"}),
        good=ex("0.19", **_FULL, peft={"scheme": "lora"}),
    ),
    Rule(
        id="peft-patch-scope",
        severity="warning",
        raised="never",
        title="adapters where the hook does not reach: hybrid stacks, or selective MLP regions",
        revisions=since("0.12"),
        when=lambda c: (
            _adapters_first_stage(c)
            and (
                (c.hybrid and c.effective == "full" and c.index >= ORDER["0.18"])
                or (bool({"mlp", "moe"} & c.labels) and _only_mlp_adapters(c))
            )
        ),
        message="Bridge's input-gradient hook covers TransformerBlock with a recompute_method only: "
        "a hybrid stack under full, and mlp or moe regions with adapters on linear_fc1 and "
        "linear_fc2 alone (here {c.job.peft.target_modules}), can lose their gradients in the "
        "first layers",
        fields=("peft.target_modules", "model.recompute_granularity"),
        advice="put an adapter before the region (linear_qkv), or check the gradient norm per layer",
        source=Source(
            repository=BRIDGE,
            revision="067f987d",
            path=_HOOK,
            where="maybe_enable_recompute_inputs_grad",
        ),
        basis="inferred",
        bad=ex(
            "0.19",
            recompute_granularity="selective",
            recompute_modules=("mlp",),
            peft={"target_modules": ("linear_fc1", "linear_fc2")},
        ),
        good=ex("0.19", recompute_granularity="selective", recompute_modules=("mlp",), peft=True),
    ),
    Rule(
        id="lora-regather-fallback",
        severity="note",
        raised="never",
        title="LoRA's input regather is switched off by full recompute and others",
        revisions=since("0.16"),
        entries=frozenset({"bridge"}),
        when=lambda c: (
            bool(c.foreign("sequence_parallel_input_regather"))
            and (
                c.effective == "full"
                or "mlp" in c.labels
                or c.graph != "none"
                or bool(c.model.cpu_offloading)
                or c.model.tensor_model_parallel_size <= 1
            )
        ),
        message="sequence_parallel_input_regather is ignored here: full recompute, label mlp over "
        "linear_fc1, CUDA graphs, offloaded activations or one tensor rank each switch it off, with "
        "a debug line only",
        fields=("peft.sequence_parallel_input_regather", "model.recompute_granularity"),
        source=Source(
            repository=BRIDGE,
            revision="067f987d",
            path="src/megatron/bridge/peft/utils.py",
            where="_sequence_parallel_input_regather_eligibility",
        ),
        bad=ex(
            "0.19",
            **_FULL,
            peft=True,
            pipeline_model_parallel_size=2,
            unmodelled={"peft.sequence_parallel_input_regather": True},
        ),
        good=ex("0.19", **_FULL, peft=True, pipeline_model_parallel_size=2),
    ),
    Rule(
        id="multi-lora-pp",
        severity="warning",
        raised="never",
        title="multi-LoRA with recompute and pipeline stages: the replay may use another slot",
        revisions=ALL,
        when=lambda c: _multi(c) and c.recomputes and c.model.pipeline_model_parallel_size > 1,
        message="multi-LoRA's routing state must be the same when a region is replayed; with "
        "pipeline_model_parallel_size={m.pipeline_model_parallel_size} other micro-batches run in "
        "between and change it",
        fields=("peft.scheme", "model.pipeline_model_parallel_size"),
        advice="use one pipeline stage, or no recompute",
        source=Source(
            repository=BRIDGE,
            revision="067f987d",
            path="src/megatron/bridge/peft/multi_lora_layers.py",
            where="module comment",
        ),
        bad=ex("0.19", **_FULL, peft={"scheme": "multi_lora"}, pipeline_model_parallel_size=2),
        good=ex("0.19", **_FULL, peft={"scheme": "lora"}, pipeline_model_parallel_size=2),
    ),
)
"""Rows on adapters."""
