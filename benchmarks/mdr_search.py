"""How long a search takes: ``python benchmarks/mdr_search.py DATA [--artifacts 10000] [--database URL]``.

DATA is a data folder with a repository indexed into it (``mdr index``). Its files are mixed, paragraph by
paragraph and with a fixed seed, into as many artifacts as asked for, of 400 owners, in a new index that is
removed afterwards: a file of SQLite, or an empty PostgreSQL database. Every query is asked as a new
process would ask it (totals and facets counted anew), then again with the same totals remembered.
"""

from __future__ import annotations

import argparse
import random
import statistics
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

from mdr.artifact.types import Artifact, Kind
from mdr.digest import sha256
from mdr.registry.stores import Stores, open_stores
from mdr.registry.telling import document, tell
from mdr.settings import Settings
from mdr.store.engine import writing
from mdr.store.recording import ensure_source, record
from mdr.store.rows import Grade, NewArtifact, NewLine, NewVersion
from mdr.store.search import Query
from mdr.store.state import changed

if TYPE_CHECKING:
    from collections.abc import Sequence

OWNERS = 400
QUERIES = {
    "everything": Query(),
    "everything of one kind": Query(kind="skill"),
    "a host": Query(host="github.com"),
    "one word, rare": Query(words="changenet"),
    "one word, in most files": Query(words="use"),
    "two words": Query(words="activation memory"),
    "a beginning": Query(words="conf"),
    "a typo": Query(words="recomptue"),
    "a typo in a short word": Query(words="memroy"),
    "a typo and a word": Query(words="megatorn training"),
    "nothing": Query(words="qqqqqqqqqqqqq"),
}


def main() -> None:
    """Fill an index, ask, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("data", type=Path)
    parser.add_argument("--artifacts", type=int, default=10_000)
    parser.add_argument("--database")
    parser.add_argument("--repeat", type=int, default=15)
    arguments = parser.parse_args()
    texts = _texts(arguments.data)
    with tempfile.TemporaryDirectory() as folder:
        settings = Settings(data=Path(folder), database=arguments.database)
        stores = open_stores(settings, create=True)
        assert stores is not None
        started = time.perf_counter()
        _fill(stores, texts, arguments.artifacts)
        print(f"{arguments.artifacts:,} artifacts written in {time.perf_counter() - started:.1f} s")
        _ask(stores, arguments.repeat)
        stores.close()


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
        new, grades, documents = [], [], []
        repository = f"owner{owner}/skills"
        for number in range(min(each, artifacts - owner * each)):
            head, told = chance.choice(heads)
            rest = chance.choices(paragraphs, k=chance.randrange(10, 60))
            data = b"\n\n".join([head, *rest])
            name = f"skill-{chance.randrange(10**6)}-{number}"
            artifact = Artifact(
                host="github.com",
                repository=repository,
                path=f"skills/{name}/SKILL.md",
                name=name,
                kind=Kind.SKILL,
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
            new.append(NewArtifact(artifact=artifact, versions=(version,)))
            grades.append(
                Grade(
                    sha256=digest,
                    kind="skill",
                    ruleset="r1",
                    grade=chance.choice("AABCF"),
                    penalty=0,
                )
            )
            documents.append(document(artifact, digest, data, told))
        line = NewLine(
            head="0" * 40,
            branch="main",
            location="x",
            commits=1,
            artifacts=tuple(new),
            manifests={},
            objects={},
            grades=tuple(grades),
            skipped=(),
        )
        with writing(stores.index.engine) as connection:
            record(connection, ensure_source(connection, "github.com", repository, "x"), line)
            stores.search.refresh(connection, documents)
            changed(connection)


def _ask(stores: Stores, repeat: int) -> None:
    print(f"{'query':28}{'hits':>8}{'first, ms':>12}{'again, ms':>12}")
    for name, query in QUERIES.items():
        first, again = [], []
        for _ in range(repeat):
            stores.search.forget()
            first.append(_milliseconds(stores, query))
            again.append(_milliseconds(stores, query))
        total = stores.search.search(query, "r1").total
        print(
            f"{name:28}{total:>8,}{statistics.median(first):>12.1f}{statistics.median(again):>12.1f}"
        )


def _milliseconds(stores: Stores, query: Query) -> float:
    started = time.perf_counter()
    stores.search.search(query, "r1")
    return (time.perf_counter() - started) * 1e3


if __name__ == "__main__":
    main()
