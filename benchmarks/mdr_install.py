"""How fast ``mdr install`` is beside other tools, and what each says when bytes were tampered with.

    python benchmarks/mdr_install.py [--skills DIR] [--count 100] [--peers DIR] [--apm FILE] [--runs 3]

``--skills`` is a folder of skill folders, such as a checkout of NVIDIA/skills; without it a hundred
skills of the same sizes are made up (median SKILL.md 12 KB, four files each). ``--peers`` is a
``node_modules/.bin`` that holds ``skills`` and ``openskills``, ``--apm`` the program of apm-cli. Everything runs in a temporary folder
with an empty home, no network, whole processes timed from outside; the table gives the median.
"""

from __future__ import annotations

import argparse
import os
import random
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from mdr.artifact.types import Kind
from mdr.audit.run import audit
from mdr.digest import sha256
from mdr.install.lock import Entry, Lock, Pin, Scope, Target, write_lock
from mdr.store.files import FileBlobStore
from mdr.version.types import FileEntry, FileMode, in_path_order, manifest_sha256

COMMIT = "0123456789abcdef0123456789abcdef01234567"


@dataclass(frozen=True, slots=True)
class Result:
    """One run of one command."""

    seconds: float
    code: int
    said: str


@dataclass(frozen=True, slots=True)
class Field:
    """The folder in which everything runs."""

    root: Path
    skills: Path

    def environment(self, home: Path) -> dict[str, str]:
        """Return a small environment with an empty home and no telemetry."""
        return {
            "PATH": os.environ["PATH"],
            "HOME": str(home),
            "MDR_DATA": str(home / "data"),
            "DO_NOT_TRACK": "1",
            "DISABLE_TELEMETRY": "1",
            "CI": "1",
        }

    def run(self, command: list[str], project: Path, home: Path) -> Result:
        """Time one whole process."""
        start = time.perf_counter()
        done = subprocess.run(
            command,
            cwd=project,
            env=self.environment(home),
            capture_output=True,
            stdin=subprocess.DEVNULL,
            check=False,
            timeout=600,
        )
        seconds = time.perf_counter() - start
        return Result(
            seconds, done.returncode, (done.stdout + done.stderr).decode("utf-8", "replace")
        )

    def fresh(self, name: str) -> tuple[Path, Path]:
        """Return an empty project with a Claude folder, and an empty home."""
        project, home = self.root / f"run-{name}/project", self.root / f"run-{name}/home"
        shutil.rmtree(self.root / f"run-{name}", ignore_errors=True)
        (project / ".claude").mkdir(parents=True)
        home.mkdir()
        return project, home


def make_skills(folder: Path, count: int) -> None:
    """Write made-up skills of the sizes that NVIDIA/skills has."""
    choose = random.Random(1)  # noqa: S311 - sizes, not secrets
    words = [
        "read",
        "measure",
        "compare",
        "rank",
        "log",
        "change",
        "config",
        "memory",
        "layer",
        "budget",
        "control",
        "step",
    ]
    for number in range(count):
        name = f"skill-{number:03}"
        body = "\n".join(
            " ".join(choose.choice(words) for _ in range(14)) + "."
            for _ in range(choose.randint(60, 220))
        )
        text = f"---\nname: {name}\ndescription: Made-up skill {number} of the benchmark.\n---\n{body}\n"
        (folder / name / "references").mkdir(parents=True)
        (folder / name / "SKILL.md").write_text(text)
        for extra in ("a.md", "b.md", "card.yaml"):
            (folder / name / "references" / extra).write_text(body[: choose.randint(400, 6000)])


def entry_of(folder: Path) -> tuple[Entry, list[bytes]]:
    """Build the lock entry of a skill folder and return it with its bytes."""
    blobs, files = [], []
    for path in sorted(folder.rglob("*")):
        if path.is_file() and not path.is_symlink():
            data = path.read_bytes()
            blobs.append(data)
            mode = FileMode.EXECUTABLE if os.access(path, os.X_OK) else FileMode.REGULAR
            name = path.relative_to(folder).as_posix()
            files.append(FileEntry(path=name, mode=mode, size=len(data), sha256=sha256(data)))
    listed = in_path_order(files)
    named = next(file for file in listed if file.path == "SKILL.md")
    verdict = audit(next(data for data in blobs if sha256(data) == named.sha256))
    entry = Entry(
        ref=f"bench/skills/{folder.name}",
        host="github.com",
        repository="bench/skills",
        path=f"skills/{folder.name}/SKILL.md",
        kind=Kind.SKILL,
        pin=Pin.LABEL,
        label=f"git:20260101.{COMMIT[:7]}",
        commit=COMMIT,
        sha256=named.sha256,
        size=named.size,
        manifest_sha256=manifest_sha256(listed),
        ruleset=verdict.ruleset,
        grade=verdict.grade,
        targets=(Target(scope=Scope.PROJECT, agent="claude"),),
        files=listed,
    )
    return entry, blobs


