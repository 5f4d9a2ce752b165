"""Fixtures of the registry tests: a data folder, and repositories built with git's plumbing."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from git_builder import GitRepository

from mdr.registry.indexing import Indexed, index_source
from mdr.registry.local import LocalRegistry
from mdr.settings import Settings

IndexIt = Callable[[GitRepository], Indexed]


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return Settings(data=tmp_path / "data", index_on_demand=False)


@pytest.fixture
def repository(tmp_path: Path) -> GitRepository:
    return GitRepository(tmp_path / "r.git")


@pytest.fixture
def index(settings: Settings) -> IndexIt:
    return lambda repository: index_source(str(repository.path), settings, name_as="Acme/Tools")


@pytest.fixture
def registry(settings: Settings) -> LocalRegistry:
    return LocalRegistry(settings)
