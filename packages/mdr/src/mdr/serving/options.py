"""How one service runs, as one value that crosses from the command to its processes."""

from __future__ import annotations

from dataclasses import dataclass
from ipaddress import IPv4Network, IPv6Network, ip_network
from typing import Final

from mdr.errors import UsageError

KIB: Final = 1 << 10
MIB: Final = 1 << 20

Network = IPv4Network | IPv6Network


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """Everything that ``mdr serve`` may be told beside where the data is."""

    host: str = "127.0.0.1"
    bound: str | None = None
    """What ``host`` turned out to be; ``None``: an address as it stands."""
    port: int = 8000
    """0 picks a free one."""
    workers: int = 1
    """Processes; each keeps its own answers and counts its own rates."""
    public_url: str | None = None
    """Where readers reach the service, such as ``https://registry.example``; ``None``: the address."""
    allowed_hosts: tuple[str, ...] = ()
    """Further names that ``Host`` may have; ``*``: any."""
    trusted_proxies: tuple[Network, ...] = ()
    """Whose ``X-Forwarded-For`` and ``X-Forwarded-Proto`` are believed."""
    rate: float | None = None
    """Requests a second for each client; 0: no limit; ``None``: 100, and no limit for this machine."""
    max_body_bytes: int = 256 * KIB
    max_target_bytes: int = 8 * KIB
    """Longest path and query."""
    max_head_bytes: int = 32 * KIB
    """Longest request line and headers together."""
    head_seconds: float = 10.0
    """Longest time from the first byte of a request to the end of its headers."""
    request_seconds: float = 30.0
    """Longest time to read a body, and to make an answer."""
    idle_seconds: int = 65
    """How long a connection may wait for its next request; longer than usual proxies keep theirs."""
    grace_seconds: int = 20
    """How long running requests may take once the service was told to stop."""
    connections: int = 4_000
    """Most connections of one process."""
    threads: int = 8
    kept_bytes: int = 256 * MIB
    """Room of one process for answers that are kept."""
    min_free_bytes: int = 64 * MIB
    """Less free disk than this, and the service is not ready."""
    log_requests: bool = True
    """Write a line for each request, not only for failures."""


def networks(texts: tuple[str, ...]) -> tuple[Network, ...]:
    """Read addresses and networks of trusted proxies.

    Raises:
        mdr.errors.UsageError: bad-address.
    """
    found: list[Network] = []
    for text in texts:
        try:
            found.append(ip_network(text, strict=False))
        except ValueError as error:
            raise UsageError(
                "bad-address",
                f"{text!r} is no address or network",
                hint="such as 10.0.0.0/8, 127.0.0.1 or fd00::/8",
            ) from error
    return tuple(found)
