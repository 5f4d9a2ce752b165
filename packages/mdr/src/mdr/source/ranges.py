"""Which addresses lie on the public internet, as a table that no version of Python changes.

``ipaddress.is_global`` follows the interpreter: releases disagree on ``192.0.0.0/24``, deprecated tunnels
and newly reserved blocks, and count ``::127.0.0.1`` as public. What a registry may connect to is therefore
written here, from IANA's registries of special-purpose addresses (RFC 6890 and its updates), with the
metadata services of clouds that sit on ordinary addresses.
"""

from __future__ import annotations

import ipaddress
import socket
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterable

Address = ipaddress.IPv4Address | ipaddress.IPv6Address
Network = ipaddress.IPv4Network | ipaddress.IPv6Network


@dataclass(frozen=True, slots=True)
class Block:
    """A block of addresses that nothing may be fetched from."""

    network: str
    why: str
    source: str
    inside: str
    """An address that it holds."""
    outside: str
    """A public address just beside it, or ``-`` where its neighbours are blocked too."""


BLOCKS: Final = (
    Block("0.0.0.0/8", "this host", "RFC 791", "0.1.2.3", "1.0.0.1"),
    Block("10.0.0.0/8", "private network", "RFC 1918", "10.1.2.3", "11.0.0.1"),
    Block("100.64.0.0/10", "carrier's network", "RFC 6598", "100.100.100.200", "100.63.255.255"),
    Block("127.0.0.0/8", "loopback", "RFC 1122", "127.0.0.1", "126.255.255.254"),
    Block("168.63.129.16/32", "metadata service", "Azure's documentation of its virtual IP", "168.63.129.16", "168.63.129.17"),
    Block("169.254.0.0/16", "link-local, metadata services", "RFC 3927", "169.254.169.254", "169.253.255.255"),
    Block("172.16.0.0/12", "private network", "RFC 1918", "172.16.9.9", "172.32.0.1"),
    Block("192.0.0.0/24", "protocol assignments, metadata", "RFC 6890", "192.0.0.192", "192.0.1.1"),
    Block("192.0.2.0/24", "documentation", "RFC 5737", "192.0.2.1", "192.0.3.1"),
    Block("192.88.99.0/24", "6to4 relays", "RFC 7526", "192.88.99.1", "192.88.98.1"),
    Block("192.168.0.0/16", "private network", "RFC 1918", "192.168.0.1", "192.169.0.1"),
    Block("198.18.0.0/15", "benchmarks of networks", "RFC 2544", "198.19.0.1", "198.20.0.1"),
    Block("198.51.100.0/24", "documentation", "RFC 5737", "198.51.100.1", "198.51.101.1"),
    Block("203.0.113.0/24", "documentation", "RFC 5737", "203.0.113.1", "203.0.114.1"),
    Block("224.0.0.0/3", "multicast, reserved, broadcast", "RFC 5771, RFC 1112", "239.1.2.3", "223.255.255.254"),
    Block("::/3", "unspecified, loopback, IPv4-compatible, local NAT64", "RFC 4291, RFC 8215", "::127.0.0.1", "2606:50c0:8000::153"),
    Block("2001::/23", "protocol assignments, Teredo", "RFC 2928, RFC 4380", "2001:0:7f00:1::", "2001:200::1"),
    Block("2001:db8::/32", "documentation", "RFC 3849", "2001:db8::1", "2001:db9::1"),
    Block("2002::/16", "6to4", "RFC 7526", "2002:7f00:1::", "2003::1"),
    Block("3fff::/20", "documentation", "RFC 9637", "3fff::1", "3fff:1000::1"),
    Block("4000::/2", "not assigned to the internet", "RFC 4291", "5f00::1", "-"),
    Block("8000::/1", "not assigned, unique local, link-local, site-local, multicast", "RFC 4193, RFC 4291, RFC 3879", "fd00:ec2::254", "-"),
)  # fmt: skip
"""Every refused block; IPv6 is refused outside ``2000::/3``, the only part that is handed out."""

_NETWORKS: Final = tuple(ipaddress.ip_network(block.network) for block in BLOCKS)
_NAT64: Final = ipaddress.IPv6Network("64:ff9b::/96")
_MAPPED: Final = ipaddress.IPv6Network("::ffff:0:0/96")


def is_public(address: str) -> bool:
    """Say whether ``address`` is on the public internet.

    IPv4 in an IPv6 dress is judged by what is inside: mapped addresses, and NAT64's well-known prefix,
    which name servers of networks without IPv4 put before every public address (RFC 6052).
    """
    ip = parse(address)
    if ip is None:
        return False
    if isinstance(ip, ipaddress.IPv6Address) and (ip in _NAT64 or ip in _MAPPED):
        ip = ipaddress.IPv4Address(int(ip) & 0xFFFFFFFF)
    return not _in_any(ip, _NETWORKS)


def names_inside(host: str) -> bool:
    """Say whether a host, as it is written, can only lie inside: no name has to be looked up for that.

    Addresses count in every spelling that a resolver takes without asking (``127.1``, ``0x7f000001``), and so
    does a name without a dot, which only a file or a search list of this network can know (``ip6-localhost``).
    """
    bare = host.lower().removesuffix(".")
    if bare == "localhost" or bare.endswith(".localhost"):  # RFC 6761, 6.3
        return True
    ip = parse(bare)
    if ip is None:
        try:
            ip = ipaddress.IPv4Address(socket.inet_aton(bare))
        except (OSError, ValueError):
            return "." not in bare
    return not is_public(str(ip))


def parse(address: str) -> Address | None:
    """Read an address as a resolver writes it; ``None`` for anything else, a zone included."""
    try:
        return ipaddress.ip_address(address)
    except ValueError:
        return None


def _in_any(ip: Address, networks: Iterable[Network]) -> bool:
    return any(ip.version == network.version and ip in network for network in networks)
