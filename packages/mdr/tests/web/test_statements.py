"""What each page and each answer asks of the database: a number that must not grow unseen."""

from __future__ import annotations

import pytest
from statements import counted
from web_site import GREET, Site

from mdr.digest import sha256
from mdr.store.listing import beside
from mdr.store.together import together


@pytest.mark.parametrize(
    ("path", "status", "most"),
    [
        ("/", 200, 9),
        ("/search?q=greet", 200, 5),
        ("/search?q=graet", 200, 12),
        (f"/a/{GREET}", 200, 11),
        (f"/a/{GREET}/v/{{new}}", 200, 11),
        (f"/a/{GREET}/v/{{new}}/f/run.sh", 200, 11),
        (f"/a/{GREET}/diff/{{old}}...{{new}}", 200, 12),
        (f"/a/{GREET}/feed.atom", 200, 11),
        ("/o/acme", 200, 2),
        ("/o/acne", 404, 4),
        ("/r/acme/tools", 200, 5),
        ("/r/acme/tolls", 404, 4),
        ("/hash/{sha256}", 200, 3),
    ],
)
def test_a_page_asks_little_and_in_one_transaction(
    site: Site, path: str, status: int, most: int
) -> None:
    digest = site.service.reading.versions(GREET)["items"][0]["sha256"]
    url = path.format(new=site.labels[0], old=site.labels[-1], sha256=digest)
    with counted(site.stores.index.engine) as asked:
        answer = site.client.get(url)
    assert answer.status_code == status
    assert 1 < len(asked) <= most, asked
    assert asked.count("BEGIN") == 1
    assert len(set(asked)) == len(asked)  # nothing is asked twice


def test_many_hashes_are_asked_about_together(site: Site) -> None:
    reading = site.service.reading
    known = [each["sha256"] for each in reading.versions(GREET)["items"]]
    few, many = known, [*known, *(sha256(str(number).encode()) for number in range(450))]
    numbers = []
    for hashes in (few, many):
        with counted(site.stores.index.engine) as asked:
            found = reading.verify(hashes)["items"]
        numbers.append(len(asked))
        assert [each["known"] for each in found] == [each in known for each in hashes]
        assert all(each["refs"] for each in found[: len(known)])
    assert numbers[0] == numbers[1] <= 7


def test_wrong_names_are_compared_with_a_few(site: Site) -> None:
    assert "acme/tools" in site.page("/r/acme/tolls", 404).lower()
    assert "/o/acme" in site.page("/o/acne", 404).lower()
    assert beside(site.stores.index, "acme/zzz", 1) == (("github.com", "Acme/Tools"),)
    assert beside(site.stores.index, "acme/a", 0) == ()


def test_inside_a_block_everything_comes_from_one_state(site: Site) -> None:
    index = site.stores.index
    source = index.sources()[0]
    with together(index.engine):
        before = index.artifacts_in(source.id)
        with together(index.engine):
            assert index.artifact(GREET) is not None
        with index.engine.connect() as other, other.begin():
            other.exec_driver_sql("UPDATE artifacts SET name = 'other'")
        assert index.artifacts_in(source.id) == before
    assert {each.name for each in index.artifacts_in(source.id)} == {"other"}
