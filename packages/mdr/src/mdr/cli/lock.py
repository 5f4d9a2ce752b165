"""``mdr lock merge``."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

import click

from mdr.cli.options import counted, json_option, place_options, print_document, say

if TYPE_CHECKING:
    from mdr.install.lock import Lock
    from mdr.settings import Settings

SCHEMA = "mdr.lock-merge/1"


@click.group("lock")
def command() -> None:
    """Work on mdr.lock itself."""


@command.command("merge", short_help="Resolve a git conflict in mdr.lock entry by entry.")
@click.argument("files", nargs=-1, type=click.Path(path_type=Path), metavar="[BASE OURS THEIRS]")
@click.option(
    "--prefer",
    type=click.Choice(["ours", "theirs", "newest"]),
    help="Decide what both sides changed.",
)
@json_option
@place_options
def merge_command(
    *, files: tuple[Path, ...], prefer: str | None, as_json: bool, settings: Settings
) -> int:
    """Resolve a git conflict in mdr.lock entry by entry; exit 1 when both sides changed one entry.

    Without arguments the three versions come from git's index. With BASE OURS THEIRS the result goes
    to OURS, as git's merge drivers want it (driver = mdr lock merge %O %A %B).
    """
    from mdr.errors import UsageError
    from mdr.install.lock import write_lock
    from mdr.install.merge import Prefer, merge
    from mdr.install.workspace import open_workspace

    if files and len(files) != 3:
        raise UsageError("usage", "merge takes no file or three: BASE OURS THEIRS")
    workspace = open_workspace(settings)
    sides = [_from_file(f) for f in files] if files else _from_git(workspace.roots.project)
    merged = merge(sides[0], sides[1], sides[2], None if prefer is None else Prefer(prefer))
    if not merged.conflicts:
        write_lock(files[1] if files else workspace.lock_path, merged.lock)
    refs = [entry.ref for entry in merged.lock.entries]
    if as_json:
        print_document(SCHEMA, {"merged": refs, "conflicts": list(merged.conflicts)})
    elif merged.conflicts:
        for ref in merged.conflicts:
            say(
                f"conflict {ref}: both sides changed it; decide with --prefer ours, theirs or newest"
            )
    else:
        say(f"merged {counted(len(refs), 'entry')}; next: git add mdr.lock, mdr install")
    return 1 if merged.conflicts else 0


def _from_file(path: Path) -> Lock:
    """Read one side; an empty file is what git gives for a side that does not exist."""
    from mdr.install.lock import Lock
    from mdr.install.lock_read import parse_lock, read_lock

    if path.is_file() and path.stat().st_size == 0:
        return Lock()
    return parse_lock(path.read_bytes(), path.name) if path.is_file() else read_lock(path)


def _from_git(folder: Path) -> list[Lock]:
    """Read the stages 1, 2 and 3 of mdr.lock from git's index."""
    from mdr.errors import UsageError
    from mdr.install.lock import LOCK_NAME, Lock
    from mdr.install.lock_read import parse_lock

    names = {1: "base", 2: "ours", 3: "theirs"}
    stages = _stages(folder, LOCK_NAME)
    if not {2, 3} & set(stages):
        raise UsageError(
            "no-conflict",
            f"git has no conflict in {LOCK_NAME} here",
            hint="run this after a merge or rebase stopped at mdr.lock",
        )
    return [
        parse_lock(_git(folder, "cat-file", "blob", stages[n]), f"{LOCK_NAME} ({names[n]})")
        if n in stages
        else Lock()
        for n in (1, 2, 3)
    ]


def _stages(folder: Path, name: str) -> dict[int, str]:
    listed = _git(folder, "ls-files", "-u", "-z", "--", name).decode("ascii", "replace")
    fields = [line.partition("\t")[0].split(" ") for line in listed.split("\0") if line]
    return {int(stage): oid for _, oid, stage in fields}


def _git(folder: Path, *arguments: str) -> bytes:
    from mdr.errors import SourceError

    try:
        done = subprocess.run(  # noqa: S603 - a fixed program and fixed words
            ["git", "-C", str(folder), *arguments],  # noqa: S607 - the person's own git
            capture_output=True,
            timeout=60,
            check=True,
            stdin=subprocess.DEVNULL,
        )
    except subprocess.CalledProcessError as error:
        said = error.stderr.decode("utf-8", "replace").strip()
        raise SourceError("git-failed", f"git {arguments[0]} failed: {said}") from error
    except (OSError, subprocess.SubprocessError) as error:
        raise SourceError("git-failed", f"git {arguments[0]} failed: {error}") from error
    return done.stdout