def lock_of(skills: Path, count: int) -> tuple[Lock, list[bytes]]:
    """Lock the first ``count`` skills of a folder."""
    lock, blobs = Lock(), []
    for folder in sorted(path.parent for path in skills.glob("*/SKILL.md"))[:count]:
        entry, data = entry_of(folder)
        lock = lock.put(entry)
        blobs += data
    return lock, blobs


MDR = [sys.executable, "-m", "mdr"]


def time_mdr(field: Field, lock: Lock, blobs: list[bytes], runs: int) -> list[tuple[str, float]]:
    """Time cold installs from the cache, no-op installs, verify and --help."""
    cold, warm, verify, helped = [], [], [], []
    for _ in range(runs):
        project, home = field.fresh("mdr")
        FileBlobStore(home / "data").put(blobs)
        write_lock(project / "mdr.lock", lock)
        cold.append(_good(field.run([*MDR, "install", "--frozen"], project, home)))
        warm.append(_good(field.run([*MDR, "install", "--frozen"], project, home)))
        verify.append(_good(field.run([*MDR, "verify"], project, home)))
        helped.append(_good(field.run([*MDR, "--help"], project, home)))
    rows = (
        ("install, cold", cold),
        ("install, no-op", warm),
        ("verify", verify),
        ("--help", helped),
    )
    return [(f"mdr {name}", statistics.median(values)) for name, values in rows]


@dataclass(frozen=True, slots=True, kw_only=True)
class Peer:
    """Another tool: how it installs a folder of skills, and how it is asked whether all is well."""

    name: str
    install: tuple[str, ...]
    check: tuple[str, ...]
    restore: tuple[str, ...]
    """How it reproduces what it locked, as near as it has such a command."""
    needs_manifest: bool = False
    """Whether it installs what an ``apm.yml`` lists."""


def peers_of(options: argparse.Namespace, skills: Path) -> list[Peer]:
    """Return the tools that were named."""
    found = []
    if options.peers is not None:
        one, two = (str(options.peers.absolute() / name) for name in ("skills", "openskills"))
        add = (one, "add", str(skills), "-a", "claude-code", "-s", "*", "-y", "--copy")
        again = (one, "experimental_install")
        found.append(Peer(name="skills", install=add, check=again, restore=again))
        add = (two, "install", str(skills), "-y")
        found.append(Peer(name="openskills", install=add, check=(two, "update"), restore=add))
    if options.apm is not None:
        apm = str(options.apm.absolute())
        add = (apm, "install", "--target", "claude")
        peer = Peer(
            name="apm",
            install=add,
            check=(apm, "audit", "--ci"),
            restore=(*add, "--frozen"),
            needs_manifest=True,
        )
        found.append(peer)
    return found


def prepare(field: Field, peer: Peer) -> tuple[Path, Path]:
    """Return a fresh project and home in which a peer can install."""
    project, home = field.fresh(peer.name)
    if peer.needs_manifest:
        shutil.copytree(field.skills, project / "src", symlinks=True)
        names = sorted(path.name for path in (project / "src").iterdir())
        listed = "".join(f"    - ./src/{name}\n" for name in names)
        manifest = f"name: bench\nversion: 1.0.0\ntarget: claude\ndependencies:\n  apm:\n{listed}"
        (project / "apm.yml").write_text(manifest)
    return project, home


def time_peers(field: Field, peers: list[Peer], runs: int) -> list[tuple[str, float]]:
    """Time what the other tools need for the same folder of skills."""
    copies = []
    for _ in range(runs):
        project, home = field.fresh("cp")
        target = str(project / ".claude/skills")
        copies.append(_good(field.run(["cp", "-r", str(field.skills), target], project, home)))
    rows = [("cp -r, checks nothing", statistics.median(copies))]
    for peer in peers:
        cold, again = [], []
        for _ in range(runs):
            project, home = prepare(field, peer)
            first = field.run([*peer.install], project, home)
            second = field.run([*peer.install], project, home)
            cold.append(first.seconds)
            again.append(second.seconds)
        installed = len(list((project / ".claude").rglob("SKILL.md")))
        said = f"{installed} installed, exit {first.code}"
        rows.append((f"{peer.name}, cold ({said})", statistics.median(cold)))
        rows.append((f"{peer.name}, second run (exit {second.code})", statistics.median(again)))
    return rows


