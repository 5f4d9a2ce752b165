"""Ask GitHub's REST API about a repository: stars, license, last push, default branch, spelling.

One conditional request (``If-None-Match``) per indexing; GitHub does not count a 304 against the rate
limit of an authenticated caller. A limit that is reached is honoured until it is over: the time is kept
and no request is made before it. Field names are those of ``GET /repos/{owner}/{repo}``.
"""

from __future__ import annotations

import json
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote, urlsplit

from mdr.errors import SourceError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

TIMEOUT_SECONDS: Final = 15.0
MAX_BYTES: Final = 1 << 20
MAX_REDIRECTS: Final = 3
DEFAULT_PAUSE: Final = 60
"""Seconds to wait when GitHub refuses and does not say for how long."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Described:
    """GitHub's answer."""

    repository: str
    """In GitHub's spelling; another name than asked for when the repository was renamed."""
    stars: int | None
    license: str | None
    """SPDX identifier; ``None`` when GitHub finds none or cannot tell."""
    pushed: str | None
    """RFC 3339 UTC."""
    branch: str | None
    etag: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Unchanged:
    """What is known is still so (304)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Missing:
    """There is no such repository, or it is private and no token may see it (404)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limited:
    """The rate limit is reached."""

    until: int
    """Unix time from which GitHub answers again."""


Answer = Described | Unchanged | Missing | Limited


def describe(
    repository: str,
    *,
    api: str,
    token: str | None = None,
    etag: str | None = None,
    now: Callable[[], float] = time.time,
) -> Answer:
    """Ask about one repository.

    Args:
        repository: ``owner/repo``.
        api: Base URL, ``https://api.github.com``.
        token: Optional access token; sent to ``api``'s own host only.
        etag: From an earlier answer.
        now: Clock, seconds since 1970.

    Raises:
        mdr.errors.SourceError: github-unreachable, github-answer.
    """
    url = f"{api.rstrip('/')}/repos/{quote(repository, safe='/')}"
    headers = {
        "Accept": "application/vnd.github+json",
        "X-GitHub-Api-Version": "2022-11-28",
        "User-Agent": "mdr",
    }
    if token:
        headers["Authorization"] = f"Bearer {token}"
    if etag:
        headers["If-None-Match"] = etag
    status, fields, body = _get(url, headers)
    if status == 304:
        return Unchanged()
    if status in {404, 410, 451}:
        return Missing()
    limited = _limit(status, fields, now())
    if limited is not None:
        return limited
    if status != 200:
        raise _odd(f"status {status}")
    return _parse(body, fields.get("etag"))


def _get(url: str, headers: Mapping[str, str]) -> tuple[int, Mapping[str, str], bytes]:
    """Fetch one document, following redirects on the same host only."""
    import urllib3

    origin = urlsplit(url)[:2]
    timeout = urllib3.Timeout(total=TIMEOUT_SECONDS)
    with urllib3.PoolManager(retries=_retries()) as pool:
        for _ in range(MAX_REDIRECTS + 1):
            try:
                answer = pool.request(
                    "GET",
                    url,
                    headers=dict(headers),
                    timeout=timeout,
                    redirect=False,
                    preload_content=False,
                )
                body = answer.read(MAX_BYTES + 1, decode_content=True)
                answer.release_conn()
            except urllib3.exceptions.HTTPError as error:
                raise SourceError(
                    "github-unreachable",
                    f"GitHub's API cannot be reached: {type(error).__name__}",
                    hint="check the network; indexing works without it, stars and license stay unknown",
                ) from error
            fields = {key.lower(): value for key, value in answer.headers.items()}
            target = fields.get("location", "")
            if answer.status not in {301, 302, 307, 308}:
                return answer.status, fields, body
            if urlsplit(target)[:2] != origin:
                break
            url = target
    raise _odd("it redirects to another host, or too often")


def _retries() -> Any:
    """Try a broken connection twice more; answers, rate limits among them, are ours to read."""
    import urllib3

    return urllib3.Retry(
        total=2, redirect=0, status=0, respect_retry_after_header=False, backoff_factor=0.2
    )


def _limit(status: int, fields: Mapping[str, str], now: float) -> Limited | None:
    """Read a refusal by rate limit: 429, or 403 with no requests left or a pause asked for."""
    pause, reset = fields.get("retry-after", ""), fields.get("x-ratelimit-reset", "")
    spent = fields.get("x-ratelimit-remaining") == "0"
    if status != 429 and not (status == 403 and (spent or pause)):
        return None
    if pause.isdigit():
        return Limited(until=int(now) + int(pause))
    if spent and reset.isdigit():
        return Limited(until=int(reset))
    return Limited(until=int(now) + DEFAULT_PAUSE)


def _parse(body: bytes, etag: str | None) -> Described:
    try:
        if len(body) > MAX_BYTES:
            raise _odd("it is longer than 1 MiB")
        found = json.loads(body)
        name = found["full_name"]
    except (ValueError, KeyError, TypeError, RecursionError):
        raise _odd("it is not the JSON of a repository") from None
    if not isinstance(name, str) or name.count("/") != 1:
        raise _odd("full_name is not owner/repo")
    license_ = found.get("license")
    spdx = _text(license_.get("spdx_id")) if isinstance(license_, dict) else None
    stars = found.get("stargazers_count")
    return Described(
        repository=name,
        stars=stars if isinstance(stars, int) and stars >= 0 else None,
        license=None if spdx in {None, "NOASSERTION"} else spdx,
        pushed=_text(found.get("pushed_at")),
        branch=_text(found.get("default_branch")),
        etag=_text(etag),
    )


def _text(value: Any) -> str | None:
    fits = isinstance(value, str) and 0 < len(value) <= 256 and value.isprintable()
    return value if fits else None


def _odd(what: str) -> SourceError:
    return SourceError(
        "github-answer",
        f"GitHub's API gave an answer that cannot be used: {what}",
        hint="indexing works without it; stars and license stay unknown",
    )
