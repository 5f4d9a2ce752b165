"""Read the locks of other tools, as data: names, sources and hashes, none of which is believed.

=======================  ==========================  =================================================
file                     tool                        what it pins
=======================  ==========================  =================================================
``skills-lock.json``     vercel-labs/skills          one hash of its own kind for a folder, no commit
``.skill-lock.json``     vercel-labs/skills (user)   the git tree of the folder, no commit
``apm.lock.yaml``        microsoft/apm               commit, and SHA-256 of each deployed file
``.clawhub/lock.json``   openclaw/clawhub            a version number
=======================  ==========================  =================================================

Formats as read in the tools' sources (vercel-labs/skills 1.3.9, microsoft/apm
0.35, openclaw/clawhub).
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from mdr.artifact.types import Kind
from mdr.digest import Sha256, is_sha256
from mdr.errors import UsageError
from mdr.install.agents import AGENTS
from mdr.install.portable import path_problem

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

MAX_BYTES: Final = 16 << 20
MAX_ITEMS: Final = 10_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Foreign:
    """One installed thing that another tool's lock names."""

    name: str
    source: str | None
    """``owner/repo`` when the lock says one."""
    places: tuple[str, ...]
    """Where its named file may lie below :func:`base_folder`, ``/`` as separator, best first."""
    stated: tuple[tuple[str, Sha256], ...] = ()
    """(place, SHA-256) where the lock states the hash of the named file; used when it is not on disk."""


def read_foreign(path: Path) -> tuple[Foreign, ...]:
    """Read another tool's lock.

    Args:
        path: A file with one of the known names.

    Raises:
        mdr.errors.UsageError: import-unknown, import-unreadable.
    """
    readers = {
        "skills-lock.json": _skills,
        ".skill-lock.json": _skills,
        "apm.lock.yaml": _apm,
        "lock.json": _clawhub,
    }
    reader = readers.get(path.name)
    if reader is None:
        raise UsageError(
            "import-unknown",
            f"{path.name} is not a lock that mdr knows",
            hint="known: skills-lock.json, .skill-lock.json, apm.lock.yaml, .clawhub/lock.json",
        )
    try:
        with path.open("rb") as stream:
            data = stream.read(MAX_BYTES + 1)
    except OSError as error:
        raise _unreadable(path, error.strerror or "cannot be read") from error
    if len(data) > MAX_BYTES:
        raise _unreadable(path, f"larger than {MAX_BYTES} bytes")
    document = _yaml(path, data) if path.suffix == ".yaml" else _json(path, data)
    if not isinstance(document, dict):
        raise _unreadable(path, "its top level is not a mapping")
    found = tuple(reader(path, document))
    if len(found) > MAX_ITEMS:
        raise _unreadable(path, f"more than {MAX_ITEMS} entries")
    return found


def base_folder(path: Path) -> Path:
    """Return the folder that a lock's places are relative to."""
    folder = path.absolute().parent
    return folder.parent if folder.name in {".clawhub", ".clawdhub", ".agents"} else folder


def _skills(path: Path, document: dict[str, Any]) -> Iterator[Foreign]:
    for name, value in _items(path, document, "skills"):
        source = value.get("source")
        yield Foreign(name=name, source=_repository(source), places=_usual_places(name))


def _clawhub(path: Path, document: dict[str, Any]) -> Iterator[Foreign]:
    for name, _ in _items(path, document, "skills"):
        yield Foreign(name=name, source=None, places=_usual_places(name))


