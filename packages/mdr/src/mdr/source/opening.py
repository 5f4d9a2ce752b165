"""Turn a location into something readable: find the repository, resolve its tip once, fetch if needed."""

from __future__ import annotations

import secrets
import shutil
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from mdr.errors import SourceError, UsageError
from mdr.source import fetch, git
from mdr.source.locate import Location, Reach
from mdr.source.objects import GitSource, make_skeleton
from mdr.source.types import Head

if TYPE_CHECKING:
    from collections.abc import Iterator

    from mdr.settings import Settings


def current_head(location: Location, settings: Settings) -> Head:
    """Say where the default branch stands, without fetching: one reference is read."""
    if location.reach is not Reach.REPOSITORY:
        return fetch.remote_head(location, settings)
    git_dir, _ = find_repository(Path(location.address))
    return _local_head(git_dir, location.address, settings)


@contextmanager
def open_source(location: Location, head: Head, settings: Settings) -> Iterator[GitSource]:
    """Make the objects below ``head`` readable.

    Args:
        location: Where.
        head: From :func:`current_head`.
        settings: Data folder and limits.

    Yields:
        A source, valid inside the ``with`` block.

    Raises:
        mdr.errors.SourceError: source-too-large, git-failed, git-timeout, source-empty.
    """
    if location.reach is Reach.REPOSITORY:
        git_dir, objects = find_repository(Path(location.address))
        shallow = read_shallow(git_dir)
    else:
        mirror = fetch.mirror_folder(location, settings.data)
        fetch.fetch(location, mirror, head, settings)
        objects = mirror / "objects"
        head = Head(commit=_commit_of(mirror, fetch.REF, settings), branch=head.branch)
        shallow = read_shallow(mirror)
    form = "sha256" if len(head.commit) == 64 else "sha1"
    skeleton = settings.data / "tmp" / f"read-{secrets.token_hex(8)}"
    try:
        make_skeleton(skeleton, object_format=form, shallow=shallow)
        yield GitSource(
            objects=objects, skeleton=skeleton, tip=head, shallow=shallow, limits=settings.limits
        )
    finally:
        shutil.rmtree(skeleton, ignore_errors=True)


def find_repository(path: Path) -> tuple[Path, Path]:
    """Return the git folder and the objects folder of a worktree, linked worktree or bare repository.

    Raises:
        mdr.errors.UsageError: source-not-found.
    """
    dot_git = path / ".git"
    if dot_git.is_file():
        text = dot_git.read_text("utf-8", "surrogateescape")[:4096]
        git_dir = (path / text.removeprefix("gitdir:").strip()).resolve()
    else:
        git_dir = dot_git if dot_git.is_dir() else path
    common = git_dir
    if (git_dir / "commondir").is_file():
        common = (
            git_dir / (git_dir / "commondir").read_text("utf-8", "surrogateescape").strip()
        ).resolve()
    if not (git_dir / "HEAD").exists() or not (common / "objects").is_dir():
        raise UsageError(
            "source-not-found",
            f"{path} is not a git repository",
            hint="give the root of a worktree, a bare repository, a bundle, or github:owner/repo",
            data={"source": str(path)},
        )
    return git_dir, common / "objects"


def read_shallow(git_dir: Path) -> frozenset[str]:
    """Return the commits at which a shallow clone is cut."""
    common = git_dir
    if (git_dir / "commondir").is_file():
        common = git_dir / (git_dir / "commondir").read_text("utf-8", "surrogateescape").strip()
    file = common / "shallow"
    return frozenset(file.read_text("ascii", "replace").split()) if file.is_file() else frozenset()


def _local_head(git_dir: Path, shown: str, settings: Settings) -> Head:
    try:
        commit = _commit_of(git_dir, "HEAD", settings)
    except SourceError as error:
        if error.code != "git-failed" or "stderr" not in error.data or error.data["stderr"]:
            raise
        raise fetch.empty(shown) from None
    return Head(commit=commit, branch=_branch(git_dir, settings))


def _branch(git_dir: Path, settings: Settings) -> str | None:
    try:
        out = git.run(
            [f"--git-dir={git_dir}", "symbolic-ref", "--quiet", "HEAD"],
            env=git.environment(),
            timeout=settings.limits.fetch_timeout_seconds,
        )
    except SourceError:
        return None  # detached
    return out.decode("utf-8", "replace").strip().removeprefix("refs/heads/")


def _commit_of(git_dir: Path, name: str, settings: Settings) -> str:
    out = git.run(
        [f"--git-dir={git_dir}", "rev-parse", "--verify", "--quiet", f"{name}^{{commit}}"],
        env=git.environment(),
        timeout=settings.limits.fetch_timeout_seconds,
    )
    return out.decode("ascii", "replace").splitlines()[0].strip()
