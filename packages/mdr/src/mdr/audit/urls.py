"""Links as a client resolves them: the host behind userinfo, escapes, ports and number forms.

Works on the folded view, so look-alike characters, entities and zero-width characters are gone.
Address ranges are written out: the standard library's notion of a private address changes between
Python releases.
"""

from __future__ import annotations

import re
from functools import lru_cache
from ipaddress import AddressValueError, IPv4Address, IPv6Address
from typing import TYPE_CHECKING, Final, NamedTuple
from urllib.parse import unquote, unquote_to_bytes

from mdr.audit.drops import DROP_HOSTS
from mdr.audit.fold import fold_characters
from mdr.audit.rx import Rx

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from mdr.audit.rx import Match
    from mdr.audit.text import Text

SCHEMED: Final = rb"\b[a-z][a-z0-9+.-]*:(?:\\?/){2}"
LINK: Final = Rx(
    rb"(?:"
    + SCHEMED
    + rb"|(?m:^|[\s(\[<\"'`=])//)([^\s<>\"'`)\]}|\\/?#]*(?:\[[0-9a-f:.%]+\](?::[0-9]*)?)?)([^\s<>\"'`)\]}|\\]*)"
)
"""A link with a scheme or ``//``: (authority, rest)."""
CONNECTS: Final = Rx(
    rb"(?i)(?:^|[\s;&|`\"'(/])(?:curl|wget|iwr|irm|invoke-webrequest|invoke-restmethod|aria2c|httpie|nc|ncat|netcat"
    rb"|socat|telnet|dig|nslookup)[ \t]+([^\n]+)"
)
"""A program that connects to the host it is given, and its arguments."""
RESOLVERS: Final = re.compile(rb"[^a-zA-Z]?(?:dig|nslookup)[ \t]")
"""They ask a name server, which is an address by nature."""
ARGUMENT: Final = re.compile(rb"[^\t\n\f\r \"'|;&`<>]+|[|;&]")
VALUE_OPTIONS: Final = frozenset(
    b"-o -H -d -u -A -e -b -F -w -m -T --output --header --data --data-binary --data-raw --user --user-agent "
    b"--cookie --form --resolve --interface --connect-to --max-time --retry --write-out".split()
)
"""Options whose next argument is not a host."""
BARE: Final = Rx(
    rb"^(?:[^/@:]*@)?([a-z0-9$(){}_-]*(?:\.[a-z0-9_-]+)+\.?"
    rb")(?::[0-9]+)?(?:/([^ ]*))?$"
)


SHORT: Final = 256
"""Bytes up to which the answer for a word is kept; long ones seldom come twice."""


class Link(NamedTuple):
    """One link of the folded text."""

    start: int
    end: int
    host: str
    """Lower case, without userinfo, port, brackets or trailing dot; ``""`` when there is none."""
    path: str
    """Without the leading slash."""


def links(data: bytes) -> Iterator[Link]:
    """Return the links of folded lower-case text."""
    if b"//" in data or rb":\/" in data:
        for match in LINK.finditer(data):
            yield _link(match)


def _link(match: Match) -> Link:
    authority, rest = ((match.group(i) or b"").decode("utf-8", "replace") for i in (1, 2))
    return Link(match.start(), match.end(), host_of(authority), rest.lstrip("/"))


def bare_hosts(data: bytes) -> Iterator[Link]:
    """Return hosts without a scheme behind programs that connect to them.

    Args:
        data: Folded text, case kept (``-o`` takes a value and ``-O`` does not), or its rest from such a
            program on.
    """
    for command in CONNECTS.finditer(data):
        before, piped = b"", False
        resolves = RESOLVERS.match(command.group() or b"") is not None
        for argument in ARGUMENT.finditer(data, command.start(1), command.end(1)):
            word = argument[0]
            piped = piped or word in b"|;&"
            likely = b"." in word and before not in VALUE_OPTIONS
            found = (_bare if len(word) <= SHORT else _bare.__wrapped__)(word) if likely else None
            before = word
            if found is not None:
                raw, host, path = found
                if (piped or resolves) and public_address(raw) is not None:
                    continue
                yield Link(argument.start(), argument.end(), host, path)


@lru_cache(maxsize=512)
def _line_hosts(line: bytes) -> tuple[Link, ...]:
    return tuple(bare_hosts(line))


@lru_cache(maxsize=1024)
def _bare(word: bytes) -> tuple[str, str, str] | None:
    """Read an argument as (host as written, host, path); a short number is a version, no address."""
    found = BARE.match(word.lower())
    if found is None:
        return None
    raw, path = ((found.group(i) or b"").decode("utf-8", "replace") for i in (1, 2))
    host = raw.rstrip(".")
    is_version = host.count(".") != 3 and public_address(host) is not None
    return raw, "" if is_version else host, path


