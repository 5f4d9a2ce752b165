"""``mdr audit``: grade a file, a skill folder, standard input, or a version of a registry."""

from __future__ import annotations

import os
import stat
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from mdr.artifact.types import Kind
from mdr.audit.types import GRADES
from mdr.cli.options import json_option, place_options
from mdr.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from mdr.settings import Limits, Settings

NAMED: Final = ("SKILL.md", "skill.md")
"""The file of a skill, in the order in which agents look."""
SPECIAL: Final = "special"
"""Mode of what is neither a file, a folder nor a link: never opened, reported as unread."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """What is audited."""

    name: str
    data: bytes
    kind: Kind
    folder: str | None
    """Name of the folder of a skill, where known."""
    files: tuple[tuple[str, str, bytes], ...] | None
    """The files of that folder; ``None`` when only one file is at hand."""


@click.command("audit")
@click.argument("target", metavar="PATH|REF|-")
@click.option(
    "--kind", type=click.Choice([kind.value for kind in Kind]), help="What the file is to an agent."
)
@click.option("--ruleset", metavar="ID", help="Which published ruleset; the newest by default.")
@click.option(
    "--min-grade", type=click.Choice(GRADES, case_sensitive=False), help="Exit 1 below this grade."
)
@json_option
@place_options
def command(
    *,
    target: str,
    kind: str | None,
    ruleset: str | None,
    min_grade: str | None,
    as_json: bool,
    settings: Settings,
) -> int:
    """Grade agent-read markdown by 17 text checks, A to F.

    PATH is a file, or a folder with a SKILL.md; a folder is looked at as a whole beside the grade. What
    exists as a path is a path; anything else is a reference to a registry. A grade says that these
    checks found nothing in the text of one file, not that the file is safe.
    """
    from mdr.audit.bundle import bundle_audit
    from mdr.audit.grade import meets
    from mdr.audit.rulesets import LATEST
    from mdr.audit.run import audit
    from mdr.audit.spec import spec_conformance

    found = load(target, Kind(kind) if kind else None, settings)
    rules = ruleset or LATEST
    result = audit(found.data, kind=found.kind, ruleset=rules)
    spec = spec_conformance(found.data, found.folder) if found.kind is Kind.SKILL else ()
    bundle = None if found.files is None else bundle_audit(found.files, ruleset=rules)
    if as_json:
        import json

        document = result.to_document(spec=spec, bundle=bundle)
        sys.stdout.write(json.dumps(document, ensure_ascii=False, indent=2) + "\n")
    else:
        from mdr.cli.render_audit import render

        sys.stdout.write(render(found.name, result, spec, bundle))
    return 0 if min_grade is None or meets(result.grade, min_grade.upper()) else 1


def load(target: str, kind: Kind | None, settings: Settings) -> Target:
    """Read what the argument names.

    Raises:
        mdr.errors.UsageError: it cannot be read, is no file, or is too large.
        mdr.errors.BadReference: it is no path and no reference that the registry knows.
    """
    if target == "-":
        data = read_limited(sys.stdin.buffer.read, settings.limits.max_file_bytes, "standard input")
        return Target(name="-", data=data, kind=kind or Kind.SKILL, folder=None, files=None)
    path = Path(target)
    if os.path.lexists(path):
        return (
            from_folder(path, kind, settings.limits)
            if path.is_dir()
            else from_file(path, kind, settings.limits)
        )
    return from_registry(target, kind, settings)


def from_file(path: Path, kind: Kind | None, limits: Limits) -> Target:
    """Read one file."""
    data = read_file(path, limits.max_file_bytes)
    named = path.name in NAMED
    folder = path.resolve().parent.name if named else None
    return Target(name=str(path), data=data, kind=kind or kind_of(path), folder=folder, files=None)


def kind_of(path: Path) -> Kind:
    """Guess the kind of a file from its path; a skill when its path says nothing."""
    from mdr.artifact.kinds import row_of

    parts = path.parts[-4:]
    for start in range(len(parts)):
        row = row_of("/".join(parts[start:]))
        if row is not None:
            return row.kind
    return Kind.SKILL


def from_folder(path: Path, kind: Kind | None, limits: Limits) -> Target:
    """Read a skill's folder; symbolic links are recorded and never followed."""
    present = {entry.name for entry in os.scandir(path)}
    name = next((name for name in NAMED if name in present), None)
    if name is None:
        raise UsageError(
            "no-skill-file",
            f"{path} holds no SKILL.md",
            hint="name a file, or a folder with a SKILL.md in it",
            data={"path": str(path)},
        )
    data = read_file(path / name, limits.max_file_bytes)
    files = tuple(read_folder(path, limits))
    folder = path.resolve().name
    return Target(
        name=str(path / name), data=data, kind=kind or Kind.SKILL, folder=folder, files=files
    )


