"""mdr.lock: exact bytes, strict reading, round trips."""

from __future__ import annotations

import tomllib
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st
from registry_simulator import file_entry
from registry_simulator import lock_entry as entry

from mdr.artifact.types import Kind
from mdr.digest import sha256
from mdr.errors import LockError, StoreError
from mdr.install.lock import (
    ENTRY_KEYS,
    Lock,
    Pin,
    Scope,
    Target,
    format_lock,
    in_lock_order,
    write_lock,
)
from mdr.install.lock_read import parse_lock, read_lock, read_lock_if_present
from mdr.install.portable import fold, path_problem
from mdr.version.types import in_path_order, manifest_sha256

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


def test_the_bytes_are_those_of_the_contract() -> None:
    one = entry()
    assert format_lock(Lock(entries=(one,))).decode() == "\n".join(
        [
            "version = 1",
            "[[artifact]]",
            'ref = "acme/skills/demo"',
            'host = "github.com"',
            'repository = "Acme/Skills"',
            'path = "skills/demo/SKILL.md"',
            'kind = "skill"',
            'pin = "label"',
            'label = "git:20260817.d36ff70"',
            f'commit = "{one.commit}"',
            f'sha256 = "{one.sha256}"',
            "size = 10",
            f'manifest_sha256 = "{one.manifest_sha256}"',
            'ruleset = "r1"',
            'grade = "A"',
            'targets = ["project:claude", "user:codex"]',
            "files = [",
            f'  "{one.sha256} 100644 10 SKILL.md",',
            f'  "{sha256(b"#!/bin/sh" + bytes([10]))} 100755 10 scripts/run.sh",',
            "]",
            "",
        ]
    )


def test_order_of_entries_does_not_change_the_bytes() -> None:
    entries = [entry(name) for name in ("b", "a", "C")]
    gitlab = entry("a", host="gitlab.com", ref="gitlab.com/acme/skills/a")
    assert format_lock(Lock(entries=(gitlab, *entries))) == format_lock(
        Lock(entries=(*reversed(entries), gitlab))
    )
    refs = [e.ref for e in in_lock_order([gitlab, *entries])]
    assert refs == ["acme/skills/C", "acme/skills/a", "acme/skills/b", "gitlab.com/acme/skills/a"]


names = st.text(
    st.characters(exclude_categories=["Cc", "Cs"], exclude_characters='/<>:"|?*\\@'),
    min_size=1,
    max_size=12,
).filter(lambda n: n.isprintable() and n[-1] not in ". " and n not in {".", ".."} and n[0] != " ")


@given(st.lists(names, min_size=1, max_size=4, unique_by=str.casefold), st.sampled_from(list(Pin)))
def test_what_is_written_reads_back(skills: list[str], pin: Pin) -> None:
    try:
        lock = parse_lock(format_lock(Lock(entries=tuple(entry(name, pin=pin) for name in skills))))
    except LockError:  # a name no Windows can hold
        assert any(path_problem(name) or fold(name) != name.lower() for name in skills)
        return
    assert parse_lock(format_lock(lock)) == lock
    assert {e.name for e in lock.entries} == set(skills)


def test_toml_sees_the_keys_in_order() -> None:
    document = tomllib.loads(format_lock(Lock(entries=(entry(),))).decode())
    assert tuple(document["artifact"][0]) == ENTRY_KEYS


def test_crlf_checkout_of_the_lock_reads_the_same() -> None:
    data = format_lock(Lock(entries=(entry(),)))
    assert parse_lock(data.replace(b"\n", b"\r\n")) == parse_lock(data)


def text(**changes: object) -> str:
    return format_lock(Lock(entries=(entry(**changes),))).decode()


def with_files(*lines: str) -> str:
    """Return a lock with other file lines."""
    before = text().partition("files = [\n")[0]
    return before + "files = [\n" + "".join(f'  "{line}",\n' for line in lines) + "]\n"


def forged(path: str) -> str:
    """Return a lock that is right in every sum and has one hostile path."""
    files = in_path_order([*entry().files, file_entry(path, b"x")])
    return text(files=files, manifest_sha256=manifest_sha256(files))


