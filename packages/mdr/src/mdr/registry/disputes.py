"""Disputes about a check's verdict, and claims of a repository by its owner: kept for people to decide."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from mdr.errors import BadReference, UsageError
from mdr.registry.events import now, record

if TYPE_CHECKING:
    from collections.abc import Mapping

    from sqlalchemy import Table

    from mdr.artifact.types import Artifact
    from mdr.registry.stores import Stores

STATES: Final = ("open", "accepted", "rejected")
MAX_TEXT: Final = 10_000
MAX_LIMIT: Final = 1_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Dispute:
    """Someone says that a check is wrong about a version."""

    id: int
    artifact_id: str
    label: str
    sha256: str
    check: str
    """Id of a check of the audit."""
    text: str
    contact: str | None
    """How to answer; never shown to other readers."""
    at: str
    state: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """Someone says that a repository is theirs."""

    id: int
    host: str
    repository: str
    claimant: str
    proof: str
    """What shows it, such as the address of a commit or a file in the repository."""
    state: str
    at: str


def dispute(
    stores: Stores,
    artifact: Artifact,
    label: str,
    *,
    check: str,
    text: str,
    contact: str | None = None,
    by: str,
) -> Dispute:
    """Open a dispute about one check of one version.

    Raises:
        mdr.errors.BadReference: not-found.
        mdr.errors.UsageError: unknown-check, bad-text.
        mdr.errors.StoreError: store-unwritable.
    """
    from mdr.audit.rulesets import LATEST, ruleset_of
    from mdr.store.schema import disputes as table

    known = [each.id for each in ruleset_of(LATEST)]
    if check not in known:
        raise UsageError(
            "unknown-check",
            f"there is no check {check[:80]!r}",
            hint="checks are " + ", ".join(known),
        )
    found = next((v for v in stores.index.versions(artifact, "") if v.label == label), None)
    if found is None:
        raise BadReference(
            "not-found",
            f"{artifact.ref} has no version {label}",
            hint=f"run mdr show {artifact.ref} to see its versions",
        )
    values: dict[str, Any] = {
        "artifact_id": artifact.id,
        "label": label,
        "sha256": found.sha256,
        "check": check,
        "text": _text(text, "text"),
        "contact": None if contact is None else _text(contact, "contact"),
        "at": now(),
        "state": "open",
    }
    told = {"label": label, "check": check}
    number = _insert(stores, table, values, ("dispute.open", artifact.ref, by, told))
    return Dispute(id=number, **values)


def disputes(
    stores: Stores, *, artifact_id: str | None = None, state: str | None = None, limit: int = 100
) -> tuple[Dispute, ...]:
    """Return disputes, newest first."""
    from mdr.store.schema import disputes as table

    wanted = {"artifact_id": artifact_id, "state": state}
    return tuple(Dispute(**row) for row in _select(stores, table, wanted, limit))


def settle_dispute(stores: Stores, number: int, *, state: str, by: str) -> Dispute:
    """Decide a dispute, or open it again.

    Raises:
        mdr.errors.BadReference: not-found.
        mdr.errors.UsageError: bad-state.
    """
    from mdr.store.schema import disputes as table

    return Dispute(**_settle(stores, table, number, state, by, "dispute"))


def claim(
    stores: Stores, *, host: str, repository: str, claimant: str, proof: str, by: str
) -> Claim:
    """Note that someone claims a repository that is held.

    Raises:
        mdr.errors.BadReference: not-found.
        mdr.errors.UsageError: bad-text.
    """
    from mdr.store.schema import claims as table

    source = stores.index.source(host, repository)
    if source is None:
        raise BadReference(
            "not-found", f"{repository} of {host} is not indexed here", hint="add it first"
        )
    values = {
        "host": source.host,
        "repository": source.repository,
        "claimant": _text(claimant, "claimant"),
        "proof": _text(proof, "proof"),
        "state": "open",
        "at": now(),
    }
    told = {"claimant": values["claimant"]}
    number = _insert(stores, table, values, ("claim.open", source.repository, by, told))
    return Claim(id=number, **values)


def claims(stores: Stores, *, state: str | None = None, limit: int = 100) -> tuple[Claim, ...]:
    """Return claims, newest first."""
    from mdr.store.schema import claims as table

    return tuple(Claim(**row) for row in _select(stores, table, {"state": state}, limit))


def settle_claim(stores: Stores, number: int, *, state: str, by: str) -> Claim:
    """Decide a claim, or open it again.

    Raises:
        mdr.errors.BadReference: not-found.
        mdr.errors.UsageError: bad-state.
    """
    from mdr.store.schema import claims as table

    return Claim(**_settle(stores, table, number, state, by, "claim"))


def _insert(
    stores: Stores,
    table: Table,
    values: Mapping[str, Any],
    told: tuple[str, str, str, Mapping[str, Any]],
) -> int:
    from sqlalchemy import insert

    from mdr.store.engine import writing

    action, subject, by, details = told
    with writing(stores.index.engine) as connection:
        key = connection.execute(insert(table).values(**values)).inserted_primary_key
        assert key is not None
        number = int(key[0])
        noted = {"id": number, **details}
        record(connection, actor=by, action=action, subject=subject, details=noted)
    return number


def _select(
    stores: Stores, table: Table, wanted: Mapping[str, str | None], limit: int
) -> list[dict[str, Any]]:
    from sqlalchemy import select

    where = [table.c[name] == value for name, value in wanted.items() if value is not None]
    statement = select(table).where(*where).order_by(table.c.id.desc())
    with stores.index.reading() as connection:
        rows = connection.execute(statement.limit(max(1, min(limit, MAX_LIMIT))))
        return [dict(row) for row in rows.mappings()]


def _settle(  # noqa: PLR0917 - one row, its new state, and who says so
    stores: Stores, table: Table, number: int, state: str, by: str, noun: str
) -> dict[str, Any]:
    from sqlalchemy import select, update

    from mdr.store.engine import writing

    if state not in STATES:
        raise UsageError("bad-state", f"there is no state {state!r}", hint=", ".join(STATES))
    with writing(stores.index.engine) as connection:
        changed = update(table).where(table.c.id == number).values(state=state)
        if not connection.execute(changed).rowcount:
            raise BadReference("not-found", f"there is no {noun} {number}", hint="list them first")
        record(
            connection,
            actor=by,
            action=f"{noun}.settle",
            subject=str(number),
            details={"state": state},
        )
        row = connection.execute(select(table).where(table.c.id == number)).mappings().one()
        return dict(row)


def _text(text: str, what: str) -> str:
    words = text.strip()
    if not words or len(words) > MAX_TEXT or "\x00" in words:
        raise UsageError(
            "bad-text",
            f"the {what} is empty, too long, or no text",
            hint=f"write between 1 and {MAX_TEXT:,} characters",
            data={"field": what},
        )
    return words
