"""Indexing real repositories: what becomes a version, what stays, what is named."""

from __future__ import annotations

import base64
import hashlib
import os
import signal
import subprocess
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from git_builder import link, program, skill

from mdr.digest import Sha256
from mdr.errors import StoreError
from mdr.reference.parse import parse
from mdr.registry.indexing import index_source
from mdr.registry.local import LocalRegistry
from mdr.version.types import manifest_sha256

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from git_builder import GitRepository

    from mdr.registry.indexing import Indexed
    from mdr.settings import Settings
    from mdr.version.types import Version

    IndexIt = Callable[[GitRepository], Indexed]

REF = "acme/tools/greet"
PATH = "skills/greet/SKILL.md"


def versions(registry: LocalRegistry, ref: str = REF) -> tuple[Version, ...]:
    return registry.versions(parse(ref))[1]


def test_labels_hashes_sizes_and_order(
    repository: GitRepository, index: IndexIt, registry: LocalRegistry
) -> None:
    texts = [skill("greet", f"text number {n} " * 20) for n in range(3)]
    commits = [repository.commit({PATH: text}) for text in texts]
    done = index(repository)
    assert (done.artifacts, done.versions, done.new_versions, done.skipped) == (1, 3, 3, ())
    assert done.head == commits[-1]
    found = versions(registry)
    assert [each.label for each in found] == [
        f"git:20260101.{commit[:7]}" for commit in reversed(commits)
    ]
    assert [each.sha256 for each in found] == [
        hashlib.sha256(text).hexdigest() for text in reversed(texts)
    ]
    assert [each.size for each in found] == [len(text) for text in reversed(texts)]
    assert {each.grade for each in found} == {"A"}
    assert all(registry.blob(each.sha256) in texts for each in found)


def test_the_folder_is_frozen_with_modes_links_and_exact_bytes(
    repository: GitRepository, index: IndexIt, registry: LocalRegistry
) -> None:
    odd = b"\r\n\xff\x00\xfe"
    repository.commit(
        {
            PATH: skill("greet"),
            "skills/greet/run.sh": program(b"#!/bin/sh\r\n"),
            "skills/greet/odd.bin": odd,
            "skills/greet/l": link("odd.bin"),
        }
    )
    index(repository)
    resolved = registry.resolve(parse(REF))
    assert [(f.path, f.mode) for f in resolved.files] == [
        ("SKILL.md", "100644"),
        ("l", "120000"),
        ("odd.bin", "100644"),
        ("run.sh", "100755"),
    ]
    held = {f.path: registry.blob(f.sha256) for f in resolved.files}
    assert (held["odd.bin"], held["l"], held["run.sh"]) == (odd, b"odd.bin", b"#!/bin/sh\r\n")
    assert resolved.version.manifest_sha256 == manifest_sha256(resolved.files)


def test_a_merge_is_a_version_and_its_side_commits_are_none(
    repository: GitRepository, index: IndexIt, registry: LocalRegistry
) -> None:
    base = repository.commit({PATH: skill("greet", "base " * 50)})
    files = repository.files()
    side = repository.commit({PATH: skill("greet", "side " * 50)}, parents=[base], branch="side")
    repository.restore(files)
    other = repository.commit({"x.md": b"x"})
    merge = repository.commit({PATH: skill("greet", "side " * 50)}, parents=[other, side])
    index(repository)
    assert [each.commit for each in versions(registry)] == [merge, base]


def test_an_unchanged_source_is_not_read_again(
    repository: GitRepository, index: IndexIt, settings: Settings
) -> None:
    repository.commit({PATH: skill("greet")})
    first = index(repository)
    for objects in (repository.path / "objects").glob("??/*"):
        if objects.parent.name + objects.name != first.head:
            objects.unlink()  # only the tip can still be resolved
    again = index(repository)
    assert replace(again, seconds=0, new_versions=0) == replace(first, seconds=0, new_versions=0)
    assert again.new_versions == 0
    assert (settings.data / "index.sqlite").exists()


