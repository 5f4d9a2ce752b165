"""What a SOURCE argument means: GitHub, another git URL, or a repository or bundle on this machine.

===========================================  ==========================================================
accepted                                     refused (exit 2)
===========================================  ==========================================================
``github:NVIDIA/skills``                     ``github:NVIDIA`` (no repository)
``https://host/owner/repo[.git]``            ``https://user:secret@host/...`` (credentials-in-url)
``ssh://git@host/owner/repo``                ``ext::sh -c ...`` (a transport that runs programs)
``git@host:owner/repo.git``                  ``-oProxyCommand=...`` (looks like an option)
``path/to/repository``, ``file:///path``     a path that holds no repository (source-not-found)
``path/to/file.bundle``                      a file that is no bundle
===========================================  ==========================================================
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Final
from urllib.parse import unquote, urlsplit

from mdr.errors import UsageError

GITHUB: Final = "github.com"
LOCAL: Final = "local"
SCHEMES: Final = ("https", "http", "ssh", "git")
_SEGMENT = re.compile(r"[A-Za-z0-9_.~+][A-Za-z0-9_.~+-]*", re.ASCII)
_HOST = re.compile(r"[A-Za-z0-9]([A-Za-z0-9.-]*[A-Za-z0-9])?", re.ASCII)
_SCP = re.compile(r"(?:([A-Za-z0-9_.-]+)@)?([A-Za-z0-9][A-Za-z0-9.-]*):(?!//)(.+)", re.ASCII)


class Reach(StrEnum):
    """How a location is read."""

    REMOTE = "remote"
    REPOSITORY = "repository"
    BUNDLE = "bundle"


@dataclass(frozen=True, slots=True, kw_only=True)
class Location:
    """One source: how it is reached, and under which identity its artifacts are kept."""

    reach: Reach
    address: str
    """URL for git, or an absolute path."""
    host: str
    """Lower case; ``local`` where there is none."""
    repository: str
    """``owner/repo`` as written."""
    scheme: str = ""
    """Of a remote: ``https``, ``http``, ``ssh`` or ``git``."""
    server: str = ""
    """Of a remote: the name to connect to, without port."""
    port: int | None = None

    @property
    def is_github(self) -> bool:
        """Whether the GitHub REST API can describe it."""
        return self.reach is Reach.REMOTE and self.host == GITHUB


def locate(text: str, *, name_as: str | None = None) -> Location:
    """Say what a SOURCE argument means.

    Args:
        text: What the person wrote.
        name_as: ``[host/]owner/repo`` to keep it under, whatever its address says.

    Raises:
        mdr.errors.UsageError: bad-source, credentials-in-url, source-not-found.
    """
    if (
        not text
        or text.startswith("-")
        or any(ord(char) < 0x20 or ord(char) == 0x7F for char in text)
    ):
        raise _bad(text, "it is empty, starts with '-' or has control characters")
    found = _remote(text) or _on_disk(text)
    if name_as is None:
        return found
    host, repository = _identity(name_as)
    return Location(
        reach=found.reach,
        address=found.address,
        host=host,
        repository=repository,
        scheme=found.scheme,
        server=found.server,
        port=found.port,
    )


def _remote(text: str) -> Location | None:
    if text.startswith("github:"):
        return _github(text.removeprefix("github:"), text)
    if "::" in text.partition("/")[0]:
        raise _bad(text, "transports that run programs are not allowed")
    if "://" in text:
        return None if text.startswith("file://") else _url(text)
    if Path(text).exists():
        return None
    match = _SCP.fullmatch(text)
    if match is None:
        return None
    user, host, path = match.groups()
    return _url(f"ssh://{user + '@' if user else ''}{host}/{path.lstrip('/')}")


def _github(rest: str, text: str) -> Location:
    repository = rest.removesuffix(".git").strip("/")
    if repository.count("/") != 1:
        raise _bad(text, "a GitHub source is github:owner/repo")
    _check_repository(repository, text)
    return Location(
        reach=Reach.REMOTE,
        address=f"https://{GITHUB}/{repository}.git",
        host=GITHUB,
        repository=repository,
        scheme="https",
        server=GITHUB,
    )


def _url(text: str) -> Location:
    try:
        parts = urlsplit(text)
        port, host = parts.port, parts.hostname or ""
    except ValueError:
        raise _bad(text, "it is no valid URL") from None
    if parts.scheme not in SCHEMES:
        raise _bad(text, f"the scheme {parts.scheme!r} is not one of {', '.join(SCHEMES)}, file")
    if parts.password is not None or (parts.username is not None and parts.scheme != "ssh"):
        raise UsageError(
            "credentials-in-url",
            "the source URL holds a user name or password, which would be stored and shown",
            hint="leave it out; set GITHUB_TOKEN, use ssh, or index a local clone",
        )
    if parts.query or parts.fragment:
        raise _bad(text, "a source URL has no query or fragment")
    if (parts.username or "").startswith("-"):
        raise _bad(text, "the user name looks like an option")
    literal = ":" in host
    if not literal and not _HOST.fullmatch(host):
        raise _bad(text, "it names no host")
    repository = unquote(parts.path).strip("/").removesuffix(".git")
    _check_repository(repository, text)
    shown = f"[{host}]" if literal else host
    identity = shown if port is None else f"{shown}:{port}"
    return Location(
        reach=Reach.REMOTE,
        address=text,
        host=identity.lower(),
        repository=repository,
        scheme=parts.scheme,
        server=host,
        port=port,
    )


def _on_disk(text: str) -> Location:
    path = Path(unquote(urlsplit(text).path) if text.startswith("file://") else text).absolute()
    if path.is_file():
        reach, stem = Reach.BUNDLE, path.stem
        with path.open("rb") as file:
            if not file.read(16).startswith((b"# v2 git bundle", b"# v3 git bundle")):
                raise _bad(text, "the file is no git bundle")
    elif path.is_dir():
        reach, stem = Reach.REPOSITORY, path.name.removesuffix(".git")
    else:
        hint = f"for a GitHub repository write github:{text}" if text.count("/") == 1 else ""
        raise UsageError(
            "source-not-found",
            f"there is no repository or bundle at {text}",
            hint=hint or "give github:owner/repo, a git URL, a repository or a bundle",
            data={"source": text},
        )
    owner = _plain(path.parent.name) or "this-machine"
    return Location(
        reach=reach,
        address=str(path),
        host=LOCAL,
        repository=f"{owner}/{_plain(stem) or 'repository'}",
    )


def _plain(text: str) -> str:
    """Make a folder's name fit for a reference; ``--as`` gives full control."""
    return re.sub(r"[^A-Za-z0-9_.~+-]+", "-", text).strip("-.")


def _identity(text: str) -> tuple[str, str]:
    first, _, rest = text.partition("/")
    host, repository = (first, rest) if rest.count("/") >= 1 else (GITHUB, text)
    if not re.fullmatch(_HOST.pattern + r"(:[0-9]{1,5})?", host, re.ASCII):
        raise _bad(text, "the host is no host name")
    _check_repository(repository, text)
    return host.lower(), repository


def _check_repository(repository: str, text: str) -> None:
    segments = repository.split("/")
    if len(segments) < 2:
        raise _bad(text, "a repository is named owner/repo", hint="name it with --as owner/repo")
    for segment in segments:
        if not _SEGMENT.fullmatch(segment) or segment in {".", ".."}:
            raise _bad(text, f"{segment!r} is not an owner or repository name")


def _bad(text: str, message: str, hint: str = "") -> UsageError:
    shown = text[:200].encode("utf-8", "backslashreplace").decode("utf-8")
    return UsageError(
        "bad-source",
        f"cannot read the source {shown!r}: {message}",
        hint=hint or "give github:owner/repo, a git URL, a repository or a bundle",
        data={"source": shown},
    )