_DROPS: Final = b"|".join(re.escape(host.encode()) for host in sorted(DROP_HOSTS))
_AUTHORITY: Final = rb"[^\s<>\"'`)\]}|\\/?#]*"
_BEGIN: Final = rb"(?:" + SCHEMED + rb"|(?m:^|[\s(\[<\"'`=])//)(?:" + _AUTHORITY + rb"@)?(?:"
_LINK_AT: Final = re.compile(LINK.pattern)
"""Not RE2, and linear too: matched only where a link begins, and no part of it ever gives bytes back."""
_ESCAPED: Final = re.compile(
    rb"/\\?/(" + _AUTHORITY.replace(b"#]", b"#%]") + rb"%" + _AUTHORITY + rb")"
)
"""An authority with percent signs; no part can begin with what the part before may repeat."""
_CELLS: Final = bytes(0x0A if code in b"\t\n\f\r <>\"'`)]}|" else code for code in range(256))
"""What no link goes across, as newlines."""


def escaped_hosts(data: bytes) -> dict[bytes, str]:
    """Return the authorities with percent signs of folded lower-case text, each with its host."""
    found = set(_ESCAPED.findall(data)) if b"%" in data else ()
    return {authority: host_of(authority.decode("utf-8", "replace")) for authority in found}


class Suspects:
    """Finds the few links that one check must look at; only these are parsed.

    Hosts that hide behind percent signs are decoded once for each spelling; the places where one is
    spelled are looked at only when it is what the check looks for.
    """

    def __init__(self, host: bytes, bare: bytes) -> None:
        """Build the patterns.

        Args:
            host: How a suspicious host of a link begins or ends.
            bare: A suspicious host behind a program that connects.
        """
        self._plain = Rx(_BEGIN + host + rb")")
        self._links = Rx(_BEGIN + _AUTHORITY + rb"%|" + host + rb")")
        self._commands = Rx(
            CONNECTS.pattern.removesuffix(rb"([^\n]+)") + rb"[^\n]*?(?:" + bare + rb")"
        )

    def find(self, text: Text, wanted: Callable[[str], bool]) -> Iterator[Link]:
        """Return the suspects of the folded view, links first.

        Args:
            text: The file.
            wanted: Says of a host that was spelled with percent signs whether the check looks for it.
        """
        view = text.folded
        data = view.lower
        if b"//" in data or rb":\/" in data:
            if text.escaped_hosts:
                hidden = {spelled for spelled, host in text.escaped_hosts.items() if wanted(host)}
                yield from self._between(data, hidden)
            else:
                yield from self._parsed(data, self._plain.finditer(data))
        done = 0
        for suspect in self._commands.finditer(view.data):
            if suspect.start() >= done:
                end = view.data.find(b"\n", suspect.end())
                done = len(data) if end < 0 else end
                line = view.data[suspect.start() : done]
                for link in (_line_hosts if len(line) <= SHORT else bare_hosts)(line):
                    start, end = suspect.start() + link.start, suspect.start() + link.end
                    yield Link(start, end, link.host, link.path)

    def _between(self, data: bytes, hidden: set[bytes]) -> Iterator[Link]:
        """Look at the stretches without a separator in which a suspect stands."""
        places = [suspect.start() for suspect in self._plain.finditer(data)]
        if hidden:
            spelled = (found.start() for found in _ESCAPED.finditer(data) if found[1] in hidden)
            places = sorted((*places, *spelled))
        cells = data.translate(_CELLS) if places else b""
        done = 0
        for place in places:
            if place < done:
                continue
            start = max(cells.rfind(b"\n", done, place), done)
            end = cells.find(b"\n", place + 1)
            done = len(data) if end < 0 else end
            yield from self._parsed(data, self._links.finditer(data, start, done))

    def _parsed(self, data: bytes, suspects: Iterator[Match]) -> Iterator[Link]:
        done = 0
        for suspect in suspects:
            found = _LINK_AT.match(data, suspect.start()) if suspect.start() >= done else None
            if found is not None:
                done = found.end()
                whole = found.groups()
                host, path = (_parts if done - found.start() <= SHORT else _parts.__wrapped__)(
                    *whole
                )
                yield Link(found.start(), done, host, path)


@lru_cache(maxsize=1024)
def _parts(authority: bytes, rest: bytes) -> tuple[str, str]:
    host = host_of(authority.decode("utf-8", "replace"))
    return host, rest.decode("utf-8", "replace").lstrip("/")


