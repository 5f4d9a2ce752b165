"""``mdr install``: from the lock alone to bytes on disk. Nothing heavy is imported on this path."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mdr.errors import PolicyError
from mdr.install.installer import Failure, Report, Request, install
from mdr.install.policy import Policy, check_grade, check_owner
from mdr.install.workspace import progress_line

if TYPE_CHECKING:
    from mdr.errors import MdrError
    from mdr.install.lock import Entry
    from mdr.install.workspace import Workspace


def install_from_lock(
    workspace: Workspace, *, frozen: bool, offline: bool, force: bool = False
) -> Report:
    """Install everything that the lock holds, or nothing.

    Args:
        workspace: Project and home.
        frozen: Ask cache and registry by hash only; never index or fetch a repository.
        offline: Use only what is on this machine.
        force: Replace bytes that mdr did not write, keeping a backup.

    Raises:
        mdr.errors.LockError: The lock is missing or cannot be trusted.
        mdr.errors.UsageError: policy-unreadable.
        mdr.errors.StoreError: The disk failed.
    """
    policy = workspace.policy()
    progress = progress_line("fetching")
    fetcher = workspace.fetcher(offline=offline, frozen=frozen, progress=progress)
    lock = workspace.lock()
    with workspace.held(lock.entries):
        lock = workspace.lock(lock)
        refused = tuple(_refused(policy, lock.entries))
        if refused:
            return Report(failed=refused)
        request = Request(
            entries=lock.entries,
            roots=workspace.roots,
            data=workspace.settings.data,
            force=force,
        )
        return install(request, fetcher, _regrade)


def _regrade(entry: Entry, data: bytes) -> MdrError | None:
    from mdr.install.judge import regrade

    return regrade(entry, data)


def _refused(policy: Policy, entries: tuple[Entry, ...]) -> list[Failure]:
    """Apply the policy file; without one a lock that was accepted once is accepted again."""
    failures = []
    for entry in entries:
        try:
            check_owner(policy, entry.host, entry.repository, entry.ref)
            if policy.minimum_grade is not None:
                check_grade(policy, entry.grade, entry.ref)
        except PolicyError as error:
            failures.append(Failure(entry=entry, error=error))
    return failures
