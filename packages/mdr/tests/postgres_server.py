"""A PostgreSQL server of one test run: its own cluster in a temporary folder, reached by a Unix socket."""

from __future__ import annotations

import glob
import os
import select
import shutil
import signal
import subprocess
import tempfile
import uuid
from pathlib import Path

PATTERN = "/usr/lib/postgresql/*/bin/initdb"
OPTIONS = "-c listen_addresses= -c fsync=off -c max_connections=80 -c shared_buffers=32MB"


def programs() -> Path | None:
    """Return the folder of PostgreSQL's programs, ``None`` where they are not installed."""
    found = sorted(glob.glob(PATTERN))  # noqa: PTH207 - an absolute pattern
    if found:
        return Path(found[-1]).parent
    program = shutil.which("initdb")
    return None if program is None else Path(program).resolve().parent


def why_not() -> str | None:
    """Say why no server can be started, ``None`` when one can."""
    if programs() is None:
        return "PostgreSQL's programs are not installed"
    if os.name != "posix":
        return "PostgreSQL is started here on POSIX systems only"
    if os.geteuid() == 0 and _user() is None:
        return "PostgreSQL refuses root, and there is no user postgres or nobody"
    return None


class PostgresServer:
    """One cluster that can be stopped, killed and started again."""

    def __init__(self) -> None:
        found = programs()
        assert found is not None
        self._bin = found
        self._user = _user() if os.geteuid() == 0 else None
        self.folder = Path(tempfile.mkdtemp(prefix="mdr-pg-"))
        if self._user is not None:
            shutil.chown(self.folder, self._user)
        self._cluster = self.folder / "cluster"
        words = ("-U", "mdr", "-A", "trust", "-E", "UTF8", "--locale=C.UTF-8", "--no-sync")
        self._run("initdb", "-D", str(self._cluster), *words)
        self.start()

    def start(self) -> None:
        """Start and wait until it answers."""
        options = f"{OPTIONS} -c unix_socket_directories={self.folder}"
        log = str(self.folder / "log")
        self._run("pg_ctl", "-D", str(self._cluster), "-w", "-t", "60", "-o", options, "-l", log, "start")  # fmt: skip

    def stop(self, mode: str = "fast") -> None:
        """Stop: ``fast`` ends its sessions, ``immediate`` is a crash of all its processes."""
        self._run("pg_ctl", "-D", str(self._cluster), "-w", "-m", mode, "stop")

    def kill(self) -> None:
        """Kill the first process as a system without memory does; the others notice and end."""
        first = int((self._cluster / "postmaster.pid").read_text().splitlines()[0])
        found = subprocess.run(
            ["pgrep", "-P", str(first)], check=False, capture_output=True, text=True
        )
        handles = [
            handle for pid in (first, *map(int, found.stdout.split())) if (handle := _handle(pid))
        ]
        os.kill(first, signal.SIGKILL)
        for handle in handles:  # a new start is refused while any of them holds the shared memory
            select.select([handle], [], [], 60)
            os.close(handle)
        # Where nobody collects orphans the number is taken still, and a new start would believe it alive.
        (self._cluster / "postmaster.pid").unlink()
        for left in self.folder.glob(".s.PGSQL.*"):
            left.unlink()

    def remove(self) -> None:
        """Stop and remove everything."""
        if (self._cluster / "postmaster.pid").exists():
            self.stop("immediate")
        shutil.rmtree(self.folder, ignore_errors=True)

    def url(self, name: str) -> str:
        """Return the address of a database."""
        return f"postgresql://mdr@/{name}?host={self.folder}"

    def create(self, template: str = "template1") -> str:
        """Create a database and return its name."""
        name = f"t{uuid.uuid4().hex[:16]}"
        self.execute("postgres", f"CREATE DATABASE {name} TEMPLATE {template}")
        return name

    def drop(self, name: str) -> None:
        """Drop a database, and whoever is still connected to it."""
        self.execute("postgres", f"DROP DATABASE IF EXISTS {name} WITH (FORCE)")

    def execute(self, name: str, statement: str) -> list[tuple[object, ...]]:
        """Run one statement on a connection of its own."""
        import psycopg

        with psycopg.connect(self.url(name), autocommit=True) as connection:
            cursor = connection.execute(statement.encode())
            return cursor.fetchall() if cursor.description else []

    def _run(self, program: str, *arguments: str) -> None:
        done = subprocess.run(
            [str(self._bin / program), *arguments],
            check=False,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            cwd="/",
            user=self._user,
            group=self._user and _group(self._user),
            extra_groups=None if self._user is None else [],
            env={"PATH": os.environ.get("PATH", ""), "LC_ALL": "C.UTF-8"},
        )
        log = self.folder / "log"
        told = log.read_text()[-2_000:] if done.returncode and log.exists() else ""
        assert done.returncode == 0, f"{program}: {done.stderr}\n{told}"


def _handle(pid: int) -> int | None:
    """Open what becomes readable when the process has ended."""
    try:
        return os.pidfd_open(pid)
    except ProcessLookupError:
        return None


def _user() -> str | None:
    import pwd

    known = {each.pw_name for each in pwd.getpwall()}
    return next((name for name in ("postgres", "nobody") if name in known), None)


def _group(user: str) -> int:
    import pwd

    return pwd.getpwnam(user).pw_gid
