"""Real worker processes on both databases: kill -9, SIGTERM, two at once, hosts that refuse; nothing is lost."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest
from crawl.git_web import WAIT, GitWeb, publish
from git_builder import skill

from mdr.crawl.book import Book
from mdr.crawl.enqueueing import enqueue
from mdr.reference.parse import parse
from mdr.registry.checking import check
from mdr.registry.local import LocalRegistry

if TYPE_CHECKING:
    from collections.abc import Iterator

    from mdr.registry.stores import Stores
    from mdr.settings import Settings
    from mdr.store.schedule import CrawlRow


class Workers:
    """Starts ``mdr worker`` as a process, and ends what is left."""

    def __init__(self, settings: Settings) -> None:
        self._words = [sys.executable, "-m", "mdr", "worker", "--data", str(settings.data)]
        if settings.database is not None:
            self._words += ["--database", settings.database]
        self._started: list[subprocess.Popen[str]] = []

    def start(self, *options: str) -> subprocess.Popen[str]:
        """Start one that may read from this machine."""
        fixed = ["--allow-private", "--host-interval", "0", *options]
        process = subprocess.Popen(
            [*self._words, *fixed], stderr=subprocess.PIPE, text=True, start_new_session=True
        )
        self._started.append(process)
        return process

    def drain(self, *options: str) -> list[dict[str, object]]:
        """Run one until nothing is due, and return what it told."""
        process = self.start("--once", *options)
        _, told = process.communicate(timeout=WAIT)
        assert process.returncode == 0, told
        return [json.loads(line) for line in told.splitlines()]

    def close(self) -> None:
        """Kill what still runs."""
        for process in self._started:
            if process.poll() is None:
                process.kill()
            process.wait()
            if process.stderr is not None:
                process.stderr.close()


@pytest.fixture
def workers(settings: Settings) -> Iterator[Workers]:
    made = Workers(settings)
    yield made
    made.close()


def add(stores: Stores, web: GitWeb, name: str) -> CrawlRow:
    return enqueue(stores, web.url(name), by="test", trusted=True, name_as=f"github.com/{name}")


def rows(stores: Stores) -> dict[str, CrawlRow]:
    return {row.repository_key: row for row in Book(stores.index.engine).rows()}


def versions(settings: Settings, stores: Stores, reference: str) -> int:
    return len(LocalRegistry(settings, stores).versions(parse(reference))[1])


def forget_heartbeats(settings: Settings) -> None:
    """Let the queue think that its workers have been silent for long; one on SQLite needs no such thing."""
    if settings.database is None:
        return
    import psycopg

    with psycopg.connect(settings.database) as connection:
        connection.execute(
            "UPDATE procrastinate_workers SET last_heartbeat = now() - interval '1 hour'"
        )


def test_a_source_is_crawled_and_crawled_again_when_it_changes(
    stores: Stores, settings: Settings, web: GitWeb, workers: Workers
) -> None:
    repository = web.repository("acme/tools")
    add(stores, web, "acme/tools")
    told = workers.drain()
    assert [each["outcome"] for each in told if each["event"] == "crawl-ended"] == ["changed"]
    assert versions(settings, stores, "acme/tools/s0") == 1
    repository.commit({"s0/SKILL.md": skill("s0", "other words " * 30)})
    publish(repository)
    add(stores, web, "acme/tools")
    workers.drain()
    add(stores, web, "acme/tools")
    workers.drain()
    assert versions(settings, stores, "acme/tools/s0") == 2
    assert Book(stores.index.engine).measure().outcomes == {"changed": 2, "unchanged": 1}


def test_kill_9_while_crawling(
    stores: Stores, settings: Settings, web: GitWeb, workers: Workers
) -> None:
    web.repository("acme/tools", skills=3)
    add(stores, web, "acme/tools")
    web.hold()
    first = workers.start()
    web.wait_until_asked()
    first.kill()
    assert first.wait(WAIT) == -signal.SIGKILL
    assert rows(stores)["acme/tools"].state == "running"
    forget_heartbeats(settings)
    web.release()
    workers.drain()
    row = rows(stores)["acme/tools"]
    assert (row.state, row.attempts, row.code) == ("waiting", 0, None)
    assert versions(settings, stores, "acme/tools/s2") == 1
    assert check(settings, repair=False).ok


def test_told_to_stop_it_gives_back_what_it_cannot_end(
    stores: Stores, web: GitWeb, workers: Workers
) -> None:
    web.repository("acme/tools")
    add(stores, web, "acme/tools")
    web.hold()
    worker = workers.start("--grace", "0")
    web.wait_until_asked()
    worker.send_signal(signal.SIGTERM)
    assert worker.wait(WAIT) == 0
    row = rows(stores)["acme/tools"]
    assert (row.state, row.attempts, row.code) == ("waiting", 0, "stopped")
    assert Book(stores.index.engine).measure().dead == 0


def test_told_to_stop_it_ends_what_it_can(
    stores: Stores, settings: Settings, web: GitWeb, workers: Workers
) -> None:
    web.repository("acme/tools")
    add(stores, web, "acme/tools")
    web.hold()
    worker = workers.start("--grace", "60")
    web.wait_until_asked()
    worker.send_signal(signal.SIGTERM)
    web.release()
    assert worker.wait(WAIT) == 0
    assert (rows(stores)["acme/tools"].code, versions(settings, stores, "acme/tools/s0")) == (
        None,
        1,
    )


def test_a_host_that_asks_for_patience_gets_it(
    stores: Stores, web: GitWeb, workers: Workers
) -> None:
    web.refusal = (429, {"Retry-After": "3600"})
    for name in ("acme/one", "acme/two", "acme/three"):
        web.repository(name)
        add(stores, web, name)
    workers.drain("--at-once", "1")
    assert len([path for path in web.paths if "info/refs" in path]) == 1
    found = rows(stores)
    assert all(row.attempts == 0 and row.state == "waiting" for row in found.values())
    assert sum(row.code == "host-rate-limited" for row in found.values()) == 1


def test_a_host_that_fails_is_tried_later(stores: Stores, web: GitWeb, workers: Workers) -> None:
    add(stores, web, "acme/nowhere")
    workers.drain()
    row = rows(stores)["acme/nowhere"]
    assert (row.state, row.attempts, row.code) == ("waiting", 1, "git-failed")
    assert row.ended is not None
    assert row.due > row.ended


def test_a_private_address_is_a_dead_letter_that_a_command_lists_and_raises(
    stores: Stores, settings: Settings, web: GitWeb, workers: Workers
) -> None:
    web.repository("acme/tools")
    add(stores, web, "acme/tools")
    words = [*workers._words, "--once"]
    assert subprocess.run(words, check=False, capture_output=True).returncode == 0
    assert web.paths == []
    listed = _command(workers, "dead", "--json")
    assert listed.returncode == 1
    (item,) = json.loads(listed.stdout)["items"]
    assert (item["code"], item["state"]) == ("private-address", "dead")
    assert _command(workers, "retry", str(item["id"] + 1)).returncode == 1
    assert _command(workers, "retry", str(item["id"])).returncode == 0
    workers.drain()
    assert versions(settings, stores, "acme/tools/s0") == 1
    nothing = _command(workers, "dead")
    assert (nothing.returncode, nothing.stdout) == (0, "")
    assert "no dead letters" in nothing.stderr


def test_two_workers_crawl_each_source_once(
    stores: Stores, settings: Settings, web: GitWeb, workers: Workers
) -> None:
    names = [f"acme/r{number}" for number in range(6)]
    for name in names:
        web.repository(name)
        add(stores, web, name)
    if settings.database is None:
        web.hold()
        workers.start()
        web.wait_until_asked()
        refused = workers.start("--once")
        _, told = refused.communicate(timeout=WAIT)
        assert (refused.returncode, "lock-taken" in told) == (3, True)
        web.release()
        return
    both = [workers.start("--once", "--at-once", "2") for _ in range(2)]
    events = [
        json.loads(line) for each in both for line in each.communicate(timeout=WAIT)[1].splitlines()
    ]
    ended = [each["source"] for each in events if each["event"] == "crawl-ended"]
    assert sorted(ended) == sorted(web.url(name) for name in names)
    assert all(versions(settings, stores, f"{name}/s0") == 1 for name in names)
    assert Book(stores.index.engine).measure().outcomes == {"changed": 6}


def _command(workers: Workers, name: str, *options: str) -> subprocess.CompletedProcess[str]:
    words = workers._words[:4]
    place = workers._words[4:]
    return subprocess.run(
        [*words, name, *options, *place], check=False, capture_output=True, text=True
    )
