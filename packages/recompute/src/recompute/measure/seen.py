"""Whether the model that was built recomputes what its run was asked for, as far as ranks read it back.

A script that ignores its overrides, a default of its own or a boundary that is dropped on the way would
otherwise measure one choice under the name of another.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from recompute.config.choice import RecomputeChoice
from recompute.measure.types import RunGroup

WHOLE_LAYER: Final = "full"
FULL: Final = ("recompute_granularity", "recompute_method", "recompute_num_layers")
MAX_LAYERS: Final = 1 << 16

Layers = dict[int, frozenset[str]]
"""Layer -> the boundaries that are active in it."""


def seen_otherwise(group: RunGroup) -> str | None:
    """Say in what the models of a candidate recompute something else than the candidate's name says.

    Returns:
        None where all is as asked, or where nothing was read back.
    """
    choice = group.choice
    if choice is None:
        return None
    for run in group.runs:
        ranks = [found for row in run if (found := _layers(row.recompute_seen)) is not None]
        for row in run:
            if row.recompute_seen is not None and (text := _extra(choice, row.recompute_seen)):
                return f"{text}: the run is not the candidate that it was to be"
        if ranks and _wanted(choice) and not any(_active(choice, layers) for layers in ranks):
            return "asked for, but not active on any layer of the built model"
    return None


def notes_on_seen(group: RunGroup) -> Iterator[str]:
    """Yield what else the read-back says: labels that act nowhere, and graphs that replay what was captured."""
    rows = [row.recompute_seen for row in group.rows if row.recompute_seen is not None]
    acting: set[str] = set()
    for seen in rows:
        acting.update(*(_layers(seen) or {}).values())
    dropped = [label for label in _wanted(group.choice) if label not in acting]
    if acting and dropped:
        yield f"asked for, but not active on any layer of the built model: {', '.join(dropped)}"
    graphs = {str(seen.get("cuda_graph_impl") or "none")[:40] for seen in rows} - {"none"}
    if graphs:
        yield (
            f"CUDA graphs ({', '.join(sorted(graphs))}) replay what was captured: which boundaries act was read "
            "from the model's flags"
        )


def _wanted(choice: RecomputeChoice | None) -> tuple[str, ...]:
    """Return the boundaries that a choice draws in single layers; none for full recompute by Megatron's blocks."""
    if choice is None or choice.recompute_granularity == "full":
        return ()
    if choice.per_layer is not None:
        return tuple(dict.fromkeys(label for span in choice.per_layer for label in span.modules))
    return choice.recompute_modules


def _extra(choice: RecomputeChoice, seen: Mapping[str, Any]) -> str | None:
    """Say what a rank recomputes that its run was not asked for, or in which other way."""
    layers = _layers(seen)
    if layers is None:
        return None
    whole = seen.get("recompute_granularity") == "full"
    if choice.per_layer is None and choice.recompute_granularity == "full":
        return _other_full(choice, seen, layers)
    if whole:
        return f"the built model recomputes {_full_text(seen)}"
    for number, active in sorted(layers.items()):
        if extra := active - _asked_in(choice, number):
            return f"layer {number} of the built model recomputes {', '.join(sorted(extra))}"
    return None


def _other_full(choice: RecomputeChoice, seen: Mapping[str, Any], layers: Layers) -> str | None:
    asked = tuple(getattr(choice, name) for name in FULL)
    if tuple(seen.get(name) for name in FULL) == asked:
        return None
    one_by_one = choice.recompute_method == "uniform" and choice.recompute_num_layers == 1
    drawn = sum(active == {WHOLE_LAYER} for active in layers.values())
    if one_by_one and drawn and drawn == seen.get("layers_seen"):
        return None
    return f"the built model recomputes {_full_text(seen)}"


def _full_text(seen: Mapping[str, Any]) -> str:
    if seen.get("recompute_granularity") != "full":
        labels = sorted(set().union(*(_layers(seen) or {}).values()))
        return ", ".join(labels) or "nothing"
    return "/".join(str(seen.get(name))[:20] for name in FULL)


def _asked_in(choice: RecomputeChoice, number: int) -> frozenset[str]:
    if choice.per_layer is None:
        return frozenset(choice.recompute_modules)
    spans = (span for span in choice.per_layer if span.first <= number <= span.last)
    return frozenset(label for span in spans for label in span.modules)


def _active(choice: RecomputeChoice, layers: Layers) -> bool:
    return any(active & _asked_in(choice, number) for number, active in layers.items())


def _layers(seen: Mapping[str, Any] | None) -> Layers | None:
    """Read the spans of a read-back; None where it is of another form."""
    if seen is None or not isinstance(seen.get("per_layer"), list):
        return None
    found: Layers = {}
    try:
        for span in seen["per_layer"]:
            first, last = span["layers"]
            labels = frozenset(str(label)[:40] for label in span["modules"])
            if not 0 <= first <= last < MAX_LAYERS:
                return None
            found.update(dict.fromkeys(range(first, last + 1), labels))
    except (KeyError, TypeError, ValueError):
        return None
    return found
