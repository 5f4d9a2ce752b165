"""Fields of an answer that asks for patience, as git's trace shows them."""

from __future__ import annotations

import pytest

from mdr.source.limited import MAX_PAUSE, Refused, read_refusal

NOW = 1_767_225_600.0


def trace(*lines: str) -> str:
    return "".join(f"12:00:00.1 http.c:756              <= Recv header: {line}\n" for line in lines)


@pytest.mark.parametrize(
    ("lines", "refused"),
    [
        (["HTTP/2 429", "retry-after: 7"], Refused(status=429, pause=7)),
        (["HTTP/1.1 429 Too Many", "Retry-After: Thu, 01 Jan 2026 00:02:00 GMT"], Refused(status=429, pause=120)),
        (["HTTP/2 503", "Retry-After: Thu, 01 Jan 1970 00:02:00 GMT"], Refused(status=503, pause=1)),
        (["HTTP/2 403", "x-ratelimit-remaining: 0", "x-ratelimit-reset: 1767225690"], Refused(status=403, pause=90)),
        (["HTTP/2 403", "x-ratelimit-remaining: 9", "x-ratelimit-reset: 1767225690"], None),
        (["HTTP/2 429", "retry-after: soon"], Refused(status=429, pause=60)),
        (["HTTP/2 429", "retry-after: ²"], Refused(status=429, pause=60)),
        (["HTTP/2 503", "x-ratelimit-remaining: 0", "x-ratelimit-reset: 99999999999999"], Refused(status=503, pause=MAX_PAUSE)),
        (["HTTP/2 429", "retry-after: 7", "HTTP/2 200"], None),
        (["HTTP/2 429", "retry-after: 7", "HTTP/2 401", "retry-after: 7"], None),
        (["HTTP/2 200", "retry-after: 7"], None),
        ([], None),
        (["garbage", ": :", "HTTP/9"], None),
    ],
)  # fmt: skip
def test_what_an_answer_means(lines: list[str], refused: Refused | None) -> None:
    assert read_refusal(trace(*lines), NOW) == refused
