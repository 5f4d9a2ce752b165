"""Servers, workers and databases that die while a source is crawled: nothing torn, nothing lost, no wrong answer."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from random import Random
from typing import TYPE_CHECKING, Any
from urllib.request import urlopen

import pytest
from crawl.git_web import WAIT, GitWeb
from postgres_server import PostgresServer, why_not

from mdr.crawl.book import Book
from mdr.crawl.crawling import Crawling, Orders
from mdr.crawl.enqueueing import enqueue
from mdr.crawl.isolated import Errand, crawl_apart
from mdr.crawl.manners import Manners
from mdr.crawl.outcomes import Failed, Postponed
from mdr.crawl.shared import SharedWorker
from mdr.reference.parse import parse
from mdr.registry.checking import check
from mdr.registry.local import LocalRegistry
from mdr.registry.stores import Stores, open_stores
from mdr.settings import Settings

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path


def place(settings: Settings) -> list[str]:
    words = ["--data", str(settings.data)]
    return words if settings.database is None else [*words, "--database", settings.database]


class Server:
    """``mdr serve`` as a process."""

    def __init__(self, settings: Settings) -> None:
        words = [sys.executable, "-m", "mdr", "serve", "--port", "0", *place(settings)]
        self.process = subprocess.Popen(
            words, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        )
        assert self.process.stdout is not None
        self.address = self.process.stdout.readline().strip()
        assert self.address.startswith("http://127.0.0.1:")

    def ask(self, path: str) -> Any:
        with urlopen(f"{self.address}{path}", timeout=WAIT) as answer:  # noqa: S310 - our own server
            return json.load(answer)

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        if self.process.stdout is not None:
            self.process.stdout.close()


def test_kill_9_of_the_server_while_a_worker_crawls(
    stores: Stores, settings: Settings, web: GitWeb
) -> None:
    web.repository("acme/tools", skills=2)
    enqueue(stores, web.url("acme/tools"), by="test", trusted=True, name_as="acme/tools")
    server = Server(settings)
    assert server.ask("/api/v1/artifacts")["total"] == 0
    web.hold()
    worker = subprocess.Popen(
        [sys.executable, "-m", "mdr", "worker", "--once", "--allow-private", *place(settings)],
        stderr=subprocess.DEVNULL,
    )
    try:
        web.wait_until_asked()
        server.process.kill()
        assert server.process.wait(WAIT) == -signal.SIGKILL
        web.release()
        assert worker.wait(WAIT) == 0
        server.close()
        server = Server(settings)
        assert server.ask("/api/v1/artifacts")["total"] == 2
        resolved = server.ask("/api/v1/resolve?ref=acme/tools/s1")
        with urlopen(f"{server.address}{resolved['blob']}", timeout=WAIT) as answer:  # noqa: S310 - as above
            assert len(answer.read()) == resolved["version"]["size"]
    finally:
        server.close()
        if worker.poll() is None:
            worker.kill()
        worker.wait()
    assert check(settings, repair=False).ok


@pytest.fixture
def own_server() -> Iterator[PostgresServer]:
    """A database server that this test may stop."""
    reason = why_not()
    if reason is not None:
        pytest.skip(reason)
    server = PostgresServer()
    yield server
    server.remove()


@pytest.mark.parametrize("mode", ["fast", "immediate"])
def test_a_database_that_restarts_while_a_worker_crawls(
    mode: str, own_server: PostgresServer, tmp_path: Path, web: GitWeb
) -> None:
    address = own_server.url(own_server.create())
    settings = Settings(data=tmp_path / "data", database=address, workers=1, allow_private=True)
    stores = open_stores(settings, create=True)
    assert stores is not None
    web.repository("acme/tools")
    enqueue(stores, web.url("acme/tools"), by="test", trusted=True, name_as="acme/tools")

    async def scenario() -> None:
        ends: asyncio.Queue[Mapping[str, Any]] = asyncio.Queue()

        def say(event: str, fields: Mapping[str, Any]) -> None:
            if event == "crawl-ended" and fields["outcome"] == "changed" and fields["believed"]:
                ends.put_nowait(fields)

        orders = Orders(manners=Manners(at_once=9, interval=0.0), say=say)
        book = Book(stores.index.engine, manners=orders.manners, chance=Random(1))  # noqa: S311 - tests repeat
        worker = SharedWorker(
            Crawling(book, stores, settings, orders), address, stalled_seconds=1.0
        )
        stop = asyncio.Event()
        running = asyncio.create_task(worker.run(stop))
        web.hold()
        await asyncio.to_thread(web.wait_until_asked)
        await asyncio.to_thread(own_server.stop, mode)
        await asyncio.to_thread(own_server.start)
        web.release()
        async with asyncio.timeout(2 * WAIT):
            await ends.get()
        stop.set()
        await running

    asyncio.run(scenario())
    found = LocalRegistry(settings, stores).versions(parse("acme/tools/s0"))[1]
    assert len(found) == 1
    (row,) = Book(stores.index.engine).rows()
    assert (row.state, row.code) == ("waiting", None)
    stores.close()
    assert check(settings, repair=False).ok


def errand(tmp_path: Path, *command: str, seconds: float = 60) -> Errand:
    return Errand(
        source="github:acme/tools",
        name_as=None,
        settings=Settings(data=tmp_path),
        known_head=None,
        seconds=seconds,
        command=(sys.executable, "-c", *command),
    )


def test_a_process_that_dies_is_a_failure_with_its_last_words(tmp_path: Path) -> None:
    told: list[str] = []
    crash = "import sys, os; sys.stderr.write('out of memory'); sys.stderr.flush(); os.kill(os.getpid(), 9)"
    outcome = asyncio.run(crawl_apart(errand(tmp_path, crash), crashed=told.append))
    assert isinstance(outcome, Failed)
    assert (outcome.code, "signal 9" in outcome.message, told) == (
        "crawl-died",
        True,
        ["out of memory"],
    )


@pytest.mark.parametrize(
    "words", ["print('x' * 3_000_000)", "print('no json')", "print('[1]')", "pass"]
)
def test_a_process_that_talks_nonsense_is_a_failure(words: str, tmp_path: Path) -> None:
    outcome = asyncio.run(crawl_apart(errand(tmp_path, words)))
    assert isinstance(outcome, Failed)
    assert outcome.code == "crawl-died"


def test_a_process_that_never_ends_is_ended(tmp_path: Path) -> None:
    pid = tmp_path / "pid"
    stubborn = (
        f"import os, signal, pathlib; signal.signal(signal.SIGINT, signal.default_int_handler); "
        f"pathlib.Path({str(pid)!r}).write_text(str(os.getpid())); signal.pause()"
    )
    outcome = asyncio.run(crawl_apart(errand(tmp_path, stubborn, seconds=2)))
    assert isinstance(outcome, Failed)
    assert outcome.code == "crawl-timeout"
    with pytest.raises(ProcessLookupError):
        os.kill(int(pid.read_text()), 0)


def test_a_child_tells_its_error_and_hides_the_token(tmp_path: Path) -> None:
    settings = Settings(data=tmp_path / "data", github_token="secret-token")
    wanted = Errand(source=str(tmp_path / "none"), name_as=None, settings=settings, known_head=None)
    outcome = asyncio.run(crawl_apart(wanted))
    assert isinstance(outcome, Failed | Postponed)
    assert outcome.code == "source-not-found"
    assert "secret-token" not in " ".join(wanted.command) + outcome.message
