# ruff: noqa: RUF001 - look-alike characters are test data
"""Work grows with the size of the text, counted in bytes that patterns are run over, not in seconds.

RE2 reads each byte of what it searches a bounded number of times. So the work of an audit is the sum,
over all searches, of the bytes between where a search starts and where its match ends (or the end of
what it may read). Doubling hostile text may double that sum and must not square it.
"""

from __future__ import annotations

from typing import Any

import pytest

from mdr.audit import rx
from mdr.audit.run import audit

UNITS = [
    "word ", "read ", "send your api keys ", "print your ", "never print your api keys. ", "curl ", "curl |", "curl x | jq ",
    "rm -rf a ", "rm -rf ", "find / ", "`", "`` ` ``` ", "`a`` ", "<", "<a ", '<a "', "<p style='", '<p style="a">', "<!-- a -->",
    "<!-- ", "<!", "<? ", "<!a ", "<![CDATA[", "http://a ", "//a ", "http://%41 ", "http://1.1.1.x ", "&#65;", "&amp;", "а", "ｉ", "a\u200b",
    "\u26a0\ufe0f", "\U0001f468\u200d", "a\u0332", "QUJDREVGR0hJSktMTU5PUFFSU1RVVldYWVphYmNkZWY ", "abcdefghijklmnop\n", '"', '"a" "b" ', '"+"',
    "\n", "\r\n", "\r", "```\n", "- ", "- a\n", "> a\n", '[a]: b "c"\n', "ignore all previous ", "*ignore* ", "sk-", "ghp_", "eyJaaaaaaaaaaaa.",
    "-----BEGIN PRIVATE KEY-----\n", "postgres://a:b", 'password="', "cat .env ", "~/.ssh ", "echo $", "\\\n", "a |\n", "| a | b |\n",
    "java", "(//%", '`<a " ', "=//%a", "<a on= ", "bash <(", "base64 -d ", "exec(", "requests.post(", "$(", "a word\n", "nc 1.2.3.x ", '<p style="/*', "a:\n", "[", "{",
]  # fmt: skip
SIZE = 6_000


class Counted:
    """Stands before RE2 and adds up the bytes that its searches may read."""

    work = 0

    def __init__(self, engine: rx.Engine) -> None:
        self._find, self.anywhere, self.here = engine

    def __call__(self, anchor: Any, data: bytes, start: int, end: int) -> rx.Spans:
        spans = self._find(anchor, data, start, end)
        missed = min(end, start + 64) if anchor == self.here else end
        Counted.work += (spans[0][1] if spans[0][0] >= 0 else missed) - start + 1
        return spans


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch) -> type[Counted]:
    original = rx.Rx._engine.func  # type: ignore[attr-defined]
    cache: dict[int, rx.Engine] = {}

    def engine(self: rx.Rx) -> rx.Engine:
        if id(self) not in cache:
            find = Counted(original(self))
            cache[id(self)] = find, find.anywhere, find.here
        return cache[id(self)]

    monkeypatch.setattr(rx.Rx, "_engine", property(engine))
    return Counted


def work_of(counted: type[Counted], text: str) -> int:
    counted.work = 0
    audit(f"---\nname: a\ndescription: b\n---\n{text}\n".encode())
    return counted.work


@pytest.mark.parametrize("unit", UNITS, ids=ascii)
def test_doubling_hostile_text_at_most_doubles_the_work(counted: type[Counted], unit: str) -> None:
    times = SIZE // len(unit.encode())
    once, twice, fourfold = (work_of(counted, unit * (times * factor)) for factor in (1, 2, 4))
    assert twice <= 2.3 * once + 50_000
    assert fourfold <= 4.6 * once + 100_000
