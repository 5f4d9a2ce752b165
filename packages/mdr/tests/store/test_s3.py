"""Blobs on S3: the contract against a real protocol server, and a server that misbehaves on purpose."""

from __future__ import annotations

import base64
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from mdr.digest import sha256
from mdr.errors import IntegrityError, StoreError, UsageError
from mdr.store import s3
from mdr.store.blobs import BlobPlace
from mdr.store.s3 import S3BlobStore, s3_address
from mdr.store.testing import BlobStoreContract

DATA = b"some bytes\r\n"
NAME = sha256(DATA)
Answer = Callable[[BaseHTTPRequestHandler], None]


class TestS3BlobStore(BlobStoreContract):
    many = s3.QUEUED + 10

    @pytest.fixture(autouse=True)
    def _bucket(self, s3_address: str) -> Iterator[None]:
        self._address = s3_address
        self._opened: list[S3BlobStore] = []
        yield
        for each in self._opened:
            each.close()

    def store(self) -> S3BlobStore:
        self._opened.append(S3BlobStore(s3_address(self._address)))
        return self._opened[-1]

    def test_listing_goes_on_beyond_one_answer(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(s3, "PAGE", 3)
        store = self.store()
        names = store.put(str(number).encode() for number in range(10))
        assert sorted(store.digests()) == sorted(names)

    def test_content_is_never_rewritten(self) -> None:
        store = self.store()
        store.put([DATA])
        client = store._connect()
        before = client.head_object(**store._key(NAME))["LastModified"]
        client.put_object(**store._key(NAME), Body=b"planted")
        store.put([DATA])
        with pytest.raises(IntegrityError) as caught:
            store.get(NAME)
        assert caught.value.code == "blob-corrupt"
        assert client.head_object(**store._key(NAME))["LastModified"] >= before

    def test_a_repair_replaces_what_is_corrupt(self) -> None:
        store = self.store()
        store._connect().put_object(**store._key(NAME), Body=b"planted")
        store.remove(NAME)
        store.put([DATA])
        assert store.get(NAME) == DATA

    def test_other_objects_of_the_bucket_are_not_ours(self) -> None:
        store = self.store()
        store.put([DATA])
        client = store._connect()
        for key in ("blobs/ab/" + "f" * 64, "some/where/blobs/ab/readme", "some/where/other"):
            client.put_object(Bucket=store.address.bucket, Key=key, Body=b"x")
        assert list(store.digests()) == [NAME]

    def test_a_closed_store_opens_again(self) -> None:
        store = self.store()
        store.put([DATA])
        store.close()
        assert store.get_many([NAME, NAME, sha256(b"none")]) == {NAME: DATA, sha256(b"none"): None}

    def test_a_bucket_that_is_not_there_is_told(self) -> None:
        address = s3_address(self._address.replace("s3://", "s3://no-such-"))
        store = S3BlobStore(address)
        with pytest.raises(StoreError) as caught:
            store.put([DATA])
        assert (caught.value.code, caught.value.data) == (
            "blobs-refused",
            {"answer": "NoSuchBucket"},
        )
        store.close()


@pytest.mark.parametrize(
    "text",
    [
        "http://bucket",
        "s3://",
        "s3:///key",
        "s3://user:secret@bucket",
        "s3://bucket?endpoint=http://x",
        "bucket",
        "",
    ],
)
def test_an_address_that_cannot_be_meant(text: str) -> None:
    with pytest.raises(UsageError) as caught:
        s3_address(text)
    assert caught.value.code == "bad-blobs"
    assert "secret" not in caught.value.message


def test_an_address_is_read_whole() -> None:
    found = s3_address("s3://bucket/a/b/?endpoint_url=https://host:9000&region=eu")
    assert (found.bucket, found.prefix) == ("bucket", "a/b/")
    assert (found.endpoint_url, found.region) == ("https://host:9000", "eu")
    assert s3_address("s3://bucket").prefix == ""


class Misbehaving:
    """A server whose answers are given beforehand; the last one is repeated."""

    def __init__(self) -> None:
        self.answers: list[Answer] = []
        self.requests: list[tuple[str, dict[str, str], bytes]] = []
        lock = threading.Lock()
        outer = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def _answer(self) -> None:
                body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
                with lock:
                    outer.requests.append((self.command, dict(self.headers), body))
                    answer = outer.answers.pop(0) if len(outer.answers) > 1 else outer.answers[0]
                answer(self)

            do_GET = do_PUT = do_HEAD = do_DELETE = _answer  # noqa: N815 - names that http.server calls

            def log_message(self, *_words: Any) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    @property
    def address(self) -> str:
        return f"s3://bucket?endpoint_url=http://127.0.0.1:{self.server.server_port}&region=r"


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Misbehaving]:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "testing")
    monkeypatch.setattr("botocore.retries.standard.ExponentialBackoff.delay_amount", lambda *_: 0)
    found = Misbehaving()
    yield found
    found.server.shutdown()
    found.server.server_close()


