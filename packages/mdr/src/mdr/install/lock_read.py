"""Read ``mdr.lock`` strictly. A lock that cannot be trusted to the last field is an error.

Nothing here ever turns a bad lock into a smaller or an empty one: other tools lost their users' pins
that way (vercel-labs/skills, issue 989). Every refusal is a :class:`mdr.errors.LockError`.
"""

from __future__ import annotations

import re
import tomllib
from typing import TYPE_CHECKING, Any, Final

from mdr.artifact.types import Kind
from mdr.digest import Sha256, is_sha256
from mdr.errors import BadReference, LockError
from mdr.install.agents import BY_NAME
from mdr.install.destination import destination_keys
from mdr.install.lock import (
    ENTRY_KEYS,
    LOCK_NAME,
    LOCK_VERSION,
    Entry,
    Lock,
    Pin,
    Scope,
    Target,
    format_lock,
    in_lock_order,
)
from mdr.install.portable import path_problem, tree_problem
from mdr.reference.parse import is_label, parse
from mdr.reference.parse import path_problem as repository_path_problem
from mdr.reference.types import Latest
from mdr.version.types import FileEntry, FileMode, in_path_order, manifest_sha256

if TYPE_CHECKING:
    from pathlib import Path

MAX_LOCK_BYTES: Final = 64 << 20
"""64 MiB: about 400,000 file lines."""

_FILE_LINE: Final = re.compile(
    r"([0-9a-f]{64}) (100644|100755|120000) (0|[1-9][0-9]{0,15}) ([^\n]+)", re.ASCII
)
_COMMIT: Final = re.compile(r"[0-9a-f]{40}|[0-9a-f]{64}", re.ASCII)
_RULESET: Final = re.compile(r"r[0-9]{1,6}", re.ASCII)
_RESTORE: Final = "restore it from git (git log -- mdr.lock); mdr never guesses what a lock meant"


def read_lock(path: Path, known: Lock | None = None) -> Lock:
    """Read the lock of a project.

    Args:
        path: The file ``mdr.lock``.
        known: What it held a moment ago; if the bytes are still those, they are not checked twice.

    Returns:
        A lock every field of which was checked, entries sorted.

    Raises:
        mdr.errors.LockError: lock-missing, or any code of :func:`parse_lock`.
    """
    try:
        with path.open("rb") as stream:
            data = stream.read(MAX_LOCK_BYTES + 1)
    except FileNotFoundError:
        raise _missing(path) from None
    except OSError as error:
        raise LockError(
            "lock-unreadable", f"cannot read {path.name}: {error.strerror}", hint=_RESTORE
        ) from error
    if known is not None and data == format_lock(known):
        return known
    return parse_lock(data, path.name)


def read_lock_if_present(path: Path) -> Lock:
    """Read the lock, or return an empty one when there is no file at all."""
    return read_lock(path) if path.exists() or path.is_symlink() else Lock()


def parse_lock(data: bytes, name: str = LOCK_NAME) -> Lock:
    """Read the bytes of a lock.

    Raises:
        mdr.errors.LockError: lock-too-large, lock-conflict (git's markers), lock-unreadable (not TOML),
            lock-version (missing or not a number), lock-newer, lock-key (missing, unknown or of the
            wrong type), lock-value (a field that cannot be what it says), lock-path (a path that
            leaves its folder or cannot exist everywhere), lock-contradiction (fields that exclude
            each other), lock-duplicate, lock-collision (two entries for one place).
    """
    document = _toml(data, name)
    _check_version(document, name)
    unknown = sorted(set(document) - {"version", "artifact"})
    if unknown:
        raise _error("lock-key", f"unknown key {unknown[0]!r}", name)
    tables = document.get("artifact", [])
    if not isinstance(tables, list) or not all(isinstance(table, dict) for table in tables):
        raise _error("lock-key", "'artifact' is not a list of tables", name)
    entries = in_lock_order(_entry(table, name) for table in tables)
    _check_together(entries, name)
    return Lock(entries=entries)


