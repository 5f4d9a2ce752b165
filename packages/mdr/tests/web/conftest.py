"""Fixtures of the pages' tests: pages in the process, and a server on loopback for browsers."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from starlette.testclient import TestClient
from web_site import BASE, GREET, Site, data_folder, opened

from mdr.settings import Settings
from mdr.web.routes import create


@pytest.fixture(scope="session")
def indexed(tmp_path_factory: pytest.TempPathFactory) -> Settings:
    """A data folder with the repository under test; nobody writes into this one."""
    return data_folder(tmp_path_factory.mktemp("indexed"))


@pytest.fixture
def site(indexed: Settings, tmp_path: Path) -> Iterator[Site]:
    """The pages of a registry of its own."""
    shutil.copytree(indexed.data, tmp_path / "data")
    settings = replace(indexed, data=tmp_path / "data")
    with opened(settings) as (service, views):
        labels = tuple(each["label"] for each in service.reading.versions(GREET, limit=9)["items"])
        client = TestClient(create(service, views), base_url=BASE, raise_server_exceptions=False)
        with client:
            yield Site(
                client=client, service=service, stores=service.stores, views=views, labels=labels
            )


@pytest.fixture(scope="session")
def served(indexed: Settings, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of the whole service on loopback, for browsers."""
    import socket

    import uvicorn

    from mdr.serving.application import create_application
    from mdr.serving.logs import JsonLog
    from mdr.serving.options import Options

    folder = tmp_path_factory.mktemp("served") / "data"
    shutil.copytree(indexed.data, folder)
    listener = socket.create_server(("127.0.0.1", 0))
    address = f"http://127.0.0.1:{listener.getsockname()[1]}"
    app = create_application(
        replace(indexed, data=folder), Options(), address, JsonLog(requests=False)
    )
    server = uvicorn.Server(uvicorn.Config(app, log_level="warning", lifespan="on", ws="none"))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
    thread.start()
    yield address
    server.should_exit = True
    thread.join()