DROP_SUSPECTS: Final = Suspects(
    rb"(?:"
    + _AUTHORITY
    + rb"\.)?(?:"
    + _DROPS
    + rb"|(?:canary\.|ptb\.)?discord(?:app)?\.com\.?/api|api\.telegram\.org)",
    rb"(?i:" + _DROPS + rb")",
)
ADDRESS_SUSPECTS: Final = Suspects(rb"[0-9\[]", rb"\b[0-9]+\.[0-9]+\.[0-9]+\.[0-9]+")


@lru_cache(maxsize=4096)
def host_of(authority: str) -> str:
    """Return the host that a client would contact for the authority part of a link."""
    host = authority
    if "%" in host:
        raw = unquote_to_bytes(host)
        raw = raw if raw.isascii() else unquote(host).encode("utf-8", "replace")
        host = fold_characters(raw).decode().lower()
        host = host.split("/", 1)[0]
    host = host.rsplit("@", 1)[-1]
    host = host[1:].split("]", 1)[0] if host.startswith("[") else host.split(":", 1)[0]
    return host.strip().rstrip(".")


def is_under(host: str, domain: str) -> bool:
    """Say whether ``host`` is ``domain`` or one of its subdomains."""
    return host == domain or host.endswith("." + domain)


METADATA: Final = frozenset({"169.254.169.254", "100.100.100.200", "fd00:ec2::254"})
"""Addresses at which clouds serve a machine's credentials."""
NOT_PUBLIC_V4: Final = (
    ("0.0.0.0", 8),  # noqa: S104 - an address to recognise, not to bind
    ("10.0.0.0", 8),
    ("100.64.0.0", 10),
    ("127.0.0.0", 8),
    ("169.254.0.0", 16),
    ("172.16.0.0", 12),
    ("192.0.0.0", 24),
    ("192.0.2.0", 24),
    ("192.168.0.0", 16),
    ("198.18.0.0", 15),
    ("198.51.100.0", 24),
    ("203.0.113.0", 24),
    ("240.0.0.0", 4),
)
"""IANA special-purpose IPv4 blocks: this network, private, shared, loopback, documentation, ..."""
NOT_PUBLIC_V6: Final = (
    ("::", 127),
    ("2001:db8::", 32),
    ("3fff::", 20),
    ("fc00::", 7),
    ("fe80::", 10),
)
_V4: Final = tuple(
    (int(IPv4Address(base)) >> (32 - bits), 32 - bits) for base, bits in NOT_PUBLIC_V4
)
_V6: Final = tuple(
    (int(IPv6Address(base)) >> (128 - bits), 128 - bits) for base, bits in NOT_PUBLIC_V6
)


@lru_cache(maxsize=4096)
def public_address(host: str) -> str | None:
    """Return the public address that a host is, in any number form a client accepts.

    Args:
        host: As :func:`host_of` returns it.

    Returns:
        The canonical address; ``None`` for a name and for private, loopback and documentation
        addresses. Addresses that serve cloud credentials count as public.
    """
    if not host or host[-1] not in "0123456789abcdef:":
        return None
    if ":" in host:
        return _public_v6(host)
    number = _inet_aton(host)
    return None if number is None else _public_v4(number)


def _public_v4(number: int) -> str | None:
    text = str(IPv4Address(number))
    if text in METADATA:
        return text
    return None if any(number >> shift == base for base, shift in _V4) else text


def _public_v6(host: str) -> str | None:
    try:
        address = IPv6Address(host.split("%", 1)[0])
    except AddressValueError:
        return None
    number = int(address)
    if number >> 32 in {0xFFFF, 0x64FF9B << 64}:
        return _public_v4(number & 0xFFFFFFFF)
    if str(address) in METADATA:
        return str(address)
    return None if any(number >> shift == base for base, shift in _V6) else str(address)


def _inet_aton(host: str) -> int | None:
    """Read one to four decimal, octal or hexadecimal parts as the C function of that name does."""
    parts = host.split(".")
    if not 1 <= len(parts) <= 4:
        return None
    numbers = [_number(part) for part in parts]
    if None in numbers:
        return None
    *heads, tail = (number for number in numbers if number is not None)
    if any(head > 0xFF for head in heads) or tail >= 1 << (8 * (4 - len(heads))):
        return None
    if len(parts) == 1 and tail <= 0xFFFFFF:
        return None
    return sum(head << (8 * (3 - index)) for index, head in enumerate(heads)) + tail


MAX_DIGITS: Final = 24


def _number(part: str) -> int | None:
    if not part.isascii() or not part or len(part) > MAX_DIGITS:
        return None
    try:
        if part[:2] == "0x":
            return int(part[2:] or "0", 16)
        if not part.isdigit():
            return None
        return int(part, 8) if part[0] == "0" and len(part) > 1 else int(part)
    except ValueError:
        return None
