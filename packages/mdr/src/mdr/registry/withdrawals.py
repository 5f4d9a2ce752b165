"""Take versions back: a yank for those who choose, a tombstone for everyone.

================  ===========================================================================
yank              the version stays for whoever names its label or hash, with a warning;
                  ``latest`` and search mean the newest one that is not yanked
tombstone         nobody gets the bytes any more, under any label, in any folder: readers
                  are told the hash and the reason (HTTP 451)
================  ===========================================================================

Both can be lifted, both leave a line in the audit trail, and no row is ever removed.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from mdr.digest import Sha256, is_sha256
from mdr.errors import BadReference, IntegrityError, Refusal, UsageError
from mdr.registry.documents import tombstone_document
from mdr.registry.events import now, record
from mdr.version.types import Tombstone

if TYPE_CHECKING:
    from collections.abc import Iterable

    from sqlalchemy import Connection

    from mdr.artifact.types import Artifact
    from mdr.registry.stores import Stores

MAX_REASON = 2_000
MAX_ADVISORY = 400


def yank(stores: Stores, artifact: Artifact, label: str, *, reason: str, by: str) -> None:
    """Yank one version; a yanked one only gets the new reason.

    Args:
        stores: Where.
        artifact: Whose.
        label: Which version.
        reason: What people are told.
        by: Who.

    Raises:
        mdr.errors.BadReference: not-found.
        mdr.errors.UsageError: bad-reason.
        mdr.errors.StoreError: store-unwritable.
    """
    from mdr.store.engine import writing
    from mdr.store.withdrawn import YANK

    words = _reason(reason)
    with writing(stores.index.engine) as connection:
        digest = _digest_of(connection, artifact, label)
        _lift(connection, YANK, artifact_id=artifact.id, label=label)
        _insert(connection, YANK, artifact_id=artifact.id, label=label, sha256=digest, reason=words, by=by)  # fmt: skip
        told = {"label": label, "sha256": digest, "reason": words}
        record(connection, actor=by, action="version.yank", subject=artifact.ref, details=told)
        _settle(stores, connection, [artifact.id])


def unyank(stores: Stores, artifact: Artifact, label: str, *, by: str) -> None:
    """Offer a yanked version again.

    Raises:
        mdr.errors.BadReference: not-found, when it is not yanked.
    """
    from mdr.store.engine import writing
    from mdr.store.withdrawn import YANK

    with writing(stores.index.engine) as connection:
        if not _lift(connection, YANK, artifact_id=artifact.id, label=label):
            raise BadReference(
                "not-found",
                f"{artifact.ref}@{label} is not yanked",
                hint=f"run mdr show {artifact.ref} to see its versions",
            )
        told = {"label": label}
        record(connection, actor=by, action="version.unyank", subject=artifact.ref, details=told)
        _settle(stores, connection, [artifact.id])


def tombstone(
    stores: Stores, digest: Sha256, *, reason: str, advisory: str | None = None, by: str
) -> None:
    """Serve these bytes to nobody from now on, held already or not.

    Args:
        stores: Where.
        digest: SHA-256 of a file: an artifact's own or one beside it.
        reason: What people are told.
        advisory: Identifier or address of an advisory.
        by: Who.

    Raises:
        mdr.errors.UsageError: bad-hash, bad-reason.
        mdr.errors.StoreError: store-unwritable.
    """
    from mdr.store.engine import writing
    from mdr.store.withdrawn import TOMBSTONE

    words = _reason(reason)
    told_by = None if advisory is None else _advisory(advisory)
    _full(digest)
    with writing(stores.index.engine) as connection:
        _lift(connection, TOMBSTONE, sha256=digest)
        _insert(connection, TOMBSTONE, sha256=digest, reason=words, advisory=told_by, by=by)
        told = {"reason": words, "advisory": told_by}
        record(connection, actor=by, action="blob.tombstone", subject=digest, details=told)
        _settle(stores, connection, _artifacts_with(connection, digest))


def lift(stores: Stores, digest: Sha256, *, by: str) -> None:
    """Take a tombstone away.

    Raises:
        mdr.errors.UsageError: bad-hash.
        mdr.errors.BadReference: not-found, when there is none.
    """
    from mdr.store.engine import writing
    from mdr.store.withdrawn import TOMBSTONE

    _full(digest)
    with writing(stores.index.engine) as connection:
        if not _lift(connection, TOMBSTONE, sha256=digest):
            raise BadReference(
                "not-found",
                f"{digest[:16]} has no tombstone",
                hint="check the hash; mdr show prints all digits with --json",
            )
        record(connection, actor=by, action="blob.lift", subject=digest)
        _settle(stores, connection, _artifacts_with(connection, digest))


def tombstone_of(stores: Stores, digest: Sha256) -> Tombstone | None:
    """Return why these bytes are not served, ``None`` when they are."""
    return stores.index.tombstones([digest]).get(digest)


def refuse_tombstones(stores: Stores, digests: Iterable[Sha256]) -> None:
    """Raise when one of some hashes has a tombstone.

    Raises:
        mdr.errors.Refusal: tombstone, with the fields of :class:`mdr.version.types.Tombstone` as data.
    """
    for found in stores.index.tombstones(digests).values():
        raise withdrawn(found)


def withdrawn(tombstone: Tombstone) -> Refusal:
    """Describe bytes that are no longer served: ``tombstone``."""
    seen = f"see {tombstone.advisory}; " if tombstone.advisory else ""
    return Refusal(
        "tombstone",
        f"sha256:{tombstone.sha256[:16]} is withdrawn: {tombstone.reason}",
        hint=f"{seen}choose another version; whoever has these bytes should remove them",
        data=tombstone_document(tombstone),
    )


def _settle(stores: Stores, connection: Connection, ids: Iterable[str]) -> None:
    """Let artifacts show the version that is offered now: label, hash, description, search."""
    from sqlalchemy import update

    from mdr.registry.telling import document, tell
    from mdr.store.schema import artifacts
    from mdr.store.state import changed
    from mdr.store.withdrawn import newest_offered, tombstones, version_rows

    documents = []
    for key in ids:
        shown = stores.index.artifact(key)
        rows = version_rows(connection, key)
        if shown is None or not rows:
            continue
        row = newest_offered(connection, {key: rows})[key]
        digest = Sha256(row["sha256"])
        data = None if tombstones(connection, [digest]) else _bytes(stores, digest)
        told = None if data is None else tell(data)
        description = None if told is None else told.description
        described = replace(shown, latest=row["label"], description=description)
        values = {
            "latest": described.latest,
            "latest_sha256": digest,
            "description": described.description,
        }
        connection.execute(update(artifacts).where(artifacts.c.id == key).values(**values))
        documents.append(document(described, digest, data, told))
    stores.search.refresh(connection, documents)
    changed(connection)


def _bytes(stores: Stores, digest: Sha256) -> bytes | None:
    try:
        return stores.blobs.get(digest)
    except IntegrityError:
        return None  # fsck tells and repairs that


def _digest_of(connection: Connection, artifact: Artifact, label: str) -> Sha256:
    from mdr.store.withdrawn import version_rows

    for row in version_rows(connection, artifact.id):
        if row["label"] == label:
            return Sha256(row["sha256"])
    raise BadReference(
        "not-found",
        f"{artifact.ref} has no version {label}",
        hint=f"run mdr show {artifact.ref} to see its versions",
    )


def _artifacts_with(connection: Connection, digest: Sha256) -> list[str]:
    from sqlalchemy import select

    from mdr.store.schema import versions

    found = select(versions.c.artifact_id).where(versions.c.sha256 == digest).distinct()
    return sorted(connection.execute(found).scalars())


def _insert(connection: Connection, state: str, **values: Any) -> None:
    from sqlalchemy import insert

    from mdr.store.schema import withdrawals

    connection.execute(insert(withdrawals).values(state=state, at=now(), **values))


def _lift(connection: Connection, state: str, **where: str) -> bool:
    """End what holds; say whether anything did."""
    from sqlalchemy import update

    from mdr.store.schema import withdrawals
    from mdr.store.withdrawn import active

    chosen = [withdrawals.c[name] == value for name, value in where.items()]
    statement = update(withdrawals).where(active(state), *chosen).values(lifted_at=now())
    return connection.execute(statement).rowcount > 0


def _reason(text: str) -> str:
    words = " ".join(text.split())
    if not words or len(words) > MAX_REASON or not words.isprintable():
        raise UsageError(
            "bad-reason",
            f"a reason is one line of text, at most {MAX_REASON:,} characters",
            hint="say what people should know, and what to use instead",
        )
    return words


def _advisory(text: str) -> str:
    """Read an identifier or address: it goes into headers, pages and terminals as it is."""
    word = text.strip()
    if not word or len(word) > MAX_ADVISORY or not word.isprintable():
        raise UsageError(
            "bad-reason",
            f"an advisory is one identifier or address, at most {MAX_ADVISORY} characters",
            hint="such as GHSA-xxxx-xxxx-xxxx or https://...",
        )
    return word


def _full(digest: str) -> None:
    if not is_sha256(digest):
        raise UsageError(
            "bad-hash",
            f"{digest[:80]!r} is not a SHA-256",
            hint="give all 64 digits, lower case",
        )
