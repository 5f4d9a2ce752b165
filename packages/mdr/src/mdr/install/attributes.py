"""Would git change the installed bytes in this repository? Ask git, and say what to write.

With ``core.autocrlf=true`` (the default of Git for Windows) or a ``text`` attribute, a commit followed
by a checkout on another machine turns LF into CRLF, and every hash differs. ``-text`` switches that off.
"""

from __future__ import annotations

import subprocess
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path

TIMEOUT_SECONDS = 10


def advice(project: Path, places: Iterable[str]) -> tuple[str, ...]:
    """Return the lines that ``.gitattributes`` should have.

    Args:
        project: The working directory.
        places: Installed folders and files below it, ``/`` as separator.

    Returns:
        One line for each place whose bytes git may convert; none outside a git repository, and none
        when git is not there to ask.
    """
    wanted = sorted(set(places))
    if not wanted or not _inside_repository(project):
        return ()
    samples = [f"{place}/SKILL.md" if (project / place).is_dir() else place for place in wanted]
    attributes = _git(project, ["check-attr", "-z", "text", "--", *samples])
    if attributes is None:
        return ()
    values = attributes.split("\0")[2::3]
    return tuple(
        f"{_pattern(place, folder=(project / place).is_dir())} -text"
        for place, value in zip(wanted, values, strict=False)
        if value != "unset"
    )


def _inside_repository(project: Path) -> bool:
    return any((folder / ".git").exists() for folder in (project, *project.parents))


def _git(folder: Path, arguments: Sequence[str]) -> str | None:
    try:
        done = subprocess.run(  # noqa: S603 - a fixed program, paths only after --
            ["git", "-C", str(folder), *arguments],  # noqa: S607 - the person's own git
            capture_output=True,
            timeout=TIMEOUT_SECONDS,
            check=True,
            stdin=subprocess.DEVNULL,
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.decode("utf-8", "replace")


def _pattern(place: str, *, folder: bool) -> str:
    """Anchor a place as a pattern of gitattributes(5), quoted when it holds a space or quote."""
    pattern = f"/{place}/**" if folder else f"/{place}"
    escaped = "".join("\\" + char if char in "*?[\\" else char for char in place)
    pattern = pattern.replace(place, escaped)
    if any(char in ' "\\' for char in pattern):
        return '"' + pattern.replace("\\", "\\\\").replace('"', '\\"') + '"'
    return pattern
