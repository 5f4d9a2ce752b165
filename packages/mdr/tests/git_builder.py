"""Build real git repositories, hostile ones included, with git's own plumbing."""

from __future__ import annotations

import os
import subprocess
from dataclasses import dataclass
from pathlib import Path

START = 1_767_225_600
"""2026-01-01T00:00:00Z."""


@dataclass(frozen=True)
class Entry:
    """A file with a mode."""

    mode: str
    data: bytes


def link(target: str) -> Entry:
    """A symbolic link."""
    return Entry("120000", target.encode())


def program(data: bytes) -> Entry:
    """An executable file."""
    return Entry("100755", data)


def submodule(oid: str = "1" * 40) -> Entry:
    """A submodule."""
    return Entry("160000", oid.encode())


Files = dict[str, bytes | Entry | None]


class GitRepository:
    """A repository that is written object by object; no file is ever checked out."""

    def __init__(self, path: Path, *, object_format: str = "sha1") -> None:
        self.path = path
        self._files: dict[str, tuple[str, str]] = {}
        self._clock = START
        self.git(
            "init",
            "-q",
            "--bare",
            f"--object-format={object_format}",
            "-b",
            "main",
            str(path),
            bare=False,
        )

    def git(self, *arguments: str, stdin: bytes = b"", bare: bool = True, **env: str) -> str:
        """Run git and return its output."""
        where = [f"--git-dir={self.path}"] if bare else []
        quiet = {"GIT_CONFIG_NOSYSTEM": "1", "GIT_CONFIG_GLOBAL": os.devnull}
        done = subprocess.run(
            ["git", *where, *arguments],
            input=stdin,
            capture_output=True,
            check=True,
            env={"PATH": os.environ["PATH"], **quiet, **env},
        )
        return done.stdout.decode("utf-8", "surrogateescape").strip()

    def blob(self, data: bytes) -> str:
        """Write a blob."""
        return self.git("hash-object", "-w", "--stdin", stdin=data)

    def tree(self, entries: list[tuple[str, bytes, str]]) -> str:
        """Write a tree of (mode, name, oid) with no check at all."""
        raw = b"".join(
            mode.encode() + b" " + name + b"\0" + bytes.fromhex(oid) for mode, name, oid in entries
        )
        return self.git("hash-object", "-w", "--literally", "-t", "tree", "--stdin", stdin=raw)

    def commit(
        self,
        changes: Files,
        *,
        time: int | None = None,
        parents: list[str] | None = None,
        branch: str = "main",
    ) -> str:
        """Apply changes (``None`` deletes) to the last tree and commit it to ``branch``."""
        for path, data in changes.items():
            if data is None:
                del self._files[path]
                continue
            entry = data if isinstance(data, Entry) else Entry("100644", data)
            oid = entry.data.decode() if entry.mode == "160000" else self.blob(entry.data)
            self._files[path] = (entry.mode, oid)
        return self.commit_tree(self._write_tree(), time=time, parents=parents, branch=branch)

    def commit_tree(
        self,
        tree: str,
        *,
        time: int | None = None,
        parents: list[str] | None = None,
        branch: str = "main",
    ) -> str:
        """Commit a tree; the parent is the branch's tip unless parents are given."""
        self._clock = self._clock + 60 if time is None else time
        if parents is None:
            tip = self.git("for-each-ref", "--format=%(objectname)", f"refs/heads/{branch}")
            parents = [tip] if tip else []
        stamp = f"{self._clock} +0000"
        people = {
            f"GIT_{role}_{what}": value
            for role in ("AUTHOR", "COMMITTER")
            for what, value in (("NAME", "n"), ("EMAIL", "e@x"), ("DATE", stamp))
        }
        words = [word for parent in parents for word in ("-p", parent)]
        oid = self.git("commit-tree", *words, "-m", "m", tree, **people)
        self.git("update-ref", f"refs/heads/{branch}", oid)
        return oid

    def files(self) -> dict[str, tuple[str, str]]:
        """The (mode, oid) of every path of the next commit, to save and restore."""
        return dict(self._files)

    def restore(self, files: dict[str, tuple[str, str]]) -> None:
        """Go back to an earlier set of paths."""
        self._files = dict(files)

    def _write_tree(self) -> str:
        lines = "".join(f"{mode} {oid}\t{path}\0" for path, (mode, oid) in self._files.items())
        index = str(self.path / "builder-index")
        Path(index).unlink(missing_ok=True)
        self.git(
            "update-index",
            "-z",
            "--add",
            "--index-info",
            stdin=lines.encode("utf-8", "surrogateescape"),
            GIT_INDEX_FILE=index,
        )
        return self.git("write-tree", "--missing-ok", GIT_INDEX_FILE=index)


def skill(name: str, text: str = "") -> bytes:
    """A valid SKILL.md of more than 200 bytes."""
    body = text or "Say hello politely and then do the work that was asked for. " * 5
    return f"---\nname: {name}\ndescription: Greets people by name.\n---\n# {name}\n\n{body}\n".encode()
