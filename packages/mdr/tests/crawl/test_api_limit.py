"""GitHub's API says to one crawl that the limit is reached; no other crawl asks it before that time."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any

import pytest
from git_builder import GitRepository, skill

from mdr.crawl.book import Book
from mdr.crawl.crawling import Crawling, Orders
from mdr.crawl.outcomes import Crawled
from mdr.registry.indexing import index_source
from mdr.store.engine import writing
from mdr.store.recording import save_words
from mdr.store.rows import HostWords

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from mdr.registry.stores import Stores
    from mdr.settings import Settings


@pytest.fixture
def api() -> Iterator[tuple[str, list[str]]]:
    """An API that tells stars, and remembers who asked."""
    asked: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.append(self.path)
            body = json.dumps({"full_name": "acme/tools", "stargazers_count": 3}).encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: Any) -> None:
            """Say nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}", asked
    server.shutdown()
    thread.join()
    server.server_close()


def test_a_limit_told_to_one_crawl_silences_all(
    stores: Stores, settings: Settings, tmp_path: Path
) -> None:
    repository = GitRepository(tmp_path / "r.git")
    repository.commit({"s/SKILL.md": skill("s")})
    index_source(str(repository.path), settings, name_as="acme/tools")
    until = int(time.time()) + 3_000
    with writing(stores.index.engine) as connection:
        save_words(connection, "github.com", "acme/tools", HostWords(retry_after=until))
    book = Book(stores.index.engine)
    crawling = Crawling(book, stores, settings, Orders())
    assert asyncio.run(_crawl_all(book, crawling)) == ["acme/tools"]
    book.adopt()
    (row,) = book.rows()
    assert crawling._errand(row).settings.github_silent_until == until


async def _crawl_all(book: Book, crawling: Crawling) -> list[str]:
    book.adopt()
    done = [await crawling.crawl(row.id) for row in book.admit(10)]
    return [each.repository for each in done if isinstance(each, Crawled)]


def test_nothing_is_asked_before_its_time(settings: Settings, api: tuple[str, list[str]]) -> None:
    from mdr.registry import indexing

    address, asked = api
    chosen = replace(settings, github_api=address, github_silent_until=int(time.time()) + 600)
    location, words, _ = indexing._ask_host(
        indexing.locate("github:acme/tools"), None, chosen, named=False
    )
    assert (location.repository, words, asked) == ("acme/tools", None, [])
    over = replace(chosen, github_silent_until=int(time.time()) - 1)
    _, words, _ = indexing._ask_host(indexing.locate("github:acme/tools"), None, over, named=False)
    assert words is not None
    assert (words.stars, asked) == (3, ["/repos/acme/tools"])
