"""Checks 7 and 16: links to places where data is dropped, and links to bare addresses."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from mdr.audit.checks.row import Check, Hit, span
from mdr.audit.cues import negated
from mdr.audit.rx import Rx
from mdr.audit.types import Severity, Status
from mdr.audit.urls import public_address

if TYPE_CHECKING:
    from collections.abc import Iterator

    from mdr.audit.text import Text
    from mdr.audit.urls import Link

DROP_HOSTS: Final = frozenset(
    (
        # pastes
        "pastebin.com pastebin.pl paste.ee paste.rs paste.c-net.org paste.ubuntu.com pastes.dev pastes.io "
        "hastebin.com ghostbin.com ghostbin.co rentry.co rentry.org dpaste.com dpaste.org dpaste.de ix.io "
        "sprunge.us termbin.com 0bin.net zerobin.net cl1p.net bpa.st controlc.com justpaste.it justpaste.me "
        "privatebin.net privatebin.info snippet.host glot.io nopaste.net txt.fyi telegra.ph "
        # one-time file drops
        "0x0.st x0.at envs.sh ttm.sh transfer.sh file.io gofile.io anonfiles.com anonfile.com temp.sh "
        "bashupload.com catbox.moe tmpfiles.org uguu.se pixeldrain.com filebin.net oshi.at keep.sh tmp.ninja "
        # request catchers
        "webhook.site webhook.cool requestbin.com requestbin.net pipedream.net beeceptor.com hookbin.com "
        "requestcatcher.com requestrepo.com requestinspector.com postb.in ptsv2.com ptsv3.com putsreq.com "
        "rbaskets.in mockbin.org mockbin.io typedwebhook.tools "
        # out-of-band interaction servers and blind-injection trackers
        "interact.sh interactsh.com oast.pro oast.live oast.fun oast.me oast.site oast.online oastify.com "
        "burpcollaborator.net canarytokens.com canarytokens.org dnslog.cn ceye.io bxss.me xss.ht xsshunter.com "
        # tunnels to somebody's own machine
        "ngrok.io ngrok.app ngrok.dev ngrok-free.app ngrok-free.dev trycloudflare.com loca.lt localtunnel.me "
        "serveo.net localhost.run lhr.life pinggy.link pinggy.io bore.pub loclx.io zrok.io tunnelmole.net "
        "telebit.io playit.gg pagekite.me"
    ).split()
)
"""Pastes, drops, request catchers and tunnels, with all their subdomains. Sources: the host lists that
public skill scanners and incident reports name, and the sites' own descriptions."""
DISCORD: Final = frozenset({"discord.com", "discordapp.com", "canary.discord.com", "ptb.discord.com"})
DISCORD_HOOK: Final = Rx(rb"^api/(?:v[0-9]+/)?webhooks/[0-9]{5,}")
TELEGRAM_BOT: Final = Rx(rb"^(?:file/)?bot[0-9]{6,}")
LURE: Final = Rx(
    rb"\b(?:copy|paste|run|execute|install)\b[^\n]*?\b(?:script|command|terminal|shell|powershell|snippet)\b|\bterminal\b"
)
LURE_REACH: Final = 160


def is_drop(link: Link) -> bool:
    """Say whether a link leads to a host where anybody can pick data up."""
    host, path = link.host, link.path.encode()
    labels = host.split(".")
    for index in range(len(labels) - 1):
        if ".".join(labels[index:]) in DROP_HOSTS:
            return True
    if host in DISCORD:
        return DISCORD_HOOK.search(path) is not None
    return host == "api.telegram.org" and TELEGRAM_BOT.search(path) is not None


def find_drops(text: Text) -> Iterator[Hit]:
    """Find links to exfiltration and paste hosts."""
    view = text.folded
    data = view.lower
    for link in text.links:
        if not is_drop(link):
            continue
        around = data[max(0, link.start - LURE_REACH) : link.end + LURE_REACH]
        lured = LURE.search(around) is not None and not negated(data, link.start)
        why = f"{link.host} takes data from anybody and shows it to anybody"
        if lured:
            yield span(view, link.start, link.end, Status.CRIT, why + "; the text around asks to run what is there")
        else:
            yield span(view, link.start, link.end, Status.FAIL, why)


def find_addresses(text: Text) -> Iterator[Hit]:
    """Find links whose host is a public address instead of a name."""
    view = text.folded
    for link in text.links:
        address = public_address(link.host)
        if address is not None:
            yield span(view, link.start, link.end, Status.FAIL, f"the host is the bare address {address}: no name, no certificate, no owner")


EXFIL_HOST: Final = Check(
    id="exfil-host",
    title="No link to an exfiltration or paste host",
    severity=Severity.HIGH,
    find=find_drops,
)
RAW_IP: Final = Check(
    id="raw-ip",
    title="No link to a raw IP address",
    severity=Severity.MEDIUM,
    find=find_addresses,
)
