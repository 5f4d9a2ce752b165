"""Fixtures of the client tests: a project, a home, a data folder and a simulated registry."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, settings
from registry_simulator import Simulator

from mdr.install.candidate import entry_from
from mdr.install.destination import Roots
from mdr.install.fetch import Fetcher
from mdr.install.installer import Report, Request, install
from mdr.install.lock import Entry, Scope, Target
from mdr.install.sources import RegistrySource
from mdr.reference.parse import parse

if TYPE_CHECKING:
    from pathlib import Path

    from mdr.errors import MdrError


settings.register_profile("client", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("client")  # how fast a busy machine draws is no property of the code


@dataclass
class Bench:
    """One project and home, with the registry that serves them."""

    registry: Simulator
    roots: Roots
    data: Path

    def entry(self, ref: str, *targets: str) -> Entry:
        """Resolve a reference against the simulator and aim it at targets."""
        reference = parse(ref)
        aimed = [
            Target(scope=Scope(t.partition(":")[0]), agent=t.partition(":")[2]) for t in targets
        ]
        resolved = self.registry.resolve(reference)
        return entry_from(
            resolved, reference, aimed or [Target(scope=Scope.PROJECT, agent="claude")]
        )

    def fetcher(self) -> Fetcher:
        """Return a fetcher that asks the simulator alone."""
        return Fetcher((RegistrySource(name="registry", remote=False, open=lambda: self.registry),))

    def install(
        self, *entries: Entry, force: bool = False, earlier: tuple[Entry, ...] = ()
    ) -> Report:
        """Install entries without grading them."""
        request = Request(
            entries=entries,
            roots=self.roots,
            data=self.data,
            force=force,
            earlier={entry.identity: entry for entry in earlier},
        )
        return install(request, self.fetcher(), _any_grade)

    def tree(self, scope: str = "project") -> dict[str, bytes]:
        """Return every file below a root."""
        root = self.roots.root(Scope(scope))
        return {
            path.relative_to(root).as_posix(): path.read_bytes()
            for path in sorted(root.rglob("*"))
            if path.is_file()
        }


def _any_grade(entry: Entry, data: bytes) -> MdrError | None:
    return None


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    for name in ("project", "home"):
        (tmp_path / name).mkdir()
    roots = Roots(project=tmp_path / "project", home=tmp_path / "home")
    return Bench(registry=Simulator(), roots=roots, data=tmp_path / "data")
