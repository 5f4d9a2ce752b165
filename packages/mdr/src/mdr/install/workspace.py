"""What every client command starts from: roots, settings, policy, lock and a registry."""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from mdr.errors import LockError, Refusal, UsageError
from mdr.install.destination import Roots, find_roots
from mdr.install.exclusive import exclusive
from mdr.install.fetch import Fetcher
from mdr.install.lock import LOCK_NAME, Entry, Lock, Scope, write_lock
from mdr.install.lock_read import read_lock, read_lock_if_present
from mdr.install.policy import Policy, read_policy
from mdr.install.sources import CacheSource, blob_sources, registry_source

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

    from mdr.digest import Sha256
    from mdr.registry.interface import Registry
    from mdr.settings import Settings

Progress = Callable[[int, int], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Workspace:
    """One project and the home of one person, as a command sees them."""

    settings: Settings
    roots: Roots

    @property
    def lock_path(self) -> Path:
        """``mdr.lock`` in the working directory: the only lock that is ever used."""
        return self.roots.project / LOCK_NAME

    def policy(self) -> Policy:
        """Read ``mdr-policy.toml`` beside the lock."""
        return read_policy(self.roots.project)

    def lock(self, known: Lock | None = None) -> Lock:
        """Read the lock; a missing one is an error. ``known`` saves checking the same bytes twice."""
        return read_lock(self.lock_path, known)

    def lock_or_new(self) -> Lock:
        """Read the lock, or start one."""
        return read_lock_if_present(self.lock_path)

    def write(self, lock: Lock) -> None:
        """Replace the lock in one step."""
        write_lock(self.lock_path, lock)

    def cached(self, digest: Sha256) -> bytes | None:
        """Return bytes that this machine has already; used for links inside skills."""
        return CacheSource(self.settings.data).blob(digest)

    def registry(self) -> Registry:
        """Open the registry of the settings."""
        from mdr.registry import open_registry

        return open_registry(self.settings)

    def fetcher(
        self, *, offline: bool = False, frozen: bool = False, progress: Progress | None = None
    ) -> Fetcher:
        """Return a fetcher for locked bytes: cache, registry, git host."""
        sources = blob_sources(self.settings, offline=offline, frozen=frozen)
        return Fetcher(sources, keep=CacheSource(self.settings.data).keep, progress=progress)

    def fetcher_of(self, registry: Registry) -> Fetcher:
        """Return a fetcher for what ``registry`` has just resolved: cache, then that registry."""
        is_remote = not (self.settings.registry or "file:").startswith("file:")
        cache = CacheSource(self.settings.data)
        sources = (cache, registry_source(lambda: registry, remote=is_remote))
        return Fetcher(sources, keep=cache.keep)

    @contextmanager
    def held(self, entries: Iterable[Entry]) -> Iterator[None]:
        """Keep other mdr processes out of the project, and of the home if an entry goes there."""
        roots = {self.roots.project}
        scopes = {target.scope for entry in entries for target in entry.targets}
        if Scope.USER in scopes:
            roots.add(self.roots.home)
        with exclusive(roots, self.settings.data):
            yield


def open_workspace(settings: Settings) -> Workspace:
    """Start in the working directory."""
    return Workspace(settings=settings, roots=find_roots())


def one_entry(lock: Lock, ref: str) -> Entry:
    """Find the entry that a person names: by ref, by name alone, by ``owner/repo:path``.

    A selector behind it, as ``add`` takes, is ignored.

    Raises:
        mdr.errors.UsageError: not-in-lock or ambiguous-reference.
    """
    found = _named(lock, ref) or _named(lock, ref.rpartition("@")[0])
    if len(found) == 1:
        return found[0]
    if not found:
        raise UsageError(
            "not-in-lock",
            f"{ref} is not in {LOCK_NAME}",
            hint="`mdr list` shows what is",
            data={"ref": ref},
        )
    refs = [entry.ref for entry in found]
    raise UsageError(
        "ambiguous-reference",
        f"{ref} means {len(refs)} entries of {LOCK_NAME}",
        hint=f"name one of: {', '.join(refs)}",
        data={"ref": ref, "candidates": refs},
    )


def _named(lock: Lock, text: str) -> tuple[Entry, ...]:
    wanted = text.lower()
    return lock.find(text) or tuple(
        entry
        for entry in lock.entries
        if wanted in {entry.name.lower(), f"{entry.repository}:{entry.path}".lower()}
    )


def as_refusal(error: LockError) -> Refusal | LockError:
    """Turn a clash with what is already locked into the refusal that it is for ``add``."""
    if error.code not in {"lock-collision", "lock-duplicate"}:
        return error
    return Refusal(
        "target-taken",
        error.message,
        hint="remove the other one first, or choose another agent with --to",
        data=error.data,
    )


def progress_line(what: str) -> Progress | None:
    """Return a counter that rewrites one line of a terminal, or ``None`` elsewhere."""
    if not sys.stderr.isatty():
        return None

    def show(done: int, total: int) -> None:
        sys.stderr.write(f"\r{what} {done}/{total}" + ("\n" if done == total else ""))
        sys.stderr.flush()

    return show
