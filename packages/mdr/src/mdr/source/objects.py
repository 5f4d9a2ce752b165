"""Read one repository's object database through git's batch plumbing.

The repository's own configuration, hooks, refs, grafts, replace refs and remotes are left out: git
runs in an empty bare repository of ours (the *skeleton*) that borrows only the objects folder. The
tip is resolved once, before, and every later step names it by its digits.
"""

from __future__ import annotations

import tempfile
import threading
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, TYPE_CHECKING, Final

from mdr.errors import SourceError
from mdr.settings import Limits
from mdr.source import git
from mdr.source.raw_log import parse_log
from mdr.source.types import Head, Oid, Rename, Step

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

SIMILARITY: Final = 60
"""Per cent at which git joins a deleted and an added file; git's own default is 50."""
RENAME_LIMIT: Final = 1_000
"""Files on one side beyond which git compares only exact copies (quadratic otherwise)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GitSource:
    """Implements :class:`mdr.source.types.Source` for a repository on this machine."""

    objects: Path
    """The ``objects`` folder that is read."""
    skeleton: Path
    """The empty bare repository in which git runs."""
    tip: Head
    shallow: frozenset[Oid] = frozenset()
    limits: Limits = field(default_factory=Limits)

    def head(self) -> Head:
        """Return the tip that was resolved when the source was opened."""
        return self.tip

    def history(self, tip: Oid) -> Iterator[Step]:
        """Yield the first-parent line of ``tip``, oldest first; git's output is spooled to disk."""
        arguments = [
            *(self._git_dir, "log", "--first-parent", "-m", "--reverse"),
            *("--raw", "-z", "--no-abbrev", "--no-renames", "--no-show-signature", "--no-mailmap"),
            *("--ignore-submodules=none", "--no-ext-diff", "--format=%H %ct %P"),
            *("--end-of-options", tip, "--"),
        ]
        with tempfile.TemporaryFile(dir=self.skeleton) as spool:
            git.run(
                arguments,
                env=self._env(),
                timeout=self.limits.fetch_timeout_seconds,
                stdout=spool,
                max_file_bytes=self.limits.max_tree_entries * (200 + self.limits.max_path_bytes),
            )
            spool.seek(0)
            yield from parse_log(spool, max_changes=self.limits.max_tree_entries)

    def renames(self, commits: Sequence[Oid]) -> Sequence[Rename]:
        """Ask git which files moved in ``commits``; an empty answer where git cannot tell."""
        if not commits:
            return []
        arguments = [
            *(self._git_dir, "log", "--no-walk=unsorted", "--stdin"),
            *("--first-parent", "-m", "--raw", "-z", "--no-abbrev", f"-M{SIMILARITY}%"),
            *(f"-l{RENAME_LIMIT}", "--diff-filter=R", "--no-show-signature", "--no-ext-diff"),
            *("--no-mailmap", "--format=%H %ct %P"),
        ]
        names = "".join(f"{commit}\n" for commit in commits).encode("ascii")
        timeout = self.limits.fetch_timeout_seconds
        with tempfile.TemporaryFile(dir=self.skeleton) as spool:
            try:
                git.run(arguments, env=self._env(), timeout=timeout, stdin=names, stdout=spool)
            except SourceError:
                return []  # a partial clone without the blobs: similarity is a courtesy, not identity
            spool.seek(0)
            steps = parse_log(spool, max_changes=self.limits.max_tree_entries, renames=True)
            return [
                Rename(commit.oid, old.path, new.path)
                for commit, changes in steps
                for old, new in zip(changes[::2], changes[1::2], strict=True)
            ]

    def sizes(self, oids: Sequence[Oid]) -> dict[Oid, int | None]:
        """Ask ``cat-file --batch-check``, which reads no content."""
        arguments = [self._git_dir, "cat-file", "--batch-check", "--buffer"]
        names = "".join(f"{oid}\n" for oid in oids).encode("ascii")
        timeout = self.limits.fetch_timeout_seconds
        out = git.run(arguments, env=self._env(), timeout=timeout, stdin=names)
        rows = out.decode("ascii", "replace").splitlines()
        if len(rows) != len(oids):
            raise SourceError(
                "source-unreadable", "git cat-file gave a different number of answers"
            )
        return {oid: _size(row) for oid, row in zip(oids, rows, strict=True)}

    def read(self, oids: Iterable[Oid]) -> Iterator[tuple[Oid, bytes]]:
        """Stream ``cat-file --batch``; a thread feeds the names so that no pipe fills up."""
        names = list(oids)
        arguments = [self._git_dir, "cat-file", "--batch", "--buffer"]
        timeout = self.limits.fetch_timeout_seconds
        with git.conversation(arguments, env=self._env(), timeout=timeout) as (asks, answers):
            feeder = threading.Thread(target=_feed, args=(asks, names), daemon=True)
            feeder.start()
            for oid in names:
                yield oid, _read_one(answers, oid)
            feeder.join()

    @property
    def _git_dir(self) -> str:
        return f"--git-dir={self.skeleton}"

    def _env(self) -> dict[str, str]:
        return git.environment() | {"GIT_OBJECT_DIRECTORY": str(self.objects)}


def make_skeleton(
    folder: Path, *, object_format: str, shallow: frozenset[Oid] = frozenset()
) -> Path:
    """Create the empty bare repository in which git runs.

    Args:
        folder: Where; it is created.
        object_format: ``sha1`` or ``sha256``.
        shallow: Commits whose parents the source does not have.
    """
    for part in ("objects", "refs"):
        (folder / part).mkdir(parents=True, exist_ok=True)
    (folder / "HEAD").write_text("ref: refs/heads/none\n", encoding="ascii")
    version, extension = ("1", "[extensions]\n\tobjectFormat = sha256\n"), ("0", "")
    number, more = version if object_format == "sha256" else extension
    text = f"[core]\n\trepositoryformatversion = {number}\n\tbare = true\n{more}"
    (folder / "config").write_text(text, encoding="ascii")
    if shallow:
        (folder / "shallow").write_text("".join(f"{oid}\n" for oid in sorted(shallow)), "ascii")
    return folder


def _size(row: str) -> int | None:
    words = row.split(" ")
    return int(words[2]) if len(words) == 3 and words[1] == "blob" else None


def _feed(asks: IO[bytes], names: Sequence[Oid]) -> None:
    with suppress(OSError):  # the reader may stop early
        asks.write("".join(f"{oid}\n" for oid in names).encode("ascii"))
        asks.close()


def _read_one(answers: IO[bytes], oid: Oid) -> bytes:
    header = answers.readline().split(b" ")
    if len(header) != 3 or header[0] != oid.encode("ascii") or header[1] != b"blob":
        raise _truncated(oid)
    size = int(header[2])
    data = answers.read(size + 1)
    if len(data) != size + 1:
        raise _truncated(oid)
    return data[:-1]


def _truncated(oid: Oid) -> SourceError:
    return SourceError(
        "source-unreadable",
        f"git could not read the object {oid}",
        hint="run git fsck in the repository, or fetch it again",
        data={"object": oid},
    )
