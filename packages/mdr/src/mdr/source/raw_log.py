r"""Parse ``git log --raw -z --no-abbrev --format='%H %ct %P'``.

The stream is a sequence of NUL-ended tokens::

    HEADER \0 \n:MODE MODE OID OID STATUS \0 PATH \0 :MODE ... \0 PATH \0 HEADER \0 ...

A token that follows ``:...`` is always a path (two for a rename), so no file name can pretend to be a
header. Memory is bounded by one block plus the changes of one commit.
"""

from __future__ import annotations

from typing import IO, TYPE_CHECKING, Final

from mdr.errors import SourceError
from mdr.source.types import Change, Commit, Step

if TYPE_CHECKING:
    from collections.abc import Iterator

BLOCK: Final = 1 << 20
ODD: Final = frozenset({"100644", "100755", "120000", "160000", "000000"})


def parse_log(stream: IO[bytes], *, max_changes: int, renames: bool = False) -> Iterator[Step]:
    """Yield commits with their changes, in the order of the stream.

    Args:
        stream: What git wrote.
        max_changes: Most changes of all commits together.
        renames: Whether entries carry two paths; each then yields two changes, old and new.

    Raises:
        mdr.errors.SourceError: source-too-large, source-unreadable.
    """
    tokens = _tokens(stream)
    commit: Commit | None = None
    changes: list[Change] = []
    count = 0
    for token in tokens:
        text = token.lstrip(b"\n")
        if not text.startswith(b":"):
            if commit is not None:
                yield commit, changes
            commit, changes = _commit(text), []
            continue
        changes.append(_change(text, next(tokens, b"")))
        if renames:
            changes.append(_change(text, next(tokens, b"")))
        count += 1
        if count > max_changes:
            raise SourceError(
                "source-too-large",
                f"the history has more than {max_changes:,} changes of files",
                hint="raise the limit max_tree_entries",
                data={"limit": max_changes},
            )
    if commit is not None:
        yield commit, changes


def _tokens(stream: IO[bytes]) -> Iterator[bytes]:
    rest = b""
    while block := stream.read(BLOCK):
        parts = (rest + block).split(b"\0")
        rest = parts.pop()
        yield from parts
    if rest.strip():
        raise SourceError("source-unreadable", "the output of git log ends in the middle")


def _commit(token: bytes) -> Commit:
    oid, time, *parents = token.decode("ascii", "replace").split(" ")
    try:
        return Commit(oid, int(time), tuple(parent for parent in parents if parent))
    except ValueError:
        raise SourceError("source-unreadable", f"commit {oid[:64]} has no committer time") from None


def _change(entry: bytes, path: bytes) -> Change:
    before, mode, _, oid, _ = entry[1:].decode("ascii").split(" ", 4)
    name = path.decode("utf-8", "surrogateescape")
    return Change(name, mode if mode in ODD else "160000", oid, before == "000000")
