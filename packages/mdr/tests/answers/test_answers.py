"""Conditions and ranges as laws; what is kept is bounded and never older than the state; one maker for many."""

from __future__ import annotations

import asyncio
import hashlib
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mdr.answers.answer import Answer, Ready, chosen_encoding
from mdr.answers.conditions import Part, Unsatisfiable, matches, part_of
from mdr.answers.kept import OVERHEAD, Kept
from mdr.answers.watch import Watch


def ready(size: int, fresh: float | None = None) -> Ready:
    return Ready(Answer(body=b"x" * size, media_type="text/plain", fresh_seconds=fresh))


@given(st.text(max_size=60), st.integers(0, 1_000))
def test_no_range_header_gives_bytes_that_are_not_there(value: str, size: int) -> None:
    found = part_of(value, None, "tag", size)
    if isinstance(found, Part):
        assert 0 <= found.first <= found.last < size
    else:
        assert found is None or isinstance(found, Unsatisfiable)


@given(st.integers(1, 200), st.data())
def test_parts_of_a_body_make_the_whole(size: int, data: st.DataObject) -> None:
    cut = data.draw(st.integers(1, size))
    body = bytes(number % 256 for number in range(size))
    first = part_of(f"bytes=0-{cut - 1}", None, "t", size)
    assert isinstance(first, Part)
    rest = part_of(f"bytes={cut}-", '"t"', "t", size)
    tail = body[rest.first : rest.last + 1] if isinstance(rest, Part) else b""
    assert body[first.first : first.last + 1] + tail == body


@pytest.mark.parametrize(
    ("header", "fits"),
    [
        ('"a"', True), ('W/"a"', True), ('"b", "a"', True), ("*", True), ('"a-gzip"', True),
        ('"a-zstd"', True), ("a", False), ('"b"', False), ("", False), ('"a-br"', False),
    ],
)  # fmt: skip
def test_if_none_match(header: str, *, fits: bool) -> None:
    assert matches(header, "a") is fits


@pytest.mark.parametrize(
    ("accepted", "chosen"),
    [
        ("gzip", "gzip"), ("gzip, zstd", "zstd"), ("zstd;q=0.1, gzip", "gzip"), ("br", ""),
        ("gzip;q=0", ""), ("GZIP ; q=0.5", "gzip"), ("gzip;q=nan", ""), ("gzip;q=9", ""), ("", ""),
    ],
)  # fmt: skip
def test_encodings(accepted: str, chosen: str) -> None:
    assert chosen_encoding(accepted) == chosen


def test_an_answer_goes_with_its_state_and_its_time() -> None:
    kept = Kept(1 << 20)
    kept.put(b"k", "1", 0.0, ready(10, fresh=5.0))
    assert kept.get(b"k", "1", 4.9) is not None
    assert kept.get(b"k", "1", 5.0) is None
    assert kept.get(b"k", "2", 0.0) is None
    assert (kept.hits, kept.misses) == (1, 2)


@given(st.lists(st.tuples(st.integers(0, 30), st.integers(0, 40_000)), max_size=60))
def test_what_is_kept_never_outgrows_its_room(puts: list[tuple[int, int]]) -> None:
    room = 400_000
    kept = Kept(room)
    for key, size in puts:
        kept.put(str(key).encode(), "1", 0.0, ready(size))
        assert 0 <= kept.used <= room
    for key, _ in puts:
        kept.put(
            str(key).encode(), "1", 0.0, ready(room)
        )  # too large to keep: its old form goes too
    assert kept.used == 0


def test_an_encoding_made_later_is_counted_and_keeps_to_the_room() -> None:
    kept = Kept(2 * 8 * (OVERHEAD + 1_000))
    body = b"".join(hashlib.sha256(bytes([n])).digest() for n in range(28))  # does not compress
    for key in b"abcdefgh":
        kept.put(bytes([key]), "1", 0.0, Ready(Answer(body=body, media_type="x/y")))
    for key in b"abcdefgh":
        if (found := kept.get(bytes([key]), "1", 0.0)) is not None:
            found.encode("gzip")
            kept.grown(bytes([key]))
            assert kept.used <= 8 * (OVERHEAD + 1_000)
    left = [found for key in b"abcdefgh" if (found := kept.get(bytes([key]), "1", 0.0))]
    assert 0 < len(left) < 8
    assert kept.used == sum(found.size + 1 + OVERHEAD for found in left)
    kept.grown(b"unknown")


def test_the_least_recently_used_goes_first() -> None:
    kept = Kept(2 * 8 * (OVERHEAD + 200))
    for key in b"abcdefgh":
        kept.put(bytes([key]), "1", 0.0, ready(100))
    kept.get(b"a", "1", 0.0)
    for key in b"ij":
        kept.put(bytes([key]), "1", 0.0, ready(100))
    assert kept.get(b"a", "1", 0.0) is not None
    assert kept.get(b"b", "1", 0.0) is None


def test_a_state_is_never_older_than_the_question_and_read_once_for_many() -> None:
    reads, gate, entered = [], threading.Event(), threading.Event()
    world = ["old"]

    def read() -> str:
        seen = world[0]
        reads.append(seen)
        if len(reads) == 1:
            entered.set()
            gate.wait(30)
        return seen

    async def ask() -> tuple[str, list[str]]:
        with ThreadPoolExecutor(1) as executor:
            watch = Watch(read, executor)
            first = asyncio.ensure_future(watch.token())
            await asyncio.to_thread(entered.wait, 30)
            world[0] = "new"  # after the first reading, before the questions that follow
            later = [asyncio.ensure_future(watch.token()) for _ in range(50)]
            await asyncio.sleep(0)
            gate.set()
            return await first, list(await asyncio.gather(*later))

    first, later = asyncio.run(ask())
    assert first == "old"
    assert set(later) == {"new"}
    assert reads == ["old", "new"]


def test_a_failing_state_fails_its_askers_and_not_the_next() -> None:
    answers: list[object] = [ValueError("gone"), "back"]

    def read() -> str:
        found = answers.pop(0)
        if isinstance(found, Exception):
            raise found
        return str(found)

    async def ask() -> str:
        with ThreadPoolExecutor(1) as executor:
            watch = Watch(read, executor)
            with pytest.raises(ValueError, match="gone"):
                await watch.token()
            return await watch.token()

    assert asyncio.run(ask()) == "back"
