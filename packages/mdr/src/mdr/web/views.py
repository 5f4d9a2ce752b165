"""Badge views, counted without knowing anybody.

Each load of a badge adds one to (artifact, UTC day). What arrives in a second is added together and
written once, at shutdown too; a failed write is tried again with what came since. Several processes add to
the same rows.

So that one reader cannot make a number, a process remembers how often a network asked for a badge today and
stops counting at an allowance. It remembers a keyed hash under a salt that is drawn at start and again each
day and never leaves memory: no address is stored, and nothing links two days, two processes, or a hash to
an address once the salt is gone. The allowance is no smaller because the proxies through which large sites
load images ask for thousands of readers from a few addresses.
"""

from __future__ import annotations

import ipaddress
import logging
import secrets
import threading
from collections import Counter
from datetime import UTC, date, datetime
from hashlib import blake2b
from typing import TYPE_CHECKING, Final

from mdr.errors import StoreError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, MutableMapping
    from typing import Any

    from mdr.registry.stores import Stores

ALLOWANCE: Final = 250
"""Loads of one badge that one network may add in a day, per process."""
REMEMBERED: Final = 200_000
"""Networks and badges remembered at most; the oldest are forgotten first. About 20 MB."""
WAITING: Final = 100_000
"""(artifact, day) pairs that may wait for a database that is down."""
PREFIXES: Final = {4: 32, 6: 56}
"""Bits of an address that stand for one network."""
EVERY_SECONDS: Final = 1.0
CRAWLERS: Final = (
    "bot",
    "crawl",
    "spider",
    "slurp",
    "archiver",
    "preview",
    "headlesschrome/lighthouse",
)
"""Words in the user agent of programs that load pages for nobody."""

_log = logging.getLogger("mdr.web.views")


class BadgeViews:
    """Counts loads and writes them down; safe to call from any thread."""

    def __init__(
        self,
        write: Callable[[Mapping[tuple[str, date], int]], None],
        *,
        every: float = EVERY_SECONDS,
    ) -> None:
        """Take what writes counts.

        Args:
            write: Adds counts, all or none; raises :class:`mdr.errors.StoreError` when it cannot.
            every: Seconds between two writes.
        """
        self._write = write
        self._every = every
        self._lock = threading.Lock()
        self._counts: Counter[tuple[str, date]] = Counter()
        self._seen: dict[bytes, int] = {}
        self._day: date | None = None
        self._salt = b""
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    def seen(self, artifact_id: str, scope: MutableMapping[str, Any]) -> None:
        """Count one GET of a badge, unless a program asked for nobody or a network asks too often.

        A HEAD that was turned into a GET on its way (``mdr.head``) does not count.
        """
        if scope.get("mdr.head"):
            return
        headers = {name: value for name, value in scope["headers"] if name in _READ}
        if _for_nobody(headers):
            return
        client = scope.get("client")
        self.add(artifact_id, client[0] if client else "", datetime.now(UTC).date())

    def add(self, artifact_id: str, address: str, today: date) -> None:
        """Count one load.

        Args:
            artifact_id: Whose badge.
            address: Of the client; only a salted hash of its network is kept, in memory, for a day.
            today: UTC.
        """
        with self._lock:
            if today != self._day:
                self._day, self._salt = today, secrets.token_bytes(32)
                self._seen.clear()
            key = self._key(artifact_id, address)
            loads = self._seen.pop(key, 0)
            if len(self._seen) >= REMEMBERED:
                del self._seen[next(iter(self._seen))]
            self._seen[key] = min(loads + 1, ALLOWANCE)
            known = (artifact_id, today) in self._counts
            if loads < ALLOWANCE and (known or len(self._counts) < WAITING):
                self._counts[artifact_id, today] += 1

    def flush(self) -> bool:
        """Write what was counted; say whether nothing is left waiting."""
        with self._lock:
            counts, self._counts = self._counts, Counter()
        if not counts:
            return True
        try:
            self._write(counts)
        except StoreError as error:
            with self._lock:
                self._counts.update(counts)
            _log.warning("badge views wait for the database: %s", error.code)
            return False
        return True

    def start(self) -> None:
        """Write every second from now on, in a thread."""
        if self._thread is None:
            self._stop.clear()
            self._thread = threading.Thread(target=self._run, name="mdr-badge-views", daemon=True)
            self._thread.start()

    def close(self) -> None:
        """Stop, and write what is left."""
        self._stop.set()
        if self._thread is not None:
            self._thread.join()
            self._thread = None
        self.flush()

    def _run(self) -> None:
        while not self._stop.wait(self._every):
            self.flush()

    def _key(self, artifact_id: str, address: str) -> bytes:
        hashed = blake2b(key=self._salt, digest_size=12)
        hashed.update(_network(address))
        hashed.update(artifact_id.encode("utf-8", "replace"))
        return hashed.digest()


def badge_views(stores: Stores) -> BadgeViews:
    """Return a counter that writes into the stores."""
    from mdr.store.badges import add_views, forget_old
    from mdr.store.engine import writing

    written: date | None = None

    def write(counts: Mapping[tuple[str, date], int]) -> None:
        """Add counts, and with the first of each day forget those that are too old."""
        nonlocal written
        newest = max(day for _, day in counts)
        with writing(stores.index.engine) as connection:
            add_views(connection, counts)
            if newest != written:
                forget_old(connection)
        written = newest

    return BadgeViews(write)


_READ: Final = frozenset([b"user-agent", b"purpose", b"sec-purpose", b"x-moz"])


def _for_nobody(headers: Mapping[bytes, bytes]) -> bool:
    """Say whether a request is a prefetch or a crawler's."""
    purposes = (headers.get(name, b"").lower() for name in (b"purpose", b"sec-purpose", b"x-moz"))
    if any(b"prefetch" in each or b"preview" in each for each in purposes):
        return True
    agent = headers.get(b"user-agent", b"").decode("latin-1").lower()
    return any(word in agent for word in CRAWLERS)


def _network(address: str) -> bytes:
    """Return the network of an address: all of an IPv4 address, 56 bits of an IPv6 one."""
    try:
        parsed = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return address.encode("utf-8", "replace")
    if isinstance(parsed, ipaddress.IPv6Address) and parsed.ipv4_mapped is not None:
        parsed = parsed.ipv4_mapped
    shift = parsed.max_prefixlen - PREFIXES[parsed.version]
    return b"%d:%d" % (parsed.version, int(parsed) >> shift)
