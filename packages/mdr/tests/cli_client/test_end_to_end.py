"""From a real repository through the real index to verified bytes in an agent's folder, and on."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest
from registry_simulator import skill_text

if TYPE_CHECKING:
    from pathlib import Path

    from conftest import Person

REF = "acme/skills/demo"
OLD = skill_text("demo").replace(b"\n", b"\r\n")
NEW = skill_text("demo", "Now with one more line.\n")


def git(folder: Path, *arguments: str, day: str = "2026-01-01") -> None:
    environment = {
        **os.environ,
        "GIT_AUTHOR_DATE": f"{day}T23:30:00-05:00",
        "GIT_COMMITTER_DATE": f"{day}T23:30:00-05:00",
    }
    identity = ["-c", "user.name=t", "-c", "user.email=t@example.org", "-c", "core.autocrlf=false"]
    subprocess.run(
        ["git", "-C", str(folder), *identity, *arguments],
        env=environment,
        check=True,
        capture_output=True,
    )


def commit(folder: Path, files: dict[str, bytes], day: str) -> None:
    for name, data in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    git(folder, "add", "-A")
    git(folder, "commit", "-q", "-m", "x", day=day)


@pytest.fixture
def repository(shell: Person, tmp_path: Path) -> Path:
    """Return an indexed repository with two versions; the second changed only the skill."""
    folder = tmp_path / "repository"
    git(tmp_path, "init", "-q", "-b", "main", "repository")
    script = folder / "skills/demo/run.sh"
    script.parent.mkdir(parents=True)
    script.write_bytes(b"#!/bin/sh\necho\n")
    script.chmod(0o755)
    (folder / "skills/demo/link.md").symlink_to("docs/a.md")
    commit(folder, {"skills/demo/SKILL.md": OLD, "skills/demo/docs/a.md": b"A\n"}, "2026-01-01")
    commit(folder, {"skills/demo/SKILL.md": NEW}, "2026-02-01")
    shell("index", str(folder), "--as", "Acme/Skills")
    return folder


def labels(shell: Person) -> list[str]:
    return [version["label"] for version in shell.json("show", REF)["versions"]]


def test_the_whole_life_of_a_skill(shell: Person, repository: Path, tmp_path: Path) -> None:
    newest, oldest = labels(shell)
    assert (newest[:12], oldest[:12]) == (
        "git:20260202",
        "git:20260102",
    )  # UTC, not the author's day
    shell("add", f"{REF}@{oldest}", "--to", "claude")
    place = shell.project / ".claude/skills/demo"
    assert (place / "SKILL.md").read_bytes() == OLD
    assert (place / "run.sh").stat().st_mode & 0o100
    assert (place / "link.md").read_bytes() == b"A\n"
    assert not (place / "link.md").is_symlink()
    shell("verify")
    assert shell.json("outdated", code=1)["items"][0]["latest"]["label"] == newest
    (moved,) = shell.json("update")["updated"]
    assert (moved["from"]["label"], moved["to"]["label"]) == (oldest, newest)
    assert (place / "SKILL.md").read_bytes() == NEW
    shell("verify")
    assert (
        shell.json("diff", REF, oldest, newest, "--exit-code", code=1)["files"][0]["path"]
        == "SKILL.md"
    )
    shell("remove", REF)
    assert set(shell.tree()) == {"mdr.lock"}


def test_a_label_and_its_hash_lock_the_same_bytes(shell: Person, repository: Path) -> None:
    newest, _ = labels(shell)
    shell("add", f"{REF}@{newest}", "--to", "claude")
    by_label = shell.lock.read_text()
    digest = shell.json("list")["entries"][0]["sha256"]
    shell.lock.unlink()
    shell("add", f"{REF}@sha256:{digest[:16]}", "--to", "claude")
    assert shell.lock.read_text() == by_label.replace('pin = "label"', 'pin = "sha256"')


def test_another_machine_needs_only_the_lock_and_a_folder_registry(
    shell: Person, repository: Path, tmp_path: Path
) -> None:
    shell("add", REF, "--to", "claude", "--to", "codex")
    before = shell.tree()
    shell.monkeypatch.setenv("MDR_REGISTRY", f"file://{tmp_path / 'data'}")
    shell.monkeypatch.setenv("MDR_DATA", str(tmp_path / "other-data"))
    lock = shell.lock.read_bytes()
    shell.project = tmp_path / "other"
    shell.project.mkdir()
    shell.lock.write_bytes(lock)
    shell.monkeypatch.chdir(shell.project)
    assert len(shell.json("install", "--frozen")["installed"]) == 2
    assert shell.tree() == before
    shell.monkeypatch.delenv("MDR_REGISTRY")
    for name in (".claude", ".agents"):
        subprocess.run(["rm", "-rf", shell.project / name], check=True)
    shell("install", "--offline")
    assert shell.tree() == before


def test_without_any_source_the_message_says_where_it_looked(
    shell: Person, repository: Path, tmp_path: Path
) -> None:
    shell("add", REF, "--to", "claude")
    subprocess.run(["rm", "-rf", shell.project / ".claude"], check=True)
    shell.monkeypatch.setenv("MDR_DATA", str(tmp_path / "empty"))
    (failure,) = shell.json("install", "--frozen", code=3)["failed"]
    assert failure["code"] == "bytes-not-found"
    assert "cache, git host" in failure["message"]


def test_an_unknown_repository_is_not_indexed_when_forbidden(
    shell: Person, repository: Path
) -> None:
    assert shell.json("add", "nobody/nothing/demo", "--no-index", code=2)["code"] == "not-found"
    assert not shell.lock.exists()


def test_import_finds_the_version_by_content(shell: Person, repository: Path) -> None:
    (shell.project / "skills/demo").mkdir(parents=True)
    (shell.project / "skills/demo/SKILL.md").write_bytes(OLD)
    lock = {"version": 1, "skills": {"demo": {"source": "acme/skills", "computedHash": "0" * 64}}}
    (shell.project / "skills-lock.json").write_text(json.dumps(lock))
    shell("import", "skills-lock.json", "--no-index")
    (entry,) = shell.json("list")["entries"]
    assert entry["label"] == labels(shell)[1]
    assert entry["targets"] == ["project:openclaw"]
    shell("install")
    shell("verify")


def test_newer_commits_are_seen_without_indexing_by_hand(shell: Person, repository: Path) -> None:
    shell("add", REF, "--to", "claude")
    commit(repository, {"skills/demo/SKILL.md": NEW + b"third\n"}, "2026-03-01")
    assert shell.json("outdated", "--no-index")["items"] == []
    (item,) = shell.json("outdated", code=1)["items"]
    assert item["latest"]["label"].startswith("git:20260302")
    commit(repository, {"skills/demo/SKILL.md": NEW + b"fourth\n"}, "2026-04-01")
    assert shell.json("update")["updated"][0]["to"]["label"].startswith("git:20260402")
    commit(repository, {"skills/demo/SKILL.md": NEW + b"fifth\n"}, "2026-05-01")
    assert shell.json("add", REF)["entry"]["label"].startswith("git:20260502")


def test_a_source_that_is_gone_is_a_note_not_a_failure(shell: Person, repository: Path) -> None:
    repository.rename(repository.with_name("moved"))
    done = shell("add", REF, "--to", "claude")
    assert "could not be asked, using what is indexed" in done.err
    assert "could not be asked" in shell("outdated").err
    assert shell.json("update") == {"schema": "mdr.update/1", "updated": [], "held": []}


def test_a_label_that_is_newer_than_the_index_is_found(shell: Person, repository: Path) -> None:
    commit(repository, {"skills/demo/SKILL.md": NEW + b"third\n"}, "2026-03-01")
    head = subprocess.run(
        ["git", "-C", repository, "rev-parse", "HEAD"], check=True, capture_output=True, text=True
    ).stdout[:7]
    assert (
        shell.json("add", f"{REF}@git:20260302.{head}", "--no-index", code=2)["code"] == "not-found"
    )
    shell("add", f"{REF}@git:20260302.{head}", "--to", "claude")


def test_two_adds_at_once_both_end_up_in_the_lock(shell: Person, repository: Path) -> None:
    names = [f"skill-{number}" for number in range(4)]
    commit(
        repository, {f"skills/{name}/SKILL.md": skill_text(name) for name in names}, "2026-03-01"
    )
    shell("index", str(repository), "--as", "Acme/Skills")
    command = [sys.executable, "-m", "mdr", "add", "--to", "claude", "--yes"]
    running = [
        subprocess.Popen(
            [*command, f"acme/skills/{name}"], stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )
        for name in names
    ]
    outcomes = [(process.communicate(timeout=120), process.returncode) for process in running]
    assert {code for _, code in outcomes} == {0}, outcomes
    assert [entry["ref"] for entry in shell.json("list")["entries"]] == [
        f"acme/skills/{n}" for n in names
    ]
    shell("verify")


def test_what_was_indexed_from_a_disk_is_said_to_need_this_registry(
    shell: Person, repository: Path
) -> None:
    newest = labels(shell)[0]
    note = (
        "indexed from a disk: other machines need this registry to install it, "
        f"or github.com/Acme/Skills must hold commit {newest.partition('.')[2]}"
    )
    assert note in shell("add", REF).err
    outcome = shell("add", REF, "--json")
    assert note in outcome.err
    assert outcome.document["schema"] == "mdr.add/1"
    shell("index", str(repository))
    local = shell.json("search")["items"]
    ref = next(item["ref"] for item in local if item["host"] == "local")
    shown = shell("add", ref, "--to", "codex", code=None).err
    assert "need this registry" in shown
    assert "must hold" not in shown