def test_new_commits_add_and_the_rest_stays(
    repository: GitRepository, index: IndexIt, registry: LocalRegistry
) -> None:
    repository.commit({PATH: skill("greet", "one " * 60)})
    index(repository)
    (first,) = versions(registry)
    repository.commit({PATH: skill("greet", "two " * 60)})
    assert index(repository).new_versions == 1
    second, still = versions(registry)
    assert replace(still, latest=True) == first
    assert second.latest


def test_a_force_push_keeps_what_was_published(
    repository: GitRepository, index: IndexIt, registry: LocalRegistry
) -> None:
    base = repository.commit({PATH: skill("greet", "one " * 60)})
    lost = repository.commit({PATH: skill("greet", "lost " * 60)})
    index(repository)
    repository.git("update-ref", "refs/heads/main", base)
    new = repository.commit({PATH: skill("greet", "new " * 60)}, time=1_767_400_000)
    index(repository)
    assert [each.commit for each in versions(registry)] == [new, lost, base]
    kept = registry.resolve(parse(f"{REF}@git:20260101.{lost[:7]}"))
    assert registry.blob(kept.version.sha256) == skill("greet", "lost " * 60)


def test_a_returning_blob_has_several_labels(
    repository: GitRepository, index: IndexIt, registry: LocalRegistry
) -> None:
    one, two = skill("greet", "one " * 60), skill("greet", "two " * 60)
    commits = [repository.commit({PATH: text}) for text in (one, two, one)]
    index(repository)
    newest, _, oldest = versions(registry)
    assert newest.same_bytes == (oldest.label,)
    resolved = registry.resolve(parse(f"{REF}@sha256:{newest.sha256}"))
    assert resolved.version.commit == commits[2]
    assert any(oldest.label in note for note in resolved.notes)


def test_folder_changes_are_revisions_and_are_told(
    repository: GitRepository, index: IndexIt, registry: LocalRegistry
) -> None:
    repository.commit({PATH: skill("greet"), "skills/greet/a.txt": b"1"})
    later = repository.commit({"skills/greet/a.txt": b"2"})
    index(repository)
    resolved = registry.resolve(parse(REF))
    (revision,) = resolved.version.folder_revisions
    assert revision.commit == later
    assert revision.manifest_sha256 != resolved.version.manifest_sha256
    assert next(registry.blob(f.sha256) for f in resolved.files if f.path == "a.txt") == b"1"
    assert any("changed the folder" in note for note in resolved.notes)


def test_a_moved_skill_remembers_its_former_path(
    repository: GitRepository, index: IndexIt, registry: LocalRegistry
) -> None:
    repository.commit({"old/greet/SKILL.md": skill("greet")})
    repository.commit({"old/greet/SKILL.md": None, PATH: skill("greet") + b"more\n"})
    index(repository)
    artifact, found = registry.versions(parse(REF))
    assert (artifact.path, artifact.previously) == (PATH, ("old/greet/SKILL.md",))
    assert len(found) == 1
    gone = registry.resolve(parse("acme/tools:old/greet/SKILL.md"))
    assert any("no longer exists" in note for note in gone.notes)


def test_a_shallow_clone_has_no_invented_labels(
    repository: GitRepository, settings: Settings, tmp_path: Path
) -> None:
    repository.commit({PATH: skill("greet", "one " * 60), "other/SKILL.md": skill("other")})
    repository.commit({"x.md": b"x"})
    last = repository.commit({PATH: skill("greet", "two " * 60)})
    clone = tmp_path / "clone"
    subprocess.run(
        ["git", "clone", "-q", "--depth=2", f"file://{repository.path}", clone], check=True
    )
    done = index_source(str(clone), settings, name_as="acme/tools")
    registry = LocalRegistry(settings)
    assert [each.commit for each in versions(registry)] == [last]
    reasons = {each.path: each.reason for each in done.skipped}
    assert "shallow" in reasons["other/SKILL.md"]


