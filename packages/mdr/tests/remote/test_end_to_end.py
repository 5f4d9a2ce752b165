"""Every client command against a real server on loopback."""

from __future__ import annotations

import shutil
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import pytest
from web_site import FIRST, GREET, SECOND

from mdr.digest import sha256
from mdr.errors import UsageError
from mdr.registry.stores import open_stores
from mdr.registry.tokens import issue
from mdr.registry.transport import Transport
from mdr.store.badges import add_views
from mdr.store.engine import writing

if TYPE_CHECKING:
    from conftest import Person
    from served import Running

    from mdr.settings import Settings

REF = "acme/tools/greet"
OLD, NEW = sha256(FIRST), sha256(SECOND)


def labels(person: Person) -> list[str]:
    return [each["label"] for each in person.json("show", REF)["versions"]]


def test_the_whole_life_of_a_skill_across_the_network(person: Person, server: Running) -> None:
    newest, oldest = labels(person)
    assert person.json("search", "greet")["items"][0]["ref"] == REF
    added = person.json("add", f"{REF}@{oldest}", "--to", "claude")
    assert added["entry"]["sha256"] == OLD
    place = person.project / ".claude/skills/greet"
    assert (place / "SKILL.md").read_bytes() == FIRST
    assert (place / "run.sh").stat().st_mode & 0o100
    assert person.json("verify")["ok"] is True
    assert person.json("outdated", code=1)["items"][0]["latest"]["label"] == newest
    assert person.json("diff", REF, oldest, newest)["files"][0]["path"] == "SKILL.md"
    assert person.json("audit", REF)["sha256"] == NEW
    assert person.json("update")["updated"][0]["to"]["label"] == newest
    assert (place / "SKILL.md").read_bytes() == SECOND
    shutil.rmtree(place)
    person.monkeypatch.setenv("MDR_DATA", str(person.project.parent / "another-machine"))
    assert len(person.json("install", "--frozen")["installed"]) == 1
    assert person.json("list")["entries"][0]["state"] == "intact"


def test_show_is_the_same_near_and_far(person: Person, server: Running, registry: Settings) -> None:
    stores = open_stores(registry, create=False)
    assert stores is not None
    with writing(stores.index.engine) as connection:
        add_views(connection, {(GREET, datetime.now(UTC).date()): 7})
    stores.close()
    newest, oldest = labels(person)
    asked = [
        ("show", f"{REF}@sha256:{OLD}"),
        ("show", REF),
        ("search",),
        ("diff", REF, oldest, newest),
    ]
    far = [person.json(*each, "--data", str(registry.data)) for each in asked]
    person.monkeypatch.delenv("MDR_REGISTRY")
    near = [person.json(*each, "--data", str(registry.data)) for each in asked]
    assert far == near
    shown, _, found, compared = near
    assert shown["artifact"]["badge_views_30d"] == compared["artifact"]["badge_views_30d"] == 7
    assert {each["id"]: each["badge_views_30d"] for each in found["items"]}[GREET] == 7


def test_import_finds_bytes_by_hash(person: Person, server: Running) -> None:
    (person.project / "skills/greet").mkdir(parents=True)
    (person.project / "skills/greet/SKILL.md").write_bytes(SECOND)
    lock = '{"version": 1, "skills": {"greet": {"source": "acme/tools", "computedHash": "%s"}}}'
    (person.project / "skills-lock.json").write_text(lock % ("0" * 64))
    (match,) = person.json("import", "skills-lock.json")["matched"]
    assert match["sha256"] == NEW


def test_a_yank_warns_and_moves_latest(person: Person, server: Running, registry: Settings) -> None:
    newest, oldest = labels(person)
    door(person, registry)
    person("yank", f"{REF}@{newest}", "--reason", "broken on Tuesdays")
    assert person.json("show", f"{REF}@latest")["version"]["label"] == oldest
    _, said = person("add", f"{REF}@{newest}", "--to", "claude", "--yes")
    assert "yanked: broken on Tuesdays" in said
    person("yank", f"{REF}@{newest}", "--undo")
    assert person.json("show", f"{REF}@latest")["version"]["label"] == newest


