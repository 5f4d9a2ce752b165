"""Granularity, method and layer count: which of the three may stand together."""

from __future__ import annotations

from typing import Final

from recompute.rules.case import Case, names_of
from recompute.rules.edits import put
from recompute.rules.types import (
    ALL,
    ARGUMENTS,
    BRIDGE,
    Edit,
    Rule,
    Source,
    between,
    ex,
    since,
)

_BARE: Final[Edit] = {"model.recompute_method": None, "model.recompute_num_layers": None}
_FULL: Final = {
    "recompute_granularity": "full",
    "recompute_method": "uniform",
    "recompute_num_layers": 1,
}


def _real_granularity(case: Case) -> Edit:
    """Guess what an unknown granularity meant: off, or the one whose other fields are there."""
    text = str(case.model.recompute_granularity).strip().lower()
    if text in {"full", "selective"}:
        return {"model.recompute_granularity": text}
    return {"model.recompute_granularity": None, **_BARE}


def _own_method(case: Case) -> Edit:
    if case.declared == "full":
        return {"model.recompute_method": "uniform"}
    return {"model.recompute_method": None}


def _overridden(case: Case) -> bool:
    """Whether an override chose labels over a recipe or file that still holds a layer count."""
    given = case.job.given
    chosen = {given.get("model.recompute_modules"), given.get("model.recompute_granularity")}
    return "override" in chosen and given.get("model.recompute_num_layers") not in {
        None,
        "override",
    }


def _overwritten(case: Case) -> str | None:
    """Return the granularity that --recompute-activations writes over, if any."""
    given = case.model.recompute_granularity
    if case.foreign("recompute_activations") and given not in (None, "selective"):
        return given
    if given != "selective":
        return None
    return next(
        (
            str(change.before)
            for change in case.job.changes
            if change.field == "model.recompute_granularity"
            and change.before not in (None, "selective")
            and "--recompute-activations" in change.why
        ),
        None,
    )


