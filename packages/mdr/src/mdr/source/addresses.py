"""Refuse sources that lead into private networks, unless told otherwise.

A URL from outside may name ``localhost``, a metadata service or a router. The name is resolved once,
every address it has must be public and none of them this machine's own, and git is told to connect to
exactly those addresses, so that a second answer of the name server changes nothing:

* http and https: ``http.curloptResolve`` (git 2.37 or newer; an older git would silently ignore it)
* ssh: ``HostName`` is the address, ``HostKeyAlias`` the name whose key is expected
* git: the address takes the name's place, and the name is still told to the server

Redirects are off, and so are the ways in which a repository leads elsewhere: submodules, bundle URIs,
alternates over HTTP, other transports (:mod:`mdr.source.git`). Behind a proxy the proxy looks names up; a
name that this machine resolves is checked all the same.
"""

from __future__ import annotations

import os
import socket
from dataclasses import dataclass, field
from functools import lru_cache
from typing import TYPE_CHECKING, Final

from mdr.errors import Refusal, SourceError
from mdr.source.git import KEPT, version
from mdr.source.ranges import is_public, parse

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from mdr.source.locate import Location

Resolver = "Callable[[str, int], Sequence[str]]"
DEFAULT_PORTS: Final = {"https": 443, "http": 80, "ssh": 22, "git": 9418}
PINNING_GIT: Final = (2, 37)
"""First git with ``http.curloptResolve`` (its release notes)."""
_NOT_OURS: Final = "192.0.2.1"
"""An address of the documentation block, which no machine has."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pins:
    """What git is told so that it connects to the checked addresses and to no others."""

    address: str
    """URL to hand to git."""
    config: dict[str, str] = field(default_factory=dict)
    ssh_options: str = ""
    """Further words for ssh, fit for a shell."""
    variables: dict[str, str] = field(default_factory=dict)


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
            hint="check the address and the network; if a registry holds it, name it with --registry URL",
            data={"host": host},
        ) from None
    return list(dict.fromkeys(str(row[4][0]) for row in rows))


def check_public(
    location: Location, *, resolver: Callable[[str, int], Sequence[str]] = resolve
) -> Pins:
    """Make sure that a remote lies on the public internet.

    Args:
        location: A remote location.
        resolver: Name lookup, replaced in tests.

    Returns:
        The pins. Empty for a name that only a proxy can look up.

    Raises:
        mdr.errors.Refusal: private-address.
        mdr.errors.SourceError: host-unknown, git-too-old.
    """
    port = location.port or DEFAULT_PORTS[location.scheme]
    try:
        addresses = resolver(location.server, port)
    except SourceError:
        if _is_proxied(location):
            return Pins(address=location.address)
        raise
    refused = [each for each in addresses if not is_public(each) or is_ours(each)]
    if refused or not addresses:
        raise Refusal(
            "private-address",
            f"{location.server} has an address that is not on the public internet "
            f"({', '.join(refused) or 'none at all'})",
            hint="pass --allow-private if this repository may be read",
            data={"host": location.server, "addresses": refused},
        )
    return pins(location, port, addresses)


def pins(location: Location, port: int, addresses: Sequence[str]) -> Pins:
    """Write what pins ``location`` to addresses that were checked.

    Raises:
        mdr.errors.SourceError: git-too-old.
    """
    shown = [f"[{each}]" if ":" in each else each for each in addresses]
    match location.scheme:
        case "ssh":
            alias = (
                location.server if port == DEFAULT_PORTS["ssh"] else f"[{location.server}]:{port}"
            )
            options = f"-oHostName={addresses[0]} -oHostKeyAlias='{alias}' -oCheckHostIP=no"
            return Pins(address=location.address, ssh_options=options)
        case "git":
            path = location.address.partition("://")[2].partition("/")[2]
            return Pins(
                address=f"git://{shown[0]}:{port}/{path}",
                variables={"GIT_OVERRIDE_VIRTUAL_HOST": f"{location.server}:{port}"},
            )
        case _:
            _require_pinning()
            entry = f"{location.server}:{port}:{','.join(shown)}"
            return Pins(address=location.address, config={"http.curloptResolve": entry})


def is_ours(address: str) -> bool:
    """Say whether this machine has ``address`` itself: its public one leads to its own services."""
    ip = parse(address)
    return ip is not None and not _binds(_NOT_OURS, 4) and _binds(str(ip), ip.version)


@lru_cache(maxsize=256)
def _binds(address: str, family: int) -> bool:
    """Say whether a socket can be bound to ``address``, which the system allows for its own alone."""
    try:
        with socket.socket(socket.AF_INET if family == 4 else socket.AF_INET6) as probe:
            probe.bind((address, 0))
    except OSError:
        return False
    return True


def _require_pinning() -> None:
    found = version()
    if found < PINNING_GIT:
        raise SourceError(
            "git-too-old",
            f"git {'.'.join(map(str, found))} cannot be told which address to connect to",
            hint="install git 2.37 or newer, or pass --allow-private for sources that you trust",
            data={"found": list(found), "needed": list(PINNING_GIT)},
        )


def _is_proxied(location: Location) -> bool:
    """Say whether git reaches ``location`` through a proxy, by the variables that it is given."""
    from urllib import request

    if location.scheme not in {"http", "https"}:
        return False
    names = {
        f"{location.scheme}_proxy",
        f"{location.scheme}_proxy".upper(),
        "all_proxy",
        "ALL_PROXY",
    }
    if not any(os.environ.get(name) for name in names & set(KEPT)):
        return False
    excepted = os.environ.get("no_proxy") or os.environ.get("NO_PROXY") or ""
    bypass = request.proxy_bypass_environment  # type: ignore[attr-defined]  # typeshed lacks it
    return not bypass(location.server, {"no": excepted})