def test_a_tombstone_is_refused_with_its_reason(
    person: Person, server: Running, registry: Settings
) -> None:
    person("add", f"{REF}@sha256:{OLD}", "--to", "claude", "--yes")
    door(person, registry)
    person("yank", f"sha256:{OLD}", "--tombstone", "--reason", "steals keys")
    for command in (("add", f"{REF}@sha256:{OLD}"), ("show", f"{REF}@sha256:{OLD}")):
        found = person.json(*command, code=1)
        assert (found["code"], found["data"]["reason"]) == ("tombstone", "steals keys")
    shutil.rmtree(person.project / ".claude")
    person.monkeypatch.setenv("MDR_DATA", str(person.project.parent / "another-machine"))
    (failure,) = person.json("install", "--frozen", code=1)["failed"]
    assert failure["code"] == "tombstone"
    assert not (person.project / ".claude").exists()
    person("yank", f"sha256:{OLD}", "--tombstone", "--undo")
    person("install", "--frozen")


def door(person: Person, registry: Settings) -> None:
    stores = open_stores(registry, create=False)
    assert stores is not None
    _, secret = issue(stores, name="p", scopes=["versions:yank", "versions:tombstone"], by="test")
    stores.close()
    person.monkeypatch.setenv("MDR_TOKEN", secret)


def test_a_write_without_a_token_is_refused_here_and_a_wrong_one_there(
    person: Person, server: Running
) -> None:
    label = labels(person)[0]
    words = ("yank", f"{REF}@{label}", "--reason", "x")
    assert person.json(*words, code=1)["code"] == "token-missing"
    person.monkeypatch.setenv("MDR_TOKEN", "mdr_wrong")
    assert person.json(*words, code=1)["code"] == "token-unknown"


def test_a_token_is_never_sent_in_clear_beyond_this_machine(person: Person) -> None:
    far = Transport("http://registry.example", token="mdr_secret")
    with pytest.raises(UsageError) as caught:
        far.write("PUT", "/x", {})
    assert caught.value.code == "token-in-clear"


def test_tokens_are_made_listed_and_ended_at_the_command_line(person: Person) -> None:
    made = person.json("token", "issue", "robot", "--scope", "versions:yank")
    assert made["secret"].startswith("mdr_")
    listed = person.json("token", "list")["tokens"]
    assert [each["id"] for each in listed] == [made["id"]]
    assert made["secret"] not in str(listed)
    assert person.json("token", "revoke", made["id"])["revoked"]
    assert (
        person.json("token", "issue", "robot", "--scope", "everything", code=2)["code"]
        == "unknown-scope"
    )


def test_without_a_network_it_is_exit_3_and_says_what_to_do(
    person: Person, server: Running
) -> None:
    person("add", REF, "--to", "claude", "--yes")
    server.stop()
    for command in (("show", REF), ("outdated",), ("update",), ("search", "x")):
        found = person.json(*command, code=3)
        assert found["code"] == "registry-unreachable"
    assert person.json("verify")["ok"] is True
    shutil.rmtree(person.project / ".claude")
    assert len(person.json("install", "--offline")["installed"]) == 1


def test_unknown_things_are_exit_2(person: Person, server: Running) -> None:
    assert person.json("show", "nobody/nothing/here", code=2)["code"] == "not-found"
    assert person.json("show", f"{REF}@sha256:{'0' * 64}", code=2)["code"] == "not-found"
    assert person.json("search", "--cursor", "zzz", code=2)["code"] == "bad-cursor"
    for address in ("ftp://x", "https://user:pw@x", "https://x/?q", "http://"):
        assert (
            person.json("show", REF, "--registry", address, code=2)["code"]
            == "registry-unsupported"
        )
