"""Hosts where anybody can leave data and anybody can pick it up."""

from __future__ import annotations

from typing import Final

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