def _apm(path: Path, document: dict[str, Any]) -> Iterator[Foreign]:
    dependencies = document.get("dependencies")
    if not isinstance(dependencies, list):
        raise _unreadable(path, "'dependencies' is not a list")
    for item in dependencies:
        if not isinstance(item, dict):
            raise _unreadable(path, "a dependency is not a mapping")
        deployed = item.get("deployed_files") or []
        if not isinstance(deployed, list) or not all(isinstance(file, str) for file in deployed):
            raise _unreadable(path, "'deployed_files' is not a list of paths")
        source = _repository(item.get("repo_url"))
        named = [place for file in deployed for place in _named_files(file)]
        grouped: dict[str, list[str]] = {}
        for place in named:
            grouped.setdefault(_name_of(place), []).append(place)
        hashes = _stated(item.get("deployed_file_hashes"))
        for name, places in grouped.items():
            stated = tuple((place, hashes[place]) for place in places if place in hashes)
            yield Foreign(name=name, source=source, places=tuple(places), stated=stated)
        if not grouped:
            name = str(item.get("virtual_path") or item.get("repo_url") or "?")
            yield Foreign(name=name, source=source, places=())


def _stated(hashes: object) -> dict[str, Sha256]:
    """Return the hashes that are SHA-256; anything else is no use for matching."""
    if not isinstance(hashes, dict):
        return {}
    texts = {str(place): str(value).removeprefix("sha256:") for place, value in hashes.items()}
    return {place: Sha256(text) for place, text in texts.items() if is_sha256(text)}


def _named_files(deployed: str) -> list[str]:
    """Return the files that may be artifacts: a deployed folder stands for the SKILL.md in it."""
    place = deployed.rstrip("/")
    if place.startswith("/") or path_problem(place):
        return []
    if place.endswith((".md", ".mdc")):
        inside = place.rpartition("/")[0]
        is_part = "/skills/" in f"/{inside}/" and place.rpartition("/")[2].lower() != "skill.md"
        return [] if is_part else [place]
    last = place.rpartition("/")[2]
    return [f"{place}/SKILL.md", f"{place}/skill.md"] if "." not in last else []


def _name_of(place: str) -> str:
    folder, _, file_name = place.rpartition("/")
    if file_name.lower() == "skill.md":
        return folder.rpartition("/")[2]
    return file_name.partition(".")[0]


def _usual_places(name: str) -> tuple[str, ...]:
    """Return where a skill of that name lies for each agent; nothing for a name that is a path."""
    if "/" in name or path_problem(name):
        return ()
    folders = dict.fromkeys(
        folder
        for agent in AGENTS
        for place in agent.places
        if place.kind is Kind.SKILL
        for folder in (place.project, place.user)
        if folder is not None
    )
    return tuple(f"{f}/{name}/{file}" for f in folders for file in ("SKILL.md", "skill.md"))


def _items(path: Path, document: dict[str, Any], key: str) -> Iterable[tuple[str, dict[str, Any]]]:
    table = document.get(key)
    if not isinstance(table, dict) or not all(isinstance(v, dict) for v in table.values()):
        raise _unreadable(path, f"{key!r} is not a mapping of entries")
    return table.items()


def _repository(source: object) -> str | None:
    """Return ``owner/repo`` of a source that is written as that or as an address on GitHub."""
    if not isinstance(source, str):
        return None
    for prefix in ("https://github.com/", "http://github.com/", "git@github.com:", "github.com/"):
        source = source.removeprefix(prefix)
    segments = source.removesuffix(".git").strip("/").split("/")
    plain = len(segments) == 2 and all(s and not s.startswith((".", "-")) for s in segments)
    return "/".join(segments) if plain else None


def _json(path: Path, data: bytes) -> Any:
    try:
        return json.loads(data)
    except (ValueError, RecursionError) as error:
        raise _unreadable(path, str(error)) from error


def _yaml(path: Path, data: bytes) -> Any:
    """Read plain YAML; aliases are refused, since a few lines of them expand without bound."""
    import yaml

    try:
        if any(isinstance(event, yaml.AliasEvent) for event in yaml.parse(data, yaml.CSafeLoader)):
            raise _unreadable(path, "it uses YAML aliases")
        return yaml.safe_load(data)
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise _unreadable(path, str(error).splitlines()[0]) from error


def _unreadable(path: Path, reason: str) -> UsageError:
    return UsageError(
        "import-unreadable",
        f"cannot read {path.name}: {reason}",
        hint="nothing was imported",
        data={"file": path.name},
    )
