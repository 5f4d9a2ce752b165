"""From what a registry answers to an entry of the lock, believing nothing it says without a check."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from mdr.errors import IntegrityError, LockError, Refusal
from mdr.install.lock import Entry, Lock, Pin, format_lock
from mdr.install.lock_read import parse_lock
from mdr.reference.parse import format_reference
from mdr.reference.types import DigestPrefix, Label, Latest, Reference

if TYPE_CHECKING:
    from collections.abc import Iterable

    from mdr.artifact.types import Artifact
    from mdr.install.lock import Target
    from mdr.registry.interface import Resolved


def entry_from(
    resolved: Resolved, asked: Reference, targets: Iterable[Target], pin: Pin | None = None
) -> Entry:
    """Build the lock entry of a resolved reference.

    Args:
        resolved: What the registry answered.
        asked: What was asked; a SHA-256 gives a pin that never moves.
        targets: Where it shall go.
        pin: Overrides what ``asked`` implies.

    Returns:
        An entry that the strict lock reader accepts; its grade is still the registry's word.

    Raises:
        mdr.errors.Refusal: unportable-path.
        mdr.errors.IntegrityError: registry-answer, when the answer is not what was asked, or could
            not be written to a lock.
    """
    artifact, version = resolved.artifact, resolved.version
    _check_asked(resolved, asked)
    implied = Pin.SHA256 if isinstance(asked.selector, DigestPrefix) else Pin.LABEL
    entry = Entry(
        ref=lock_ref(artifact, asked),
        host=artifact.host,
        repository=artifact.repository,
        path=artifact.path,
        kind=artifact.kind,
        pin=pin or implied,
        label=version.label,
        commit=version.commit,
        sha256=version.sha256,
        size=version.size,
        manifest_sha256=version.manifest_sha256,
        ruleset=version.ruleset,
        grade=version.grade,
        targets=tuple(sorted(set(targets))),
        files=resolved.files,
    )
    try:
        return parse_lock(format_lock(Lock(entries=(entry,))), "the registry's answer").entries[0]
    except (LockError, UnicodeEncodeError) as error:
        said = error.message if isinstance(error, LockError) else "a name is not valid UTF-8"
        reason = error.data.get("reason") if isinstance(error, LockError) else None
        if reason not in {None, "not-relative"}:
            raise Refusal(
                "unportable-path",
                f"{entry.ref} has a file that cannot exist on every system: {said}",
                hint="ask the author to rename it; a lock that installs on one system only is none",
                data={"ref": entry.ref, "reason": reason},
            ) from error
        raise _answer(entry.ref, said) from error


def lock_ref(artifact: Artifact, asked: Reference) -> str:
    """Return how the lock calls an artifact: by name, or by path when it was asked for by path."""
    if asked.path is None:
        return artifact.ref
    return format_reference(
        Reference(
            host=artifact.host,
            repository=artifact.repository.lower(),
            name=None,
            path=artifact.path,
            selector=Latest(),
        )
    ).removesuffix("@latest")


def reference_to(entry: Entry, selector: Latest | Label | DigestPrefix | None = None) -> Reference:
    """Return the reference that names an entry's artifact by its path, which is never ambiguous."""
    return Reference(
        host=entry.host,
        repository=entry.repository,
        name=None,
        path=entry.path,
        selector=Latest() if selector is None else selector,
    )


def with_entry(lock: Lock, entry: Entry) -> Lock:
    """Add an entry to a lock and make sure that they can live together.

    Raises:
        mdr.errors.LockError: lock-duplicate or lock-collision.
    """
    merged = lock.put(entry)
    return parse_lock(format_lock(merged))


def merged_targets(entry: Entry, earlier: Entry | None) -> Entry:
    """Keep the targets that an earlier entry had."""
    if earlier is None:
        return entry
    return replace(entry, targets=tuple(sorted({*entry.targets, *earlier.targets})))


def _check_asked(resolved: Resolved, asked: Reference) -> None:
    artifact, version = resolved.artifact, resolved.version
    wanted = (asked.host.lower(), asked.repository.lower())
    if (artifact.host, artifact.repository.lower()) != wanted:
        raise _answer(artifact.ref, f"{format_reference(asked)} was asked for")
    if asked.path is not None and asked.path != artifact.path:
        raise _answer(artifact.ref, f"the file {asked.path} was asked for, not {artifact.path}")
    if asked.name is not None and asked.name.lower() != artifact.name.lower():
        raise _answer(artifact.ref, f"the name {asked.name} was asked for")
    match asked.selector:
        case DigestPrefix(digits=digits) if not version.sha256.startswith(digits):
            raise _answer(artifact.ref, f"its SHA-256 does not start with {digits}")
        case Label(label=label) if label not in {version.label, *version.same_bytes}:
            raise _answer(artifact.ref, f"{label} was asked for, not {version.label}")
        case _:
            return


def _answer(ref: str, said: str) -> IntegrityError:
    return IntegrityError(
        "registry-answer",
        f"the registry's answer for {ref} cannot be used: {said}",
        hint="the registry is wrong or hostile; nothing was written",
        data={"ref": ref},
    )
