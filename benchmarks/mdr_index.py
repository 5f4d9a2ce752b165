"""Index real repositories and print what was found and how long it took.

Usage: python benchmarks/mdr_index.py REPOSITORY[=owner/repo]...

Each repository (a folder or bundle on this machine, or anything else ``mdr index`` takes) is indexed into
a fresh data folder by a new process, with the audit, and then once more unchanged. Times are of the whole
process, start of Python included; CPU is that of the process and its workers.
"""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path


def main() -> None:
    """Print one row for each repository."""
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    print(
        "| repository | commits on line | artifacts | versions | skipped | grades below A | first run s | CPU s | unchanged s |"
    )
    print("|---|---|---|---|---|---|---|---|---|")
    for argument in sys.argv[1:]:
        source, _, name = argument.partition("=")
        with tempfile.TemporaryDirectory(prefix="mdr-bench-") as folder:
            print(row(source, name or "bench/repository", Path(folder)), flush=True)


def row(source: str, name: str, data: Path) -> str:
    """Measure one repository."""
    first, seconds, cpu = timed(source, name, data)
    again, unchanged, _ = timed(source, name, data)
    assert again["new_versions"] == 0
    commits, below = facts(data)
    cells = [
        name, f"{commits:,}", f"{first['artifacts']:,}", f"{first['versions']:,}", f"{len(first['skipped']):,}",
        f"{below:,}", f"{seconds:.2f}", f"{cpu:.2f}", f"{unchanged:.2f}",
    ]  # fmt: skip
    return "| " + " | ".join(cells) + " |"


def timed(source: str, name: str, data: Path) -> tuple[dict[str, object], float, float]:
    """Run ``mdr index`` in a new process; return its document, wall and CPU seconds."""
    words = ["index", source, "--as", name, "--data", str(data), "--json"]
    before, started = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    env = {key: value for key, value in os.environ.items() if key != "MDR_REGISTRY"}
    done = subprocess.run(
        [sys.executable, "-m", "mdr", *words], check=True, stdout=subprocess.PIPE, env=env
    )
    seconds, after = time.perf_counter() - started, resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    document: dict[str, object] = json.loads(done.stdout)["sources"][0]
    return document, seconds, cpu


def facts(data: Path) -> tuple[int, int]:
    """Return the commits on the line and the versions with a grade below A."""
    from mdr.store.engine import open_database

    engine = open_database(data, create=False)
    assert engine is not None
    with engine.connect() as connection:
        commits = connection.exec_driver_sql("SELECT commits FROM sources").scalar_one()
        below = connection.exec_driver_sql(
            "SELECT count(*) FROM versions v JOIN artifacts a ON a.id = v.artifact_id "
            "JOIN grades g ON g.sha256 = v.sha256 AND g.kind = a.kind WHERE g.grade <> 'A'"
        ).scalar_one()
    engine.dispose()
    return int(commits), int(below)


if __name__ == "__main__":
    main()
