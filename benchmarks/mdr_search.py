"""How long a search takes, on the clock and in processors.

::

    python benchmarks/mdr_search.py DATA [--artifacts 10000] [--keep DIR] [--database URL] [--repeat 15]

DATA is a data folder with a repository indexed into it (``mdr index``). Its files are mixed, paragraph by
paragraph and with a fixed seed, into as many artifacts as asked for, of 400 owners, in a new index: a file of
SQLite, kept for another time in ``--keep``, or an empty PostgreSQL database. An index that holds that many
artifacts already is asked as it is.

Every query is asked as the first reader after a change asks it (totals and facets counted anew), then again.
CPU is that of this process and of the database's processes, where these run on this machine (Linux).

Exit status: 0 every first answer took less than 50 ms of CPU (median), 1 one took more.
"""

from __future__ import annotations

import argparse
import random
import statistics
import sys
import tempfile
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

from mdr.artifact.types import Artifact, Kind
from mdr.digest import sha256
from mdr.registry.stores import Stores, open_stores
from mdr.registry.telling import document, tell
from mdr.settings import Settings
from mdr.store import listing
from mdr.store.engine import writing
from mdr.store.recording import ensure_source, record
from mdr.store.rows import Grade, NewArtifact, NewLine, NewVersion
from mdr.store.search import Query
from mdr.store.state import changed

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mdr.registry.telling import Told
    from mdr.store.search import Document

OWNERS: Final = 400
MOST_CPU_MS: Final = 50.0
QUERIES: Final = {
    "everything": Query(),
    "everything of one kind": Query(kind="skill"),
    "a host": Query(host="github.com"),
    "an owner": Query(owner="owner7"),
    "a grade": Query(grade="a"),
    "a tool": Query(tool="bash"),
    "a host that is named": Query(mentions="github.com"),
    "one word, rare": Query(words="changenet"),
    "one word, in most files": Query(words="use"),
    "the same, of one grade": Query(words="use", grade="a"),
    "the same, of one owner": Query(words="use", owner="owner7"),
    "the same, 100 hits": Query(words="use", limit=100),
    "a word of every name": Query(words="skill"),
    "two words": Query(words="activation memory"),
    "two words, in most files": Query(words="use the"),
    "a beginning": Query(words="conf"),
    "one letter": Query(words="s"),
    "a typo": Query(words="recomptue"),
    "a typo in a short word": Query(words="memroy"),
    "a typo and a word": Query(words="megatorn training"),
    "three typos": Query(words="megatorn trainign memroy"),
    "sixteen words": Query(words="the use of a model and its data with this to be in for it on"),
    "nothing": Query(words="qqqqqqqqqqqqq"),
}
DEEP: Final = 5_000
"""Hits before the page of a deep cursor."""


@dataclass(frozen=True, slots=True)
class Spent:
    """What one answer took, in milliseconds."""

    wall: float
    here: float
    """CPU of this process."""
    server: float
    """CPU of the database's processes."""


