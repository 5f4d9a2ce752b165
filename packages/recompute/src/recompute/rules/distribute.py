"""``distribute_saved_activations``: where it works, where it is refused, where nobody reads it."""

from __future__ import annotations

from typing import Final

from recompute.rules.case import below
from recompute.rules.edits import put
from recompute.rules.types import ALL, ARGUMENTS, Entry, Rule, Source, ex

_LM: Final[frozenset[Entry]] = frozenset({"megatron-lm"})
_FULL: Final = {
    "recompute_granularity": "full",
    "recompute_method": "uniform",
    "recompute_num_layers": 1,
}
_GOOD: Final = {**_FULL, "distribute_saved_activations": True, "tensor_model_parallel_size": 2}
_OFF: Final = put(distribute_saved_activations=False)

RULES: Final[tuple[Rule, ...]] = (
    Rule(
        id="distribute-vs-sp",
        severity="error",
        raised="config",
        title="distribute_saved_activations with sequence parallelism: Megatron refuses it",
        revisions=ALL,
        when=lambda c: (
            bool(c.model.distribute_saved_activations)
            and bool(c.model.sequence_parallel)
            and c.declared != "none"
        ),
        message="distribute_saved_activations is refused with sequence_parallel, which already keeps "
        "a share of each saved tensor per rank",
        fields=("model.distribute_saved_activations", "model.sequence_parallel"),
        fix=_OFF,
        source=Source(terms=("distribute_saved_activations", "sequence_parallel")),
        bad=ex("0.19", **_GOOD, sequence_parallel=True),
        good=ex("0.19", **_GOOD),
    ),
    Rule(
        id="distribute-needs-tp",
        severity="error",
        raised="cli",
        title="distribute_saved_activations without tensor parallelism: refused by the arguments",
        revisions=ALL,
        entries=_LM,
        when=lambda c: (
            bool(c.model.distribute_saved_activations) and c.model.tensor_model_parallel_size <= 1
        ),
        message="distribute_saved_activations shards over tensor-parallel ranks; "
        "tensor_model_parallel_size={m.tensor_model_parallel_size}",
        fields=("model.distribute_saved_activations", "model.tensor_model_parallel_size"),
        fix=_OFF,
        source=Source(path=ARGUMENTS, where="validate_args", terms=("across tensor model",)),
        bad=ex("0.19", "megatron-lm", **{**_GOOD, "tensor_model_parallel_size": 1}),
        good=ex("0.19", "megatron-lm", **_GOOD),
    ),
    Rule(
        id="distribute-needs-full",
        severity="error",
        raised="cli",
        title="distribute_saved_activations without full: refused by the arguments",
        revisions=ALL,
        entries=_LM,
        when=lambda c: bool(c.model.distribute_saved_activations) and c.declared != "full",
        message="distribute_saved_activations works with full only; recompute_granularity="
        "{m.recompute_granularity}",
        fields=("model.distribute_saved_activations", "model.recompute_granularity"),
        fix=_OFF,
        source=Source(
            path=ARGUMENTS, where="validate_args", terms=("application to full recompute",)
        ),
        bad=ex(
            "0.19",
            "megatron-lm",
            distribute_saved_activations=True,
            tensor_model_parallel_size=2,
            recompute_granularity="selective",
            recompute_modules=("mlp",),
        ),
        good=ex("0.19", "megatron-lm", **_GOOD),
    ),
    Rule(
        id="distribute-needs-method",
        severity="error",
        raised="cli",
        title="distribute_saved_activations without a method: refused by the arguments",
        revisions=ALL,
        entries=_LM,
        when=lambda c: (
            bool(c.model.distribute_saved_activations) and c.model.recompute_method is None
        ),
        message="distribute_saved_activations needs recompute_method; it is not set",
        fields=("model.distribute_saved_activations", "model.recompute_method"),
        fix=lambda c: {"model.recompute_method": "uniform"} if c.declared == "full" else _OFF(c),
        source=Source(
            path=ARGUMENTS, where="validate_args", terms=("for distributed recompute activations",)
        ),
        bad=ex("0.19", "megatron-lm", **{**_GOOD, "recompute_method": None}),
        good=ex("0.19", "megatron-lm", **_GOOD),
    ),
    Rule(
        id="distribute-needs-torch",
        severity="error",
        raised="cli",
        title="distribute_saved_activations with torch before 1.10: refused by the arguments",
        revisions=ALL,
        entries=_LM,
        when=lambda c: bool(c.model.distribute_saved_activations) and below(c.torch, 1, 10),
        message="distribute_saved_activations needs torch 1.10 or newer; the job says "
        "{c.job.framework.torch}",
        fields=("model.distribute_saved_activations", "framework.torch"),
        fix=_OFF,
        source=Source(path=ARGUMENTS, where="validate_args", terms=("are supported for pytorch",)),
        bad=ex("0.19", "megatron-lm", **_GOOD, framework__torch="1.9.1"),
        good=ex("0.19", "megatron-lm", **_GOOD, framework__torch="2.7.0"),
    ),
    Rule(
        id="distribute-no-op",
        severity="warning",
        raised="never",
        title="distribute_saved_activations outside full or without tensor parallelism: never read",
        revisions=ALL,
        entries=frozenset({"bridge", "core"}),
        when=lambda c: (
            bool(c.model.distribute_saved_activations)
            and (c.effective != "full" or c.model.tensor_model_parallel_size <= 1)
        ),
        message="distribute_saved_activations has no effect: only the full-layer checkpoint reads "
        "it, and it shards over tensor-parallel ranks (recompute_granularity="
        "{m.recompute_granularity}, tensor_model_parallel_size={m.tensor_model_parallel_size})",
        fields=("model.distribute_saved_activations",),
        fix=_OFF,
        advice="remove it, or use full with tensor parallelism and without sequence parallelism",
        source=Source(
            path="megatron/core/tensor_parallel/random.py", where="CheckpointFunction.forward"
        ),
        bad=ex(
            "0.19",
            distribute_saved_activations=True,
            tensor_model_parallel_size=2,
            recompute_granularity="selective",
            recompute_modules=("mlp",),
        ),
        good=ex("0.19", **_GOOD),
    ),
)
"""Rows on distributing saved activations over tensor-parallel ranks."""
