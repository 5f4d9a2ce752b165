"""The contract of :class:`mdr.store.blobs.BlobStore`, as a class of tests to inherit from."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mdr.digest import Sha256, sha256

if TYPE_CHECKING:
    from mdr.store.blobs import BlobStore

SAMPLES = (b"", b"one\r\n", b"\x00\xff\xfe", b"x" * 70_000)


class BlobStoreContract:
    """Laws of every blob store."""

    many = 1_300
    """Blobs that are more than one batch."""

    def store(self) -> BlobStore:
        """Build an empty store."""
        raise NotImplementedError

    def test_what_is_put_is_got(self) -> None:
        """Bytes come back unchanged, under their SHA-256, in the order given."""
        store = self.store()
        names = store.put(SAMPLES)
        assert names == [sha256(data) for data in SAMPLES]
        assert [store.get(name) for name in names] == list(SAMPLES)

    def test_what_was_not_put_is_absent(self) -> None:
        """An absent hash is a value, not an error."""
        store = self.store()
        name = sha256(b"never")
        assert store.get(name) is None
        assert not store.has(name)

    def test_put_is_idempotent(self) -> None:
        """Putting again, in one batch or two, changes nothing."""
        store = self.store()
        first = store.put([b"same", b"same"])
        assert first[0] == first[1]
        assert store.put([b"same"]) == first[:1]
        assert list(store.digests()) == first[:1]

    def test_digests_lists_everything_once(self) -> None:
        """Listing is complete and has no duplicates."""
        store = self.store()
        names = set(store.put(SAMPLES))
        listed: list[Sha256] = list(store.digests())
        assert set(listed) == names
        assert len(listed) == len(names)

    def test_more_than_one_batch(self) -> None:
        """Many blobs are all held, whatever the batch size inside."""
        store = self.store()
        names = store.put(str(number).encode() for number in range(self.many))
        assert len(set(names)) == self.many
        assert set(store.digests()) == set(names)

    def test_several_are_got_at_once(self) -> None:
        """Each as alone, absent ones as ``None``, whatever is asked twice."""
        store = self.store()
        names = store.put(SAMPLES)
        absent = sha256(b"never")
        found = store.get_many([*names, absent, names[0]])
        assert found == dict(zip(names, SAMPLES, strict=True)) | {absent: None}
        assert store.get_many([]) == {}

    def test_what_is_removed_is_absent_and_can_be_put_again(self) -> None:
        """Removing twice is no error; a repair puts the right bytes back."""
        store = self.store()
        (name,) = store.put([b"data"])
        store.remove(name)
        store.remove(name)
        assert store.get(name) is None
        assert not store.has(name)
        store.put([b"data"])
        assert store.get(name) == b"data"