def _missing(path: Path) -> LockError:
    above = next((up for up in path.absolute().parent.parents if (up / path.name).is_file()), None)
    hint = "run `mdr add REF` first"
    if above is not None:
        hint = f"there is one in {above}: run mdr there; mdr uses only the working directory's lock"
    return LockError("lock-missing", f"there is no {path.name} here", hint=hint)


def _error(code: str, message: str, name: str, **data: Any) -> LockError:
    return LockError(code, f"{name}: {message}", hint=_RESTORE, data=data)


def _toml(data: bytes, name: str) -> dict[str, Any]:
    if len(data) > MAX_LOCK_BYTES:
        raise _error("lock-too-large", f"larger than {MAX_LOCK_BYTES} bytes", name)
    if any(line.startswith((b"<<<<<<< ", b">>>>>>> ")) for line in data.splitlines()):
        raise LockError(
            "lock-conflict",
            f"{name} holds git's conflict markers",
            hint="run `mdr lock merge`",
        )
    try:
        return tomllib.loads(data.decode("utf-8").replace("\r\n", "\n"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, RecursionError, ValueError) as error:
        raise _error("lock-unreadable", f"not readable as TOML: {error}", name) from error


def _check_version(document: dict[str, Any], name: str) -> None:
    version = document.get("version")
    if not isinstance(version, int) or isinstance(version, bool) or version < 1:
        raise _error("lock-version", f"version = {version!r} is not a lock version", name)
    if version > LOCK_VERSION:
        raise LockError(
            "lock-newer",
            f"{name} has version {version}; this mdr reads {LOCK_VERSION}",
            hint="upgrade mdr; an older mdr never rewrites a newer lock",
            data={"version": version, "supported": LOCK_VERSION},
        )


def _entry(table: dict[str, Any], name: str) -> Entry:
    where = f"{name}, {table.get('ref', '?')!s}"[:300]
    _check_keys(table, where)
    entry = Entry(
        ref=table["ref"],
        host=table["host"],
        repository=table["repository"],
        path=table["path"],
        kind=_enum(Kind, table["kind"], "kind", where),
        pin=_enum(Pin, table["pin"], "pin", where),
        label=table["label"],
        commit=table["commit"],
        sha256=_digest(table["sha256"], "sha256", where),
        size=table["size"],
        manifest_sha256=_digest(table["manifest_sha256"], "manifest_sha256", where),
        ruleset=table["ruleset"],
        grade=table["grade"],
        targets=tuple(_target(text, where) for text in table["targets"]),
        files=tuple(_file(line, where) for line in table["files"]),
    )
    _check_names(entry, where)
    _check_version_fields(entry, where)
    _check_targets(entry, where)
    _check_files(entry, where)
    return entry


def _check_keys(table: dict[str, Any], where: str) -> None:
    missing = [key for key in ENTRY_KEYS if key not in table]
    unknown = sorted(set(table) - set(ENTRY_KEYS))
    if missing or unknown:
        said = f"lacks {missing[0]!r}" if missing else f"unknown key {unknown[0]!r}"
        raise _error("lock-key", said, where)
    for key in ENTRY_KEYS:
        value = table[key]
        if key in {"targets", "files"}:
            fits = isinstance(value, list) and all(isinstance(item, str) for item in value)
        elif key == "size":
            fits = isinstance(value, int) and not isinstance(value, bool)
        else:
            fits = isinstance(value, str)
        if not fits:
            raise _error("lock-key", f"{key!r} has the wrong type", where)


def _enum(kind: type[Any], value: str, key: str, where: str) -> Any:
    try:
        return kind(value)
    except ValueError:
        raise _error("lock-value", f"{key} = {value!r} is not known", where) from None


def _digest(value: str, key: str, where: str) -> Sha256:
    if not is_sha256(value):
        raise _error("lock-value", f"{key} is not a SHA-256 of 64 lower-case digits", where)
    return Sha256(value)


def _target(text: str, where: str) -> Target:
    scope, _, agent = text.partition(":")
    if agent not in BY_NAME:
        raise _error("lock-value", f"target {text!r}: no such agent in this mdr", where)
    return Target(scope=_enum(Scope, scope, "target scope", where), agent=agent)


def _file(line: str, where: str) -> FileEntry:
    match = _FILE_LINE.fullmatch(line)
    if match is None:
        raise _error(
            "lock-value", f"file line {line[:120]!r} is not 'sha256 mode size path'", where
        )
    digest, mode, size, path = match.groups()
    return FileEntry(path=path, mode=FileMode(mode), size=int(size), sha256=Sha256(digest))


def _check_names(entry: Entry, where: str) -> None:
    if repository_path_problem(entry.path):
        raise _error("lock-path", f"path {entry.path!r} leaves its repository", where)
    try:
        reference = parse(entry.ref + "@latest")
    except BadReference as error:
        raise _error("lock-value", error.message, where) from error
    known = (reference.host, reference.repository.lower())
    if known != (entry.host, entry.repository.lower()) or not isinstance(
        reference.selector, Latest
    ):
        raise _error("lock-contradiction", "ref, host and repository name different places", where)
    folder = entry.path.rpartition("/")[0].rpartition("/")[2]
    own_name = folder if entry.kind is Kind.SKILL and folder else entry.name
    if reference.path not in {None, entry.path} or reference.name not in {None, own_name}:
        raise _error("lock-contradiction", f"ref does not name {entry.path!r}", where)
    for name in (entry.name, entry.file_name):
        problem = path_problem(name)
        if problem or "/" in name:
            said = problem.message if problem else f"{name!r} is not one name"
            raise _error("lock-path", said, where, reason=problem.reason if problem else None)


def _check_version_fields(entry: Entry, where: str) -> None:
    if not is_label(entry.label):
        raise _error("lock-value", f"label {entry.label!r} is not git:YYYYMMDD.sha7", where)
    if _COMMIT.fullmatch(entry.commit) is None:
        raise _error("lock-value", "commit does not have all its digits", where)
    if not entry.commit.startswith(entry.label.rpartition(".")[2]):
        raise _error("lock-contradiction", "label and commit name different commits", where)
    if _RULESET.fullmatch(entry.ruleset) is None:
        raise _error("lock-value", f"ruleset {entry.ruleset!r} is not a ruleset", where)
    if entry.grade not in {"A", "B", "C", "D", "F"}:
        raise _error("lock-value", f"grade {entry.grade!r} is not a grade", where)


def _check_targets(entry: Entry, where: str) -> None:
    if len(set(entry.targets)) != len(entry.targets):
        raise _error("lock-duplicate", "a target is named twice", where)
    for target in entry.targets:
        if not destination_keys(entry, (target,)):
            said = f"{target} has no place for this {entry.kind} ({entry.file_name})"
            raise _error("lock-contradiction", said, where)


def _check_files(entry: Entry, where: str) -> None:
    problem = tree_problem(file.path for file in entry.files)
    if problem:
        raise _error("lock-path", problem.message, where, reason=problem.reason)
    if entry.files != in_path_order(entry.files):
        raise _error("lock-contradiction", "files are not in path order", where)
    if manifest_sha256(entry.files) != entry.manifest_sha256:
        raise _error("lock-contradiction", "files do not add up to manifest_sha256", where)
    named = next((file for file in entry.files if file.path == entry.file_name), None)
    if named is None or (named.sha256, named.size) != (entry.sha256, entry.size):
        said = f"sha256 and size are not those of {entry.file_name!r} in files"
        raise _error("lock-contradiction", said, where)
    if entry.kind is not Kind.SKILL and len(entry.files) != 1:
        raise _error("lock-contradiction", f"a {entry.kind} is one file", where)


def _check_together(entries: tuple[Entry, ...], name: str) -> None:
    identities: set[tuple[str, str, str]] = set()
    refs: set[str] = set()
    taken: dict[str, Entry] = {}
    for entry in entries:
        if entry.identity in identities or entry.ref.lower() in refs:
            raise _error("lock-duplicate", f"{entry.ref} is there twice", name)
        identities.add(entry.identity)
        refs.add(entry.ref.lower())
        for key in destination_keys(entry, entry.targets):
            other = taken.setdefault(key, entry)
            if other is not entry:
                said = f"{other.ref} and {entry.ref} both go to {key}"
                raise _error("lock-collision", said, name)
