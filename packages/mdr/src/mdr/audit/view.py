"""Views of a text that remember where each byte came from."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable
from functools import cached_property

from mdr.audit.places import Counts

Anchors = tuple[tuple[int, int], ...]
"""(offset in the view, offset in the parent), ascending, where a stretch of equal pace begins."""


class View:
    """Bytes derived from other bytes, with the way back.

    The way back is computed when a finding first needs it: most files have none.
    """

    def __init__(
        self,
        data: bytes,
        parent: View | None = None,
        anchors: Callable[[], Anchors] | None = None,
    ) -> None:
        """Keep the bytes and how to map them.

        Args:
            data: The bytes of the view.
            parent: What it was derived from; ``None`` for the original.
            anchors: Computes the map to the parent; ``None`` when both have the same offsets.
        """
        self.data = data
        self._parent = parent
        self._make_anchors = anchors
        self._line = (0, -1)

    @cached_property
    def lower(self) -> bytes:
        """The bytes with ASCII letters in lower case; same offsets."""
        return self.data.lower()

    @cached_property
    def quotes(self) -> Counts:
        """The double quotes."""
        return Counts(self.data, b'"')

    def line(self, offset: int) -> tuple[int, int]:
        """Return where the line of an offset starts and ends; the last answer is kept for the next."""
        start, end = self._line
        if not start <= offset <= end:
            start = self.data.rfind(b"\n", 0, offset) + 1
            end = self.data.find(b"\n", offset)
            end = len(self.data) if end < 0 else end
            self._line = (start, end)
        return start, end

    @cached_property
    def _anchors(self) -> tuple[list[int], list[int]]:
        pairs = self._make_anchors() if self._make_anchors else ((0, 0),)
        return [view for view, _ in pairs], [parent for _, parent in pairs]

    def origin(self, offset: int) -> int:
        """Return the offset in the original bytes that an offset of this view came from."""
        if self._parent is None:
            return offset
        if self._make_anchors is None:
            return self._parent.origin(offset)
        here, there = self._anchors
        index = bisect_right(here, offset) - 1
        mapped = there[index] + offset - here[index]
        if index + 1 < len(there):
            mapped = min(mapped, there[index + 1])
        return self._parent.origin(mapped)
