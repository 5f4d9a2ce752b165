"""A registry with real bytes for tests of the client: in memory, and as a folder for other processes.

It implements the registry protocol over versions that a test writes down, answers whatever the test
tells it to (lies included), and counts nothing, grades nothing, checks nothing: that is the client's job.
"""

from __future__ import annotations

import pickle
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from mdr.artifact.types import Artifact, Kind
from mdr.audit.run import audit
from mdr.digest import Sha256, sha256
from mdr.errors import BadReference, MdrError
from mdr.install.lock import Entry, Pin, Scope, Target, display_name
from mdr.reference.types import DigestPrefix, Label
from mdr.registry.interface import Resolved, SourceInfo
from mdr.version.types import (
    FileEntry,
    FileMode,
    FolderRevision,
    Version,
    in_path_order,
    manifest_sha256,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

    from mdr.reference.types import Reference

BODY = (
    "Read the log first. Then change one thing and measure again, on every rank, with a control.\n"
)


def skill_text(name: str, more: str = "") -> bytes:
    """Return a SKILL.md of grade A, longer than the 200 bytes that check 4 asks for."""
    head = f"---\nname: {name}\ndescription: Says how to do {name}, step by step.\n---\n# {name}\n"
    return (head + BODY * 3 + more).encode()


def file_entry(path: str, data: bytes, mode: FileMode = FileMode.REGULAR) -> FileEntry:
    return FileEntry(path=path, mode=mode, size=len(data), sha256=sha256(data))


def lock_entry(name: str = "demo", **changes: object) -> Entry:
    """Return an entry that the strict reader accepts."""
    files = in_path_order(
        [
            file_entry("SKILL.md", f"skill {name}".encode()),
            file_entry("scripts/run.sh", b"#!/bin/sh\n", FileMode.EXECUTABLE),
        ]
    )
    base = Entry(
        ref=f"acme/skills/{name}",
        host="github.com",
        repository="Acme/Skills",
        path=f"skills/{name}/SKILL.md",
        kind=Kind.SKILL,
        pin=Pin.LABEL,
        label="git:20260817.d36ff70",
        commit="d36ff70" + "0" * 33,
        sha256=files[0].sha256,
        size=files[0].size,
        manifest_sha256=manifest_sha256(files),
        ruleset="r1",
        grade="A",
        targets=(
            Target(scope=Scope.PROJECT, agent="claude"),
            Target(scope=Scope.USER, agent="codex"),
        ),
        files=files,
    )
    return replace(base, **changes)  # type: ignore[arg-type]


@dataclass(slots=True)
class Held:
    """One artifact and its versions, newest first."""

    artifact: Artifact
    versions: list[tuple[Version, tuple[FileEntry, ...]]] = field(default_factory=list)
    source: SourceInfo = field(default_factory=SourceInfo)


@dataclass(slots=True)
class Simulator:
    """Implements mdr.registry.interface.Registry."""

    held: list[Held] = field(default_factory=list)
    blobs: dict[Sha256, bytes] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    def add(
        self,
        name: str,
        files: Mapping[str, bytes | tuple[bytes, FileMode]] | None = None,
        *,
        repository: str = "Acme/Skills",
        host: str = "github.com",
        path: str | None = None,
        kind: Kind = Kind.SKILL,
        day: str = "20260101",
        grade: str | None = None,
        license_id: str | None = "Apache-2.0",
    ) -> Version:
        """Add the newest version of an artifact; returns it. ``grade`` is a claim, true by default."""
        path = path or f"skills/{name}/SKILL.md"
        content = files if files is not None else {"SKILL.md": skill_text(name)}
        entries = []
        for file_path, value in content.items():
            data, mode = value if isinstance(value, tuple) else (value, FileMode.REGULAR)
            self.blobs[sha256(data)] = data
            entries.append(file_entry(file_path, data, mode))
        named = next(entry for entry in entries if entry.path == path.rpartition("/")[2])
        held = self._artifact(host, repository, path, kind, license_id)
        commit = sha256(f"{repository}{path}{day}{len(held.versions)}".encode())[:40]
        version = Version(
            label=f"git:{day}.{commit[:7]}",
            latest=True,
            committed=f"{day[:4]}-{day[4:6]}-{day[6:]}T12:00:00Z",
            commit=commit,
            size=named.size,
            sha256=named.sha256,
            manifest_sha256=manifest_sha256(entries),
            grade=grade or audit(self.blobs[named.sha256], kind=kind, ruleset="r1").grade,
            ruleset="r1",
        )
        held.versions = [(replace(old, latest=False), listed) for old, listed in held.versions]
        held.versions.insert(0, (version, in_path_order(entries)))
        held.artifact = replace(held.artifact, latest=version.label)
        return version

    def revise_folder(self, name: str) -> None:
        """Say that the folder of the newest version changed later, without a new version."""
        held = next(h for h in self.held if h.artifact.name == name)
        version, files = held.versions[0]
        revision = FolderRevision(
            commit="f" * 40, committed="2026-12-01T00:00:00Z", manifest_sha256=sha256(b"revised")
        )
        held.versions[0] = (replace(version, folder_revisions=(revision,)), files)

    def _artifact(
        self, host: str, repository: str, path: str, kind: Kind, license_id: str | None
    ) -> Held:
        for held in self.held:
            if (held.artifact.host, held.artifact.repository, held.artifact.path) == (
                host,
                repository,
                path,
            ):
                return held
        artifact = Artifact(
            host=host,
            repository=repository,
            path=path,
            name=display_name(repository, path, is_skill=kind is Kind.SKILL),
            kind=kind,
        )
        held = Held(artifact, source=SourceInfo(license=license_id))
        self.held.append(held)
        return held

    def _find(self, reference: Reference) -> Held:
        wanted = (reference.host, reference.repository.lower())
        found = [
            held
            for held in self.held
            if (held.artifact.host, held.artifact.repository.lower()) == wanted
            and reference.path in {None, held.artifact.path}
            and (reference.name or held.artifact.name).lower() == held.artifact.name.lower()
        ]
        if not found:
            raise BadReference("not-found", f"no {reference.name or reference.path}")
        if len(found) > 1:
            refs = [f"{h.artifact.repository.lower()}:{h.artifact.path}" for h in found]
            raise BadReference("ambiguous-reference", "several", data={"candidates": refs})
        return found[0]

    def resolve(self, reference: Reference) -> Resolved:
        held = self._find(reference)
        for version, files in held.versions:
            match reference.selector:
                case Label(label=label):
                    fits = version.label == label
                case DigestPrefix(digits=digits):
                    fits = version.sha256.startswith(digits)
                case _:
                    fits = True
            if fits:
                return Resolved(
                    artifact=held.artifact,
                    version=version,
                    files=files,
                    source=held.source,
                    notes=self.notes,
                )
        raise BadReference("not-found", "no such version")

    def versions(self, reference: Reference) -> tuple[Artifact, tuple[Version, ...]]:
        held = self._find(reference)
        return held.artifact, tuple(version for version, _ in held.versions)

    def files(self, reference: Reference) -> tuple[FileEntry, ...]:
        return self.resolve(reference).files

    def blob(self, digest: Sha256) -> bytes | None:
        return self.blobs.get(digest)

    def each_blob(self, digests: Sequence[Sha256]) -> Iterator[bytes | MdrError | None]:
        return (self.blob(digest) for digest in digests)

    def find_by_content(self, digests: Sequence[Sha256]) -> dict[Sha256, tuple[Resolved, ...]]:
        return {
            digest: found
            for digest in digests
            if (
                found := tuple(
                    Resolved(artifact=h.artifact, version=v, files=files, source=h.source)
                    for h in self.held
                    for v, files in h.versions
                    if v.sha256 == digest
                )
            )
        }

    def save(self, path: Path) -> None:
        """Write the whole registry to a file of the test's own."""
        path.write_bytes(pickle.dumps((self.held, self.blobs, self.notes)))
