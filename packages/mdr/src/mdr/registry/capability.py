"""What an update lets an agent do that it could not do before: the gate ``--if-no-new-capability``.

The semantic diff of the named file answers for that file. A skill is a folder, so the other files count
too: their new hosts, commands and credential paths, and every script that is new or changed, since what
a changed script does cannot be read off its text.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from mdr.version.types import FileMode

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from mdr.audit.types import SemanticDiff
    from mdr.digest import Sha256
    from mdr.registry.lines import FileChange
    from mdr.version.types import FileEntry

TEXT_SUFFIXES: Final = (".md", ".mdc", ".markdown", ".txt", ".rst")
"""Files that an agent reads; any other new or changed file counts as something it may run."""
DATA_SUFFIXES: Final = (".json", ".yaml", ".yml", ".toml", ".csv", ".png", ".jpg", ".svg", ".sig")
"""Files that are neither run nor read as prose; their changes are shown, not held."""

MAX_NAMED: Final = 8
"""Programs that are named; the rest is counted."""


def gained(
    semantic: SemanticDiff,
    files: Iterable[FileChange],
    named: str,
    read: Callable[[Sha256], bytes | None],
) -> tuple[str, ...]:
    """Return one line for each capability that a change adds.

    Args:
        semantic: Of the named file.
        files: Every file that differs.
        named: The named file, which ``semantic`` covers.
        read: Gives the bytes of both versions; a text whose bytes are not at hand counts as gaining.
    """
    lines = _lines(semantic, "")
    for change in files:
        if change.path == named or change.after is None:
            continue
        name = change.path.lower()
        if change.after.mode is FileMode.EXECUTABLE or not name.endswith(
            TEXT_SUFFIXES + DATA_SUFFIXES
        ):
            lines.append(f"{'new' if change.before is None else 'changed'} script {change.path}")
        elif name.endswith(TEXT_SUFFIXES):
            lines += _text(change, read)
    return tuple(lines)


def programs(files: Iterable[FileEntry]) -> str | None:
    """Name what an agent may run: files with the executable bit, and scripts by their suffix.

    Returns:
        Such as ``1 executable: scripts/check.sh; 2 scripts: a.py, b.py``; ``None`` for nothing.
    """
    from mdr.audit.magic import SCRIPT_EXTENSIONS, extension_of

    found: dict[str, list[str]] = {"executable": [], "script": []}
    for file in files:
        if file.mode is FileMode.EXECUTABLE:
            found["executable"].append(file.path)
        elif file.mode is FileMode.REGULAR and extension_of(file.path) in SCRIPT_EXTENSIONS:
            found["script"].append(file.path)
    return (
        "; ".join(
            f"{len(paths)} {noun}{'s' * (len(paths) > 1)}: {_shortened(paths)}"
            for noun, paths in found.items()
            if paths
        )
        or None
    )


def _shortened(paths: list[str]) -> str:
    more = len(paths) - MAX_NAMED
    return ", ".join(paths[:MAX_NAMED]) + (f" and {more} more" if more > 0 else "")


def _text(change: FileChange, read: Callable[[Sha256], bytes | None]) -> list[str]:
    from mdr.audit.semantics import semantic_diff, semantics

    before = b"" if change.before is None else read(change.before.sha256)
    after = None if change.after is None else read(change.after.sha256)
    if before is None or after is None:
        return [f"unread {change.path}"]
    return _lines(semantic_diff(semantics(before), semantics(after)), f" ({change.path})")


def _lines(semantic: SemanticDiff, where: str) -> list[str]:
    parts = (
        ("host", semantic.hosts),
        ("command", semantic.commands),
        ("tool", semantic.tools),
        ("credential path", semantic.credential_paths),
    )
    return [f"new {name} {item}{where}" for name, change in parts for item in change.added]
