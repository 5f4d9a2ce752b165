"""Who asks: the address behind trusted proxies, and how often it may. Addresses live in memory only."""

from __future__ import annotations

import time
from collections import OrderedDict
from ipaddress import IPv6Address, ip_address
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from ipaddress import IPv4Address

    from mdr.answers.answer import Scope
    from mdr.serving.options import Network

DEFAULT_RATE: Final = 100.0
BURST_SECONDS: Final = 4.0
"""How many seconds' worth of requests may come at once."""
MAX_CLIENTS: Final = 50_000
"""Clients remembered; the longest silent ones are forgotten, and start with a full allowance again."""
MAX_HOPS: Final = 16
"""Proxies named in one header that are read."""


class Clients:
    """Token buckets by client: an IPv4 address, or the /64 in which an IPv6 address lies."""

    def __init__(
        self,
        rate: float | None,
        trusted: Sequence[Network] = (),
        now: Callable[[], float] = time.monotonic,
        warn: Callable[[], None] | None = None,
    ) -> None:
        """Take what clients may.

        Args:
            rate: Requests a second; 0: no limit; ``None``: the default, and this machine is free.
            trusted: Proxies whose word about the reader is believed.
            now: Seconds.
            warn: Called once, when a proxy that nobody trusts tells of a reader.
        """
        self._warn = warn
        self._rate = DEFAULT_RATE if rate is None else rate
        self._loopback_is_free = rate is None
        self._burst = max(1.0, self._rate * BURST_SECONDS)
        self._trusted = tuple(trusted)
        self._now = now
        self._buckets: OrderedDict[int, tuple[float, float]] = OrderedDict()

    def identify(self, scope: Scope) -> None:
        """Put the address and scheme that a trusted proxy tells into the scope."""
        client = scope.get("client")
        if client is None or not self._is_trusted(client[0]):
            self._not_believed(scope)
            return
        forwarded, scheme = b"", b""
        for name, value in scope["headers"]:
            if name == b"x-forwarded-for":
                forwarded = forwarded + b"," + value if forwarded else value
            elif name == b"x-forwarded-proto":
                scheme = value
        if scheme in {b"http", b"https"}:
            scope["scheme"] = scheme.decode("ascii")
        address = self._first_untrusted(forwarded.decode("latin-1"))
        if address is not None:
            scope["client"] = (address, 0)

    def _not_believed(self, scope: Scope) -> None:
        """Note that a proxy stands in front: its readers are one client then, and never this machine."""
        if any(name == b"x-forwarded-for" for name, _ in scope["headers"]):
            scope["mdr.proxied"] = True
            if self._warn is not None:
                self._warn()
                self._warn = None

    def wait(self, scope: Scope) -> float | None:
        """Take one request from a client's allowance.

        Returns:
            ``None`` when it may be answered, else the seconds until the next one may.
        """
        if not self._rate:
            return None
        key = self._key(scope)
        if key is None:
            return None
        now = self._now()
        tokens, then = self._buckets.pop(key, (self._burst, now))
        tokens = min(self._burst, tokens + (now - then) * self._rate)
        allowed = tokens >= 1.0
        self._buckets[key] = (tokens - 1.0 if allowed else tokens, now)
        if len(self._buckets) > MAX_CLIENTS:
            self._buckets.popitem(last=False)
        return None if allowed else (1.0 - tokens) / self._rate

    def _key(self, scope: Scope) -> int | None:
        client = scope.get("client")
        address = _address(client[0]) if client else None
        if address is None:
            return 0
        if self._loopback_is_free and address.is_loopback and not scope.get("mdr.proxied"):
            return None
        if isinstance(address, IPv6Address):
            return (int(address) >> 64) + (1 << 64)
        return int(address)

    def _is_trusted(self, text: str) -> bool:
        address = _address(text)
        return address is not None and any(address in network for network in self._trusted)

    def _first_untrusted(self, forwarded: str) -> str | None:
        """Read ``X-Forwarded-For`` from its end: what trusted proxies wrote, up to whom they saw."""
        seen = None
        for text in reversed(forwarded.split(",")[-MAX_HOPS:]):
            if _address(text.strip()) is None:
                return seen
            seen = text.strip()
            if not self._is_trusted(seen):
                return seen
        return seen


def _address(text: str) -> IPv4Address | IPv6Address | None:
    try:
        address = ip_address(text)
    except ValueError:
        return None
    mapped = address.ipv4_mapped if isinstance(address, IPv6Address) else None
    return mapped or address
