"""A registry that is served by ``mdr serve``, and a person far away from its data."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from served import Running, running
from web_site import data_folder

from mdr.cli.main import run
from mdr.settings import Settings


@dataclass
class Person:
    """Somebody at a shell with an empty data folder."""

    project: Path
    monkeypatch: pytest.MonkeyPatch
    capture: pytest.CaptureFixture[str]

    def __call__(self, *arguments: str, code: int = 0) -> tuple[str, str]:
        self.monkeypatch.setattr("sys.argv", ["mdr", *arguments])
        self.capture.readouterr()
        with pytest.raises(SystemExit) as left:
            run()
        found = self.capture.readouterr()
        assert int(left.value.code or 0) == code, found
        return found.out, found.err

    def json(self, *arguments: str, code: int = 0) -> Any:
        return json.loads(self(*arguments, "--json", code=code)[0])


@pytest.fixture
def person(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Person:
    for name in ("project", "home"):
        (tmp_path / name).mkdir()
    for name in ("CI", "MDR_REGISTRY", "MDR_TOKEN", "GITHUB_TOKEN", "GH_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("MDR_DATA", str(tmp_path / "data-of-person"))
    monkeypatch.chdir(tmp_path / "project")
    return Person(tmp_path / "project", monkeypatch, capsys)


@pytest.fixture
def registry(tmp_path: Path) -> Settings:
    (tmp_path / "registry").mkdir()
    return data_folder(tmp_path / "registry")


@pytest.fixture
def server(registry: Settings, person: Person, tmp_path: Path) -> Iterator[Running]:
    with running(registry.data, folder=tmp_path) as found:
        person.monkeypatch.setenv("MDR_REGISTRY", found.url)
        yield found