RULES: Final[tuple[Rule, ...]] = (
    Rule(
        id="recompute-activations-overrides",
        severity="error",
        raised="never",
        title="--recompute-activations with a granularity: the short flag wins, in silence",
        revisions=ALL,
        when=lambda c: _overwritten(c) is not None,
        message="--recompute-activations overwrites recompute_granularity={d} with selective, in "
        "silence: this job does not run as its granularity says",
        detail=_overwritten,
        fields=("model.recompute_granularity",),
        fix=lambda c: {
            "model.recompute_granularity": _overwritten(c),
            **(
                {"unmodelled.model.recompute_activations": None}
                if c.foreign("recompute_activations")
                else {}
            ),
        },
        advice="drop --recompute-activations and keep the explicit granularity",
        source=Source(
            path=ARGUMENTS,
            where="validate_args",
            terms=("recompute_granularity", "'selective'", "recompute_activations"),
        ),
        bad=ex("0.19", "megatron-lm", **_FULL, unmodelled={"model.recompute_activations": True}),
        good=ex("0.19", "megatron-lm", **_FULL),
    ),
    Rule(
        id="granularity-value",
        severity="error",
        raised="config",
        title="recompute_granularity is neither full, selective nor null: Megatron refuses it",
        revisions=ALL,
        when=lambda c: c.declared == "other",
        message="recompute_granularity={m.recompute_granularity} is not a granularity: Megatron "
        "takes full or selective, and off is null (not the word none)",
        fields=("model.recompute_granularity",),
        fix=_real_granularity,
        source=Source(terms=("recompute_granularity", "not in", "full", "selective")),
        bad=ex("0.19", recompute_granularity="none"),
        good=ex("0.19", recompute_granularity=None),
    ),
    Rule(
        id="method-value",
        severity="error",
        raised="config",
        title="recompute_method is neither uniform nor block: Megatron refuses it",
        revisions=ALL,
        when=lambda c: (
            c.declared != "none"
            and c.model.recompute_method is not None
            and c.model.recompute_method not in ("uniform", "block")
        ),
        message="recompute_method={m.recompute_method} must be uniform or block",
        fields=("model.recompute_method",),
        fix=_own_method,
        source=Source(terms=("recompute_method", "not in", "block")),
        bad=ex("0.19", **{**_FULL, "recompute_method": "balanced"}),
        good=ex("0.19", **_FULL),
    ),
    Rule(
        id="full-needs-method",
        severity="error",
        raised="config",
        title="full without a method: Megatron refuses it",
        revisions=ALL,
        gate="full",
        when=lambda c: c.model.recompute_method is None,
        message="recompute_granularity=full needs recompute_method uniform or block; it is not set",
        fields=("model.recompute_method",),
        fix=put(recompute_method="uniform"),
        advice="recompute plan finds the method and the layer count that fit, or labels that cost less",
        source=Source(terms=("Using recompute_granularity", "recompute_method must be")),
        bad=ex("0.19", **{**_FULL, "recompute_method": None}),
        good=ex("0.19", **_FULL),
    ),
    Rule(
        id="full-needs-num-layers",
        severity="error",
        raised="config",
        title="full without a layer count: Megatron refuses it",
        revisions=ALL,
        gate="full",
        when=lambda c: c.model.recompute_num_layers is None,
        message="recompute_granularity=full needs recompute_num_layers; it is not set (1 replays "
        "one layer at a time and keeps the least)",
        fields=("model.recompute_num_layers",),
        fix=put(recompute_num_layers=1),
        source=Source(terms=("recompute_num_layers must be between",)),
        bad=ex("0.19", **{**_FULL, "recompute_num_layers": None}),
        good=ex("0.19", **_FULL),
    ),
    Rule(
        id="selective-forbids-num-layers",
        severity="error",
        raised="config",
        title="selective with a layer count: Megatron refuses it",
        revisions=ALL,
        gate="declared-selective",
        when=lambda c: c.model.recompute_num_layers is not None,
        message="recompute_num_layers={m.recompute_num_layers} belongs to full; with selective it "
        "must be null (often left over from a full setting)",
        fields=("model.recompute_num_layers",),
        fix=put(recompute_num_layers=None),
        source=Source(terms=("recompute_num_layers must be None", "recompute_granularity")),
        bad=ex("0.19", recompute_granularity="selective", recompute_num_layers=1),
        good=ex("0.19", recompute_granularity="selective", recompute_modules=("mlp",)),
    ),
    Rule(
        id="cli-leftover-num-layers",
        severity="note",
        raised="never",
        title="labels set by an override while a full setting's layer count stays",
        revisions=ALL,
        gate="declared-selective",
        entries=frozenset({"bridge"}),
        when=lambda c: c.model.recompute_num_layers is not None and _overridden(c),
        message="the override chose selective, but recompute_num_layers="
        "{m.recompute_num_layers} still comes from {c.job.given[model.recompute_num_layers]}: "
        "Bridge's --recompute_modules does not clear it",
        fields=("model.recompute_num_layers", "model.recompute_method"),
        fix=put(recompute_num_layers=None, recompute_method=None),
        source=Source(
            repository=BRIDGE,
            revision="067f987d",
            path="scripts/performance/utils/overrides.py",
            where="_set_recompute_overrides",
        ),
        bad=ex(
            "0.19",
            recompute_granularity="selective",
            recompute_num_layers=1,
            given={"recompute_granularity": "override", "recompute_num_layers": "recipe"},
        ),
        good=ex("0.19", recompute_granularity="selective", recompute_modules=("mlp",)),
    ),
    Rule(
        id="selective-forbids-method-cli",
        severity="error",
        raised="cli",
        title="selective with a method: Megatron-LM's argument check refuses it",
        revisions=ALL,
        gate="declared-selective",
        entries=frozenset({"megatron-lm"}),
        when=lambda c: c.model.recompute_method is not None,
        message="recompute_method={m.recompute_method} is refused with selective by Megatron-LM's "
        "argument check",
        fields=("model.recompute_method",),
        fix=put(recompute_method=None),
        source=Source(
            path=ARGUMENTS,
            where="validate_args",
            terms=("recompute method is not yet supported for",),
        ),
        bad=ex(
            "0.19",
            "megatron-lm",
            recompute_granularity="selective",
            recompute_method="uniform",
            recompute_modules=("mlp",),
        ),
        good=ex("0.19", "bridge", recompute_granularity="selective", recompute_modules=("mlp",)),
    ),
    Rule(
        id="selective-method-ignored",
        severity="warning",
        raised="never",
        title="selective with a method outside Megatron-LM's scripts: accepted and never read",
        revisions=ALL,
        gate="declared-selective",
        entries=frozenset({"bridge", "core"}),
        when=lambda c: c.model.recompute_method in ("uniform", "block"),
        message="recompute_method={m.recompute_method} means nothing with selective: it is "
        "accepted here and never read (Megatron-LM's own scripts refuse it)",
        fields=("model.recompute_method",),
        fix=put(recompute_method=None),
        source=Source(terms=("recompute_method", "not in", "block")),
        bad=ex(
            "0.19",
            recompute_granularity="selective",
            recompute_method="uniform",
            recompute_modules=("mlp",),
        ),
        good=ex("0.19", recompute_granularity="selective", recompute_modules=("mlp",)),
    ),
    Rule(
        id="modules-without-granularity",
        severity="error",
        raised="never",
        title="labels without a granularity: accepted, nothing is recomputed, names not checked",
        revisions=since("0.12"),
        when=lambda c: (
            c.effective == "none" and not c.published and bool(names_of(c.model.recompute_modules))
        ),
        message="recompute_modules={m.recompute_modules} is read only with selective; "
        "recompute_granularity is not set, so nothing is recomputed",
        fields=("model.recompute_granularity", "model.recompute_modules"),
        fix=put(recompute_granularity="selective"),
        source=Source(terms=("recompute_granularity", "selective", "Invalid choices")),
        bad=ex("0.19", recompute_modules=("mlp",)),
        good=ex("0.19", recompute_granularity="selective", recompute_modules=("mlp",)),
    ),
    Rule(
        id="granularity-none-rest-ignored",
        severity="warning",
        raised="never",
        title="method or layer count without a granularity: accepted and never read",
        revisions=ALL,
        when=lambda c: (
            c.effective == "none"
            and (
                c.model.recompute_method is not None
                or c.model.recompute_num_layers is not None
                or (c.published and bool(names_of(c.model.recompute_modules)))
            )
        ),
        message="recompute_method={m.recompute_method} and recompute_num_layers="
        "{m.recompute_num_layers} are read only with a granularity; recompute_granularity is not "
        "set, so nothing is recomputed",
        fields=("model.recompute_method", "model.recompute_num_layers"),
        fix=put(recompute_method=None, recompute_num_layers=None),
        advice="if full recompute was meant, set model.recompute_granularity=full instead",
        source=Source(terms=("recompute_method", "not in", "block")),
        bad=ex("0.19", recompute_method="uniform", recompute_num_layers=1),
        good=ex("0.19", **_FULL),
    ),
    Rule(
        id="full-ignores-modules",
        severity="warning",
        raised="never",
        title="full with labels: neither checked nor applied",
        revisions=since("0.12"),
        gate="full",
        when=lambda c: bool(names_of(c.model.recompute_modules)),
        message="recompute_modules={m.recompute_modules} has no effect with full: whole layers are "
        "replayed and the names are not even checked",
        fields=("model.recompute_modules",),
        fix=put(recompute_modules=None),
        source=Source(terms=("recompute_granularity", "selective", "Invalid choices")),
        bad=ex("0.19", **_FULL, recompute_modules=("nonsense",)),
        good=ex("0.19", **_FULL),
    ),
    Rule(
        id="checkpoint-activations-removed",
        severity="error",
        raised="cli",
        title="--checkpoint-activations: the program prints a line and exits",
        revisions=ALL,
        when=lambda c: bool(c.foreign("checkpoint_activations")),
        message="--checkpoint-activations is no longer a setting: Megatron-LM prints that and exits",
        fields=("model.recompute_granularity",),
        fix=lambda _: {"unmodelled.model.checkpoint_activations": None},
        advice="use --recompute-granularity full --recompute-method uniform "
        "--recompute-num-layers 1",
        source=Source(
            path=ARGUMENTS,
            where="validate_args",
            terms=("checkpoint_activations", "exit()"),
        ),
        bad=ex("0.19", "megatron-lm", unmodelled={"model.checkpoint_activations": True}),
        good=ex("0.19", "megatron-lm", **_FULL),
    ),
    Rule(
        id="cli-empty-list",
        severity="warning",
        raised="cli",
        title="an empty label list cannot be passed to Megatron-LM from 0.16 on",
        revisions=since("0.16"),
        entries=frozenset({"megatron-lm"}),
        when=lambda c: c.model.recompute_modules == (),
        message="--recompute-modules takes at least one label since 0.16, and without it selective "
        "means core_attn: no recompute is written by leaving out the recompute flags",
        fields=("model.recompute_modules", "model.recompute_granularity"),
        fix=lambda c: {
            "model.recompute_modules": None,
            **({"model.recompute_granularity": None} if c.declared == "selective" else {}),
        },
        source=Source(
            path="megatron/training/argument_utils.py",
            where="ArgumentGroupFactory",
        ),
        bad=ex("0.19", "megatron-lm", recompute_granularity="selective", recompute_modules=()),
        good=ex("0.19", "bridge", recompute_granularity="selective", recompute_modules=()),
    ),
    Rule(
        id="modules-before-labels",
        severity="error",
        raised="config",
        title="labels before 0.12: the field does not exist there",
        revisions=between("0.8", "0.11"),
        when=lambda c: c.model.recompute_modules is not None,
        message="recompute_modules={m.recompute_modules} does not exist in Megatron Core {c.name}: "
        "selective means core attention there (labels came with 0.12)",
        fields=("model.recompute_modules",),
        fix=put(recompute_modules=None),
        source=Source(where="TransformerConfig"),
        bad=ex("0.11", recompute_granularity="selective", recompute_modules=("core_attn",)),
        good=ex("0.11", recompute_granularity="selective"),
    ),
    Rule(
        id="t5-default-num-layers",
        severity="note",
        raised="config",
        title="Bridge's T5 provider sets recompute_num_layers to 1: selective fails unless reset",
        revisions=ALL,
        gate="declared-selective",
        entries=frozenset({"bridge"}),
        when=lambda c: "t5" in c.architecture and c.model.recompute_num_layers is None,
        message="Bridge's T5ModelProvider sets recompute_num_layers to 1 by itself, which selective "
        "refuses: set it to null in the job",
        fields=("model.recompute_num_layers",),
        advice="write model.recompute_num_layers=null explicitly",
        source=Source(
            repository=BRIDGE,
            revision="067f987d",
            path="src/megatron/bridge/models/t5_provider.py",
            where="T5ModelProvider",
        ),
        bad=ex(
            "0.19",
            recompute_granularity="selective",
            recompute_modules=("core_attn",),
            unmodelled={"model._target_": "megatron.bridge.models.t5_provider.T5ModelProvider"},
        ),
        good=ex("0.19", recompute_granularity="selective", recompute_modules=("core_attn",)),
    ),
)
"""Rows on granularity, method, layer count and the flags that set them."""
