"""Where a link of a file leads: the web, this page, or the repository at the version's commit."""

from __future__ import annotations

import posixpath
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote, unquote, urlsplit

if TYPE_CHECKING:
    from collections.abc import Mapping

SCHEMES: Final = ("http", "https", "mailto")
ANCHOR: Final = "md-"
"""In front of every id that a file brings, so that none is one of the page's own."""
MAX_TARGET: Final = 4_096
TREES: Final = {"github.com": "blob", "gitlab.com": "-/blob", "codeberg.org": "src/commit"}
"""Hosts whose addresses of files at a commit we know, and the word between repository and commit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Home:
    """Where a file stands."""

    host: str
    repository: str
    path: str
    commit: str

    def blob(self, path: str) -> str | None:
        """Return the address of a file of the repository at this commit, ``None`` for other hosts."""
        word = TREES.get(self.host)
        if word is None:
            return None
        return f"https://{self.host}/{quote(self.repository)}/{word}/{self.commit}/{quote(path)}"


def home_of(artifact: Mapping[str, Any], commit: str) -> Home:
    """Return where an artifact's file stands at a commit."""
    return Home(
        host=artifact["host"],
        repository=artifact["repository"],
        path=artifact["path"],
        commit=commit,
    )


def repository_url(host: str, repository: str) -> str | None:
    """Return the address of a repository on its host, ``None`` where it has none that we know."""
    return f"https://{host}/{quote(repository)}" if "." in host else None


def commit_url(host: str, repository: str, commit: str) -> str | None:
    """Return the address of a commit, ``None`` for hosts whose addresses we do not know."""
    if host not in TREES:
        return None
    word = "-/commit" if host == "gitlab.com" else "commit"
    return f"https://{host}/{quote(repository)}/{word}/{commit}"


def resolved(target: str, home: Home) -> str | None:
    """Return the address that a link of the file leads to.

    Args:
        target: As the file has it, percent escapes and all.
        home: Where the file stands; relative targets start there.

    Returns:
        An http, https or mailto address, ``#md-...`` for a place in the same file, or ``None`` when
        the target leads nowhere that a page may link to.
    """
    if not 0 < len(target) <= MAX_TARGET or any(
        ord(char) < 0x21 or ord(char) == 0x7F for char in target
    ):
        return None
    if target.startswith("#"):
        return f"#{ANCHOR}{target[1:]}" if len(target) > 1 else None
    try:
        parts = urlsplit(target)
    except ValueError:
        return None
    if parts.scheme or parts.netloc or target.startswith(("//", "\\")):
        good = parts.scheme.lower() in SCHEMES and bool(parts.netloc or parts.scheme == "mailto")
        return target if good else None
    return _inside(unquote(parts.path), parts.fragment, home)


def _inside(path: str, fragment: str, home: Home) -> str | None:
    if "\0" in path or "\\" in path:
        return None
    folder = "" if path.startswith("/") else posixpath.dirname(home.path)
    joined = posixpath.normpath(posixpath.join(folder, path.lstrip("/")))
    if joined in {"", "."} or joined.split("/")[0] == "..":
        return None
    address = home.blob(joined)
    return address and address + (f"#{quote(fragment)}" if fragment else "")