def read_folder(root: Path, limits: Limits) -> Iterator[tuple[str, str, bytes]]:
    """Yield (path, mode, bytes) of everything below a folder except ``.git``, within the limits."""
    total, pending, count = 0, [root], 0
    while pending:
        folder = pending.pop()
        for entry in sorted(os.scandir(folder), key=lambda item: os.fsencode(item.name)):
            path = Path(entry.path)
            if entry.is_dir(follow_symlinks=False):
                if entry.name != ".git":
                    pending.append(path)
                continue
            count += 1
            mode, data = read_entry(path, entry.stat(follow_symlinks=False), limits)
            total += len(data)
            if count > limits.max_folder_files or total > limits.max_folder_bytes:
                raise UsageError(
                    "folder-too-large",
                    f"{root} holds more than {limits.max_folder_files} files or {limits.max_folder_bytes} bytes",
                    hint="audit the SKILL.md alone: name the file instead of the folder",
                )
            yield path.relative_to(root).as_posix(), mode, data


def read_entry(path: Path, info: os.stat_result, limits: Limits) -> tuple[str, bytes]:
    """Return the git mode and the bytes of one entry of a folder."""
    if stat.S_ISLNK(info.st_mode):
        return "120000", os.fsencode(path.readlink())
    if not stat.S_ISREG(info.st_mode):
        return SPECIAL, b""
    mode = "100755" if info.st_mode & stat.S_IXUSR else "100644"
    return mode, read_file(path, limits.max_file_bytes)


def read_file(path: Path, limit: int) -> bytes:
    """Read a regular file within a limit; never opens a device or a pipe."""
    try:
        info = path.stat()
        if not stat.S_ISREG(info.st_mode):
            raise UsageError("not-a-file", f"{path} is not a file", data={"path": str(path)})
        with path.open("rb") as stream:
            return read_limited(stream.read, limit, str(path))
    except OSError as problem:
        raise UsageError(
            "unreadable",
            f"cannot read {path}: {problem.strerror or problem}",
            hint="check the path and its permissions",
            data={"path": str(path)},
        ) from problem


def read_limited(read: Callable[[int], bytes], limit: int, name: str) -> bytes:
    """Read at most ``limit`` bytes, and refuse when there are more."""
    data = read(limit + 1)
    if len(data) > limit:
        raise UsageError(
            "file-too-large",
            f"{name} has more than {limit} bytes",
            hint="no agent reads such a file whole",
            data={"limit": limit},
        )
    return data


def from_registry(reference: str, kind: Kind | None, settings: Settings) -> Target:
    """Read a version of a registry; a blob that it lacks is an error, never a file left out."""
    from mdr.errors import BadReference
    from mdr.reference.parse import parse
    from mdr.registry import open_registry
    from mdr.registry.showing import content, folder_content

    try:
        parsed = parse(reference)
    except BadReference as problem:
        raise BadReference(
            problem.code,
            f"no file {reference!r}, and as a reference: {problem.message}",
            hint=problem.hint,
            data=problem.data,
        ) from problem
    registry = open_registry(settings)
    resolved = registry.resolve(parsed)
    artifact = resolved.artifact

    return Target(
        name=f"{artifact.ref}@{resolved.version.label}",
        data=content(registry, resolved.version),
        kind=kind or artifact.kind,
        folder=artifact.folder.rpartition("/")[2] or None,
        files=folder_content(registry, resolved) if artifact.kind is Kind.SKILL else None,
    )
