"""The names that a server answers to, so that no web page can pass it off as its own.

A page whose name is pointed at 127.0.0.1 after it was loaded (DNS rebinding) is of one origin with whatever
listens there, and reads everything. The browser still tells the name in ``Host``. A server that is bound to
the loopback address therefore answers to its own names only: the address, ``localhost``, the host of
``--public-url``, and those that ``--allow-host`` adds. A server bound to another address is meant to be
reached under names that it cannot know, and checks them only when ``--allow-host`` lists them.
"""

from __future__ import annotations

import re
from ipaddress import ip_address
from typing import TYPE_CHECKING, Final
from urllib.parse import urlsplit

from mdr.errors import UsageError

if TYPE_CHECKING:
    from mdr.answers.answer import Scope
    from mdr.serving.options import Options

LOOPBACK: Final = frozenset({"localhost", "127.0.0.1", "[::1]"})
ANY: Final = "*"
_NAME: Final = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9_.-]+)", re.ASCII)
_HOST: Final = re.compile(rf"{_NAME.pattern}(?::\d{{0,5}})?", re.ASCII)
_ORIGIN: Final = re.compile(rf"https?://{_HOST.pattern}", re.ASCII)
MAX_SHOWN: Final = 100


class Names:
    """What ``Host`` and ``Origin`` may say."""

    def __init__(self, options: Options, base_url: str) -> None:
        """Take how the server is bound, and where readers reach it."""
        bound = options.bound or options.host
        wanted = {name for name in options.allowed_hosts if name != ANY}
        self.known: Final = frozenset(
            found
            for text in (*LOOPBACK, _bracketed(options.host), _bracketed(bound), *wanted, _host_of(base_url))
            if (found := name_of(text)) is not None
        )  # fmt: skip
        """Lower case, an IPv6 address in brackets, without ports: tunnels change those."""
        self.strict: Final = ANY not in options.allowed_hosts and bool(wanted or is_loopback(bound))
        """Whether other names are refused."""

    def check(self, scope: Scope) -> None:
        """Refuse a request that is meant for another server.

        A request without ``Host`` passes, since no browser sends one.

        Raises:
            mdr.errors.UsageError: host-not-served.
        """
        if not self.strict:
            return
        for field, value in scope["headers"]:
            if field == b"host" and value and name_of(value.decode("latin-1")) not in self.known:
                shown = value[:MAX_SHOWN].decode("ascii", "backslashreplace")
                raise UsageError(
                    "host-not-served",
                    f"this server does not answer to the name {shown!r}",
                    hint="whoever runs it can add the name: mdr serve --allow-host NAME",
                )

    def check_origin(self, scope: Scope) -> None:
        """Refuse what a page of another site sends to the tools for agents; other programs send no origin.

        Raises:
            mdr.errors.UsageError: origin-not-allowed.
        """
        fields = {field: value.decode("latin-1") for field, value in scope["headers"]}
        origin = fields.get(b"origin")
        if origin is None:
            return
        found = _ORIGIN.fullmatch(origin)
        name = None if found is None else name_of(found[1])
        same = not self.strict and name == name_of(fields.get(b"host", ""))
        if name is None or not (name in self.known or same):
            raise UsageError(
                "origin-not-allowed",
                "pages of another site may not use the tools for agents",
                hint="whoever runs the server can add the site: mdr serve --allow-host NAME",
            )


def name_of(text: str) -> str | None:
    """Return the name in a ``Host`` value, lower case and without port; ``None`` when there is none."""
    found = _HOST.fullmatch(text)
    if found is None:
        return None
    name = found[1].lower()
    return _bracketed(name[1:-1]) if name.startswith("[") else name.removesuffix(".") or None


def host_names(texts: tuple[str, ...]) -> tuple[str, ...]:
    """Read what ``--allow-host`` was given.

    Raises:
        mdr.errors.UsageError: bad-address.
    """
    for text in texts:
        if text != ANY and not _NAME.fullmatch(text):
            raise UsageError(
                "bad-address",
                f"{text!r} is no name of a host",
                hint="such as registry.example, 192.0.2.7, [2001:db8::1], or * for any",
            )
    return texts


def is_loopback(address: str) -> bool:
    """Say whether only this machine reaches an address, given as ``--host`` takes it."""
    if address.lower() == "localhost":
        return True
    try:
        found = ip_address(address)
    except ValueError:
        return False
    return (getattr(found, "ipv4_mapped", None) or found).is_loopback


def _bracketed(host: str) -> str:
    """Write an IPv6 address as ``Host`` has it, in its short form."""
    try:
        return f"[{ip_address(host).compressed}]" if ":" in host else host
    except ValueError:
        return host


def _host_of(base_url: str) -> str:
    try:
        return _bracketed(urlsplit(base_url).hostname or "")
    except ValueError:
        return ""
