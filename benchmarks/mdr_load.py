"""How many requests does one server process answer, and how soon? wrk, one process, the same cores.

::

    python benchmarks/mdr_load.py [--artifacts 4000] [--seconds 10] [--runs 3] [--database URL] [--data DIR]

Makes a repository of that many skills of about 12 KB and indexes it, unless the registry in ``--data`` and
``--database`` (an empty PostgreSQL database the first time) holds that many already. Then it starts ``mdr serve``, asks for everything once, and then lets wrk (https://github.com/wg/wrk) ask random
artifacts. Rows with a rate are paced by wrk's ``delay``; the others ask as fast as answers come. Every
figure is the median of the runs. The request log is on, and written to a file.

Exit status: 0 every target met, 1 one missed, 2 wrk is missing.
"""

from __future__ import annotations

import argparse
import json
import random
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Final
from urllib.request import urlopen

WORDS: Final = 1_900
"""Of one skill; about 12 KB."""
LUA: Final = """
local paths = {}
for line in io.lines("%(urls)s") do paths[#paths + 1] = line end
local pause = %(pause)d
function init(args) math.randomseed(tonumber(tostring({}):match("0x(%%x+)"), 16) %% 2147483647) end
function request() return wrk.format("GET", paths[math.random(#paths)]) end
if pause > 0 then function delay() return pause + math.random(-pause / 4, pause / 4) end end
function done(summary, latency, requests)
  local bad = summary.errors.status + summary.errors.timeout + summary.errors.read + summary.errors.connect
  print(string.format('RESULT {"requests": %%d, "seconds": %%f, "p50": %%f, "p99": %%f, "errors": %%d}',
    summary.requests, summary.duration / 1e6, latency:percentile(50) / 1e3, latency:percentile(99) / 1e3, bad))
end
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One question, how hard it is asked, and what must come of it."""

    name: str
    kind: str
    connections: int
    rate: int | None = None
    at_least: float | None = None
    """Requests a second."""
    p99_below: float | None = None
    """Milliseconds."""


ROWS: Final = (
    Row(name="resolve", kind="resolve", connections=32, at_least=1_000),
    Row(name="resolve at 300/s", kind="resolve", connections=30, rate=300, p99_below=15),
    Row(name="blob, 12 KB", kind="blob", connections=32, at_least=3_000),
    Row(name="page at 50/s", kind="page", connections=10, rate=50, p99_below=60),
    Row(name="badge", kind="badge", connections=32),
)


def main() -> int:
    """Run every row and print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--artifacts", type=int, default=4_000)
    parser.add_argument("--seconds", type=int, default=10)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--database")
    parser.add_argument("--data", type=Path)
    arguments = parser.parse_args()
    if shutil.which("wrk") is None:
        print("wrk is missing: apt-get install wrk", file=sys.stderr)
        return 2
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        data = arguments.data or folder / "data"
        store = filled(data, arguments.database, arguments.artifacts)
        server, url = start(store, folder / "log")
        try:
            urls = learn(url, folder)
            good = [measure(row, url, urls, folder, arguments) for row in ROWS]
        finally:
            server.terminate()
            server.wait(60)
    print(
        f"{subprocess.run(['wrk', '-v'], capture_output=True, text=True, check=False).stdout.split(' [')[0]}"
    )
    return 0 if all(good) else 1


def filled(data: Path, database: str | None, count: int) -> list[str]:
    """Fill a registry unless it is, and return the options that name it."""
    from mdr.registry.stores import open_stores
    from mdr.settings import Settings
    from mdr.store import listing

    store = ["--data", str(data), *(["--database", database] if database else [])]
    stores = open_stores(Settings(data=data, database=database), create=False)
    held = 0 if stores is None else listing.sums(stores.index).artifacts
    if stores is not None:
        stores.close()
    if held not in {0, count}:
        sys.exit(f"the registry holds {held:,} artifacts: name another, or --artifacts {held}")
    if not held:
        with tempfile.TemporaryDirectory() as folder:
            prepare(Path(folder) / "r.git", count, store)
    return store


def prepare(repository: Path, count: int, store: list[str]) -> None:
    """Make a repository with git's own fast-import, and index it."""
    subprocess.run(["git", "init", "-q", "--bare", "-b", "main", str(repository)], check=True)
    chooser = random.Random(7)  # noqa: S311 - text, not a secret
    vocabulary = [f"{a}{b}{c}" for a in "bdfgklmnprst" for b in "aeiou" for c in "lmnrst"]
    stream = [
        b"commit refs/heads/main\ncommitter n <e@x> 1767225600 +0000\ndata 1\nm\n",
    ]
    for number in range(count):
        name = f"{chooser.choice(vocabulary)}-{chooser.choice(vocabulary)}-{number}"
        words = [chooser.choice(vocabulary) for _ in range(WORDS)]
        lines = [" ".join(words[at : at + 14]) for at in range(0, WORDS, 14)]
        head = f"---\nname: {name}\ndescription: {' '.join(words[:20])}\n---\n# {name}\n\n"
        text = (head + "\n".join(lines) + "\n").encode()
        stream.append(
            f"M 644 inline skills/{name}/SKILL.md\ndata {len(text)}\n".encode() + text + b"\n"
        )
    subprocess.run(
        ["git", f"--git-dir={repository}", "fast-import", "--quiet"],
        input=b"".join(stream) + b"done\n",
        check=True,
    )
    command = [sys.executable, "-m", "mdr", "index", str(repository), "--as", "load/skills", *store]
    subprocess.run(command, check=True)


