"""The client commands, run in this process as a person would: a project, a home, a simulated registry."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest
from registry_simulator import Simulator

from mdr.cli.main import run
from mdr.errors import SourceError
from mdr.reference.parse import parse

if TYPE_CHECKING:
    from pathlib import Path

    from mdr.reference.types import Reference


class NoHost:
    """Stands for git hosts: tests of the client do not use a network (GitHost has its own tests)."""

    name = "git host"
    remote = False

    def __init__(self, settings: object) -> None:
        pass

    def get(self, entry: object, files: object) -> dict[str, bytes]:
        raise SourceError("git-failed", "there is no network here")


@dataclass(frozen=True)
class Outcome:
    """What a command did."""

    code: int
    out: str
    err: str

    @property
    def document(self) -> Any:
        """The one JSON document on stdout."""
        return json.loads(self.out)


@dataclass
class Person:
    """Somebody at a shell."""

    registry: Simulator
    project: Path
    home: Path
    data: Path
    monkeypatch: pytest.MonkeyPatch
    capture: pytest.CaptureFixture[str]

    def __call__(self, *arguments: str, code: int | None = 0) -> Outcome:
        """Run ``mdr`` and check its exit code; ``None`` takes any."""
        self.monkeypatch.setattr("sys.argv", ["mdr", *arguments])
        self.capture.readouterr()
        with pytest.raises(SystemExit) as left:
            run()
        captured = self.capture.readouterr()
        outcome = Outcome(int(left.value.code or 0), captured.out, captured.err)
        if code is not None:
            assert outcome.code == code, outcome
        return outcome

    def json(self, *arguments: str, code: int | None = 0) -> Any:
        """Run with ``--json`` and return the document."""
        outcome = self(*arguments, "--json", code=code)
        document = outcome.document
        assert next(iter(document)) == "schema"
        return document

    def tree(self, root: str = "project") -> dict[str, bytes]:
        """Return every file below the project or home."""
        base: Path = getattr(self, root)
        return {
            path.relative_to(base).as_posix(): path.read_bytes()
            for path in sorted(base.rglob("*"))
            if path.is_file() and ".git" not in path.parts
        }

    def registry_reference(self, ref: str) -> Reference:
        """Parse a reference for a direct question to the simulator."""
        return parse(ref)

    @property
    def lock(self) -> Path:
        return self.project / "mdr.lock"


@pytest.fixture
def shell(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Person:
    """Return a person with the real local registry, and no network."""
    for name in ("project", "home"):
        (tmp_path / name).mkdir()
    for name in ("CI", "MDR_REGISTRY", "GITHUB_TOKEN", "GH_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("MDR_DATA", str(tmp_path / "data"))
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", os.devnull)
    monkeypatch.setenv("GIT_CONFIG_NOSYSTEM", "1")
    monkeypatch.chdir(tmp_path / "project")
    monkeypatch.setattr("mdr.install.sources.GitHost", NoHost)
    return Person(
        registry=Simulator(),
        project=tmp_path / "project",
        home=tmp_path / "home",
        data=tmp_path / "data",
        monkeypatch=monkeypatch,
        capture=capsys,
    )


@pytest.fixture
def mdr(shell: Person) -> Person:
    """Return a person whose registry is the simulator."""
    shell.monkeypatch.setattr("mdr.registry.open_registry", lambda settings: shell.registry)
    return shell