@pytest.fixture
def store(server: Misbehaving) -> Iterator[S3BlobStore]:
    opened = S3BlobStore(s3_address(server.address))
    yield opened
    opened.close()


def says(status: int, body: bytes = b"", *, length: int | None = None) -> Answer:
    def answer(handler: BaseHTTPRequestHandler) -> None:
        handler.send_response(status)
        handler.send_header("Content-Length", str(len(body) if length is None else length))
        handler.end_headers()
        handler.wfile.write(body)
        if length is not None:
            handler.close_connection = True

    return answer


def error(status: int, code: str) -> Answer:
    return says(status, f"<Error><Code>{code}</Code><Message>m</Message></Error>".encode())


def hangs_up(handler: BaseHTTPRequestHandler) -> None:
    handler.close_connection = True
    handler.connection.close()


def test_what_a_busy_storage_refuses_is_asked_again(
    server: Misbehaving, store: S3BlobStore
) -> None:
    server.answers = [error(503, "SlowDown"), error(500, "InternalError"), says(200)]
    assert store.put([DATA]) == [NAME]
    assert [command for command, _, _ in server.requests] == ["PUT"] * 3


def test_an_upload_carries_its_hash_and_its_condition(
    server: Misbehaving, store: S3BlobStore
) -> None:
    server.answers = [says(200)]
    store.put([DATA])
    ((_, headers, body),) = server.requests
    assert body == DATA
    assert headers["If-None-Match"] == "*"
    assert base64.b64decode(headers["x-amz-checksum-sha256"]).hex() == NAME


def test_a_blob_that_is_there_already_is_no_error(server: Misbehaving, store: S3BlobStore) -> None:
    server.answers = [error(412, "PreconditionFailed")]
    assert store.put([DATA]) == [NAME]


def test_two_writers_of_one_blob_meet(server: Misbehaving, store: S3BlobStore) -> None:
    server.answers = [error(409, "ConditionalRequestConflict"), error(412, "PreconditionFailed")]
    assert store.put([DATA]) == [NAME]
    server.answers = [error(409, "ConditionalRequestConflict")]
    with pytest.raises(StoreError):
        store.put([DATA])


def test_storage_without_conditions_is_written_without(
    server: Misbehaving, store: S3BlobStore
) -> None:
    server.answers = [error(501, "NotImplemented"), says(200)]
    assert store.put([DATA]) == [NAME]
    assert "If-None-Match" not in server.requests[-1][1]


@pytest.mark.parametrize("answer", [error(503, "SlowDown"), hangs_up])
def test_storage_that_stays_away_is_told(
    server: Misbehaving, store: S3BlobStore, answer: Answer
) -> None:
    server.answers = [answer]
    for ask in (lambda: store.put([DATA]), lambda: store.get(NAME), lambda: list(store.digests())):
        with pytest.raises(StoreError) as caught:
            ask()
        assert caught.value.code in {"blobs-unreachable", "blobs-refused"}
        assert caught.value.hint


def test_a_download_that_breaks_off_is_asked_again(server: Misbehaving, store: S3BlobStore) -> None:
    server.answers = [says(200, DATA[:4], length=len(DATA)), says(200, DATA)]
    assert store.get(NAME) == DATA
    assert len(server.requests) == 2


def test_a_download_that_always_breaks_off_is_never_bytes(
    server: Misbehaving, store: S3BlobStore
) -> None:
    server.answers = [says(200, DATA[:4], length=len(DATA))]
    with pytest.raises(StoreError) as caught:
        store.get(NAME)
    assert caught.value.code == "blobs-unreachable"


def test_other_bytes_are_never_returned(server: Misbehaving, store: S3BlobStore) -> None:
    server.answers = [says(200, b"other")]
    with pytest.raises(IntegrityError):
        store.get(NAME)


def test_storage_that_never_answers_is_given_up(
    server: Misbehaving, store: S3BlobStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(s3, "READ_SECONDS", 0.05)
    monkeypatch.setattr(s3, "ATTEMPTS", 1)
    late = threading.Event()
    server.answers = [lambda _handler: late.wait(20) and None]
    with pytest.raises(StoreError) as caught:
        store.get(NAME)
    assert caught.value.code == "blobs-unreachable"
    late.set()


def test_one_failed_upload_of_many_is_told(server: Misbehaving, store: S3BlobStore) -> None:
    server.answers = [says(200)] * 30 + [error(403, "AccessDenied")] + [says(200)]
    with pytest.raises(StoreError) as caught:
        store.put(str(number).encode() for number in range(60))
    assert caught.value.data == {"answer": "AccessDenied"}
    assert len(server.requests) == 60
    assert store.put([DATA]) == [NAME]


def test_a_place_travels_and_opens_what_it_names(tmp_path: Any) -> None:
    import pickle

    place = BlobPlace(root=tmp_path, address="s3://bucket/x")
    again = pickle.loads(pickle.dumps(place))  # noqa: S301, TID251 - our own bytes
    assert isinstance(again.open(), S3BlobStore)
    assert BlobPlace(root=tmp_path).open("token").put([DATA]) == [NAME]
