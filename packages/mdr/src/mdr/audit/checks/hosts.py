"""Checks 7 and 16: links to places where data is dropped, and links to bare addresses."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Final

from mdr.audit.checks.row import Check, Hit, span
from mdr.audit.cues import negated
from mdr.audit.drops import DROP_HOSTS
from mdr.audit.rx import Rx
from mdr.audit.types import Severity, Status
from mdr.audit.urls import ADDRESS_SUSPECTS, DROP_SUSPECTS, public_address

if TYPE_CHECKING:
    from collections.abc import Iterator

    from mdr.audit.text import Text
    from mdr.audit.urls import Link

DISCORD: Final = frozenset(
    {"discord.com", "discordapp.com", "canary.discord.com", "ptb.discord.com"}
)
TELEGRAM: Final = "api.telegram.org"
DISCORD_HOOK: Final = Rx(rb"^api/(?:v[0-9]+/)?webhooks/[0-9]{5,}")
TELEGRAM_BOT: Final = Rx(rb"^(?:file/)?bot[0-9]{6,}")
LURE: Final = Rx(
    rb"\b(?:copy|paste|run|execute|install)\b[^\n]*?\b(?:script|command|terminal|shell|powershell|snippet)\b|\bterminal\b"
)
LURE_REACH: Final = 160


def is_drop(link: Link) -> bool:
    """Say whether a link leads to a host where anybody can pick data up."""
    host, path = link.host, link.path.encode()
    if is_listed(host):
        return True
    if host in DISCORD:
        return DISCORD_HOOK.search(path) is not None
    return host == TELEGRAM and TELEGRAM_BOT.search(path) is not None


def may_be_drop(host: str) -> bool:
    """Say whether a link to a host can be what :func:`is_drop` looks for, whatever its path."""
    return is_listed(host) or host in DISCORD or host == TELEGRAM


def is_public_address(host: str) -> bool:
    """Say whether a host is a public address."""
    return public_address(host) is not None


@lru_cache(maxsize=4096)
def is_listed(host: str) -> bool:
    """Say whether a host or a domain above it is in the list."""
    labels = host.split(".")
    return any(".".join(labels[index:]) in DROP_HOSTS for index in range(len(labels) - 1))


def find_drops(text: Text) -> Iterator[Hit]:
    """Find links to exfiltration and paste hosts."""
    view = text.folded
    data = view.lower
    lures = LURE.search(data) is not None
    for link in DROP_SUSPECTS.find(text, may_be_drop):
        if not is_drop(link):
            continue
        around = data[max(0, link.start - LURE_REACH) : link.end + LURE_REACH] if lures else b""
        lured = bool(around) and LURE.search(around) is not None and not negated(data, link.start)
        why = f"{link.host} takes data from anybody and shows it to anybody"
        if lured:
            yield span(
                view,
                link.start,
                link.end,
                Status.CRIT,
                why + "; the text around asks to run what is there",
            )
        else:
            yield span(view, link.start, link.end, Status.FAIL, why)


def find_addresses(text: Text) -> Iterator[Hit]:
    """Find links whose host is a public address instead of a name."""
    view = text.folded
    for link in ADDRESS_SUSPECTS.find(text, is_public_address):
        address = public_address(link.host)
        if address is not None:
            yield span(
                view,
                link.start,
                link.end,
                Status.FAIL,
                f"the host is the bare address {address}: no name, no certificate, no owner",
            )


EXFIL_HOST: Final = Check(
    id="exfil-host",
    title="No link to an exfiltration or paste host",
    severity=Severity.HIGH,
    worst=Status.CRIT,
    find=find_drops,
)
RAW_IP: Final = Check(
    id="raw-ip",
    title="No link to a raw IP address",
    severity=Severity.MEDIUM,
    find=find_addresses,
)