def test_a_bundle_gives_what_the_repository_gives(
    repository: GitRepository, settings: Settings, tmp_path: Path
) -> None:
    repository.commit({PATH: skill("greet"), "AGENTS.md": b"Be kind. " * 40})
    index_source(str(repository.path), settings, name_as="acme/tools")
    bundle = tmp_path / "x.bundle"
    repository.git("bundle", "create", "-q", str(bundle), "HEAD", "main")
    other = replace(settings, data=tmp_path / "other")
    index_source(str(bundle), other, name_as="acme/tools")
    for ref in (REF, "acme/tools/AGENTS"):
        assert versions(LocalRegistry(settings), ref) == versions(LocalRegistry(other), ref)


def test_many_blobs_on_many_processes_are_the_same_as_on_one(
    repository: GitRepository, settings: Settings, tmp_path: Path
) -> None:
    repository.commit(
        {
            f"skills/s{n}/{name}": skill(f"s{n}") if name == "SKILL.md" else f"{n}{name}".encode()
            for n in range(130)
            for name in ("SKILL.md", "a.txt")
        }
    )
    one, many = (
        replace(settings, data=tmp_path / f"d{workers}", workers=workers) for workers in (1, 2)
    )
    results = [
        index_source(str(repository.path), each, name_as="acme/tools") for each in (one, many)
    ]
    assert results[0].versions == results[1].versions == 130
    for n in (0, 77, 129):
        ref = parse(f"acme/tools/s{n}")
        assert LocalRegistry(one).resolve(ref) == LocalRegistry(many).resolve(ref)


def test_ids_do_not_depend_on_the_spelling_of_the_repository(
    repository: GitRepository, settings: Settings, tmp_path: Path
) -> None:
    repository.commit({PATH: skill("greet")})
    ids = set()
    for number, name in enumerate(("Acme/Tools", "acme/tools")):
        each = replace(settings, data=tmp_path / str(number))
        index_source(str(repository.path), each, name_as=name)
        ids.add(LocalRegistry(each).resolve(parse(REF)).artifact.id)
    digest = hashlib.sha256(f"github.com\nacme/tools\n{PATH}".encode()).digest()
    assert ids == {"art_" + base64.b32encode(digest).decode().lower()[:16]}


def test_settings_limits_name_what_is_too_large(
    repository: GitRepository, settings: Settings
) -> None:
    repository.commit(
        {
            PATH: skill("greet"),
            "skills/greet/big.bin": b"x" * 5_000,
            "big/SKILL.md": skill("big", "y" * 9_000),
        }
    )
    small = replace(settings, limits=replace(settings.limits, max_file_bytes=4_000))
    done = index_source(str(repository.path), small, name_as="acme/tools")
    assert {each.path for each in done.skipped} == {"skills/greet/big.bin", "big/SKILL.md"}
    resolved = LocalRegistry(small).resolve(parse(REF))
    assert [f.path for f in resolved.files] == ["SKILL.md"]
    assert any("big.bin" in note for note in resolved.notes)


def test_a_worker_that_dies_is_an_error_in_words(
    repository: GitRepository, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    from mdr.registry import harvest

    repository.commit({f"s{n}/SKILL.md": skill(f"s{n}") for n in range(3)})
    monkeypatch.setattr(harvest, "SMALL", 1)
    monkeypatch.setattr(harvest, "_read_piece", _die)
    with pytest.raises(StoreError) as caught:
        index_source(str(repository.path), replace(settings, workers=2), name_as="acme/tools")
    assert caught.value.code == "worker-died"
    assert LocalRegistry(settings).blob(Sha256("0" * 64)) is None


def _die(*_: object) -> None:
    os.kill(os.getpid(), signal.SIGKILL)
