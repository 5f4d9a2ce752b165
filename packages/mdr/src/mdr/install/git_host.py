"""Read the locked files of an entry from its git host, at the locked commit and nowhere else.

No reference is looked up and nothing is indexed: the lock names host, repository, commit and folder, so
``install --frozen`` works on a machine that has nothing but the lock. The fetch itself, with its limits,
is :mod:`mdr.source`'s; what it brought is read by hash, so a host that lies gives a hash mismatch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from mdr.digest import sha256
from mdr.errors import SourceError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from mdr.digest import Sha256
    from mdr.install.lock import Entry
    from mdr.settings import Settings
    from mdr.source.objects import GitSource
    from mdr.version.types import FileEntry


def address_of(entry: Entry) -> str:
    """Return where an entry's repository is fetched from."""
    return f"https://{entry.host}/{entry.repository}"


class GitHost:
    """The git host of each entry, as a source of bytes."""

    name = "git host"
    remote = False
    """Asked one repository after the other: a fetch is one large transfer, and hosts limit rates."""

    def __init__(self, settings: Settings, address: Callable[[Entry], str] = address_of) -> None:
        """Take the data folder and limits, and how an entry's repository is reached."""
        self._settings = settings
        self._address = address

    def get(self, entry: Entry, files: Sequence[FileEntry]) -> Mapping[Sha256, bytes]:
        """Fetch the locked commit and return those of the files that its folder holds.

        Raises:
            mdr.errors.SourceError: no-host, commit-gone, git-failed, git-timeout, source-too-large.
            mdr.errors.Refusal: private-address.
        """
        from mdr.source.locate import LOCAL, locate
        from mdr.source.opening import open_source
        from mdr.source.types import Head

        if entry.host == LOCAL:
            raise SourceError(
                "no-host",
                f"{entry.ref} was indexed from a repository without a host",
                hint="index that repository here with `mdr index`, or name a registry that holds it",
            )
        head = Head(commit=entry.commit, branch=None)
        with open_source(locate(self._address(entry)), head, self._settings) as source:
            return _read(source, entry, files, self._settings)


def _read(
    source: GitSource, entry: Entry, files: Sequence[FileEntry], settings: Settings
) -> dict[Sha256, bytes]:
    wanted = {file.path: file for file in files}
    listed = _list_folder(source, entry, settings)
    oids = {oid: wanted[path] for path, oid in listed.items() if path in wanted}
    sizes = source.sizes(list(oids))
    plausible = [oid for oid, file in oids.items() if sizes.get(oid) == file.size]
    return {sha256(data): data for _, data in source.read(plausible)}


def _list_folder(source: GitSource, entry: Entry, settings: Settings) -> dict[str, str]:
    """Return object names by path below the entry's folder, at the locked commit."""
    from mdr.source import git

    folder = entry.path.rpartition("/")[0]
    tree = f"{entry.commit}:{folder}"
    try:
        out = git.run(
            [f"--git-dir={source.skeleton}", "ls-tree", "-r", "-z", "--end-of-options", tree],
            env=git.environment() | {"GIT_OBJECT_DIRECTORY": str(source.objects)},
            timeout=settings.limits.fetch_timeout_seconds,
        )
    except SourceError as error:
        raise SourceError(
            "commit-gone",
            f"{entry.host} has no commit {entry.commit[:12]} with {folder or 'its root'} in {entry.repository}",
            hint="its history was rewritten; a registry or mirror may still hold the bytes",
            data={"ref": entry.ref, "commit": entry.commit},
        ) from error
    rows = (
        row.partition("\t") for row in out.decode("utf-8", "surrogateescape").split("\0") if row
    )
    return {path: head.split(" ")[2] for head, _, path in rows}
