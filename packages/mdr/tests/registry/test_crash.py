"""kill -9 at any moment, and two indexers at once: the store stays clean or is repaired without loss."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from git_builder import GitRepository, skill

from mdr.reference.parse import parse
from mdr.registry.checking import check
from mdr.registry.indexing import index_source
from mdr.registry.local import LocalRegistry

if TYPE_CHECKING:
    from mdr.settings import Settings

HARNESS = Path(__file__).with_name("crash_harness.py")


def build(path: Path, skills: int = 4) -> GitRepository:
    repository = GitRepository(path)
    repository.commit(
        {f"s{n}/SKILL.md": skill(f"s{n}") for n in range(skills)} | {"s0/a.txt": b"a"}
    )
    repository.commit({"s0/SKILL.md": skill("s0", "second " * 50)})
    repository.commit({"s0/a.txt": b"b"})
    return repository


def snapshot(settings: Settings, skills: int = 4) -> list[object]:
    registry = LocalRegistry(settings)
    return [
        (
            registry.versions(parse(f"acme/tools/s{n}")),
            registry.resolve(parse(f"acme/tools/s{n}")).files,
        )
        for n in range(skills)
    ]


@pytest.mark.parametrize("moment", [1, 3, 8, 14, 21, 27, 30, 34, 40, 46, 52, 60])
def test_kill_at_any_moment(tmp_path: Path, settings: Settings, moment: int) -> None:
    repository = build(tmp_path / "r.git")
    words = [sys.executable, str(HARNESS), str(settings.data), str(repository.path), str(moment)]
    status = subprocess.run(words, check=False, capture_output=True).returncode
    assert status == -signal.SIGKILL, "the moment lies beyond the last step"
    first = check(settings, repair=False)
    assert first.ok, first
    repaired = check(settings, repair=True)
    assert repaired.ok
    assert {each.problem for each in repaired.problems} <= {"leftover"}
    index_source(str(repository.path), settings, name_as="acme/tools")
    last = check(settings, repair=False)
    assert (last.ok, last.problems, last.versions) == (True, (), 5)
    assert len(snapshot(settings)) == 4


def test_a_kill_loses_nothing_that_was_published(tmp_path: Path, settings: Settings) -> None:
    repository = build(tmp_path / "r.git")
    index_source(str(repository.path), settings, name_as="acme/tools")
    before = snapshot(settings)
    repository.commit({"s9/SKILL.md": skill("s9")})
    for moment in (2, 5, 9, 12, 15):  # from 9 on the new blob is there, and 16 steps are left
        words = [
            sys.executable,
            str(HARNESS),
            str(settings.data),
            str(repository.path),
            str(moment),
        ]
        assert subprocess.run(words, check=False, capture_output=True).returncode == -signal.SIGKILL
        assert check(settings, repair=True).ok
        assert snapshot(settings) == before


def test_two_indexers_of_one_repository(tmp_path: Path, settings: Settings) -> None:
    repository = build(tmp_path / "r.git", skills=40)
    outputs = race(settings, [(repository, "acme/tools")] * 2)
    assert sorted(outputs) == [0, 41]
    assert check(settings, repair=False).problems == ()
    assert len(snapshot(settings, 40)) == 40


def test_two_indexers_of_copies_share_their_blobs(tmp_path: Path, settings: Settings) -> None:
    one, two = build(tmp_path / "1.git", skills=40), build(tmp_path / "2.git", skills=40)
    assert race(settings, [(one, "acme/tools"), (two, "acme/copies")]) == [41, 41]
    checked = check(settings, repair=False)
    assert (checked.problems, checked.versions) == ((), 82)
    assert checked.blobs == 43
    found = LocalRegistry(settings).find_by_content(
        [LocalRegistry(settings).resolve(parse("acme/copies/s1")).version.sha256]
    )
    assert sorted(each.artifact.ref for all_ in found.values() for each in all_) == [
        "acme/copies/s1",
        "acme/tools/s1",
    ]


def race(settings: Settings, jobs: list[tuple[GitRepository, str]]) -> list[int]:
    """Run real processes at once and return how many versions each of them added."""
    import json

    runs = [
        subprocess.Popen(
            [
                sys.executable,
                "-m",
                "mdr",
                "index",
                str(repository.path),
                "--as",
                name,
                "--data",
                str(settings.data),
                "--json",
            ],
            stdout=subprocess.PIPE,
        )
        for repository, name in jobs
    ]
    outputs = [run.communicate()[0] for run in runs]
    assert [run.returncode for run in runs] == [0] * len(jobs)
    return [json.loads(output)["sources"][0]["new_versions"] for output in outputs]
