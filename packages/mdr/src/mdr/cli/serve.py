"""``mdr serve``."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import click

from mdr.cli.options import place_options, store_options

if TYPE_CHECKING:
    from mdr.settings import Settings


@click.command("serve")
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen on.")
@click.option("--port", type=click.IntRange(0, 65535), default=8000, show_default=True, help="0 picks a free one.")  # fmt: skip
@click.option("--workers", type=click.IntRange(1, 256), default=1, show_default=True, help="Processes.")  # fmt: skip
@click.option("--public-url", metavar="URL", help="Where readers reach it, such as https://registry.example.")  # fmt: skip
@click.option("--allow-host", "hosts", multiple=True, metavar="NAME", help="Answer to this name too; repeatable, * for any. On the loopback address only its own names and that of --public-url are answered to.")  # fmt: skip
@click.option("--trust-proxy", "proxies", multiple=True, metavar="ADDRESS", help="Believe X-Forwarded-For and -Proto of this address or network; repeatable.")  # fmt: skip
@click.option("--rate-limit", type=click.FloatRange(0), metavar="N", help="Requests a second for each client; 0 for none. Default 100, and none for this machine.")  # fmt: skip
@click.option("--cache-mib", type=click.IntRange(0, 65536), default=256, show_default=True, help="Room for answers that are kept, for each process.")  # fmt: skip
@click.option("--log", "log", type=click.Choice(["requests", "failures"]), default="requests", show_default=True, help="What is written to standard error.")  # fmt: skip
@place_options
@store_options
def command(
    *,
    host: str,
    port: int,
    workers: int,
    public_url: str | None,
    hosts: tuple[str, ...],
    proxies: tuple[str, ...],
    rate_limit: float | None,
    cache_mib: int,
    log: str,
    settings: Settings,
) -> int:
    """Serve the registry: pages for people, an API for programs, tools for agents.

    Prints its address on standard output once it answers. SIGTERM and SIGINT end it in order: running
    requests are finished, badge views are written, exit code 0.
    """
    from mdr.serving.names import host_names
    from mdr.serving.options import MIB, Options, networks
    from mdr.serving.process import serve

    options = Options(
        host=host,
        port=port,
        workers=workers,
        public_url=public_url.rstrip("/") if public_url else None,
        allowed_hosts=host_names(hosts),
        trusted_proxies=networks(proxies),
        rate=rate_limit,
        kept_bytes=cache_mib * MIB,
        log_requests=log == "requests",
    )
    serve(settings, options, _announce)
    return 0


def _announce(address: str) -> None:
    sys.stdout.write(address + "\n")
    sys.stdout.flush()
