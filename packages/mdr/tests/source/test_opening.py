"""Repositories of every form are read, and nothing of their settings is obeyed."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest
from git_builder import GitRepository

from mdr.errors import SourceError, UsageError
from mdr.settings import Limits, Settings
from mdr.source.locate import locate
from mdr.source.opening import current_head, open_source
from mdr.source.types import Step


def read(path: Path, data: Path, **limits: int) -> list[Step]:
    settings = Settings(data=data, limits=Limits(**limits))
    location = locate(str(path))
    head = current_head(location, settings)
    with open_source(location, head, settings) as source:
        return list(source.history(source.head().commit))


@pytest.fixture
def repository(tmp_path: Path) -> GitRepository:
    built = GitRepository(tmp_path / "r.git")
    built.commit({"a.md": b"one"})
    built.commit({"a.md": b"two"})
    return built


def test_worktree_linked_worktree_and_bundle(repository: GitRepository, tmp_path: Path) -> None:
    clone, linked, bundle = tmp_path / "clone", tmp_path / "linked", tmp_path / "r.bundle"
    subprocess.run(["git", "clone", "-q", repository.path, clone], check=True)
    subprocess.run(["git", "-C", clone, "worktree", "add", "-q", "--detach", linked], check=True)
    repository.git("bundle", "create", "-q", str(bundle), "HEAD", "main")
    want = read(repository.path, tmp_path / "d")
    for path in (clone, linked, bundle):
        assert read(path, tmp_path / "d") == want


def test_a_repository_owned_by_another_user_is_read(
    repository: GitRepository, tmp_path: Path
) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root may give files away")
    os.chown(repository.path, 12345, 12345)
    assert len(read(repository.path, tmp_path / "d")) == 2


def test_settings_of_the_repository_run_nothing(repository: GitRepository, tmp_path: Path) -> None:
    trap, sprung = tmp_path / "trap.sh", tmp_path / "sprung"
    trap.write_text(f"#!/bin/sh\ntouch {sprung}\n")
    trap.chmod(0o755)
    for key in (
        "core.fsmonitor", "core.pager", "core.sshCommand", "gpg.program", "diff.external",
        "core.alternateRefsCommand", "credential.helper", "core.gitProxy", "remote.x.uploadpack",
    ):  # fmt: skip
        repository.git("config", key, str(trap))
    for key, value in {
        "log.showSignature": "true",
        "remote.x.promisor": "true",
        "remote.x.url": f"ext::{trap}",
        "extensions.partialClone": "x",
        "core.repositoryformatversion": "1",
        "diff.renames": "copies",
        "log.date": "relative",
        "core.quotePath": "true",
    }.items():
        repository.git("config", key, value)
    for hook in ("post-checkout", "reference-transaction", "pre-auto-gc"):
        (repository.path / "hooks").mkdir(exist_ok=True)
        (repository.path / "hooks" / hook).symlink_to(trap)
    steps = read(repository.path, tmp_path / "d")
    assert [len(changes) for _, changes in steps] == [1, 1]
    assert not sprung.exists()


def test_replace_refs_and_grafts_change_nothing(repository: GitRepository, tmp_path: Path) -> None:
    want = read(repository.path, tmp_path / "d")
    first, second = (commit.oid for commit, _ in want)
    repository.git("replace", "--graft", second)
    (repository.path / "info").mkdir(exist_ok=True)
    (repository.path / "info" / "grafts").write_text(f"{second}\n{first}\n")
    assert read(repository.path, tmp_path / "d") == want


def test_a_branch_called_head_is_not_the_head(repository: GitRepository, tmp_path: Path) -> None:
    want = current_head(locate(str(repository.path)), Settings(data=tmp_path / "d"))
    other = repository.git(
        "commit-tree",
        "-m",
        "x",
        f"{want.commit}^{{tree}}",
        GIT_AUTHOR_NAME="n",
        GIT_AUTHOR_EMAIL="e",
        GIT_COMMITTER_NAME="n",
        GIT_COMMITTER_EMAIL="e",
    )
    repository.git("update-ref", "refs/heads/HEAD", other)
    repository.git("update-ref", "refs/tags/HEAD", other)
    assert current_head(locate(str(repository.path)), Settings(data=tmp_path / "d")) == want
    bundle = tmp_path / "r.bundle"
    repository.git("bundle", "create", "-q", str(bundle), "--all")
    assert current_head(locate(str(bundle)), Settings(data=tmp_path / "d")).commit == want.commit


def test_an_empty_repository_says_so(tmp_path: Path) -> None:
    built = GitRepository(tmp_path / "empty.git")
    with pytest.raises(SourceError) as caught:
        current_head(locate(str(built.path)), Settings(data=tmp_path / "d"))
    assert caught.value.code == "source-empty"


def test_a_folder_without_a_repository(tmp_path: Path) -> None:
    with pytest.raises(UsageError) as caught:
        current_head(locate(str(tmp_path)), Settings(data=tmp_path / "d"))
    assert caught.value.code == "source-not-found"


def test_a_history_beyond_the_limit_is_refused(repository: GitRepository, tmp_path: Path) -> None:
    with pytest.raises(SourceError) as caught:
        read(repository.path, tmp_path / "d", max_tree_entries=1)
    assert caught.value.code == "source-too-large"


def test_a_missing_object_is_an_error_and_not_a_hang(
    repository: GitRepository, tmp_path: Path
) -> None:
    settings = Settings(data=tmp_path / "d")
    location = locate(str(repository.path))
    with (
        open_source(location, current_head(location, settings), settings) as source,
        pytest.raises(SourceError) as caught,
    ):
        list(source.read(["9" * 40] * 20_000))
    assert caught.value.code == "source-unreadable"


def test_a_git_that_takes_too_long_is_stopped(repository: GitRepository, tmp_path: Path) -> None:
    with pytest.raises(SourceError) as caught:
        read(repository.path, tmp_path / "d", fetch_timeout_seconds=0)
    assert caught.value.code == "git-timeout"


def test_nothing_is_left_in_the_data_folder(repository: GitRepository, tmp_path: Path) -> None:
    read(repository.path, tmp_path / "d")
    assert list((tmp_path / "d" / "tmp").iterdir()) == []
