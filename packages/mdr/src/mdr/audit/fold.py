"""The folded view: what a reader understands, whatever characters spell it.

Two steps, each with its own way back: characters (invisible ones go, compatibility forms and
look-alikes become ASCII), then HTML entities. Case is kept: ASCII lower case has the same offsets,
and credentials need their case.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import cache, lru_cache
from typing import TYPE_CHECKING, Final

from mdr.audit.unicode import CONTROLS, folding_table
from mdr.audit.view import View

if TYPE_CHECKING:
    from mdr.audit.view import Anchors

ENTITY: Final = re.compile(
    rb"&(?:#[0-9]{1,7};?|#[xX][0-9a-fA-F]{1,6};?|[A-Za-z][A-Za-z0-9]{1,31};)"
)
"""Not RE2, and linear too: no two of its parts can match the same bytes."""
NON_ASCII: Final = re.compile(r"[^\x00-\x7f]+")
"""Looked up character by character; the ASCII between is copied whole."""
MAX_CODE: Final = 0x10FFFF
SURROGATES: Final = (0xD800, 0xDFFF)


def folded(view: View) -> View:
    """Return the folded form of a view."""
    data = view.data
    plain = fold_characters(data)
    if plain != data:
        view = View(plain, view, lambda: character_anchors(data))
    if b"&" not in plain:
        return view
    decoded = fold_entities(plain)
    return view if decoded == plain else View(decoded, view, lambda: entity_anchors(plain))


def fold_characters(data: bytes) -> bytes:
    """Remove what cannot be seen and spell the rest in ASCII where it has an ASCII reading."""
    plain = data.translate(None, CONTROLS)
    if plain.isascii():
        return plain
    table = folding_table()
    return NON_ASCII.sub(lambda run: run[0].translate(table), plain.decode()).encode()


def fold_entities(plain: bytes) -> bytes:
    """Decode HTML entities; a decoded character is folded like any other."""
    return ENTITY.sub(lambda match: _decoded(match[0]), plain)


def character_anchors(data: bytes) -> Anchors:
    """Return the way back of :func:`fold_characters`."""
    table = folding_table()
    pairs, here, there = {0: 0}, 0, 0
    for char in data.decode():
        size = len(char.encode())
        new = table.get(ord(char))
        length = size if new is None else len(new)
        if length != size:
            pairs[here] = there
            pairs[here + length] = there + size
        here += length
        there += size
    return tuple(pairs.items())


def entity_anchors(plain: bytes) -> Anchors:
    """Return the way back of :func:`fold_entities`."""
    pairs, shift = {0: 0}, 0
    for match in ENTITY.finditer(plain):
        new = len(_decoded(match[0]))
        start = match.start() - shift
        shift += match.end() - match.start() - new
        pairs[start] = match.start()
        pairs[start + new] = match.end()
    return tuple(pairs.items())


@lru_cache(maxsize=1024)
def _decoded(entity: bytes) -> bytes:
    return _entity(entity.decode("ascii")).encode()


@cache
def _named() -> Callable[[str], str | None]:
    from html.entities import html5

    return html5.get


def _entity(entity: str) -> str:
    body = entity[1:].rstrip(";")
    if body.startswith("#"):
        digits, base = (body[2:], 16) if body[1] in "xX" else (body[1:], 10)
        code = int(digits, base)
        valid = 0 < code <= MAX_CODE and not SURROGATES[0] <= code <= SURROGATES[1]
        char = chr(code) if valid else ""
    else:
        char = _named()(body + ";") or entity
    return char if char == entity else char.translate(folding_table())
