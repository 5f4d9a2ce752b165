"""Refuse sources that lead into private networks, unless told otherwise.

A URL from outside may name ``localhost``, a metadata service or a router. The name is resolved once,
every address it has must be public, and git is told to connect to exactly those addresses, so that a
second answer of the name server changes nothing.
"""

from __future__ import annotations

import ipaddress
import os
import socket
from typing import TYPE_CHECKING

from mdr.errors import Refusal, SourceError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from mdr.source.locate import Location

Resolver = "Callable[[str, int], Sequence[str]]"
DEFAULT_PORTS = {"https": 443, "http": 80, "ssh": 22, "git": 9418}


def resolve(host: str, port: int) -> list[str]:
    """Return every address of ``host``, in the order of the name service.

    Raises:
        mdr.errors.SourceError: host-unknown.
    """
    try:
        rows = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError):
        raise SourceError(
            "host-unknown",
            f"the host {host} cannot be found",
            hint="check the address and the network",
            data={"host": host},
        ) from None
    return list(dict.fromkeys(str(row[4][0]) for row in rows))


def is_public(address: str) -> bool:
    """Say whether ``address`` is a public one; mapped and tunnelled IPv4 is looked through."""
    try:
        ip = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return False
    if isinstance(ip, ipaddress.IPv6Address):
        inner = ip.ipv4_mapped or ip.sixtofour or (ip.teredo[1] if ip.teredo else None)
        if inner is not None:
            return is_public(str(inner))
        if ip in _NAT64:
            return is_public(str(ipaddress.IPv4Address(int(ip) & 0xFFFFFFFF)))
    return ip.is_global and not ip.is_multicast


_NAT64 = ipaddress.IPv6Network("64:ff9b::/96")


def check_public(
    location: Location, *, resolver: Callable[[str, int], Sequence[str]] = resolve
) -> dict[str, str]:
    """Make sure that a remote lies on the public internet.

    Args:
        location: A remote location.
        resolver: Name lookup, replaced in tests.

    Returns:
        Git settings that pin the checked addresses; empty behind a proxy, which looks names up itself.

    Raises:
        mdr.errors.Refusal: private-address.
        mdr.errors.SourceError: host-unknown.
    """
    port = location.port or DEFAULT_PORTS[location.scheme]
    proxied = location.scheme in {"http", "https"} and _has_proxy(location.scheme)
    try:
        addresses = resolver(location.server, port)
    except SourceError:
        if proxied:
            return {}
        raise
    private = [address for address in addresses if not is_public(address)]
    if private or not addresses:
        raise Refusal(
            "private-address",
            f"{location.server} has an address in a private network ({', '.join(private)})",
            hint="pass --allow-private if this repository may be read",
            data={"host": location.server, "addresses": list(private)},
        )
    if proxied or location.scheme not in {"http", "https"}:
        return {}
    pins = ",".join(f"[{each}]" if ":" in each else each for each in addresses)
    return {"http.curloptResolve": f"{location.server}:{port}:{pins}"}


def _has_proxy(scheme: str) -> bool:
    names = {f"{scheme}_proxy", f"{scheme}_proxy".upper(), "all_proxy", "ALL_PROXY"}
    return any(os.environ.get(name) for name in names)
