"""Tokens, the audit trail, badge views, disputes, claims, and the state token, on both databases."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta
from typing import TYPE_CHECKING

import pytest
from git_builder import skill
from hypothesis import given
from hypothesis import strategies as st
from sqlalchemy.exc import SQLAlchemyError

from mdr.digest import sha256
from mdr.errors import BadReference, MdrError, Refusal, StoreError, UsageError
from mdr.reference.parse import parse
from mdr.registry import disputes, events, tokens
from mdr.registry.indexing import index_source
from mdr.registry.local import LocalRegistry
from mdr.registry.stores import Stores, open_stores
from mdr.registry.tokens import SCOPES, check, issue, new_secret, revoke, well_formed
from mdr.registry.withdrawals import tombstone, yank
from mdr.settings import Settings
from mdr.store.badges import KEPT_DAYS, add_views, forget_old, views_30d
from mdr.store.engine import writing
from mdr.store.state import state_token

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from git_builder import GitRepository

TODAY = date(2026, 3, 1)


@pytest.fixture
def stores(tmp_path: Path, database: str | None) -> Iterator[Stores]:
    opened = open_stores(Settings(data=tmp_path / "data", database=database), create=True)
    assert opened is not None
    yield opened
    opened.close()


def refusal(stores: Stores, secret: str, scope: str = "versions:yank") -> str:
    with pytest.raises(Refusal) as caught:
        check(stores, secret, scope)
    assert secret not in str(caught.value) or not secret
    return caught.value.code


def test_a_token_does_what_its_scopes_say(stores: Stores) -> None:
    token, secret = issue(stores, name="ci", scopes=["versions:yank", "sources:write"], by="ann")
    assert token.scopes == ("sources:write", "versions:yank")
    assert check(stores, secret, "versions:yank").id == token.id
    assert refusal(stores, secret, "versions:tombstone") == "token-scope"
    _, root = issue(stores, name="root", scopes=["admin"], by="ann")
    assert all(check(stores, root, scope) for scope in SCOPES)


def test_a_secret_is_nowhere_in_the_database(stores: Stores, tmp_path: Path) -> None:
    _, secret = issue(stores, name="ci", scopes=["admin"], by="ann")
    with stores.index.reading() as connection:
        for table in ("tokens", "events"):
            rows = connection.exec_driver_sql(f"SELECT * FROM {table}").all()  # noqa: S608 - two names
            assert secret not in repr(rows)
            assert rows
    assert secret not in repr(tokens.tokens(stores))


@pytest.mark.parametrize(
    "secret", ["", "mdr_", "x" * 53, "mdr_" + "é" * 49, "\x00", "mdr_' OR 1=1 --", "Bearer"]
)
def test_what_is_no_secret_is_unknown(stores: Stores, secret: str) -> None:
    assert refusal(stores, secret) == "token-unknown"
    assert refusal(stores, new_secret()) == "token-unknown"


def test_a_revoked_token_ends_at_once_and_stays_listed(stores: Stores) -> None:
    token, secret = issue(stores, name="ci", scopes=["admin"], by="ann")
    first = revoke(stores, token.id, by="bob")
    assert first.revoked is not None
    assert revoke(stores, token.id, by="bob") == first
    assert refusal(stores, secret) == "token-revoked"
    assert [each.revoked for each in tokens.tokens(stores)] == [first.revoked]
    assert [each.action for each in events.events(stores)] == ["token.issue", "token.revoke"]
    with pytest.raises(UsageError) as caught:
        revoke(stores, "tok_none", by="bob")
    assert caught.value.code == "token-not-found"


def test_a_token_is_revoked_by_its_name_where_only_one_that_works_has_it(stores: Stores) -> None:
    first, secret = issue(stores, name="ci", scopes=["admin"], by="ann")
    assert revoke(stores, "ci", by="ann").id == first.id
    assert refusal(stores, secret) == "token-revoked"
    assert revoke(stores, "ci", by="ann").id == first.id  # again changes nothing
    second, _ = issue(stores, name="ci", scopes=["admin"], by="ann")
    third, _ = issue(stores, name="ci", scopes=["admin"], by="ann")
    with pytest.raises(UsageError) as caught:
        revoke(stores, "ci", by="ann")
    assert caught.value.code == "token-ambiguous"
    assert {second.id, third.id} == set(caught.value.data["ids"])
    assert second.id in caught.value.hint
    named, _ = issue(stores, name=second.id, scopes=["admin"], by="mallory")
    assert revoke(stores, second.id, by="ann").id == second.id  # an id goes before a name
    assert revoke(stores, "ci", by="ann").id == third.id
    ended = {each.id for each in tokens.tokens(stores) if each.revoked}
    assert ended == {first.id, second.id, third.id}
    assert named.id not in ended


def test_a_token_expires_by_the_clock_and_a_clock_set_back_revives_only_what_was_not_revoked(
    stores: Stores, monkeypatch: pytest.MonkeyPatch
) -> None:
    soon = (datetime.now(UTC) + timedelta(hours=1)).isoformat()
    token, secret = issue(stores, name="ci", scopes=["admin"], expires=soon, by="ann")
    assert check(stores, secret, "admin").id == token.id
    monkeypatch.setattr(tokens, "now", lambda: "2099-01-01T00:00:00Z")
    assert refusal(stores, secret) == "token-expired"
    monkeypatch.setattr(tokens, "now", lambda: "2001-01-01T00:00:00Z")
    assert check(stores, secret, "admin").id == token.id
    revoke(stores, token.id, by="ann")
    assert refusal(stores, secret) == "token-revoked"


def test_the_last_use_is_noted_by_the_hour(stores: Stores, monkeypatch: pytest.MonkeyPatch) -> None:
    _, secret = issue(stores, name="ci", scopes=["admin"], by="ann")
    for moment, seen in [
        ("10:00", "10:00"),
        ("10:59", "10:00"),
        ("11:00", "11:00"),
        ("09:00", "09:00"),
    ]:
        monkeypatch.setattr(tokens, "now", lambda at=moment: f"2030-01-01T{at}:00Z")
        check(stores, secret, "admin")
        assert [each.last_used for each in tokens.tokens(stores)] == [f"2030-01-01T{seen}:00Z"]


@pytest.mark.parametrize(
    ("words", "code"),
    [
        ({"scopes": []}, "unknown-scope"),
        ({"scopes": ["admin", "root"]}, "unknown-scope"),
        ({"name": " "}, "usage"),
        ({"name": "a\nb"}, "usage"),
        ({"expires": "tomorrow"}, "bad-time"),
        ({"expires": "2030-01-01T00:00:00"}, "bad-time"),
    ],
)
def test_a_token_that_cannot_be_meant(stores: Stores, words: dict[str, object], code: str) -> None:
    given_ = {"name": "ci", "scopes": ["admin"], "by": "ann"} | words
    with pytest.raises(UsageError) as caught:
        issue(stores, **given_)  # type: ignore[arg-type]
    assert caught.value.code == code
    assert tokens.tokens(stores) == ()


@given(st.integers(0, 52), st.characters(codec="ascii"))
def test_a_secret_with_one_other_character_is_no_secret(place: int, char: str) -> None:
    secret = new_secret()
    other = secret[:place] + char + secret[place + 1 :]
    assert well_formed(secret)
    assert well_formed(other) is (other == secret)


def test_the_trail_is_read_in_pages_and_cannot_be_changed(stores: Stores) -> None:
    for number in range(5):
        with writing(stores.index.engine) as connection:
            events.record(
                connection, actor="ann", action="x.y", subject=str(number), details={"é": number}
            )
    first = events.events(stores, limit=2)
    rest = events.events(stores, after=first[-1].id)
    assert [each.subject for each in (*first, *rest)] == ["0", "1", "2", "3", "4"]
    assert rest[0].details == {"é": 2}
    for statement in ("UPDATE events SET actor = 'eve'", "DELETE FROM events"):
        with pytest.raises(StoreError), writing(stores.index.engine) as connection:
            connection.exec_driver_sql(statement)
    assert len(events.events(stores)) == 5


def test_what_fails_leaves_no_line(stores: Stores) -> None:
    with pytest.raises((StoreError, SQLAlchemyError)), writing(stores.index.engine) as connection:  # noqa: PT012 - the transaction is what fails
        events.record(connection, actor="ann", action="x.y", subject="s")
        connection.exec_driver_sql("SELECT * FROM nowhere")
    assert events.events(stores) == ()


def test_badge_views_add_up_and_are_asked_for_by_month(stores: Stores) -> None:
    days = {0: 5, 29: 7, 30: 100, 500: 1}
    for age, count in days.items():
        with writing(stores.index.engine) as connection:
            add_views(connection, {("art_a", TODAY - timedelta(days=age)): count})
            add_views(connection, {("art_a", TODAY - timedelta(days=age)): 1, ("art_b", TODAY): 1})
            add_views(connection, {})
    assert views_30d(stores.index, ["art_a", "art_b", "art_c"], TODAY) == {
        "art_a": 14,
        "art_b": 4,
        "art_c": 0,
    }
    assert views_30d(stores.index, [], TODAY) == {}
    with writing(stores.index.engine) as connection:
        assert forget_old(connection) == 0
    assert views_30d(stores.index, ["art_a"], TODAY) == {"art_a": 14}


def test_old_days_of_badge_views_are_forgotten_whatever_a_clock_says(stores: Stores) -> None:
    ahead = date(2099, 1, 1)
    days = [TODAY - timedelta(days=age) for age in range(KEPT_DAYS + 3)]
    counts = {(key, day): 1 for key in ("art_a", "art_b") for day in [ahead, *days]}
    with writing(stores.index.engine) as connection:
        assert forget_old(connection) == 0
        add_views(connection, counts)
        assert forget_old(connection) == 8  # four days more than are kept, of two artifacts
        assert forget_old(connection) == 0
        left = connection.exec_driver_sql("SELECT min(day), max(day), count(*) FROM badge_views")
        assert left.one() == (days[KEPT_DAYS - 2].isoformat(), "2099-01-01", 2 * KEPT_DAYS)
    assert views_30d(stores.index, ["art_a"], TODAY) == {"art_a": 30}


@pytest.fixture
def registry(
    stores: Stores, tmp_path: Path, database: str | None, repository: GitRepository
) -> LocalRegistry:
    settings = Settings(data=tmp_path / "data", database=database, index_on_demand=False)
    repository.commit({"a/SKILL.md": skill("a")})
    index_source(str(repository.path), settings, name_as="Acme/Tools")
    return LocalRegistry(settings, stores)


def test_a_dispute_is_opened_decided_and_kept(stores: Stores, registry: LocalRegistry) -> None:
    artifact, (version,) = registry.versions(parse("acme/tools/a"))
    opened = disputes.dispute(
        stores,
        artifact,
        version.label,
        check="injection",
        text=" a quotation ",
        contact="a@b",
        by="ann",
    )
    assert (opened.state, opened.text, opened.sha256) == ("open", "a quotation", version.sha256)
    assert disputes.disputes(stores, artifact_id=artifact.id) == (opened,)
    decided = disputes.settle_dispute(stores, opened.id, state="accepted", by="bob")
    assert disputes.disputes(stores, state="open") == ()
    assert disputes.disputes(stores) == (decided,)
    told = [(each.action, each.details.get("state")) for each in events.events(stores)]
    assert told == [("dispute.open", None), ("dispute.settle", "accepted")]
    assert "a@b" not in repr(events.events(stores))


@pytest.mark.parametrize(
    ("words", "code"),
    [
        ({"check": "nonsense"}, "unknown-check"),
        ({"text": " "}, "bad-text"),
        ({"text": "x" * 10_001}, "bad-text"),
        ({"text": "a\x00b"}, "bad-text"),
        ({"label": "git:20200101.0000000"}, "not-found"),
    ],
)
def test_a_dispute_that_cannot_be_meant(
    stores: Stores, registry: LocalRegistry, words: dict[str, str], code: str
) -> None:
    artifact, (version,) = registry.versions(parse("acme/tools/a"))
    given_ = {"label": version.label, "check": "injection", "text": "t", "by": "ann"} | words
    with pytest.raises(MdrError) as caught:
        disputes.dispute(stores, artifact, **given_)  # type: ignore[arg-type]
    assert caught.value.code == code
    assert disputes.disputes(stores) == ()


def test_a_claim_is_of_a_repository_that_is_held(stores: Stores, registry: LocalRegistry) -> None:
    words = {"claimant": "acme", "proof": "https://acme.example/proof", "by": "ann"}
    opened = disputes.claim(stores, host="github.com", repository="ACME/tools", **words)
    assert opened.repository == "Acme/Tools"
    assert disputes.claims(stores, state="open") == (opened,)
    assert disputes.settle_claim(stores, opened.id, state="rejected", by="bob").state == "rejected"
    with pytest.raises(BadReference):
        disputes.claim(stores, host="github.com", repository="no/such", **words)
    with pytest.raises(UsageError):
        disputes.settle_claim(stores, opened.id, state="maybe", by="bob")
    with pytest.raises(BadReference):
        disputes.settle_claim(stores, 99, state="open", by="bob")


def test_the_state_changes_with_what_readers_see_and_with_nothing_else(
    stores: Stores, registry: LocalRegistry
) -> None:
    artifact, (version,) = registry.versions(parse("acme/tools/a"))
    before = state_token(stores)
    _, secret = issue(stores, name="ci", scopes=["admin"], by="ann")
    check(stores, secret, "admin")
    with writing(stores.index.engine) as connection:
        add_views(connection, {(artifact.id, TODAY): 1})
    assert state_token(stores) == before
    yank(stores, artifact, version.label, reason="r", by="ann")
    between = state_token(stores)
    assert between != before
    tombstone(stores, version.sha256, reason="r", by="ann")
    assert state_token(stores) not in {before, between}
    stores.state.close()
    assert state_token(stores) not in {before, between}


def test_another_connection_sees_the_new_state_and_not_before_it_is_there(
    stores: Stores, tmp_path: Path, database: str | None
) -> None:
    from mdr.store.state import changed

    other = open_stores(Settings(data=tmp_path / "data", database=database), create=False)
    assert other is not None
    before = state_token(other)
    with writing(stores.index.engine) as connection:
        changed(connection)
        assert state_token(other) == before
    assert state_token(other) == state_token(stores) != before
    other.close()


@pytest.mark.parametrize("advisory", ["", " ", "x" * 401, "https://a/\r\nX-Evil: 1", "a\x1b[31m"])
def test_an_advisory_is_one_identifier_or_address(stores: Stores, advisory: str) -> None:
    digest = sha256(b"withdrawn")
    with pytest.raises(UsageError) as caught:
        tombstone(stores, digest, reason="r", advisory=advisory, by="ann")
    assert caught.value.code == "bad-reason"
    assert stores.index.tombstones([digest]) == {}
    tombstone(stores, digest, reason="r", advisory=" GHSA-1 ", by="ann")
    assert stores.index.tombstones([digest])[digest].advisory == "GHSA-1"


@pytest.mark.parametrize("reason", ["", " \n", "x" * 2_001, "a\x00b", "a\x1b[31mb"])
def test_a_reason_is_one_line_of_text(stores: Stores, registry: LocalRegistry, reason: str) -> None:
    artifact, (version,) = registry.versions(parse("acme/tools/a"))
    with pytest.raises(UsageError) as caught:
        yank(stores, artifact, version.label, reason=reason, by="ann")
    assert caught.value.code == "bad-reason"
    with pytest.raises(UsageError) as other:
        tombstone(stores, "ab", reason="r", by="ann")  # type: ignore[arg-type]
    assert other.value.code == "bad-hash"
    assert events.events(stores) == ()
