"""A recompute choice as one word of text, and back: the ``candidate`` of a ledger's row."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

from recompute.config.choice import LayerSpan, RecomputeChoice, full, selective
from recompute.errors import InputError

MAX_TEXT: Final = 4096
PER_LAYER: Final = "per-layer"
_LABEL: Final = re.compile(r"[a-z][a-z0-9_]{0,39}", re.ASCII)
_SPAN: Final = re.compile(r"(\d{1,5})-(\d{1,5})=([a-z0-9_+]{1,400})", re.ASCII)
_FULL: Final = re.compile(r"full/(uniform|block)/([1-9]\d{0,4})", re.ASCII)


def text_of(choice: RecomputeChoice) -> str:
    """Name a choice: ``[]``, ``[mlp]``, ``full/block/4``, ``per-layer/0-3=mlp/4-4=full``."""
    if choice.per_layer is None:
        return choice.label().replace(" ", "")
    spans = (f"{s.first}-{s.last}={'+'.join(s.modules)}" for s in choice.per_layer)
    return "/".join((PER_LAYER, *spans))


def choice_of_text(text: str) -> RecomputeChoice:
    """Read what :func:`text_of` writes; labels may also come without brackets: ``mlp,layernorm``.

    Raises:
        InputError: ``bad-candidate``.
    """
    text = text.strip()
    if len(text) > MAX_TEXT:
        raise bad_candidate(text)
    if match := _FULL.fullmatch(text):
        return full(match[1], int(match[2]))
    if text.startswith(f"{PER_LAYER}/"):
        return RecomputeChoice(
            per_layer=tuple(_span(part, text) for part in text.split("/")[1:]),
        )
    if text in {"none", "control"}:
        return selective()
    inner = text[1:-1] if text.startswith("[") and text.endswith("]") else text
    labels = [label.strip() for label in inner.replace("+", ",").split(",")]
    if labels == [""] and text == "[]":
        return selective()
    if "full" in labels or not all(_LABEL.fullmatch(label) for label in labels):
        raise bad_candidate(text)
    return selective(*labels)


def choice_of_document(
    document: Mapping[str, Any], num_layers: int | None = None
) -> RecomputeChoice:
    """Read the ``choice`` object of the JSON documents.

    Args:
        document: As :meth:`RecomputeChoice.to_document` and the plan document write it.
        num_layers: Layers of the decoder, needed where spans name layers as ``mtp.N``.

    Raises:
        InputError: ``bad-candidate``.
    """
    try:
        if document.get("per_layer") is not None:
            spans = tuple(_document_span(item, num_layers) for item in document["per_layer"])
            return RecomputeChoice(per_layer=spans)
        if document.get("recompute_granularity") == "full":
            return choice_of_text(
                f"full/{document['recompute_method']}/{int(document['recompute_num_layers'])}"
            )
        return choice_of_text(
            "[" + ",".join(_labels(document.get("recompute_modules") or ())) + "]"
        )
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise bad_candidate(str(document)) from error


def choice_of_read_back(seen: Mapping[str, Any]) -> RecomputeChoice:
    """Name what a built model recomputes by what all of its ranks know alike.

    A rank sees its own layers alone, so what it sees there names the choice only where neither a plan that
    was applied nor the config does.

    Args:
        seen: As :func:`recompute.megatron.read_back` returns it.

    Raises:
        InputError: ``bad-candidate``.
    """
    if seen.get("applied") is not None:
        return choice_of_text(seen["applied"])
    granularity = seen.get("recompute_granularity")
    if granularity == "full":
        return choice_of_text(f"full/{seen['recompute_method']}/{seen['recompute_num_layers']}")
    built = (seen.get("recompute_modules") or ()) if granularity == "selective" else ()
    active = {label for span in seen["per_layer"] for label in span["modules"]}
    if active <= set(built):
        return selective(*built)
    return choice_of_document({"per_layer": seen["per_layer"]})


def _span(part: str, text: str) -> LayerSpan:
    match = _SPAN.fullmatch(part)
    if match is None or int(match[1]) > int(match[2]):
        raise bad_candidate(text)
    return _checked(int(match[1]), int(match[2]), match[3].split("+"), text)


def _document_span(item: Mapping[str, Any], num_layers: int | None) -> LayerSpan:
    first, last = (_layer(value, num_layers) for value in item["layers"])
    return _checked(first, last, _labels(item["modules"]), str(item))


def _labels(value: object) -> list[str]:
    """Return a list of labels; a text alone is none, its letters least of all."""
    if not isinstance(value, list | tuple) or not all(isinstance(one, str) for one in value):
        raise bad_candidate(str(value))
    return list(value)


def _layer(value: object, num_layers: int | None) -> int:
    if isinstance(value, str) and value.startswith("mtp.") and num_layers is not None:
        return num_layers + int(value.removeprefix("mtp."))
    if isinstance(value, bool) or not isinstance(value, int):
        raise bad_candidate(f"layer {value!r}")
    return value


def _checked(first: int, last: int, modules: list[str], text: str) -> LayerSpan:
    known = all(_LABEL.fullmatch(module) for module in modules)
    if not modules or not known or not 0 <= first <= last:
        raise bad_candidate(text)
    return LayerSpan(first=first, last=last, modules=tuple(modules))


def bad_candidate(text: str) -> InputError:
    """Return the error that says what a choice looks like."""
    return InputError(
        "bad-candidate",
        f"not a recompute choice: {text[:120]!r}",
        hint="write [], [mlp,layernorm], full/uniform/1, full/block/4 or per-layer/0-3=mlp",
        data={"text": text[:400]},
    )
