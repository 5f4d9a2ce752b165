"""One registry for all tests that only read, and one for each test that writes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from served import client
from starlette.testclient import TestClient
from web_site import data_folder

from mdr.settings import Settings


@pytest.fixture(scope="module")
def settings(tmp_path_factory: pytest.TempPathFactory) -> Settings:
    return data_folder(tmp_path_factory.mktemp("registry"))


@pytest.fixture(scope="module")
def api(settings: Settings) -> Iterator[TestClient]:
    with client(settings) as found:
        yield found


@pytest.fixture
def own(tmp_path: Path) -> Iterator[tuple[TestClient, Settings]]:
    settings = data_folder(tmp_path)
    with client(settings) as found:
        yield found, settings
