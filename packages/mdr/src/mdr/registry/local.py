"""The registry in the data folder of this machine: references become exact versions here."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import unquote, urlsplit

from mdr.errors import BadReference, MdrError, UsageError
from mdr.reference.types import DigestPrefix, Label, Latest, Reference
from mdr.registry.interface import Resolved, SourceInfo
from mdr.registry.stores import Stores, open_stores
from mdr.source.locate import GITHUB, LOCAL

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from mdr.artifact.types import Artifact
    from mdr.digest import Sha256
    from mdr.settings import Settings
    from mdr.store.rows import SourceRow
    from mdr.store.search import Page, Query
    from mdr.version.types import FileEntry, Version

MAX_CANDIDATES = 20
MAX_NEAR = 50
"""Names on each side, in the order of names, that a name which is not held is compared with."""


def settings_for(settings: Settings) -> Settings:
    """Point ``data`` at the folder that ``registry`` names; such a folder is only read."""
    if settings.registry is None:
        return settings
    parts = urlsplit(settings.registry)
    if parts.scheme != "file" or parts.netloc not in {"", "localhost"}:
        raise UsageError(
            "registry-unsupported",
            f"cannot use the registry {settings.registry!r} here: it is no file:///DIR",
            hint="leave out --registry and MDR_REGISTRY to use the local data folder",
        )
    return replace(
        settings,
        data=Path(unquote(parts.path)),
        registry=None,
        database=None,  # these are of the own data folder
        blobs=None,
        read_only=True,
        index_on_demand=False,
    )


class LocalRegistry:
    """Implements :class:`mdr.registry.interface.Registry` over blob store and index."""

    def __init__(self, settings: Settings, stores: Stores | None = None) -> None:
        """Take stores that a server holds open already, or open them on first use."""
        self._settings = settings
        self._opened = stores

    def resolve(self, reference: Reference) -> Resolved:
        """Return the exact version a reference means.

        Raises:
            mdr.errors.BadReference: not-found, ambiguous-reference, digest-too-short.
            mdr.errors.Refusal: tombstone, when a file of the version was withdrawn.
            mdr.errors.SourceError: when the repository had to be indexed and could not be.
        """
        source, artifact, version, versions = self._find(reference)
        notes = notes_of(artifact, version, versions, reference)
        resolved = self._resolved(artifact, version, source, notes)
        self._serve(version.sha256, *(each.sha256 for each in resolved.files))
        return resolved

    def _find(
        self, reference: Reference
    ) -> tuple[SourceRow, Artifact, Version, tuple[Version, ...]]:
        source = self._source(reference)
        candidates = self._candidates(source, reference)
        versions = self._stores.index.versions_of(candidates, _ruleset())
        matches = [
            (artifact, chosen)
            for artifact in candidates
            if (chosen := _choose(versions.get(artifact.id, ()), reference)) is not None
        ]
        artifact, version = self._only(matches, reference)
        return source, artifact, version, versions[artifact.id]

    def versions(self, reference: Reference) -> tuple[Artifact, tuple[Version, ...]]:
        """Return an artifact and all its versions, newest first.

        Raises:
            mdr.errors.BadReference: not-found, ambiguous-reference.
        """
        _, artifact, _, found = self._find(reference)
        return artifact, self._graded(artifact, found)

    def files(self, reference: Reference) -> tuple[FileEntry, ...]:
        """Return the files of the version that a reference means."""
        return self.resolve(reference).files

    def blob(self, digest: Sha256) -> bytes | None:
        """Return the verified bytes of a hash, ``None`` when this folder does not hold them.

        Raises:
            mdr.errors.IntegrityError: blob-corrupt.
            mdr.errors.Refusal: tombstone.
        """
        stores = self._open(create=False)
        if stores is None:
            return None
        self._serve(digest)
        return stores.blobs.get(digest)

    def each_blob(self, digests: Sequence[Sha256]) -> Iterator[bytes | MdrError | None]:
        """Yield the bytes of each hash; the index is asked once about all of them."""
        from mdr.registry.withdrawals import withdrawn

        stores = self._open(create=False)
        if stores is None:
            yield from (None for _ in digests)
            return
        buried = stores.index.tombstones(digests)
        for digest in digests:
            if digest in buried:
                yield withdrawn(buried[digest])
                continue
            try:
                yield stores.blobs.get(digest)
            except MdrError as error:
                yield error

    def badge_views(self, artifact_ids: Sequence[str]) -> Mapping[str, int]:
        """Return the loads of badges that a server over these stores counted in the last 30 days."""
        from datetime import UTC, datetime

        from mdr.store.badges import views_30d

        stores = self._open(create=False)
        if stores is None:
            return {}
        return views_30d(stores.index, artifact_ids, datetime.now(UTC).date())

    def find_by_content(self, digests: Sequence[Sha256]) -> dict[Sha256, tuple[Resolved, ...]]:
        """Return, for each hash of a named file, the newest version of every artifact that has it."""
        stores = self._open(create=False)
        if stores is None:
            return {}
        from mdr.store.together import together

        index = stores.index
        found: dict[Sha256, list[Resolved]] = {}
        with together(index.engine):
            having = self._having(list(dict.fromkeys(digests)))
            held = index.sources_of([artifact.id for artifact, _ in having])
            index.manifests([version.manifest_sha256 for _, version in having])
            for artifact, version in having:
                resolved = self._resolved(artifact, version, held[artifact.id], ())
                found.setdefault(version.sha256, []).append(resolved)
        return {digest: tuple(each) for digest, each in found.items()}

    def _having(self, digests: Sequence[Sha256]) -> list[tuple[Artifact, Version]]:
        """Return every artifact with the newest of its versions for each hash that it has."""
        index, wanted = self._stores.index, set(digests)
        artifacts = index.artifacts_with(digests)
        versions = index.versions_of(artifacts, _ruleset())
        found = []
        for artifact in artifacts:
            newest: dict[Sha256, Version] = {}
            for version in versions[artifact.id]:
                if version.sha256 in wanted:
                    newest.setdefault(version.sha256, version)
            found += [(artifact, version) for version in newest.values()]
        return found

    def search(self, query: Query) -> Page:
        """Find artifacts by words and facets.

        Raises:
            mdr.errors.UsageError: bad-cursor.
        """
        from mdr.store.search import nothing

        stores = self._open(create=False)
        return nothing(query) if stores is None else stores.search.search(query, _ruleset())

    def refresh(self, host: str, repository: str) -> bool:
        """Index a held repository again from where it came; say whether anything could be asked.

        Raises:
            mdr.errors.MdrError: whatever :func:`mdr.registry.indexing.index_source` raises.
        """
        stores = self._open(create=False)
        source = stores.index.source(host, repository) if stores is not None else None
        if source is None or not self._settings.index_on_demand:
            return False
        from mdr.registry.indexing import index_source

        name_as = f"{source.host}/{source.repository}"
        index_source(source.location, self._settings, name_as=name_as)
        return True

    def _serve(self, *digests: Sha256) -> None:
        """Refuse bytes that were withdrawn from everyone."""
        from mdr.registry.withdrawals import refuse_tombstones

        refuse_tombstones(self._stores, digests)

    @property
    def _stores(self) -> Stores:
        stores = self._open(create=False)
        assert stores is not None  # _source has found something in it
        return stores

    def _open(self, *, create: bool) -> Stores | None:
        if self._opened is None:
            self._opened = open_stores(self._settings, create=create)
        return self._opened

    def _source(self, reference: Reference) -> SourceRow:
        """Find the repository, indexing it from its host when it is not held."""
        stores = self._open(create=False)
        found = stores.index.source(reference.host, reference.repository) if stores else None
        if found is not None:
            return found
        if not self._settings.index_on_demand or reference.host == LOCAL:
            raise BadReference(
                "not-found",
                f"{_where(reference)} is not indexed here",
                hint=f"run: mdr index {_address(reference)}",
                data={"host": reference.host, "repository": reference.repository},
            )
        from mdr.registry.indexing import index_source

        done = index_source(_address(reference), self._settings)
        stores = self._open(create=True)
        assert stores is not None
        found = stores.index.source(done.host, done.repository)
        assert found is not None
        return found

    def _candidates(self, source: SourceRow, reference: Reference) -> list[Artifact]:
        index = self._stores.index
        if reference.path is not None:
            found = exact = index.artifacts_at(source.id, reference.path)
        else:
            assert reference.name is not None
            found = index.artifacts_named(source.id, reference.name)
            exact = [each for each in found if each.name == reference.name]
        if not found:
            raise self._not_found(source, reference)
        return exact or found

    def _not_found(self, source: SourceRow, reference: Reference) -> BadReference:
        import difflib

        wanted = reference.name or reference.path or ""
        names = set(self._stores.index.names_beside(source.id, wanted, MAX_NEAR))
        near = difflib.get_close_matches(wanted, sorted(names), n=3)
        hint = (
            f"did you mean {', '.join(near)}?"
            if near
            else f"run: mdr search --owner {source.repository.partition('/')[0].lower()}"
        )
        return BadReference(
            "not-found",
            f"{_where(reference)} has no artifact {wanted!r}",
            hint=hint,
            data={"repository": source.repository, "wanted": wanted, "near": near},
        )

    def _only(
        self, matches: list[tuple[Artifact, Version]], reference: Reference
    ) -> tuple[Artifact, Version]:
        """Pick the one that is meant: a file that exists goes before files that were deleted."""
        if not matches:
            raise BadReference(
                "not-found",
                f"{_where(reference)} has no such version of {reference.name or reference.path!r}",
                hint="run mdr show on the reference without @ to see the versions",
                data={"repository": reference.repository},
            )
        present = [match for match in matches if match[0].present]
        chosen = present or matches
        if len(chosen) > 1:
            refs = [f"{_where(reference)}:{artifact.path}" for artifact, _ in chosen]
            raise BadReference(
                "ambiguous-reference",
                f"{reference.name or reference.path!r} names {len(chosen)} artifacts of {_where(reference)}",
                hint="name one by its path: " + ", ".join(refs[:3]),
                data={"candidates": refs[:MAX_CANDIDATES]},
            )
        return chosen[0]

    def _resolved(
        self, artifact: Artifact, version: Version, source: SourceRow, notes: tuple[str, ...]
    ) -> Resolved:
        index = self._stores.index
        files = index.manifest(version.manifest_sha256)
        assert files is not None  # written in the transaction that wrote the version
        omitted = tuple(
            f"left out of the folder: {each.path} ({each.reason})"
            for each in index.omitted(artifact.id, version.label)
        )
        (graded,) = self._graded(artifact, [version])
        return Resolved(
            artifact=artifact,
            version=graded,
            files=files,
            source=source_info(source),
            notes=notes + omitted,
        )

    def _graded(self, artifact: Artifact, versions: Sequence[Version]) -> tuple[Version, ...]:
        """Grade here what was indexed under an older ruleset."""
        if all(each.grade for each in versions):
            return tuple(versions)
        from mdr.registry.regrading import graded_now

        return graded_now(self._stores, artifact.kind, versions, _ruleset())


def source_info(source: SourceRow) -> SourceInfo:
    """Turn a row into what readers see of a source."""
    return SourceInfo(
        stars=source.stars,
        license=source.license,
        pushed=source.pushed,
        branch=source.branch,
        indexed_commit=source.head,
        on_disk=source.location.startswith("/"),
    )


def _choose(versions: Sequence[Version], reference: Reference) -> Version | None:
    """Return the version that the selector means, ``None`` when there is none.

    Raises:
        mdr.errors.BadReference: ambiguous-reference, when a hash prefix fits different bytes.
    """
    match reference.selector:
        case Latest():  # not always the first: a version that was yanked is not offered
            return next((each for each in versions if each.latest), None)
        case Label(label=label):
            return next((each for each in versions if each.label == label), None)
        case DigestPrefix(digits=digits):
            found = [each for each in versions if each.sha256.startswith(digits)]
            different = sorted({each.sha256 for each in found})
            if len(different) > 1:
                raise BadReference(
                    "ambiguous-reference",
                    f"{len(different)} different files have a SHA-256 that begins with {digits}",
                    hint="give more digits",
                    data={"candidates": different[:MAX_CANDIDATES]},
                )
            return found[0] if found else None


def notes_of(
    artifact: Artifact, version: Version, versions: Sequence[Version], reference: Reference
) -> tuple[str, ...]:
    """Return what a person should be told about a resolved version; ``versions`` are newest first."""
    notes = []
    if version.yanked is not None:
        notes.append(f"{version.label} was yanked: {version.yanked.reason}")
    elif isinstance(reference.selector, Latest) and version != versions[0]:
        notes.append(f"{versions[0].label} is newer and was withdrawn{_why(versions[0])}")
    if isinstance(reference.selector, DigestPrefix) and version.same_bytes:
        others = ", ".join(version.same_bytes)
        notes.append(
            f"these bytes have several labels; {version.label} is the newest (also {others})"
        )
    if version.folder_revisions:
        count = len(version.folder_revisions)
        changes = "1 later commit" if count == 1 else f"{count} later commits"
        notes.append(f"{changes} changed the folder and left {artifact.path} alone")
    if not artifact.present:
        notes.append(f"{artifact.path} no longer exists at the head of its repository")
    return tuple(notes)


def _why(version: Version) -> str:
    return f": {version.yanked.reason}" if version.yanked is not None else ""


def _where(reference: Reference) -> str:
    prefix = "" if reference.host == GITHUB else f"{reference.host}/"
    return f"{prefix}{reference.repository}"


def _address(reference: Reference) -> str:
    if reference.host == GITHUB:
        return f"github:{reference.repository}"
    if reference.host == LOCAL:
        return "PATH --as owner/repo"
    return f"https://{reference.host}/{reference.repository}"


def _ruleset() -> str:
    from mdr.audit import newest

    return newest.LATEST
