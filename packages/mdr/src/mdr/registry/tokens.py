"""Tokens: who may write, and what. Only the SHA-256 of a secret is kept; it is shown once.

A secret is ``mdr_`` and 43 characters of base64url (256 random bits), then 6 hexadecimal digits of the
CRC-32 over what comes before, so that a scanner of leaked secrets, and we, know one without asking a
database.
"""

from __future__ import annotations

import base64
import json
import secrets
import zlib
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Final

from mdr.digest import sha256
from mdr.errors import MdrError, Refusal, UsageError
from mdr.registry.events import now, record

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from mdr.registry.stores import Stores

SCOPES: Final = (
    "sources:write",
    "versions:yank",
    "versions:tombstone",
    "disputes:write",
    "claims:write",
    "admin",
)
"""What a token may do; ``admin`` means everything."""
PREFIX: Final = "mdr_"
MAX_NAME: Final = 200
USE_NOTED_EVERY: Final = timedelta(hours=1)
"""How exact ``last_used`` is; a write at each request would cost more than it tells."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Token:
    """What is known of a token; never its secret. Times are RFC 3339 UTC, ``Z``."""

    id: str
    name: str
    scopes: tuple[str, ...]
    created: str
    expires: str | None
    revoked: str | None
    last_used: str | None


def issue(
    stores: Stores, *, name: str, scopes: Iterable[str], expires: str | None = None, by: str
) -> tuple[Token, str]:
    """Make a token.

    Args:
        stores: Where.
        name: Whom or what it is for; the audit trail names it.
        scopes: Of :data:`SCOPES`.
        expires: RFC 3339 UTC with ``Z``, to the second; ``None`` means never.
        by: Who makes it.

    Returns:
        The token, and its secret, which is nowhere else from now on.

    Raises:
        mdr.errors.UsageError: unknown-scope, bad-time, usage.
        mdr.errors.StoreError: store-unwritable.
    """
    from sqlalchemy import insert

    from mdr.store.engine import writing
    from mdr.store.schema import tokens as table

    wanted = _scopes(scopes)
    if not name.strip() or len(name) > MAX_NAME or not name.isprintable():
        raise UsageError("usage", "a token needs a name of one line", hint="name its owner or job")
    token = Token(
        id="tok_" + secrets.token_hex(6),
        name=name,
        scopes=wanted,
        created=now(),
        expires=None if expires is None else _time(expires),
        revoked=None,
        last_used=None,
    )
    secret = new_secret()
    values = {key: getattr(token, key) for key in Token.__slots__}
    values |= {"scopes": json.dumps(list(wanted)), "secret_sha256": sha256(secret.encode("ascii"))}
    with writing(stores.index.engine) as connection:
        connection.execute(insert(table).values(**values))
        told = {"name": name, "scopes": list(wanted), "expires": token.expires}
        record(connection, actor=by, action="token.issue", subject=token.id, details=told)
    return token, secret


def new_secret() -> str:
    """Return a fresh secret."""
    body = base64.urlsafe_b64encode(secrets.token_bytes(32)).decode("ascii").rstrip("=")
    return f"{PREFIX}{body}{_checksum(PREFIX + body)}"


def well_formed(secret: str) -> bool:
    """Say whether this can be a secret of ours, without looking it up."""
    return (
        secret.isascii()
        and secret.startswith(PREFIX)
        and len(secret) == len(PREFIX) + 43 + 6
        and _checksum(secret[:-6]) == secret[-6:]
    )


def check(stores: Stores, secret: str, scope: str) -> Token:
    """Return the token behind a secret when it may do something.

    Args:
        stores: Where.
        secret: As the caller sent it; anything may be in it.
        scope: Of :data:`SCOPES`.

    Raises:
        mdr.errors.Refusal: token-unknown, token-revoked, token-expired, token-scope.
        mdr.errors.StoreError: index-unreadable.
    """
    assert scope in SCOPES
    row = _by_secret(stores, secret) if well_formed(secret) else None
    if row is None:
        raise Refusal("token-unknown", "this token is not known here", hint="ask for a new one")
    token, moment = _token(row), now()
    if token.revoked is not None:
        raise Refusal(
            "token-revoked", f"the token {token.id} was revoked", hint="ask for a new one"
        )
    if token.expires is not None and token.expires <= moment:
        raise Refusal("token-expired", f"the token {token.id} expired", hint="ask for a new one")
    if scope not in token.scopes and "admin" not in token.scopes:
        raise Refusal(
            "token-scope",
            f"the token {token.id} may not do this: it lacks the scope {scope}",
            hint="ask for a token with that scope",
            data={"needed": scope, "scopes": list(token.scopes)},
        )
    _note_use(stores, token, moment)
    return token


def revoke(stores: Stores, named: str, *, by: str) -> Token:
    """End a token at once; revoking again changes nothing.

    Args:
        stores: Where.
        named: Its id, or its name where one token that still works has it.
        by: Who ends it.

    Raises:
        mdr.errors.UsageError: token-not-found, token-ambiguous.
    """
    from sqlalchemy import or_, select, update

    from mdr.store.engine import writing
    from mdr.store.schema import tokens as table

    with writing(stores.index.engine) as connection:
        wanted = select(table).where(or_(table.c.id == named, table.c.name == named))
        found = connection.execute(wanted.order_by(table.c.created, table.c.id)).mappings()
        row = _one(named, [dict(each) for each in found])
        if row["revoked"] is None:
            row["revoked"] = now()
            where = table.c.id == row["id"]
            connection.execute(update(table).where(where).values(revoked=row["revoked"]))
            record(connection, actor=by, action="token.revoke", subject=row["id"])
    return _token(row)


def _one(named: str, rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Choose the token that is meant: an id before a name, one that works before those revoked."""
    exact = [row for row in rows if row["id"] == named]
    alive = [row for row in rows if row["revoked"] is None]
    chosen = exact or alive or rows[-1:]
    if not chosen:
        raise UsageError(
            "token-not-found",
            f"there is no token {named!r}",
            hint="run mdr token list",
            data={"id": named},
        )
    if len(chosen) > 1:
        ids = [str(row["id"]) for row in chosen]
        raise UsageError(
            "token-ambiguous",
            f"{len(ids)} tokens have the name {named!r}",
            hint=f"name one by its id: {', '.join(ids)}",
            data={"name": named, "ids": ids},
        )
    return chosen[0]


