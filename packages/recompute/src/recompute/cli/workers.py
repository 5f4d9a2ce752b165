"""``--workers`` and ``--cluster``: who does the parts of a long search."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from recompute.search.workers import Workers

workers_option = click.option(
    "--workers",
    type=click.IntRange(1, 1024),
    metavar="N",
    help="Processes for tables and --joint; by default one for each core, and none for short work.",
)
cluster_option = click.option(
    "--cluster",
    metavar="ADDRESS",
    help="Do the parts of tables and --joint on a Dask cluster: tcp://HOST:8786 of its scheduler.",
)


@contextlib.contextmanager
def working(count: int | None, cluster: str | None) -> Iterator[Workers]:
    """Provide the workers that the command line asks for, watched; nothing of them stays behind.

    Args:
        count: Processes; ``None`` for one a core.
        cluster: Address of a Dask scheduler, in place of processes.

    Raises:
        ConfigError: The cluster cannot be used.
    """
    from recompute.cli.progress import Watched

    watched = Watched()
    with _made(count, cluster, watched.say) as made:
        watched.workers = made
        try:
            yield watched
        finally:
            watched.finish()


def _made(count: int | None, cluster: str | None, say: Callable[[str], None]) -> Any:
    if cluster is not None:
        from recompute.spread.cluster import Cluster

        return Cluster(cluster, say=say)
    from recompute.spread.processes import Processes, usable_cores

    return Processes(count or usable_cores(), say=say)