def start(store: list[str], log: Path) -> tuple[subprocess.Popen[str], str]:
    """Start the server and return it with its address."""
    command = [sys.executable, "-m", "mdr", "serve", "--port", "0", "--rate-limit", "0", *store]
    server = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log.open("w"), text=True)
    assert server.stdout is not None
    return server, server.stdout.readline().strip()


def learn(url: str, folder: Path) -> dict[str, Path]:
    """Ask for everything once, and write down what can be asked."""
    paths: dict[str, list[str]] = {"resolve": [], "blob": [], "page": [], "badge": []}
    cursor = ""
    while True:
        page = get(f"{url}/api/v1/artifacts?limit=100{cursor}")
        for item in page["items"]:
            paths["resolve"].append(f"/api/v1/resolve?ref={item['ref']}")
            paths["blob"].append(f"/api/v1/blob/{item['sha256']}")
            paths["page"].append(f"/a/{item['id']}")
            paths["badge"].append(f"/badge/{item['id']}.svg")
        if page["next_cursor"] is None:
            break
        cursor = f"&cursor={page['next_cursor']}"
    for kind in ("page", "resolve", "blob", "badge"):
        for path in paths[kind]:
            with urlopen(url + path) as answer:  # noqa: S310 - loopback
                answer.read()
    files = {}
    for kind, listed in paths.items():
        files[kind] = folder / f"{kind}.txt"
        files[kind].write_text("\n".join(listed) + "\n")
    return files


def get(url: str) -> dict[str, list[dict[str, str]]]:
    """Read a document."""
    with urlopen(url) as answer:  # noqa: S310 - loopback
        found: dict[str, list[dict[str, str]]] = json.load(answer)
        return found


def measure(
    row: Row, url: str, urls: dict[str, Path], folder: Path, arguments: argparse.Namespace
) -> bool:
    """Run one row, print its line, say whether its targets are met."""
    runs = [ask(row, url, urls[row.kind], folder, arguments.seconds) for _ in range(arguments.runs)]
    rate = statistics.median(run["requests"] / run["seconds"] for run in runs)
    p50, p99 = (statistics.median(run[key] for run in runs) for key in ("p50", "p99"))
    errors = sum(run["errors"] for run in runs)
    met = not errors
    met = met and (row.at_least is None or rate >= row.at_least)
    met = met and (row.p99_below is None or p99 <= row.p99_below)
    target = f">= {row.at_least:,.0f}/s" if row.at_least else ""
    target += f"p99 <= {row.p99_below:g} ms" if row.p99_below else ""
    print(
        f"{row.name:22} {row.connections:3} conn  {rate:9,.0f}/s  p50 {p50:7.2f} ms  "
        f"p99 {p99:7.2f} ms  {errors:.0f} errors  {target:16} {'met' if met else 'MISSED'}",
        flush=True,
    )
    return met


def ask(row: Row, url: str, urls: Path, folder: Path, seconds: int) -> dict[str, float]:
    """Let wrk ask once."""
    pause = round(1_000 * row.connections / row.rate) if row.rate else 0
    script = folder / "ask.lua"
    script.write_text(LUA % {"urls": urls, "pause": pause})
    command = ["wrk", "-t1", f"-c{row.connections}", f"-d{seconds}s", "--timeout", "10s"]
    done = subprocess.run(
        [*command, "-s", str(script), url], capture_output=True, text=True, check=True
    )
    found = re.search(r"RESULT (\{.*\})", done.stdout)
    assert found is not None, done.stdout + done.stderr
    result: dict[str, float] = json.loads(found.group(1))
    return result


if __name__ == "__main__":
    sys.exit(main())