def main() -> int:
    """Fill an index, ask, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("data", type=Path)
    parser.add_argument("--artifacts", type=int, default=10_000)
    parser.add_argument("--keep", type=Path)
    parser.add_argument("--database")
    parser.add_argument("--repeat", type=int, default=15)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        settings = Settings(data=arguments.keep or Path(folder), database=arguments.database)
        stores = open_stores(settings, create=True)
        assert stores is not None
        held = listing.sums(stores.index).artifacts
        if held != arguments.artifacts:
            assert not held, (
                f"the index holds {held:,} artifacts; it must be empty, or hold as many"
            )
            started, cpu = time.perf_counter(), time.process_time()
            _fill(stores, _texts(arguments.data), arguments.artifacts)
            wall, cpu = time.perf_counter() - started, time.process_time() - cpu
            print(f"{arguments.artifacts:,} artifacts written in {wall:.1f} s, {cpu:.1f} s of CPU")
        good = _ask(stores, arguments.repeat)
        stores.close()
    return 0 if good else 1


def _texts(data: Path) -> list[bytes]:
    stores = open_stores(Settings(data=data), create=False)
    assert stores is not None, "index a repository into DATA first"
    digests = [
        version.sha256
        for source in stores.index.sources()
        for found in stores.index.versions_of(stores.index.artifacts_in(source.id), "").values()
        for version in found[:1]
    ]
    texts = [data for digest in digests if (data := stores.blobs.get(digest)) is not None]
    stores.close()
    return texts


def _fill(stores: Stores, texts: Sequence[bytes], artifacts: int) -> None:
    chance = random.Random(1)  # noqa: S311 - a corpus that is the same every time
    paragraphs = [part for text in texts for part in text.split(b"\n\n")[1:]]
    heads = [(text.split(b"\n\n")[0], tell(text)) for text in texts]
    each = -(-artifacts // OWNERS)
    for owner in range(OWNERS):
        repository = f"owner{owner}/skills"
        number = min(each, artifacts - owner * each)
        made = [_made(chance, repository, at, heads, paragraphs) for at in range(number)]
        line = NewLine(
            head="0" * 40,
            branch="main",
            location="x",
            commits=1,
            artifacts=tuple(each for each, _, _ in made),
            manifests={},
            objects={},
            grades=tuple(grade for _, grade, _ in made),
            skipped=(),
        )
        with writing(stores.index.engine) as connection:
            record(connection, ensure_source(connection, "github.com", repository, "x"), line)
            stores.search.refresh(connection, [document for _, _, document in made])
            changed(connection)


def _made(
    chance: random.Random,
    repository: str,
    number: int,
    heads: Sequence[tuple[bytes, Told]],
    paragraphs: Sequence[bytes],
) -> tuple[NewArtifact, Grade, Document]:
    """Mix one artifact."""
    head, told = chance.choice(heads)
    data = b"\n\n".join([head, *chance.choices(paragraphs, k=chance.randrange(10, 60))])
    name = f"skill-{chance.randrange(10**6)}-{number}"
    artifact = Artifact(
        host="github.com",
        repository=repository,
        path=f"skills/{name}/SKILL.md",
        name=name,
        kind=Kind.SKILL,
        description=told.description,
    )
    digest = sha256(data)
    version = NewVersion(
        commit=digest[:40],
        time=1_767_225_600,
        committed="2026-01-01T00:00:00Z",
        size=len(data),
        sha256=digest,
        manifest_sha256=digest,
        omitted=(),
        revisions=(),
    )
    letter = chance.choice("AABCF")
    grade = Grade(sha256=digest, kind="skill", ruleset="r1", grade=letter, penalty=0)
    new = NewArtifact(artifact=artifact, versions=(version,))
    return new, grade, document(artifact, digest, data, told)


def _ask(stores: Stores, repeat: int) -> bool:
    """Ask every query, print its line; say whether all first answers were cheap enough."""
    server = _server(stores)
    titles = ("wall", "CPU", "of it here", "again: wall", "CPU")
    print(f"{'query, times in ms':28}{'hits':>8}" + "".join(f"{title:>13}" for title in titles))
    good = True
    for name, query in _queries(stores).items():
        first, again = [], []
        for _ in range(repeat):
            stores.search.forget()
            first.append(_spent(stores, query, server))
            again.append(_spent(stores, query, server))
        total = stores.search.search(query, "r1").total
        one, two = (_median(each) for each in (first, again))
        cpu = one.here + one.server
        figures = (one.wall, cpu, one.here, two.wall, two.here + two.server)
        told = "" if cpu < MOST_CPU_MS else "  MISSED"
        good = good and not told
        print(f"{name:28}{total:>8,}" + "".join(f"{each:>13.1f}" for each in figures) + told)
    return good


def _queries(stores: Stores) -> dict[str, Query]:
    """Add pages far behind the first."""
    deep = {}
    for name, query in (
        ("everything", Query(limit=100)),
        ("a word", Query(words="use", limit=100)),
    ):
        cursor = None
        for _ in range(DEEP // 100):
            page = stores.search.search(replace(query, cursor=cursor), "r1")
            if page.next_cursor is None:
                break
            cursor = page.next_cursor
        deep[f"{name}, a deep cursor"] = replace(query, cursor=cursor)
    return QUERIES | deep


def _median(spent: Sequence[Spent]) -> Spent:
    return Spent(*(statistics.median(getattr(each, name) for each in spent) for name in Spent.__slots__))  # fmt: skip


def _spent(stores: Stores, query: Query, server: Sequence[Path]) -> Spent:
    before = _cpu(server)
    started, here = time.perf_counter(), time.process_time()
    stores.search.search(query, "r1")
    here, wall = time.process_time() - here, time.perf_counter() - started
    return Spent(wall * 1e3, here * 1e3, _cpu(server) - before)


def _server(stores: Stores) -> list[Path]:
    """Return where the kernel tells how long the database's processes for us have run."""
    if stores.index.engine.dialect.name != "postgresql":
        return []
    with stores.index.reading() as connection:
        asked = "SELECT pid FROM pg_stat_activity WHERE datname = current_database()"
        pids = connection.exec_driver_sql(asked).scalars().all()
    return [path for pid in pids if (path := Path(f"/proc/{pid}/schedstat")).exists()]


def _cpu(server: Sequence[Path]) -> float:
    """Return milliseconds; the first field is nanoseconds on a processor."""
    return sum(int(path.read_text(encoding="ascii").split()[0]) for path in server) / 1e6


if __name__ == "__main__":
    sys.exit(main())
