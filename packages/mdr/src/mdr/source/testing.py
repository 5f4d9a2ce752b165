"""The contract of :class:`mdr.source.types.Source`, as a class of tests to inherit from.

An implementation is right when a test class that inherits this one and builds :class:`Sample` passes.
"""

from __future__ import annotations

import pickle  # only to show that our own value survives it; nothing from outside is loaded
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mdr.source.types import Oid, Source


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """A source with this history, oldest first.

    1. adds ``a.md`` (``one``) and ``dir/b.md`` (``two``)
    2. changes ``a.md`` to ``three`` and deletes ``dir/b.md``
    3. changes nothing
    4. adds ``c.sh`` (``one``), executable
    """

    source: Source
    absent: Oid
    """A name of no object."""


CONTENTS = {"one": b"one\r\n\xff\x00", "two": b"two\n", "three": b""}


class SourceContract:
    """Laws of every source."""

    def sample(self) -> Sample:
        """Build the sample."""
        raise NotImplementedError

    def test_history_is_the_line_oldest_first(self) -> None:
        """Every commit appears once, ends at the head, and knows its parent."""
        source = self.sample().source
        commits = [commit for commit, _ in source.history(source.head().commit)]
        assert len(commits) == 4
        assert commits[-1].oid == source.head().commit
        assert [commit.parents for commit in commits] == [
            (),
            *((commit.oid,) for commit in commits[:-1]),
        ]

    def test_changes_are_against_the_first_parent(self) -> None:
        """Additions, modifications, deletions and modes are told apart."""
        source = self.sample().source
        steps = list(source.history(source.head().commit))
        told = [
            {change.path: (change.mode, change.added, change.deleted) for change in changes}
            for _, changes in steps
        ]
        assert told == [
            {"a.md": ("100644", True, False), "dir/b.md": ("100644", True, False)},
            {"a.md": ("100644", False, False), "dir/b.md": ("000000", False, True)},
            {},
            {"c.sh": ("100755", True, False)},
        ]

    def test_bytes_are_those_that_were_stored(self) -> None:
        """No newline, encoding or NUL is touched, and the order is the one asked for."""
        source = self.sample().source
        steps = list(source.history(source.head().commit))
        oids = {change.path: change.oid for _, changes in steps[:1] for change in changes}
        oids["c.sh"] = steps[3][1][0].oid
        asked = [oids["dir/b.md"], oids["a.md"]]
        assert list(source.read(asked)) == [
            (asked[0], CONTENTS["two"]),
            (asked[1], CONTENTS["one"]),
        ]
        assert oids["c.sh"] == oids["a.md"]

    def test_sizes_say_what_is_absent(self) -> None:
        """A size is the length of the content; what is not there has none."""
        sample = self.sample()
        source = sample.source
        steps = list(source.history(source.head().commit))
        empty = next(change.oid for change in steps[1][1] if change.path == "a.md")
        assert source.sizes([empty, sample.absent]) == {empty: 0, sample.absent: None}

    def test_reading_may_stop_early(self) -> None:
        """A reader that is closed after one blob leaves nothing hanging."""
        source = self.sample().source
        steps = list(source.history(source.head().commit))
        oid = steps[0][1][0].oid
        reader = source.read([oid] * 5_000)
        assert next(iter(reader))[0] == oid
        del reader
        assert len(list(source.read([oid] * 3))) == 3

    def test_it_travels_to_another_process(self) -> None:
        """Workers get the source by pickle."""
        source = self.sample().source
        copy = pickle.loads(pickle.dumps(source))  # noqa: S301, TID251 - our own value
        assert copy.head() == source.head()
