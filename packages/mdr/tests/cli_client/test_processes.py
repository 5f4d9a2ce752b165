"""Real processes: killed at many points, two at once, and what they import."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest
from registry_simulator import Simulator, skill_text

from mdr.install.candidate import entry_from
from mdr.install.lock import Lock, Scope, Target, write_lock
from mdr.reference.parse import parse
from mdr.store.files import FileBlobStore

KILLER = """
import os, signal, sys
point, counter, swaps = int(sys.argv.pop(1)), 0, [0]
WATCHED = ("place.py", "exchange.py", "installer.py", "receipts.py", "exclusive.py")
def trace(frame, event, argument):
    global counter
    if frame.f_code.co_name == "_swap" and event == "line":
        swaps.append(counter)
    if not frame.f_code.co_filename.endswith(WATCHED):
        return None
    if event == "line":
        counter += 1
        if counter == point:
            os.kill(os.getpid(), signal.SIGKILL)
    return trace
sys.settrace(trace)
from mdr.cli.main import run
try:
    run()
finally:
    sys.settrace(None)
    sys.stderr.write(f"lines {counter} {swaps[1] if swaps[1:] else 0} {swaps[-1]}\\n")
"""
"""Runs mdr and kills it with SIGKILL before the Nth line of the modules that write."""

NAMES = ("one", "two")


class AnyText(str):
    """Equal to any text, so that a failing comparison of (code, text) shows the text."""

    __slots__ = ()
    __hash__ = str.__hash__

    def __eq__(self, other: object) -> bool:
        return isinstance(other, str)


@dataclass
class Machine:
    """A project and home for real processes; bytes come from the cache in the data folder."""

    root: Path
    old: Lock
    new: Lock

    @property
    def environment(self) -> dict[str, str]:
        keep = {key: os.environ[key] for key in ("PATH", "SYSTEMROOT") if key in os.environ}
        return {**keep, "HOME": str(self.root / "home"), "MDR_DATA": str(self.root / "data")}

    def start(self, *command: str) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            [sys.executable, *command],
            cwd=self.root / "project",
            env=self.environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )

    def run(self, *command: str) -> tuple[int, str]:
        process = self.start(*command)
        out, err = process.communicate(timeout=120)
        return process.returncode, (out + err).decode()

    def lock(self, lock: Lock) -> None:
        write_lock(self.root / "project/mdr.lock", lock)

    def places(self) -> dict[str, dict[str, bytes]]:
        """Return the files of each skill folder that exists."""
        found = {}
        for name in NAMES:
            for scope, folder in (("project", ".claude/skills"), ("home", ".codex/skills")):
                place = self.root / scope / folder / name
                found[f"{scope}/{name}"] = {
                    path.relative_to(place).as_posix(): path.read_bytes()
                    for path in place.rglob("*")
                    if path.is_file()
                }
        return found

    def litter(self) -> list[str]:
        return [str(p) for p in self.root.rglob(".mdr-*")]


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    registry = Simulator()
    locks = []
    for day in ("20260101", "20260202"):
        lock = Lock()
        for name in NAMES:
            files = {
                "SKILL.md": skill_text(name, day),
                f"only-{day}.md": b"x",
                "s/run.py": day.encode(),
            }
            registry.add(name, files, day=day)
            reference = parse(f"acme/skills/{name}")
            targets = [
                Target(scope=Scope.PROJECT, agent="claude"),
                Target(scope=Scope.USER, agent="codex"),
            ]
            lock = lock.put(entry_from(registry.resolve(reference), reference, targets))
        locks.append(lock)
    for name in ("project", "home"):
        (tmp_path / name).mkdir()
    FileBlobStore(tmp_path / "data").put(registry.blobs.values())
    return Machine(root=tmp_path, old=locks[0], new=locks[1])


@pytest.mark.slow
def test_kill_9_at_many_points_leaves_old_or_new_whole(machine: Machine) -> None:
    machine.lock(machine.old)
    assert machine.run("-m", "mdr", "install")[0] == 0
    old = machine.places()
    machine.lock(machine.new)
    code, said = machine.run("-c", KILLER, "0", "install")
    assert code == 0, said
    total, first, last = (int(number) for number in said.rpartition("lines ")[2].split())
    assert 0 < first < last < total
    new = machine.places()
    assert all(old[place] != new[place] for place in old)
    mixed = 0
    everywhere = {1 + number * total // 6 for number in range(6)}
    for point in sorted(
        everywhere | {first + number * (last + 8 - first) // 10 for number in range(10)}
    ):
        machine.lock(machine.old)
        assert machine.run("-m", "mdr", "install")[0] == 0
        machine.lock(machine.new)
        code, _ = machine.run("-c", KILLER, str(point), "install")
        assert code == -signal.SIGKILL
        after = machine.places()
        for place, files in after.items():
            assert files in (old[place], new[place]), (point, place)
        mixed += after not in (old, new)
        assert machine.run("-m", "mdr", "install") == (0, AnyText())
        assert machine.places() == new
        assert machine.litter() == []
    assert mixed > 0  # some points lie between two of the four swaps


@pytest.mark.slow
def test_kill_9_of_a_first_install_leaves_nothing_or_all_of_a_skill(machine: Machine) -> None:
    machine.lock(machine.new)
    code, said = machine.run("-c", KILLER, "0", "install")
    assert code == 0, said
    total, new = int(said.rpartition("lines ")[2].split()[0]), machine.places()
    for point in sorted({1 + number * total // 8 for number in range(8)}):
        for name in NAMES:
            subprocess.run(
                [
                    "rm",
                    "-rf",
                    machine.root / f"project/.claude/skills/{name}",
                    machine.root / f"home/.codex/skills/{name}",
                ],
                check=True,
            )
        assert machine.run("-c", KILLER, str(point), "install")[0] == -signal.SIGKILL
        for place, files in machine.places().items():
            assert files in ({}, new[place]), (point, place)
        assert machine.run("-m", "mdr", "install") == (0, AnyText())
        assert machine.places() == new
        assert machine.litter() == []


def test_several_installs_at_once(machine: Machine) -> None:
    machine.lock(machine.old)
    assert machine.run("-m", "mdr", "install")[0] == 0
    machine.lock(machine.new)
    running = [machine.start("-m", "mdr", "install") for _ in range(4)]
    outcomes = [(process.communicate(timeout=120), process.returncode) for process in running]
    assert {code for _, code in outcomes} == {0}, outcomes
    counts = sorted(out.decode().splitlines()[-1] for (out, _), _ in outcomes)
    assert counts == ["0 installed, 4 unchanged"] * 3 + ["4 installed, 0 unchanged"]
    assert machine.run("-m", "mdr", "verify")[0] == 0
    assert machine.litter() == []


def test_a_closed_pipe_is_not_a_traceback(machine: Machine) -> None:
    machine.lock(machine.new)
    with machine.start("-m", "mdr", "install", "--json") as process:
        assert process.stdout is not None
        process.stdout.close()
        assert process.stderr is not None
        said = process.stderr.read().decode()
    assert "Traceback" not in said


@pytest.mark.parametrize(
    ("command", "forbidden"),
    [
        (
            ["--help"],
            {
                "platformdirs",
                "mdr.install",
                "mdr.registry",
                "mdr.audit",
                "tomllib",
                "subprocess",
                "json",
            },
        ),
        (["--version"], {"platformdirs", "mdr.install", "mdr.registry", "mdr.audit", "tomllib"}),
        (
            ["install"],
            {"mdr.audit", "mdr.registry.local", "mdr.source", "subprocess", "json.tool", "difflib"},
        ),
        (["verify"], {"mdr.registry.local", "mdr.source", "difflib"}),
    ],
    ids=lambda value: value[0] if isinstance(value, list) else "",
)
def test_what_a_no_op_imports(machine: Machine, command: list[str], forbidden: set[str]) -> None:
    """Nothing heavy may creep onto the paths that people wait for."""
    machine.lock(machine.new)
    assert machine.run("-m", "mdr", "install")[0] == 0
    code, said = machine.run("-X", "importtime", "-m", "mdr", *command)
    assert code == 0
    imported = {line.rpartition("|")[2].strip() for line in said.splitlines() if "|" in line}
    heavy = {
        "rich",
        "sqlalchemy",
        "alembic",
        "asyncio",
        "urllib3",
        "re2",
        "yaml",
        "ssl",
        "multiprocessing",
        "concurrent.futures",
    }
    assert "mdr.cli.main" in imported
    if command == ["verify"]:  # recomputes every grade, so it reads text
        heavy -= {"re2", "yaml"}
    assert imported.isdisjoint(heavy | forbidden), imported & (heavy | forbidden)
