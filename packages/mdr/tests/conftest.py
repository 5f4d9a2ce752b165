"""Fixtures that the tests of several stages share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from postgres_server import PostgresServer, why_not


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[PostgresServer]:
    """A real server for the whole run; nobody stops or kills this one."""
    reason = why_not()
    if reason is not None:
        pytest.skip(reason)
    server = PostgresServer()
    yield server
    server.remove()


@pytest.fixture(scope="session")
def postgres_template(
    postgres_server: PostgresServer, tmp_path_factory: pytest.TempPathFactory
) -> str:
    """The name of a database with the current schema, to be copied."""
    from mdr.store.engine import open_database

    name = postgres_server.create()
    folder = tmp_path_factory.mktemp("template")
    engine = open_database(folder, create=True, address=postgres_server.url(name))
    assert engine is not None
    engine.dispose()
    return name


@pytest.fixture
def postgres_url(postgres_server: PostgresServer, postgres_template: str) -> Iterator[str]:
    """The address of a fresh database with the current schema."""
    name = postgres_server.create(postgres_template)
    yield postgres_server.url(name)
    postgres_server.drop(name)


@pytest.fixture
def empty_postgres_url(postgres_server: PostgresServer) -> Iterator[str]:
    """The address of a database without any table."""
    name = postgres_server.create()
    yield postgres_server.url(name)
    postgres_server.drop(name)


@pytest.fixture(params=["sqlite", "postgresql"])
def database(request: pytest.FixtureRequest) -> str | None:
    """Every database that the index runs on: the address of a fresh one, ``None`` for a file."""
    if request.param == "sqlite":
        return None
    address: str = request.getfixturevalue("postgres_url")
    return address
