"""Does the server's memory stay flat? Ten minutes of resolve and pages at a fixed rate, and a slope.

::

    python benchmarks/mdr_soak.py --data DIR [--database URL] [--minutes 10] [--resolve 300] [--pages 50]

The registry is that of ``mdr_load.py``, which makes it where there is none; other options go to ``mdr serve``.
One server process is started on a free port. Requests are sent on time whether or not earlier ones were
answered (an open loop), over connections that are kept, from this process, on the same cores. Each five seconds the memory of the server and its children is read from
``/proc`` (resident set, Linux only). The first fifth of the time is warm-up and not judged.

Exit status: 0 flat, 1 it grew or requests failed, 2 it could not be run.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import re
import statistics
import subprocess
import sys
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import quote, urlsplit
from urllib.request import urlopen

from mdr_load import filled

MIB = 1 << 20
SAMPLE_SECONDS = 5.0
WARM_UP = 0.2
ALLOWED_GROWTH = 0.03
"""Of the memory after warm-up, over the whole judged time."""
CONNECTIONS = 32
TIMEOUT_SECONDS = 30.0


@dataclass(slots=True)
class Seen:
    """What the load saw."""

    statuses: Counter[int] = field(default_factory=Counter)
    failures: Counter[str] = field(default_factory=Counter)
    seconds: dict[str, list[float]] = field(default_factory=dict)
    late: int = 0
    """Requests that found no free connection in time to start when they should have."""
    unanswered: int = 0
    """Requests that were still open half a minute after the end."""


class Client:
    """Connections that are kept; each carries one request at a time."""

    def __init__(self, host: str, port: int) -> None:
        self._host, self._port = host, port
        self._free: asyncio.Queue[tuple[asyncio.StreamReader, asyncio.StreamWriter] | None] = (
            asyncio.Queue()
        )
        for _ in range(CONNECTIONS):
            self._free.put_nowait(None)

    @property
    def busy(self) -> bool:
        """Whether every connection carries a request."""
        return self._free.empty()

    async def get(self, path: str) -> int:
        """Send a request, read the whole answer and return its status."""
        kept = await self._free.get()
        streams = None
        try:
            async with asyncio.timeout(TIMEOUT_SECONDS):
                reader, writer = kept or await asyncio.open_connection(self._host, self._port)
                writer.write(f"GET {path} HTTP/1.1\r\nHost: {self._host}\r\n\r\n".encode())
                head = await reader.readuntil(b"\r\n\r\n")
                lines = head.decode("latin-1").split("\r\n")
                fields = {
                    name.lower(): value.strip()
                    for name, _, value in (line.partition(":") for line in lines[1:])
                }
                await reader.readexactly(int(fields.get("content-length", "0")))
                if fields.get("connection", "").lower() != "close":
                    streams = (reader, writer)
                else:
                    writer.close()
                return int(lines[0].split()[1])
        finally:
            self._free.put_nowait(streams)


async def one(client: Client, kind: str, path: str, due: float, seen: Seen) -> None:
    """Send one request; its time counts from when it was due."""
    try:
        status = await client.get(path)
    except (OSError, EOFError, TimeoutError, ValueError) as error:
        seen.failures[type(error).__name__] += 1
        return
    seen.statuses[status] += 1
    times = seen.seconds.setdefault(kind, [])
    times.append(time.perf_counter() - due)


@dataclass(frozen=True, slots=True)
class Stream:
    """Requests of one kind."""

    kind: str
    paths: list[str]
    rate: float
    """A second."""


async def load(client: Client, stream: Stream, until: float, seen: Seen) -> None:
    """Send requests of one kind at a fixed rate."""
    chance = random.Random(stream.kind)  # noqa: S311 - runs repeat
    started = due = time.perf_counter()
    tasks: set[asyncio.Task[None]] = set()
    number = 0
    while due < until:
        await asyncio.sleep(max(0.0, due - time.perf_counter()))
        seen.late += client.busy
        task = asyncio.create_task(one(client, stream.kind, chance.choice(stream.paths), due, seen))
        tasks.add(task)
        task.add_done_callback(tasks.discard)
        number += 1
        due = started + number / stream.rate
    if tasks:
        _, open_still = await asyncio.wait(tasks, timeout=TIMEOUT_SECONDS)
        for task in open_still:
            task.cancel()
        await asyncio.gather(*open_still, return_exceptions=True)
        seen.unanswered += len(open_still)


async def watch(pid: int, until: float) -> list[tuple[float, int]]:
    """Read the memory of a process and its children every five seconds."""
    samples = []
    started = time.perf_counter()
    while (now := time.perf_counter()) < until:
        samples.append((now - started, resident(pid)))
        await asyncio.sleep(SAMPLE_SECONDS)
    return samples


def resident(pid: int) -> int:
    """Return the resident bytes of a process and everything it started."""
    text = Path(f"/proc/{pid}/status").read_text(encoding="ascii", errors="replace")
    found = re.search(r"VmRSS:\s+(\d+) kB", text)
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text(encoding="ascii").split()
    return int(found[1]) * 1024 + sum(map(resident, map(int, children))) if found else 0


def slope(samples: list[tuple[float, int]]) -> float:
    """Return bytes a second by least squares."""
    moments, sizes = zip(*samples, strict=True)
    return statistics.linear_regression(moments, sizes).slope


def targets(base: str, limit: int) -> tuple[list[str], list[str]]:
    """Return paths of resolve and of pages for what the registry holds."""
    resolves, pages, cursor = [], [], ""
    while len(pages) < limit:
        more = f"&cursor={quote(cursor)}" if cursor else ""
        with urlopen(f"{base}/api/v1/artifacts?limit=100{more}") as answer:  # noqa: S310 - our own server
            document = json.load(answer)
        for item in document["items"]:
            ref = f"{item['repository']}:{item['path']}"
            resolves.append(f"/api/v1/resolve?ref={quote(ref, safe='')}")
            pages.append(f"/a/{item['id']}")
        cursor = document["next_cursor"] or ""
        if not cursor:
            break
    return resolves, pages


def start(options: list[str]) -> tuple[subprocess.Popen[str], str]:
    """Start a server and wait for the line with its address."""
    words = [sys.executable, "-m", "mdr", "serve", "--port", "0", *options]
    server = subprocess.Popen(words, stdout=subprocess.PIPE, text=True)
    assert server.stdout is not None
    for line in server.stdout:
        if found := re.search(r"http://[0-9.]+:\d+", line):
            return server, found[0]
    sys.exit("the server ended without telling its address")


async def soak(pid: int, base: str, arguments: argparse.Namespace) -> tuple[Seen, list[tuple[float, int]]]:  # fmt: skip
    """Run the load."""
    resolves, pages = targets(base, arguments.artifacts)
    parts = urlsplit(base)
    assert parts.hostname is not None
    assert parts.port is not None
    client, seen = Client(parts.hostname, parts.port), Seen()
    until = time.perf_counter() + arguments.minutes * 60
    _, _, samples = await asyncio.gather(
        load(client, Stream("resolve", resolves, arguments.resolve), until, seen),
        load(client, Stream("page", pages, arguments.pages), until, seen),
        watch(pid, until),
    )
    return seen, samples


def report(seen: Seen, samples: list[tuple[float, int]]) -> bool:
    """Print what was seen; say whether memory is flat and every answer was good."""
    judged = [each for each in samples if each[0] >= samples[-1][0] * WARM_UP]
    first = statistics.median(size for _, size in judged[: max(1, len(judged) // 10)])
    growth = slope(judged) * (judged[-1][0] - judged[0][0])
    for kind, times in seen.seconds.items():
        cuts = statistics.quantiles(times, n=1000)
        print(f"{kind:8} {len(times):9,} answers  median {cuts[499] * 1000:7.2f} ms  p99 {cuts[989] * 1000:7.2f} ms  p99.9 {cuts[998] * 1000:7.2f} ms")  # fmt: skip
    print(f"statuses {dict(seen.statuses)}, failures {dict(seen.failures)}, without a free connection {seen.late:,}, unanswered {seen.unanswered:,}")  # fmt: skip
    print(f"memory   {samples[0][1] / MIB:.1f} MiB at the start, {first / MIB:.1f} after warm-up, {samples[-1][1] / MIB:.1f} at the end")  # fmt: skip
    print(f"growth   {growth / MIB:+.2f} MiB by least squares over {judged[-1][0] - judged[0][0]:.0f} s")  # fmt: skip
    minutes = [size / MIB for at, size in samples if at % 60 < SAMPLE_SECONDS]
    print(f"by minute {' '.join(f'{each:.0f}' for each in minutes)} MiB")
    flat = growth <= first * ALLOWED_GROWTH
    good = not seen.failures and not seen.unanswered and set(seen.statuses) <= {200}
    print("flat" if flat else "NOT FLAT", "" if good else "; SOME REQUESTS FAILED")
    return flat and good


def main() -> int:
    """Run and judge."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", required=True, type=Path)
    parser.add_argument("--database")
    parser.add_argument("--minutes", type=float, default=10)
    parser.add_argument("--resolve", type=float, default=300, help="requests a second")
    parser.add_argument("--pages", type=float, default=50, help="requests a second")
    parser.add_argument("--artifacts", type=int, default=4000, help="that the registry holds")
    arguments, options = parser.parse_known_args()
    store = filled(arguments.data, arguments.database, arguments.artifacts)
    server, base = start([*store, *options])
    try:
        seen, samples = asyncio.run(soak(server.pid, base, arguments))
    finally:
        server.terminate()
        server.wait()
    return 0 if report(seen, samples) else 1


if __name__ == "__main__":
    sys.exit(main())
