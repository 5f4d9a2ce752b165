"""The files that differ between two versions, and their lines."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Callable

    from mdr.digest import Sha256
    from mdr.version.types import FileEntry

MAX_TEXT_BYTES: Final = 1 << 20
"""A larger file is named, not compared by lines: that takes time that grows faster than its size."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FileChange:
    """One file that is not the same in both versions."""

    path: str
    change: str
    """``added``, ``removed``, ``changed`` or ``mode``."""
    before: FileEntry | None
    after: FileEntry | None

    def to_document(self) -> dict[str, Any]:
        """Return it as JSON types; ``from`` and ``to`` are the hashes."""
        return {
            "path": self.path,
            "change": self.change,
            "from": None if self.before is None else self.before.sha256,
            "to": None if self.after is None else self.after.sha256,
        }


def counted_lines(before: bytes, after: bytes) -> tuple[int, int]:
    """Return how many lines were added and removed."""
    lines = _difference(before, after, ("", ""), ("", ""))[2:]
    return sum(line.startswith("+") for line in lines), sum(line.startswith("-") for line in lines)


def unified_lines(
    change: FileChange, read: Callable[[Sha256], bytes | None], labels: tuple[str, str]
) -> str:
    """Write the unified diff of one file, or one line that says why there is none.

    Args:
        change: The file in both versions.
        read: Gives the bytes of a hash, ``None`` where they are not at hand.
        labels: Of both versions; they stand where other tools write a date.

    Returns:
        Lines, each ended by LF. A carriage return shows as its escape.
    """
    path = change.path.encode("unicode_escape").decode("ascii")
    modes = [side.mode.value for side in (change.before, change.after) if side is not None]
    mode = f"mode of {path}: {modes[0]} -> {modes[-1]}\n" if len(set(modes)) > 1 else ""
    if change.change == "mode":
        return mode
    before = b"" if change.before is None else read(change.before.sha256)
    after = b"" if change.after is None else read(change.after.sha256)
    if before is None or after is None:
        return f"{mode}{path}: its bytes are not at hand\n"
    if b"\0" in before + after:
        return f"{mode}{path}: not a text, {len(before)} -> {len(after)} bytes\n"
    if max(len(before), len(after)) > MAX_TEXT_BYTES:
        return f"{mode}{path}: too large to compare, {len(before)} -> {len(after)} bytes\n"
    names = (
        "/dev/null" if change.before is None else path,
        "/dev/null" if change.after is None else path,
    )
    return mode + "".join(_difference(before, after, names, labels))


def _difference(
    before: bytes, after: bytes, names: tuple[str, str], labels: tuple[str, str]
) -> list[str]:
    from difflib import unified_diff

    lines = unified_diff(_lines(before), _lines(after), *names, *labels)
    return [
        line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n" for line in lines
    ]


def _lines(data: bytes) -> list[str]:
    r"""Split at LF; bytes that are not UTF-8 are shown as ``\xNN``."""
    text = data.decode("utf-8", "backslashreplace").replace("\r", "\\r")
    return [line + "\n" for line in text.split("\n")[:-1]] + (
        [text.rpartition("\n")[2]] if not text.endswith("\n") and text else []
    )
