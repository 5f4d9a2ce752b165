"""What a page says, as a reader of it hears it."""

from __future__ import annotations

from html.parser import HTMLParser

VOID = frozenset(["meta", "link", "img", "input", "br", "hr", "col"])


class Words(HTMLParser):
    """Collects text, tags with attributes, and whether tags balance."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.text: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.open: list[str] = []
        self.balanced = True
        self.feed(html)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        if tag in VOID:
            return
        if not self.open or self.open.pop() != tag:
            self.balanced = False

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self.text.append(data)

    @property
    def words(self) -> str:
        return " ".join("".join(self.text).split())


def in_order(text: str, *parts: str) -> None:
    """Assert that the parts stand in the text in this order."""
    position = 0
    for part in parts:
        found = text.find(part, position)
        assert found >= 0, f"{part!r} is missing or out of order"
        position = found + len(part)
