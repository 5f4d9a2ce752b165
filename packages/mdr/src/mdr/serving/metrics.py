"""What Prometheus reads. Labels are route templates and status codes, never a path, a name or an address."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Callable

    from mdr.answers.service import Service

BUCKETS: Final = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0, 30.0)
"""Seconds."""
MULTIPROCESS: Final = "PROMETHEUS_MULTIPROC_DIR"
"""The library's own variable: a folder in which several processes add up."""


class Metrics:
    """Counts requests of one process; several processes add up in one answer."""

    def __init__(self) -> None:
        from prometheus_client import CollectorRegistry, Counter, Histogram

        self._several = bool(os.environ.get(MULTIPROCESS))
        self._registry = CollectorRegistry()
        registry = None if self._several else self._registry
        self._requests = Counter(
            "mdr_http_requests", "Requests answered.", ["method", "route", "status"], registry=registry
        )  # fmt: skip
        self._seconds = Histogram(
            "mdr_http_request_seconds",
            "Time from the headers of a request to the end of its answer.",
            ["route"],
            buckets=BUCKETS,
            registry=registry,
        )
        self._limited = Counter(
            "mdr_http_rate_limited", "Requests refused by the rate limit.", registry=registry
        )
        self._counted: dict[tuple[str, str, int], Any] = {}
        self._timed: dict[str, Any] = {}

    def watch(self, service: Service) -> None:
        """Offer what the service knows about itself."""
        values: tuple[tuple[str, str, Callable[[], float]], ...] = (
            (
                "mdr_answers_kept_bytes",
                "Bytes of answers that are kept.",
                lambda: service.kept.used,
            ),
            ("mdr_answers_kept_hits", "Answers found kept.", lambda: service.kept.hits),
            (
                "mdr_answers_kept_misses",
                "Answers that had to be made.",
                lambda: service.kept.misses,
            ),
            ("mdr_reads_busy", "Calls in threads or waiting for one.", lambda: service.busy),
        )
        if self._several:
            return
        from prometheus_client import Gauge

        for name, text, read in values:
            Gauge(name, text, registry=self._registry).set_function(read)

    def answered(self, method: str, route: str, status: int, seconds: float) -> None:
        """Count one request."""
        key = (method, route, status)
        counter = self._counted.get(key)
        if counter is None:
            counter = self._counted[key] = self._requests.labels(method, route, str(status))
            self._timed.setdefault(route, self._seconds.labels(route))
        counter.inc()
        self._timed[route].observe(seconds)

    def limited(self) -> None:
        """Count a refusal by the rate limit."""
        self._limited.inc()

    def text(self) -> tuple[bytes, str]:
        """Return the exposition and its media type."""
        from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest

        registry = self._registry
        if self._several:
            from prometheus_client.multiprocess import MultiProcessCollector

            registry = CollectorRegistry()
            MultiProcessCollector(registry)  # type: ignore[no-untyped-call]  # the library has no types here
        return generate_latest(registry), CONTENT_TYPE_LATEST
