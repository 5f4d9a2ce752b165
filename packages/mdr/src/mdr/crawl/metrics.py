"""What Prometheus reads of the schedule; the same figures from every process that can see the database.

======================================  =======  ====================================================
name                                    kind     meaning
======================================  =======  ====================================================
``mdr_crawl_sources{state}``            gauge    sources by state: waiting, queued, running, dead
``mdr_crawl_due``                       gauge    waiting sources whose time has come: the queue's depth
``mdr_crawl_oldest_due_seconds``        gauge    how long the longest of them has waited: the queue's age
``mdr_crawl_failing``                   gauge    sources whose last crawl failed and that will be tried again
``mdr_crawls_total{outcome}``           counter  ended crawls: changed, unchanged, failed, postponed
======================================  =======  ====================================================
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

    from prometheus_client import CollectorRegistry
    from prometheus_client.core import Metric

    from mdr.crawl.book import Book, Measures


class ScheduleCollector:
    """Asks the schedule whenever Prometheus asks; ``registry.register(ScheduleCollector(book))``."""

    def __init__(self, book: Book) -> None:
        self._book = book

    def describe(self) -> Iterable[Metric]:
        """Say nothing, so that registering asks the database nothing."""
        return []

    def collect(self) -> Iterable[Metric]:
        """Yield every family.

        Raises:
            mdr.errors.StoreError: index-unreadable, database-unreachable.
        """
        return families(self._book.measure())


def families(measures: Measures) -> list[Metric]:
    """Write measures as Prometheus has them."""
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

    states = GaugeMetricFamily("mdr_crawl_sources", "Sources of the schedule.", labels=["state"])
    for state in ("waiting", "queued", "running", "dead"):
        states.add_metric([state], getattr(measures, state))
    ends = CounterMetricFamily("mdr_crawls", "Crawls that ended.", labels=["outcome"])
    for outcome in ("changed", "unchanged", "failed", "postponed"):
        ends.add_metric([outcome], measures.outcomes.get(outcome, 0))
    single = (
        ("mdr_crawl_due", "Sources whose time has come.", measures.due),
        ("mdr_crawl_oldest_due_seconds", "Age of the queue.", measures.oldest_due_seconds),
        ("mdr_crawl_failing", "Sources whose last crawl failed.", measures.failing),
    )
    return [states, ends, *(GaugeMetricFamily(name, text, value) for name, text, value in single)]


def serve(book: Book, host: str, port: int) -> CollectorRegistry:
    """Answer Prometheus at ``http://HOST:PORT/metrics`` from a thread of its own.

    Raises:
        OSError: The port is taken.
    """
    from prometheus_client import CollectorRegistry, start_http_server

    registry = CollectorRegistry()
    registry.register(ScheduleCollector(book))
    start_http_server(port, addr=host, registry=registry)
    return registry
