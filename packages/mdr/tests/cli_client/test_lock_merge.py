"""``mdr lock merge`` on real git conflicts."""

from __future__ import annotations

import subprocess
from typing import TYPE_CHECKING

import pytest
from registry_simulator import skill_text

if TYPE_CHECKING:
    from conftest import Person

GIT = ["git", "-c", "user.name=t", "-c", "user.email=t@example.org"]


def git(*arguments: str, ok: bool = True) -> None:
    done = subprocess.run([*GIT, *arguments], capture_output=True, check=False)
    assert (done.returncode == 0) == ok, done.stderr.decode()


@pytest.fixture
def repository(mdr: Person) -> Person:
    """Return a person on branch main with one locked skill, committed; a, b and c can be added."""
    for name in ("a", "b", "c", "m"):
        mdr.registry.add(name)
    git("init", "-q", "-b", "main", ".")
    mdr("add", "acme/skills/m", "--to", "claude")
    git("add", "mdr.lock")
    git("commit", "-q", "-m", "base")
    return mdr


def commit(person: Person, *commands: list[str]) -> None:
    for command in commands:
        person(*command)
    git("add", "mdr.lock")
    git("commit", "-q", "-m", "x")


def test_both_sides_added_something(repository: Person) -> None:
    git("checkout", "-q", "-b", "theirs")
    commit(repository, ["add", "acme/skills/b", "--to", "claude"])
    git("checkout", "-q", "main")
    commit(repository, ["add", "acme/skills/c", "--to", "claude"])
    git("merge", "theirs", ok=False)
    assert repository.json("install", code=2)["code"] == "lock-conflict"
    document = repository.json("lock", "merge")
    assert document["merged"] == [f"acme/skills/{name}" for name in "bcm"]
    assert document["conflicts"] == []
    git("add", "mdr.lock")
    git("commit", "-q", "-m", "merged")
    repository("install")
    repository("verify")


def test_one_side_updates_and_the_other_changes_targets(repository: Person) -> None:
    sides = {"base": repository.lock.read_bytes()}
    repository("add", "acme/skills/m", "--to", "cursor")
    sides["ours"] = repository.lock.read_bytes()
    repository.lock.write_bytes(sides["base"])
    newest = repository.registry.add("m", {"SKILL.md": skill_text("m", "v2\n")}, day="20260202")
    repository("update")
    sides["theirs"] = repository.lock.read_bytes()
    for name, data in sides.items():
        (repository.project / name).write_bytes(data)
    repository("lock", "merge", *sides)
    merged = (repository.project / "ours").read_text()
    assert newest.sha256 in merged
    assert '["project:claude", "project:cursor"]' in merged


def test_both_moved_one_entry_is_a_conflict_until_decided(repository: Person) -> None:
    labels = []
    git("checkout", "-q", "-b", "theirs")
    for branch, day in (("theirs", "20260303"), ("main", "20260202")):
        git("checkout", "-q", branch)
        labels.append(
            repository.registry.add("m", {"SKILL.md": skill_text("m", day)}, day=day).label
        )
        commit(repository, ["add", f"acme/skills/m@{labels[-1]}", "--to", "claude", "--force"])
    git("merge", "theirs", ok=False)
    conflicted = repository.lock.read_bytes()
    document = repository.json("lock", "merge", code=1)
    assert document["conflicts"] == ["acme/skills/m"]
    assert repository.lock.read_bytes() == conflicted
    for prefer, label in (("ours", labels[1]), ("theirs", labels[0]), ("newest", labels[0])):
        repository("lock", "merge", "--prefer", prefer)
        assert f'label = "{label}"' in repository.lock.read_text()


def test_removed_here_and_changed_there_is_a_conflict(repository: Person) -> None:
    git("checkout", "-q", "-b", "theirs")
    repository.registry.add("m", {"SKILL.md": skill_text("m", "v2\n")}, day="20260202")
    commit(repository, ["update"])
    git("checkout", "-q", "main")
    repository("install", "--force")
    commit(repository, ["remove", "acme/skills/m"])
    git("merge", "theirs", ok=False)
    assert repository.json("lock", "merge", code=1)["conflicts"] == ["acme/skills/m"]


def test_as_git_s_merge_driver(repository: Person) -> None:
    (repository.project / ".gitattributes").write_text("mdr.lock merge=mdr\n")
    base = repository.lock.read_bytes()
    repository("add", "acme/skills/a", "--to", "claude")
    ours = repository.lock.read_bytes()
    repository.lock.write_bytes(base)
    repository("add", "acme/skills/b", "--to", "cursor")
    theirs = repository.lock.read_bytes()
    files = {"base": base, "ours": ours, "theirs": theirs}
    for name, data in files.items():
        (repository.project / name).write_bytes(data)
    repository("lock", "merge", "base", "ours", "theirs")
    assert (repository.project / "ours").read_bytes().count(b"[[artifact]]") == 3
    (repository.project / "base").write_bytes(b"")  # what git gives when there was no base
    repository("lock", "merge", "base", "ours", "theirs")


def test_without_a_conflict_there_is_nothing_to_merge(repository: Person) -> None:
    before = repository.lock.read_bytes()
    assert repository.json("lock", "merge", code=2)["code"] == "no-conflict"
    assert repository.json("lock", "merge", "one", code=2)["code"] == "usage"
    assert repository.lock.read_bytes() == before


def test_outside_a_repository(mdr: Person) -> None:
    assert mdr.json("lock", "merge", code=3)["code"] == "git-failed"


def test_two_artifacts_for_one_place_are_refused_though_git_merges_the_lines(
    repository: Person,
) -> None:
    repository.registry.add("a", {"SKILL.md": skill_text("a", "x")}, repository="other/repo")
    git("checkout", "-q", "-b", "theirs")
    commit(repository, ["add", "acme/skills/a", "--to", "claude"])
    git("checkout", "-q", "main")
    commit(repository, ["add", "other/repo/a", "--to", "claude", "--force"])
    git("merge", "-q", "-m", "merged", "theirs")
    before = repository.tree()
    assert repository.json("install", "--force", code=2)["code"] == "lock-collision"
    assert repository.tree() == before
