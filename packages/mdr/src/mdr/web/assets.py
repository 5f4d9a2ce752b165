"""The style sheet and the script, served under names that change with their content."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Final

from mdr.digest import sha256

PREFIX: Final = "/static/"
MEDIA_TYPES: Final = {
    "css": "text/css; charset=utf-8",
    "js": "text/javascript; charset=utf-8",
    "svg": "image/svg+xml",
}
NAMES: Final = ("site.css", "site.js", "icon.svg")


@dataclass(frozen=True, slots=True, kw_only=True)
class Asset:
    """One file of the package that browsers load."""

    name: str
    """As it is asked for: ``site.<hash>.css``."""
    body: bytes
    media_type: str


@cache
def assets() -> dict[str, Asset]:
    """Return every asset by the name in the package."""
    found = {}
    for name in NAMES:
        body = files(__package__).joinpath("static", name).read_bytes()
        stem, _, suffix = name.rpartition(".")
        served = f"{stem}.{sha256(body)[:16]}.{suffix}"
        found[name] = Asset(name=served, body=body, media_type=MEDIA_TYPES[suffix])
    return found


def asset_url(name: str) -> str:
    """Return where an asset of the package is served."""
    return PREFIX + assets()[name].name


def served(name: str) -> Asset | None:
    """Return the asset that is asked for by a served name, ``None`` for any other."""
    return next((each for each in assets().values() if each.name == name), None)
