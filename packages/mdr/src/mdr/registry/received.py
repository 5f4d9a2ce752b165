"""Documents of a registry that is not trusted, read into values: every field is checked, or refused."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final

from mdr.artifact.types import Artifact, Kind
from mdr.audit.types import GRADES
from mdr.digest import HEX, Sha256, is_sha256
from mdr.reference.parse import is_label, path_problem
from mdr.registry.interface import SourceInfo
from mdr.registry.transport import odd
from mdr.version.types import FileEntry, FileMode, FolderRevision, Version, Yanked, manifest_sha256

if TYPE_CHECKING:
    from collections.abc import Mapping

    from mdr.settings import Limits

_TIME: Final = re.compile(r"\d{4}-\d{2}-\d{2}T\d{2}:\d{2}:\d{2}Z", re.ASCII)
_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9.:-]*", re.ASCII)
MAX_TEXT: Final = 20_000
MAX_SIZE: Final = 1 << 50
MAX_LISTED: Final = 10_000


def artifact_of(document: Mapping[str, Any]) -> tuple[Artifact, SourceInfo]:
    """Read A; its id must be the one that host, repository and path give.

    Raises:
        mdr.errors.IntegrityError: registry-answer.
    """
    host, repository = text(document, "host"), text(document, "repository")
    path = text(document, "path")
    if path_problem(path) is not None or "/" not in repository or not _NAME.fullmatch(host):
        raise odd("an artifact has an impossible place")
    kind = text(document, "kind")
    if kind not in {each.value for each in Kind}:
        raise odd("an artifact has an unknown kind")
    artifact = Artifact(
        host=host,
        repository=repository,
        path=path,
        name=text(document, "name"),
        kind=Kind(kind),
        description=maybe(document, "description"),
        latest=maybe(document, "latest"),
        previously=texts(document, "previously"),
    )
    if document.get("id") != artifact.id:
        raise odd("an artifact's id is not that of its host, repository and path")
    source = part(document, "source")
    stars = source.get("stars")
    return artifact, SourceInfo(
        stars=stars
        if isinstance(stars, int) and not isinstance(stars, bool) and stars >= 0
        else None,
        license=maybe(source, "license"),
        pushed=maybe(source, "pushed"),
        branch=maybe(source, "branch"),
        indexed_commit=maybe(source, "indexed_commit"),
    )


def version_of(document: Mapping[str, Any]) -> Version:
    """Read V. Its grade is a claim that whoever has the bytes computes again.

    Raises:
        mdr.errors.IntegrityError: registry-answer.
    """
    label, grade = text(document, "label"), document.get("grade")
    if not is_label(label) or (grade is not None and grade not in GRADES):
        raise odd("a version has an impossible label or grade")
    yanked = document.get("yanked")
    return Version(
        label=label,
        latest=document.get("latest") is True,
        committed=moment(document, "committed"),
        commit=commit(document),
        size=number(document, "size"),
        sha256=digest(document, "sha256"),
        manifest_sha256=digest(document, "manifest_sha256"),
        grade=grade or "",
        ruleset=text(document, "ruleset"),
        same_bytes=texts(document, "same_bytes"),
        folder_revisions=tuple(_revision(each) for each in parts(document, "folder_revisions")),
        yanked=None if yanked is None else _yanked(part(document, "yanked")),
    )


def files_of(
    document: Mapping[str, Any], artifact: Artifact, version: Version, limits: Limits
) -> tuple[FileEntry, ...]:
    """Read ``files``; they must hash to the version's manifest and hold the version's own file.

    Raises:
        mdr.errors.IntegrityError: registry-answer.
    """
    rows = parts(document, "files")
    if len(rows) > limits.max_folder_files:
        raise odd(f"a version has more than {limits.max_folder_files} files")
    files = tuple(_file(each) for each in rows)
    if sum(file.size for file in files) > limits.max_folder_bytes:
        raise odd(f"a version has more than {limits.max_folder_bytes} bytes")
    if manifest_sha256(files) != version.manifest_sha256:
        raise odd("the files of a version do not hash to its manifest")
    own = artifact.path.rpartition("/")[2]
    if not any((f.path, f.sha256, f.size) == (own, version.sha256, version.size) for f in files):
        raise odd("the files of a version lack its own file")
    return files


def text(document: Mapping[str, Any], key: str) -> str:
    """Return a text that must be there."""
    value = document.get(key)
    if not isinstance(value, str) or not value or len(value) > MAX_TEXT or not _sound(value):
        raise odd(f"{key} is not a text")
    return value


def maybe(document: Mapping[str, Any], key: str) -> str | None:
    """Return a text that may be null."""
    value = document.get(key)
    if value is not None and (
        not isinstance(value, str) or len(value) > MAX_TEXT or not _sound(value)
    ):
        raise odd(f"{key} is not a text")
    return value


def number(document: Mapping[str, Any], key: str) -> int:
    """Return a size."""
    value = document.get(key)
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < MAX_SIZE:
        raise odd(f"{key} is not a size")
    return value


def digest(document: Mapping[str, Any], key: str) -> Sha256:
    """Return a SHA-256."""
    value = document.get(key)
    if not isinstance(value, str) or not is_sha256(value):
        raise odd(f"{key} is not a SHA-256")
    return Sha256(value)


def commit(document: Mapping[str, Any]) -> str:
    """Return all digits of a commit."""
    value = document.get("commit")
    if not isinstance(value, str) or len(value) not in {40, 64} or not HEX.issuperset(value):
        raise odd("commit is not one")
    return value


def moment(document: Mapping[str, Any], key: str) -> str:
    """Return a time."""
    value = document.get(key)
    if not isinstance(value, str) or not _TIME.fullmatch(value):
        raise odd(f"{key} is not a time")
    return value


def part(document: Mapping[str, Any], key: str) -> dict[str, Any]:
    """Return an object inside."""
    value = document.get(key)
    if not isinstance(value, dict):
        raise odd(f"{key} is not an object")
    return value


def parts(document: Mapping[str, Any], key: str) -> list[dict[str, Any]]:
    """Return a list of objects."""
    value = document.get(key)
    listed = isinstance(value, list) and len(value) <= MAX_LISTED
    if not listed or not all(isinstance(each, dict) for each in value):  # type: ignore[union-attr]
        raise odd(f"{key} is not a list of objects")
    return value  # type: ignore[return-value]


def texts(document: Mapping[str, Any], key: str) -> tuple[str, ...]:
    """Return a list of texts."""
    value = document.get(key)
    if not isinstance(value, list) or len(value) > MAX_LISTED:
        raise odd(f"{key} is not a list")
    return tuple(text({key: each}, key) for each in value)


def _file(document: Mapping[str, Any]) -> FileEntry:
    path, mode = text(document, "path"), document.get("mode")
    if path_problem(path) is not None or mode not in {each.value for each in FileMode}:
        raise odd("a file has an impossible path or mode")
    return FileEntry(
        path=path,
        mode=FileMode(mode),
        size=number(document, "size"),
        sha256=digest(document, "sha256"),
    )


def _revision(document: Mapping[str, Any]) -> FolderRevision:
    return FolderRevision(
        commit=commit(document),
        committed=moment(document, "committed"),
        manifest_sha256=digest(document, "manifest_sha256"),
    )


def _yanked(document: Mapping[str, Any]) -> Yanked:
    return Yanked(reason=text(document, "reason"), at=moment(document, "at"))


def _sound(value: str) -> bool:
    """Say whether a text has no NUL and no half characters."""
    return "\0" not in value and not any(0xD800 <= ord(char) <= 0xDFFF for char in value)
