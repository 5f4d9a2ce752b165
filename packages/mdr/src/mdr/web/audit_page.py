"""``/about/audit``: every check with its definition, its published vectors, and how often it was wrong."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import TYPE_CHECKING, Any, Final

from mdr.audit.rulesets import LATEST, ruleset_of
from mdr.audit.types import Status
from mdr.audit.vectors import Vector, vectors_of
from mdr.web.pages import page
from mdr.web.unseen import shown

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from markupsafe import Markup

    from mdr.answers.answer import Answer
    from mdr.answers.service import Service
    from mdr.audit.checks.row import Check

EXAMPLES: Final = 3
"""Vectors of each kind that are shown; the file has all of them."""
LONGEST: Final = 400
"""Bytes of a vector's own text up to which it is shown."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Example:
    """One published vector, without the frame that makes it a whole file."""

    status: str
    why: str
    html: Markup


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckWords:
    """What the page says about one check."""

    id: str
    number: int
    title: str
    severity: str
    definition: str
    passes: str
    fails: str
    blind: str
    """What the check cannot see."""
    vectors: int
    passing: tuple[Example, ...]
    failing: tuple[Example, ...]
    rates: tuple[Mapping[str, Any], ...]
    """Rows ``{files, flagged, false}``, in the order of the collections that were measured."""


def audit_page(service: Service) -> Answer:
    """Write the page."""
    data = catalogue()
    return page(
        "audit",
        service.base_url,
        ruleset=LATEST,
        checks=_checks(),
        corpora=data["corpora"],
        reader=data["reader"],
        vectors=len(vectors_of(LATEST)),
        q="",
    )


@cache
def catalogue() -> dict[str, Any]:
    """Return the definitions and the measured rates, as ``tools/audit_catalogue.py`` wrote them."""
    text = files(__package__).joinpath("data", "audit_catalogue.json").read_text("utf-8")
    document: dict[str, Any] = json.loads(text)
    return document


@cache
def _checks() -> tuple[CheckWords, ...]:
    vectors, frame = vectors_of(LATEST), _frame()
    return tuple(
        _words(number, check, [each for each in vectors if each.check == check.id], frame)
        for number, check in enumerate(ruleset_of(LATEST), start=1)
    )


def _words(number: int, check: Check, vectors: Sequence[Vector], frame: bytes) -> CheckWords:
    data = catalogue()
    entry = data["definitions"][check.id]
    return CheckWords(
        id=check.id,
        number=number,
        title=check.title,
        severity=check.severity.name.lower(),
        definition=entry["definition"],
        passes=entry["passes"],
        fails=entry["fails"],
        blind=entry["blind"],
        vectors=len(vectors),
        passing=_examples([each for each in vectors if each.expect == Status.PASS], frame),
        failing=_examples([each for each in vectors if each.expect.rank], frame),
        rates=tuple(
            {
                "files": corpus["files"],
                "flagged": corpus["flagged"].get(check.id, 0),
                "false": corpus["false"].get(check.id),
            }
            for corpus in data["corpora"]
        ),
    )


def _examples(vectors: Sequence[Vector], frame: bytes) -> tuple[Example, ...]:
    """Return the shortest vectors; one that is a whole file is shown whole when it is short."""
    bodies = [(each.data.removeprefix(frame).strip(b"\n"), each) for each in vectors]
    short = sorted(
        (item for item in bodies if 0 < len(item[0]) <= LONGEST),
        key=lambda item: (len(item[0]), item[1].id),
    )
    middle = short[len(short) // 3 :][:EXAMPLES]  # the very shortest say the least
    return tuple(
        Example(status=each.expect.value, why=each.why, html=shown(body.decode("utf-8", "replace")))
        for body, each in middle
    )


def _frame() -> bytes:
    """Return what most vectors begin with, which says nothing about their check."""
    text = files("mdr.audit.vectors").joinpath(f"{LATEST}.json").read_text("utf-8")
    return str(json.loads(text)["frame"]).encode()