HOSTILE: dict[str, tuple[Callable[[], str], str]] = {
    "empty file": (lambda: "", "lock-version"),
    "not TOML": (lambda: "version = ", "lock-unreadable"),
    "JSON": (lambda: '{"version": 1}', "lock-unreadable"),
    "deep nesting": (lambda: "version = 1\nx = " + "[" * 9000 + "]" * 9000, "lock-unreadable"),
    "version text": (lambda: 'version = "1"', "lock-version"),
    "version true": (lambda: "version = true", "lock-version"),
    "version zero": (lambda: "version = 0", "lock-version"),
    "newer": (lambda: "version = 2\nfuture = true\n", "lock-newer"),
    "unknown top key": (lambda: "version = 1\nmeta = 1\n", "lock-key"),
    "artifact no list": (lambda: 'version = 1\nartifact = "x"\n', "lock-key"),
    "artifact list of text": (lambda: 'version = 1\nartifact = ["x"]\n', "lock-key"),
    "unknown key": (lambda: text() + "extra = 1\n", "lock-key"),
    "missing key": (lambda: text().replace('grade = "A"\n', ""), "lock-key"),
    "duplicate key": (lambda: text() + 'grade = "A"\n', "lock-unreadable"),
    "size text": (lambda: text().replace("size = 10", 'size = "10"'), "lock-key"),
    "size boolean": (lambda: text().replace("size = 10", "size = true"), "lock-key"),
    "size negative": (lambda: text().replace("size = 10", "size = -1"), "lock-contradiction"),
    "size wrong": (lambda: text().replace("size = 10", "size = 11"), "lock-contradiction"),
    "conflict markers": (lambda: "<<<<<<< ours\n" + text() + ">>>>>>> theirs\n", "lock-conflict"),
    "kind": (lambda: text().replace('"skill"', '"plugin"'), "lock-value"),
    "pin": (lambda: text(pin=Pin.LABEL).replace('pin = "label"', 'pin = "latest"'), "lock-value"),
    "grade": (lambda: text(grade="E"), "lock-value"),
    "ruleset": (lambda: text(ruleset="latest"), "lock-value"),
    "label": (lambda: text(label="v1.2"), "lock-value"),
    "label of another commit": (lambda: text(label="git:20260817.aaaaaaa"), "lock-contradiction"),
    "short commit": (lambda: text(commit="d36ff70"), "lock-value"),
    "short hash": (lambda: text(sha256="03379723143dfcd3"), "lock-value"),
    "upper-case hash": (lambda: text(sha256=sha256(b"x").upper()), "lock-value"),
    "hash of another file": (lambda: text(sha256=sha256(b"x")), "lock-contradiction"),
    "manifest": (lambda: text(manifest_sha256=sha256(b"x")), "lock-contradiction"),
    "ref elsewhere": (lambda: text(ref="evil/skills/demo"), "lock-contradiction"),
    "ref of another name": (lambda: text(ref="acme/skills/other"), "lock-contradiction"),
    "ref not one": (lambda: text(ref="demo"), "lock-value"),
    "ref with label": (lambda: text(ref="acme/skills/demo@latest"), "lock-contradiction"),
    "host elsewhere": (lambda: text(host="evil.example"), "lock-contradiction"),
    "path up": (lambda: text(path="../demo/SKILL.md"), "lock-path"),
    "path absolute": (lambda: text(path="/skills/demo/SKILL.md"), "lock-path"),
    "agent unknown": (lambda: text().replace("project:claude", "project:nobody"), "lock-value"),
    "scope unknown": (lambda: text().replace("project:claude", "system:claude"), "lock-value"),
    "target a path": (lambda: text().replace("project:claude", "/home/u/.claude"), "lock-value"),
    "target twice": (lambda: text().replace("user:codex", "project:claude"), "lock-duplicate"),
    "target without place": (
        lambda: text(targets=(Target(scope=Scope.PROJECT, agent="codex"),), kind=Kind.COMMAND),
        "lock-contradiction",
    ),
    "no files": (with_files, "lock-contradiction"),
    "file line short": (lambda: with_files("abc 100644 1 SKILL.md"), "lock-value"),
    "file mode": (lambda: text().replace("100755", "100777"), "lock-value"),
    "submodule": (lambda: text().replace("100755", "160000"), "lock-value"),
    "file size octal": (lambda: text().replace(" 10 scripts", " 010 scripts"), "lock-value"),
    "file size huge": (lambda: text().replace(" 10 scripts", f" {10**20} scripts"), "lock-value"),
    "files unsorted": (
        lambda: text(files=tuple(reversed(entry().files))),
        "lock-contradiction",
    ),
    "file twice": (
        lambda: text(
            files=(entry().files[0], *entry().files),
            manifest_sha256=manifest_sha256((entry().files[0], *entry().files)),
        ),
        "lock-path",
    ),
    "traversal": (lambda: forged("../../.bashrc"), "lock-path"),
    "inner traversal": (lambda: forged("a/../../x"), "lock-path"),
    "absolute": (lambda: forged("/etc/cron.d/x"), "lock-path"),
    "windows absolute": (lambda: forged("C:/Windows/x"), "lock-path"),
    "backslash": (lambda: forged("..\\x"), "lock-path"),
    "dot": (lambda: forged("./x"), "lock-path"),
    "double slash": (lambda: forged("a//x"), "lock-path"),
    "git folder": (lambda: forged(".git/hooks/post-checkout"), "lock-path"),
    "git folder spelled": (lambda: forged("a/.GIT/config"), "lock-path"),
    "git short name": (lambda: forged("GIT~1/config"), "lock-path"),
    "device": (lambda: forged("docs/aux.md"), "lock-path"),
    "trailing dot": (lambda: forged("docs./x"), "lock-path"),
    "stream": (lambda: forged("SKILL.md:evil"), "lock-path"),
    "case collision": (lambda: forged("skill.MD"), "lock-path"),
    "file and folder": (lambda: forged("SKILL.md/x"), "lock-path"),
    "rule of two files": (
        lambda: text(kind=Kind.RULE, ref="acme/skills/SKILL"),
        "lock-contradiction",
    ),
    "one place for two": (
        lambda: text() + text(ref="acme/more/demo", repository="acme/more").partition("\n")[2],
        "lock-collision",
    ),
    "entry twice": (lambda: text() + text().partition("\n")[2], "lock-duplicate"),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_locks_are_refused_by_name(name: str) -> None:
    build, code = HOSTILE[name]
    with pytest.raises(LockError) as caught:
        parse_lock(build().encode())
    assert caught.value.code == code, caught.value.message
    assert caught.value.exit_code == 2
    assert caught.value.hint


def test_not_utf8_and_too_large() -> None:
    with pytest.raises(LockError, match="TOML"):
        parse_lock(b"version = 1 # \xff")
    with pytest.raises(LockError) as caught:
        parse_lock(b"#" * ((64 << 20) + 1))
    assert caught.value.code == "lock-too-large"


@given(st.binary(max_size=200))
def test_any_bytes_are_a_lock_or_a_lock_error(data: bytes) -> None:
    try:
        parse_lock(data)
    except LockError:
        return
    assert tomllib.loads(data.decode())["version"] == 1


@given(st.data())
def test_any_single_changed_byte_is_noticed_or_harmless(data: st.DataObject) -> None:
    """No edit of one byte may pass as the same entry under other values that were not rechecked."""
    original = format_lock(Lock(entries=(entry(),)))
    position = data.draw(st.integers(0, len(original) - 1))
    changed = bytearray(original)
    changed[position] = data.draw(st.integers(32, 126))
    try:
        lock = parse_lock(bytes(changed))
    except LockError:
        return
    if not lock.entries:
        assert b"[[artifact]]" not in changed
        return
    found = lock.entries[0]
    assert manifest_sha256(found.files) == entry().manifest_sha256


def test_a_missing_lock_is_an_error_that_names_the_one_above(tmp_path: Path) -> None:
    (tmp_path / "below").mkdir()
    write_lock(tmp_path / "mdr.lock", Lock())
    with pytest.raises(LockError) as caught:
        read_lock(tmp_path / "below" / "mdr.lock")
    assert caught.value.code == "lock-missing"
    assert str(tmp_path) in caught.value.hint
    assert read_lock_if_present(tmp_path / "below" / "mdr.lock") == Lock()


def test_a_folder_or_dangling_link_is_not_an_absent_lock(tmp_path: Path) -> None:
    (tmp_path / "mdr.lock").mkdir()
    with pytest.raises(LockError) as caught:
        read_lock_if_present(tmp_path / "mdr.lock")
    assert caught.value.code == "lock-unreadable"
    link = tmp_path / "linked" / "mdr.lock"
    link.parent.mkdir()
    link.symlink_to("nowhere")
    with pytest.raises(LockError) as caught:
        read_lock_if_present(link)
    with pytest.raises(LockError) as caught:
        write_lock(link, Lock())
    assert caught.value.code == "lock-is-link"


def test_writing_the_same_lock_touches_nothing(tmp_path: Path) -> None:
    path = tmp_path / "mdr.lock"
    write_lock(path, Lock(entries=(entry(),)))
    before = path.stat()
    write_lock(path, Lock(entries=(entry(),)))
    assert path.stat().st_ino == before.st_ino
    write_lock(path, Lock())
    assert path.stat().st_ino != before.st_ino
    assert [item.name for item in tmp_path.iterdir()] == ["mdr.lock"]


def test_a_lock_that_cannot_be_written_is_a_store_error(tmp_path: Path) -> None:
    with pytest.raises(StoreError) as caught:
        write_lock(tmp_path / "absent" / "mdr.lock", Lock())
    assert caught.value.code == "lock-not-written"
