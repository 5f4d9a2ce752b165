"""What ``recompute_num_layers`` means: per model chunk, group size or number of leading layers."""

from __future__ import annotations

import math
from typing import Final

from recompute.config.revision import ORDER
from recompute.rules.case import Case
from recompute.rules.edits import put
from recompute.rules.types import ALL, BRIDGE, Edit, Rule, Source, between, ex, since

_BLOCK: Final = "megatron/core/transformer/transformer_block.py"
_SHARED: Final = "megatron/core/recompute.py"
_UNIFORM: Final = {"recompute_granularity": "full", "recompute_method": "uniform"}
_FIRST: Final = {"recompute_granularity": "full", "recompute_method": "block"}
_CLAMPED: Final = since("0.17")
_OLD: Final = between("0.8", "0.16")
OWN_LOOPS: Final = ("hyena", "exaone45", "exaone4_5", "exaone-4.5")
"""Model families whose block has its own copy of the uniform loop, without the clamp."""


def _uniform(case: Case) -> bool:
    """Whether groups of N layers are replayed at all."""
    ignored = case.hybrid and case.index < ORDER["0.18"]
    return case.model.recompute_method == "uniform" and (case.count or 0) > 0 and not ignored


def _ragged(case: Case) -> list[int]:
    """Return the chunk lengths that N does not divide, N being no longer than the chunk."""
    count = case.count or 1
    return [size for size in case.sizes if size % count and size > count]


def _short(case: Case) -> list[int]:
    """Return the chunk lengths that are shorter than N."""
    return [size for size in case.sizes if size < (case.count or 0)]


def _dividing(case: Case) -> Edit:
    """Return the largest group size up to N that divides every chunk."""
    common = math.gcd(*case.sizes)
    count = case.count or 1
    best = max(size for size in range(1, min(count, common) + 1) if common % size == 0)
    return {"model.recompute_num_layers": best}


def _divisors(case: Case) -> str:
    common = math.gcd(*case.sizes)
    return ", ".join(str(size) for size in range(1, min(common, 512) + 1) if common % size == 0)


