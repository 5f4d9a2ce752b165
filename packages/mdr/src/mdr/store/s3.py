"""The blob store on S3-compatible storage: one object a blob, under ``PREFIX/blobs/ab/DIGEST``.

An upload is one request, so that an object is there whole or not at all. The request carries the SHA-256,
which the storage compares before it answers, and ``If-None-Match: *``, so that content is never
rewritten. What comes back is hashed before anyone sees it; a download that broke off is asked for again.

Credentials come from where the AWS tools look for them: ``AWS_ACCESS_KEY_ID``, profiles, machine roles.
"""

from __future__ import annotations

import base64
import threading
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import parse_qsl, urlsplit

from mdr.digest import Sha256, is_sha256, same, sha256
from mdr.errors import IntegrityError, StoreError, UsageError
from mdr.store.files import Staged

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

THREADS: Final = 16
"""Requests that one process has under way at once."""
QUEUED: Final = 256
"""Uploads that may wait in memory."""
PAGE: Final = 1_000
"""Names in one answer of a listing."""
ATTEMPTS: Final = 4
CONNECT_SECONDS: Final = 5
READ_SECONDS: Final = 30
OPTIONS: Final = ("endpoint_url", "region")
ABSENT: Final = frozenset(["NoSuchKey", "404", "NotFound"])
HELD: Final = frozenset(["PreconditionFailed", "412"])
CONFLICT: Final = frozenset(["ConditionalRequestConflict", "OperationAborted", "409"])


@dataclass(frozen=True, slots=True, kw_only=True)
class S3Address:
    """Where the objects are."""

    bucket: str
    prefix: str
    """Empty, or ending in ``/``."""
    endpoint_url: str | None
    region: str | None


def s3_address(text: str) -> S3Address:
    """Read ``s3://bucket/prefix?endpoint_url=https://...&region=...``.

    Raises:
        mdr.errors.UsageError: bad-blobs.
    """
    parts = urlsplit(text)
    options = dict(parse_qsl(parts.query))
    unknown = sorted(set(options) - set(OPTIONS))
    if parts.scheme != "s3" or not parts.netloc or "@" in parts.netloc or unknown:
        raise UsageError(
            "bad-blobs",
            f"the address of the blobs has an unknown option {unknown[0]!r}"
            if unknown
            else "the address of the blobs is not one of S3-compatible storage",
            hint="write it as s3://bucket/prefix?endpoint_url=https://host&region=name; "
            "credentials come from AWS_ACCESS_KEY_ID and its kin",
        )
    prefix = parts.path.strip("/")
    return S3Address(
        bucket=parts.netloc,
        prefix=f"{prefix}/" if prefix else "",
        endpoint_url=options.get("endpoint_url"),
        region=options.get("region"),
    )