def tokens(stores: Stores) -> tuple[Token, ...]:
    """Return every token, revoked ones too, oldest first."""
    from sqlalchemy import select

    from mdr.store.schema import tokens as table

    with stores.index.reading() as connection:
        rows = connection.execute(select(table).order_by(table.c.created, table.c.id)).mappings()
        return tuple(_token(dict(row)) for row in rows)


def _by_secret(stores: Stores, secret: str) -> Mapping[str, Any] | None:
    from sqlalchemy import select

    from mdr.store.schema import tokens as table

    where = table.c.secret_sha256 == sha256(secret.encode("ascii"))
    with stores.index.reading() as connection:
        row = connection.execute(select(table).where(where)).mappings().first()
    return None if row is None else dict(row)


def _note_use(stores: Stores, token: Token, moment: str) -> None:
    """Keep the hour of the last use; a database that cannot be written now must not stop a reader."""
    if token.last_used is not None:
        last = datetime.fromisoformat(token.last_used)
        if abs(datetime.fromisoformat(moment) - last) < USE_NOTED_EVERY:
            return
    from sqlalchemy import update

    from mdr.store.engine import writing
    from mdr.store.schema import tokens as table

    with suppress(MdrError), writing(stores.index.engine) as connection:
        connection.execute(update(table).where(table.c.id == token.id).values(last_used=moment))


def _token(row: Mapping[str, Any]) -> Token:
    values = {key: row[key] for key in Token.__slots__}
    return Token(**{**values, "scopes": tuple(json.loads(row["scopes"]))})


def _scopes(scopes: Iterable[str]) -> tuple[str, ...]:
    wanted = dict.fromkeys(scopes)
    unknown = [each for each in wanted if each not in SCOPES]
    if unknown or not wanted:
        raise UsageError(
            "unknown-scope",
            f"there is no scope {unknown[0]!r}" if unknown else "a token needs at least one scope",
            hint="scopes are " + ", ".join(SCOPES),
            data={"unknown": unknown, "scopes": list(SCOPES)},
        )
    return tuple(each for each in SCOPES if each in wanted)


def _time(text: str) -> str:
    moment: datetime | None = None
    with suppress(ValueError):
        moment = datetime.fromisoformat(text)
    if moment is None or moment.tzinfo is None:
        raise UsageError(
            "bad-time",
            f"{text!r} is no time with a zone",
            hint="write it as 2027-01-31T00:00:00Z",
        )
    return moment.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def _checksum(text: str) -> str:
    return f"{zlib.crc32(text.encode('ascii')) & 0xFFFFFF:06x}"