def _groups(case: Case) -> str:
    """Write the groups of the longest chunk: ``7+7+7+3``."""
    size, count = max(case.sizes, default=0), case.count or 1
    sizes = [count] * (size // count) + ([size % count] if size % count else [])
    shown = sizes if len(sizes) <= 12 else [*sizes[:5], "...", sizes[-1]]
    return "+".join(str(part) for part in shown)


def _owns_loop(case: Case) -> bool:
    return any(name in case.architecture for name in OWN_LOOPS)


def _replayed(case: Case) -> str:
    """Write how many layers each pipeline rank replays under block."""
    count = case.count or 0
    totals = [sum(min(count, size) for size in row) for row in case.chunks or ()]
    layers = [sum(row) for row in case.chunks or ()]
    shown = [f"{part} of {whole}" for part, whole in zip(totals, layers, strict=True)]
    distinct = list(dict.fromkeys(shown))
    return ", ".join(distinct[:6])


def _is_number(case: Case) -> bool:
    return case.model.recompute_num_layers is None or case.count is not None


def _vision(case: Case) -> int:
    layers = (case.model.vision or {}).get("num_layers")
    return layers if isinstance(layers, int) else 0


def _vision_ragged(case: Case) -> bool:
    layers, count = _vision(case), case.count or 0
    return (
        "exaone" in case.architecture
        and case.model.recompute_method == "uniform"
        and count > 0
        and layers % count != 0
    )


RULES: Final[tuple[Rule, ...]] = (
    Rule(
        id="num-layers-type",
        severity="error",
        raised="forward",
        title="recompute_num_layers that is no integer: accepted, fails in the first forward",
        revisions=ALL,
        gate="full",
        when=lambda c: not _is_number(c),
        message="recompute_num_layers={m.recompute_num_layers} must be an integer of at least 1",
        fields=("model.recompute_num_layers",),
        fix=put(recompute_num_layers=1),
        source=Source(terms=("recompute_num_layers must be between",)),
        bad=ex("0.19", **_UNIFORM, recompute_num_layers="all"),
        good=ex("0.19", **_UNIFORM, recompute_num_layers=1),
    ),
    Rule(
        id="uniform-nondividing",
        severity="error",
        raised="forward",
        title="uniform groups that do not divide a chunk: IndexError in the first forward",
        revisions=_OLD,
        gate="full",
        when=lambda c: _uniform(c) and bool(_ragged(c)),
        message="recompute_num_layers={m.recompute_num_layers} does not divide the {d} layers of a "
        "pipeline chunk: the last group runs past the end (IndexError in the first forward of "
        "Megatron Core {c.name}; 0.17 and newer shorten the last group)",
        detail=lambda c: " and ".join(map(str, _ragged(c))),
        fields=("model.recompute_num_layers",),
        fix=_dividing,
        advice="choose a divisor of the chunk length",
        source=Source(path=_BLOCK, where="TransformerBlock._checkpointed_forward"),
        bad=ex("0.16", **_UNIFORM, num_layers=24, recompute_num_layers=7),
        good=ex("0.16", **_UNIFORM, num_layers=24, recompute_num_layers=6),
    ),
    Rule(
        id="uniform-nondividing-ok",
        severity="warning",
        raised="never",
        title="uniform groups that do not divide a chunk: the last group is shorter",
        revisions=_CLAMPED,
        gate="full",
        when=lambda c: _uniform(c) and bool(_ragged(c)) and not _owns_loop(c),
        message="recompute_num_layers={m.recompute_num_layers} does not divide a chunk: groups of "
        "{d} layers. Block classes with their own copy of this loop, and Megatron Core up to "
        "0.16, fail with IndexError",
        detail=_groups,
        fields=("model.recompute_num_layers",),
        advice="divisors of every chunk work everywhere",
        source=Source(path=_SHARED, where="checkpointed_forward"),
        bad=ex("0.17", **_UNIFORM, num_layers=24, recompute_num_layers=7),
        good=ex("0.17", **_UNIFORM, num_layers=24, recompute_num_layers=8),
    ),
    Rule(
        id="uniform-own-loop",
        severity="error",
        raised="forward",
        title="uniform groups that do not divide, in a block class with its own loop: always IndexError",
        revisions=_CLAMPED,
        gate="full",
        when=lambda c: _uniform(c) and bool(_ragged(c) or _short(c)) and _owns_loop(c),
        message="this model's block has its own copy of the uniform loop, without the shorter last "
        "group: recompute_num_layers={m.recompute_num_layers} must divide the chunk (dividing: "
        "{d}), whatever the Megatron Core",
        detail=_divisors,
        fields=("model.recompute_num_layers",),
        fix=_dividing,
        source=Source(
            repository="NVIDIA-NeMo/Speech",
            revision="#12517",
            path="pull request",
            where="recipe value changed to a divisor",
        ),
        basis="report",
        bad=ex(
            "0.19",
            **_UNIFORM,
            num_layers=25,
            recompute_num_layers=4,
            unmodelled={"model.model_type": "hyena"},
        ),
        good=ex(
            "0.19",
            **_UNIFORM,
            num_layers=25,
            recompute_num_layers=5,
            unmodelled={"model.model_type": "hyena"},
        ),
    ),
    Rule(
        id="uniform-larger-than-stage",
        severity="error",
        raised="forward",
        title="a uniform group longer than a chunk: IndexError in the first forward",
        revisions=_OLD,
        gate="full",
        when=lambda c: _uniform(c) and bool(_short(c)),
        message="recompute_num_layers={m.recompute_num_layers} is longer than a pipeline chunk of "
        "{d} layers: IndexError in the first forward of Megatron Core {c.name}",
        detail=lambda c: " and ".join(map(str, _short(c))),
        fields=("model.recompute_num_layers",),
        fix=_dividing,
        source=Source(path=_BLOCK, where="TransformerBlock._checkpointed_forward"),
        bad=ex("0.16", **_UNIFORM, recompute_num_layers=9),
        good=ex("0.16", **_UNIFORM, recompute_num_layers=8),
    ),
    Rule(
        id="uniform-larger-than-stage-ok",
        severity="warning",
        raised="never",
        title="a uniform group longer than a chunk: one group per chunk",
        revisions=_CLAMPED,
        gate="full",
        when=lambda c: _uniform(c) and bool(_short(c)) and not _owns_loop(c),
        message="recompute_num_layers={m.recompute_num_layers} is longer than a pipeline chunk of "
        "{d} layers: that chunk is one group, and its replay holds all its layers at once",
        detail=lambda c: " and ".join(map(str, _short(c))),
        fields=("model.recompute_num_layers",),
        source=Source(path=_SHARED, where="checkpointed_forward"),
        bad=ex("0.19", **_UNIFORM, recompute_num_layers=9),
        good=ex("0.19", **_UNIFORM, recompute_num_layers=8),
    ),
    Rule(
        id="uniform-zero",
        severity="error",
        raised="never",
        title="uniform with zero or fewer layers: accepted, then an endless loop",
        revisions=ALL,
        gate="full",
        when=lambda c: (
            c.model.recompute_method == "uniform" and c.count is not None and c.count < 1
        ),
        message="recompute_num_layers={m.recompute_num_layers} with uniform never ends: the loop "
        "over groups advances by it. It must be at least 1",
        fields=("model.recompute_num_layers",),
        fix=put(recompute_num_layers=1),
        advice="for no recompute set model.recompute_granularity=null",
        source=Source(path=_SHARED, where="checkpointed_forward"),
        basis="inferred",
        bad=ex("0.19", **_UNIFORM, recompute_num_layers=0),
        good=ex("0.19", **_UNIFORM, recompute_num_layers=1),
    ),
    Rule(
        id="block-larger-than-stage",
        severity="warning",
        raised="never",
        title="block with more layers than any chunk has: all layers, no message",
        revisions=ALL,
        gate="full",
        when=lambda c: (
            c.model.recompute_method == "block" and bool(c.sizes) and (c.count or 0) > max(c.sizes)
        ),
        message="recompute_num_layers={m.recompute_num_layers} with block is more than the "
        "{c.sizes[0]} to {d} layers of a chunk: every layer is replayed",
        detail=lambda c: max(c.sizes),
        fields=("model.recompute_num_layers",),
        fix=lambda c: {"model.recompute_num_layers": max(c.sizes)},
        source=Source(path=_SHARED, where="checkpointed_forward"),
        bad=ex("0.19", **_FIRST, recompute_num_layers=99),
        good=ex("0.19", **_FIRST, recompute_num_layers=8),
    ),
    Rule(
        id="block-zero",
        severity="warning",
        raised="never",
        title="block with zero or fewer layers: nothing is replayed",
        revisions=ALL,
        gate="full",
        when=lambda c: c.model.recompute_method == "block" and c.count is not None and c.count < 1,
        message="recompute_num_layers={m.recompute_num_layers} with block replays no layer at all",
        fields=("model.recompute_num_layers",),
        advice="set it to at least 1, or model.recompute_granularity=null for no recompute",
        source=Source(path=_SHARED, where="checkpointed_forward"),
        bad=ex("0.19", **_FIRST, recompute_num_layers=-1),
        good=ex("0.19", **_FIRST, recompute_num_layers=1),
    ),
    Rule(
        id="block-fp-skip",
        severity="warning",
        raised="never",
        title="block with fp8 or fp4 and a frozen front: the window of layers moves",
        revisions=ALL,
        gate="full",
        when=lambda c: (
            c.model.recompute_method == "block" and c.quantized and c.job.peft is not None
        ),
        message="with fp8 or fp4, block skips leading layers whose input needs no gradient and "
        "replays the next {m.recompute_num_layers}; in bf16 the same job replays the first ones "
        "and their adapters get no gradient",
        fields=("model.recompute_method", "model.recompute_num_layers"),
        advice="use uniform with 1 and the input-gradient hook",
        source=Source(path=_SHARED, where="checkpointed_forward"),
        bad=ex(
            "0.19", **_FIRST, recompute_num_layers=2, fp8="hybrid", fp8_recipe="mxfp8", peft=True
        ),
        good=ex("0.19", **_FIRST, recompute_num_layers=2, fp8="hybrid", fp8_recipe="mxfp8"),
    ),
    Rule(
        id="vpp-semantics",
        severity="note",
        raised="never",
        title="with virtual pipeline stages the layer count holds per model chunk",
        revisions=ALL,
        gate="full",
        when=lambda c: (
            (c.count or 0) > 0
            and c.model.recompute_method == "block"
            and len((c.chunks or ((),))[0]) > 1
        ),
        message="recompute_num_layers={m.recompute_num_layers} holds for each of the model chunks of "
        "a rank, without balancing: replayed per rank {d} layers",
        detail=_replayed,
        fields=("model.recompute_num_layers", "model.virtual_pipeline_model_parallel_size"),
        source=Source(path=_BLOCK, where="TransformerBlock._build_layers"),
        bad=ex(
            "0.19",
            **_FIRST,
            recompute_num_layers=1,
            pipeline_model_parallel_size=2,
            virtual_pipeline_model_parallel_size=2,
        ),
        good=ex("0.19", **_FIRST, recompute_num_layers=1, pipeline_model_parallel_size=2),
    ),
    Rule(
        id="exaone45-vision-nondividing",
        severity="error",
        raised="forward",
        title="Bridge's Exaone 4.5 vision tower: a uniform group that does not divide it",
        revisions=since("0.18"),
        gate="full",
        entries=frozenset({"bridge"}),
        when=_vision_ragged,
        message="the Exaone 4.5 vision tower takes over recompute_num_layers="
        "{m.recompute_num_layers} and keeps the old uniform loop: it must divide its {d} layers",
        detail=_vision,
        fields=("model.recompute_num_layers", "model.vision"),
        fix=put(recompute_num_layers=1),
        source=Source(
            repository=BRIDGE,
            revision="067f987d",
            path="src/megatron/bridge/models/exaone",
            where="vision transformer block",
        ),
        bad=ex(
            "0.19",
            **_UNIFORM,
            recompute_num_layers=4,
            vision={"num_layers": 27},
            unmodelled={"model.model_type": "exaone45"},
        ),
        good=ex(
            "0.19",
            **_UNIFORM,
            recompute_num_layers=1,
            vision={"num_layers": 27},
            unmodelled={"model.model_type": "exaone45"},
        ),
    ),
)
"""Rows on the layer count of full recompute."""