class S3BlobStore:
    """Implements :class:`mdr.store.blobs.StagingStore`; connects on first use, once in each process."""

    def __init__(self, address: S3Address) -> None:
        self.address = address
        self._lock = threading.Lock()
        self._client: Any = None
        self._threads: ThreadPoolExecutor | None = None
        self._pending: list[Future[None]] = []

    def put(self, blobs: Iterable[bytes]) -> list[Sha256]:
        """Keep blobs, several at once; return when the storage has answered for each."""
        names = []
        for data in blobs:
            names.append(digest := sha256(data))
            self._submit(digest, data)
        self.flush()
        return names

    def get(self, digest: Sha256) -> bytes | None:
        """Return verified bytes, ``None`` when they are not held."""
        data: bytes | None = self._ask(lambda client: self._download(client, digest))
        if data is not None and not same(sha256(data), digest):
            raise IntegrityError(
                "blob-corrupt",
                f"the stored bytes of {digest} have another hash",
                hint="run mdr fsck --repair",
                data={"sha256": digest, "found": sha256(data)},
            )
        return data

    def get_many(self, digests: Sequence[Sha256]) -> dict[Sha256, bytes | None]:
        """Return several blobs, asked for at once."""
        names = list(dict.fromkeys(digests))
        return dict(zip(names, self._pool().map(self.get, names), strict=True))

    def has(self, digest: Sha256) -> bool:
        """Say whether the storage holds ``digest``."""
        return bool(self._ask(lambda client: self._head(client, digest)))

    def digests(self) -> Iterator[Sha256]:
        """Yield everything held; keys that are no hashes are not ours."""
        where = {
            "Bucket": self.address.bucket,
            "Prefix": f"{self.address.prefix}blobs/",
            "MaxKeys": PAGE,
        }
        more: dict[str, str] = {}
        while True:
            page = self._ask(
                lambda client, more=more: client.list_objects_v2(**where, **more)  # type: ignore[misc]
            )
            for each in page.get("Contents", ()):
                name = each["Key"].rpartition("/")[2]
                if is_sha256(name):
                    yield Sha256(name)
            if not page.get("IsTruncated"):
                return
            more = {"ContinuationToken": page["NextContinuationToken"]}

    def remove(self, digest: Sha256) -> None:
        """Take corrupt bytes away; only ``fsck --repair`` calls this."""
        self._ask(lambda client: client.delete_object(**self._key(digest)))

    def offer(self, digest: Sha256, data: bytes) -> Staged | None:
        """Begin to upload; the object has its name as soon as it is there."""
        self._submit(digest, data)
        return None

    def flush(self) -> None:
        """Return when every upload that was begun is done.

        Raises:
            mdr.errors.StoreError: blobs-unreachable, blobs-refused.
        """
        pending, self._pending = self._pending, []
        failures = [error for each in pending if (error := each.exception()) is not None]
        if failures:
            raise failures[0]

    def settle_content(self, staged: Sequence[Staged]) -> None:
        """Nothing is left to do: the storage answered for each upload."""

    def rename(self, staged: Sequence[Staged]) -> set[str]:
        """Nothing is left to do: objects have their names."""
        return set()

    def settle_names(self, folders: set[str]) -> None:
        """Nothing is left to do."""

    def take_back(self) -> None:
        """Leave whole objects where they are: the next run finds them by content."""

    def _submit(self, digest: Sha256, data: bytes) -> None:
        if len(self._pending) >= QUEUED:
            self.flush()
        self._pending.append(self._pool().submit(self._upload, digest, data))

    def _upload(self, digest: Sha256, data: bytes) -> None:
        words = {
            "Body": data,
            "ContentType": "application/octet-stream",
            "ChecksumSHA256": base64.b64encode(bytes.fromhex(digest)).decode("ascii"),
        }
        condition = {"IfNoneMatch": "*"}
        for attempt in range(ATTEMPTS):
            try:
                self._ask(
                    lambda client: client.put_object(**self._key(digest), **words, **condition)
                )
            except StoreError as error:
                answer = error.data.get("answer")
                if answer in HELD:
                    return
                if answer == "NotImplemented":  # older storage: the same bytes again do no harm
                    condition.clear()
                elif answer not in CONFLICT or attempt == ATTEMPTS - 1:
                    raise
            else:
                return

    def _download(self, client: Any, digest: Sha256) -> bytes | None:
        try:
            answer = client.get_object(**self._key(digest))
        except client.exceptions.NoSuchKey:
            return None
        data: bytes = answer["Body"].read()
        return data

    def _head(self, client: Any, digest: Sha256) -> bool:
        client.head_object(**self._key(digest))
        return True

    def _key(self, digest: Sha256) -> dict[str, str]:
        key = f"{self.address.prefix}blobs/{digest[:2]}/{digest}"
        return {"Bucket": self.address.bucket, "Key": key}

    def _ask(self, request: Callable[[Any], Any]) -> Any:
        """Ask; what is absent is ``None``, and a body that broke off is asked for again."""
        from botocore import exceptions

        client = self._connect()
        broken: Exception | None = None
        for _ in range(ATTEMPTS):
            try:
                return request(client)
            except exceptions.ClientError as error:
                code = str(error.response.get("Error", {}).get("Code", ""))
                if code in ABSENT:
                    return None
                raise _refused(code) from error
            except (exceptions.HTTPClientError, exceptions.IncompleteReadError) as error:
                broken = error  # the library tried again already, unless the body broke off
                if not _body_broke(error):
                    break
            except exceptions.BotoCoreError as error:
                raise _refused(type(error).__name__) from error
        raise StoreError(
            "blobs-unreachable",
            f"the storage of blobs does not answer: {type(broken).__name__}",
            hint="check the network, and what MDR_BLOBS or --blobs names",
        ) from broken

    def _connect(self) -> Any:
        with self._lock:
            if self._client is None:
                self._client = _client(self.address)
            return self._client

    def _pool(self) -> ThreadPoolExecutor:
        with self._lock:
            if self._threads is None:
                self._threads = ThreadPoolExecutor(THREADS, thread_name_prefix="mdr-s3")
            return self._threads

    def close(self) -> None:
        """End the threads and connections; both start again when they are needed."""
        with self._lock:
            threads, self._threads = self._threads, None
            client, self._client = self._client, None
        if threads is not None:
            threads.shutdown()
        if client is not None:
            client.close()


def _refused(answer: str) -> StoreError:
    return StoreError(
        "blobs-refused",
        f"the storage of blobs refused: {answer}",
        hint="check bucket, region and credentials",
        data={"answer": answer},
    )


def _body_broke(error: Exception) -> bool:
    return type(error).__name__ in {
        "IncompleteReadError",
        "ResponseStreamingError",
        "ReadTimeoutError",
    }


def _client(address: S3Address) -> Any:
    try:
        import boto3
        from botocore.config import Config
    except ImportError as error:
        raise UsageError(
            "s3-missing",
            "blobs on S3-compatible storage need boto3, which is not installed",
            hint="install mdr-registry[server]",
        ) from error
    config = Config(
        connect_timeout=CONNECT_SECONDS,
        read_timeout=READ_SECONDS,
        retries={"mode": "standard", "total_max_attempts": ATTEMPTS},
        max_pool_connections=THREADS * 2,
        request_checksum_calculation="when_required",
        response_checksum_validation="when_required",
        s3={"addressing_style": "path" if address.endpoint_url else "auto"},
    )
    return boto3.session.Session().client(
        "s3", endpoint_url=address.endpoint_url, region_name=address.region, config=config
    )
