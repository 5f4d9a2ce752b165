"""Fixtures that the tests of several stages share."""

from __future__ import annotations

import uuid
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


@pytest.fixture(scope="session")
def s3_endpoint() -> Iterator[str]:
    """The address of a server that speaks S3, on this machine, for the whole run."""
    from moto.server import ThreadedMotoServer

    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    yield f"http://{host}:{port}"
    server.stop()


@pytest.fixture
def s3_address(s3_endpoint: str, monkeypatch: pytest.MonkeyPatch) -> str:
    """The address of an empty bucket."""
    import boto3

    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "testing")
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    bucket = f"b{uuid.uuid4().hex[:16]}"
    client = boto3.client("s3", endpoint_url=s3_endpoint, region_name="us-east-1")
    client.create_bucket(Bucket=bucket)
    client.close()
    return f"s3://{bucket}/some/where?endpoint_url={s3_endpoint}&region=us-east-1"


@pytest.fixture(params=["sqlite", "postgresql"])
def database(request: pytest.FixtureRequest) -> str | None:
    """Every database that the index runs on: the address of a fresh one, ``None`` for a file."""
    if request.param == "sqlite":
        return None
    address: str = request.getfixturevalue("postgres_url")
    return address