HARMS = ("edited file", "deleted file", "added file", "source changed after locking")


def tamper_mdr(field: Field, lock: Lock, blobs: list[bytes]) -> list[tuple[str, ...]]:
    """Edit, delete, add a file, change the source after locking: what mdr says."""
    rows: list[tuple[str, ...]] = []
    for what in (*HARMS, "mode changed"):
        project, home = field.fresh("tamper")
        store = FileBlobStore(home / "data")
        store.put(blobs)
        write_lock(project / "mdr.lock", lock)
        if what.startswith("source"):
            path = store.path_of(lock.entries[0].sha256)
            path.chmod(0o644)
            path.write_bytes(b"other bytes")
            command = [*MDR, "install", "--frozen"]
        else:
            _good(field.run([*MDR, "install", "--frozen"], project, home))
            _harm(project / ".claude/skills" / lock.entries[0].name, what)
            command = [*MDR, "verify"]
        rows.append(
            (what, "mdr " + " ".join(command[3:]), _verdict(field.run(command, project, home)))
        )
    return rows


def tamper_peer(field: Field, peer: Peer, name: str) -> list[tuple[str, ...]]:
    """Do the same to what a peer installed, and ask it."""
    rows: list[tuple[str, ...]] = []
    for what in HARMS:
        project, home = prepare(field, peer)
        field.run([*peer.install], project, home)
        if what.startswith("source"):
            source = (project / "src" if peer.needs_manifest else field.skills) / name / "SKILL.md"
            original = source.read_bytes()
            source.write_bytes(original + b"changed after locking\n")
            result = field.run([*peer.restore], project, home)
            installed = (project / ".claude/skills" / name / "SKILL.md").read_bytes()
            source.write_bytes(original)
            came = "changed bytes installed" if installed != original else "old bytes kept"
            command = " ".join((peer.name, *peer.restore[1:2]))
            rows.append((what, command, f"{came}; {_verdict(result)}"))
            continue
        _harm(project / ".claude/skills" / name, what)
        result = field.run([*peer.check], project, home)
        rows.append((what, " ".join((peer.name, *peer.check[1:])), _verdict(result)))
    return rows


def _verdict(result: Result) -> str:
    plain = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", result.said)
    lines = [line.strip(" |\u2502\u25c7\u2514\u250c") for line in plain.splitlines()]
    lines = [line for line in lines if any(char.isalpha() for char in line)]
    return f"exit {result.code}: {(lines or [''])[-1 if len(lines) > 3 else 0][:90]}"


def _harm(place: Path, what: str) -> None:
    match what.split(maxsplit=1)[0]:
        case "edited":
            (place / "SKILL.md").write_bytes((place / "SKILL.md").read_bytes() + b"one more line\n")
        case "deleted":
            (place / "SKILL.md").unlink()
        case "added":
            (place / "extra.md").write_bytes(b"new\n")
        case _:
            (place / "SKILL.md").chmod(0o755)


def _good(result: Result) -> float:
    if result.code != 0:
        raise SystemExit(f"a command failed:\n{result.said}")
    return result.seconds


def main() -> None:
    """Print both tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--skills", type=Path)
    parser.add_argument("--count", type=int, default=100)
    parser.add_argument("--peers", type=Path)
    parser.add_argument("--apm", type=Path)
    parser.add_argument("--runs", type=int, default=3)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        skills = root / "skills"
        if options.skills is None:
            make_skills(skills, options.count)
        else:
            for path in sorted(p.parent for p in options.skills.glob("*/SKILL.md"))[
                : options.count
            ]:
                shutil.copytree(path, skills / path.name, symlinks=True)
        field = Field(root, skills)
        lock, blobs = lock_of(skills, options.count)
        size = sum(file.size for entry in lock.entries for file in entry.files)
        files = sum(len(entry.files) for entry in lock.entries)
        print(f"{len(lock.entries)} skills, {files} files, {size:,} bytes, {os.cpu_count()} cores")
        peers = peers_of(options, skills)
        times = time_mdr(field, lock, blobs, options.runs) + time_peers(field, peers, options.runs)
        for name, seconds in times:
            print(f"{seconds:8.3f} s  {name}")
        print()
        rows = tamper_mdr(field, lock, blobs)
        for peer in peers:
            rows += tamper_peer(field, peer, lock.entries[0].name)
        for what, command, verdict in rows:
            print(f"{what:29} {command:28} {verdict}")


if __name__ == "__main__":
    main()
