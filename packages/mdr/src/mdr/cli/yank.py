"""``mdr yank``."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from mdr.cli.options import json_option, place_options, print_document, say, store_options
from mdr.errors import UsageError

if TYPE_CHECKING:
    from mdr.reference.types import Reference
    from mdr.registry.remote import Writer
    from mdr.settings import Settings
    from mdr.version.types import Version


@click.command("yank")
@click.argument("ref")
@click.option("--reason", metavar="TEXT", help="What people are told, on one line.")
@click.option("--undo", is_flag=True, help="Offer the version, or serve the bytes, again.")
@click.option("--tombstone", is_flag=True, help="Serve these bytes to nobody any more.")
@click.option("--advisory", metavar="ID", help="With --tombstone: identifier or address of an advisory.")  # fmt: skip
@json_option
@place_options
@store_options
def command(
    *,
    ref: str,
    reason: str | None,
    undo: bool,
    tombstone: bool,
    advisory: str | None,
    as_json: bool,
    settings: Settings,
) -> int:
    """Take the version REF@LABEL back: nobody is given it who does not name it.

    With --tombstone REF is sha256:HEX, all 64 digits, or a version whose file is meant. A registry across
    the network is changed with the token in MDR_TOKEN.
    """
    if undo == (reason is not None):
        raise UsageError(
            "usage",
            "a withdrawal needs --reason, and --undo takes none",
            hint='mdr yank REF@LABEL --reason "..." or mdr yank REF@LABEL --undo',
        )
    if advisory is not None and not tombstone:
        raise UsageError("usage", "--advisory goes with --tombstone", hint="add --tombstone")
    act = _bury if tombstone else _yank
    done = act(settings, ref, reason, advisory)
    state = ("lifted" if undo else "tombstone") if tombstone else ("offered" if undo else "yanked")
    if as_json:
        print_document("mdr.yank/1", {"ref": ref, "what": done, "state": state, "reason": reason})
    else:
        say(f"{state}  {done}")
    return 0


def _yank(settings: Settings, ref: str, reason: str | None, _advisory: str | None) -> str:
    reference = _with_version(ref)
    if settings.registry is not None:
        version = _writer(settings).yank(reference, reason=reason)
        return f"{ref.partition('@')[0]}@{version.label}"
    from mdr.cli.token import actor, opened
    from mdr.registry.local import LocalRegistry
    from mdr.registry.withdrawals import unyank, yank

    with opened(settings) as stores:
        resolved = LocalRegistry(_no_index(settings), stores).resolve(reference)
        artifact, label = resolved.artifact, resolved.version.label
        if reason is None:
            unyank(stores, artifact, label, by=actor())
        else:
            yank(stores, artifact, label, reason=reason, by=actor())
    return f"{artifact.ref}@{label}"


def _bury(settings: Settings, ref: str, reason: str | None, advisory: str | None) -> str:
    from mdr.digest import Sha256, is_sha256

    bare = ref.lower().removeprefix("sha256:")
    digest = Sha256(bare) if is_sha256(bare) else _version(settings, ref).sha256
    if settings.registry is not None:
        _writer(settings).tombstone(digest, reason=reason, advisory=advisory)
        return f"sha256:{digest}"
    from mdr.cli.token import actor, opened
    from mdr.registry.withdrawals import lift, tombstone

    with opened(settings) as stores:
        if reason is None:
            lift(stores, digest, by=actor())
        else:
            tombstone(stores, digest, reason=reason, advisory=advisory, by=actor())
    return f"sha256:{digest}"


def _version(settings: Settings, ref: str) -> Version:
    from mdr.registry import open_registry

    return open_registry(_no_index(settings)).resolve(_with_version(ref)).version


def _with_version(ref: str) -> Reference:
    """Read a reference that names one version: what ``latest`` means may change under our feet."""
    from mdr.reference.parse import parse
    from mdr.reference.types import Latest

    reference = parse(ref)
    if isinstance(reference.selector, Latest):
        raise UsageError(
            "usage",
            f"{ref} names no version",
            hint=f"name one, as {ref.partition('@')[0]}@git:YYYYMMDD.sha7; `mdr show` lists them",
        )
    return reference


def _writer(settings: Settings) -> Writer:
    from mdr.registry import open_registry
    from mdr.registry.remote import RemoteRegistry, Writer

    registry = open_registry(settings)
    if not isinstance(registry, RemoteRegistry):
        raise UsageError(
            "registry-read-only",
            "a registry in a folder is only read",
            hint="run it with --data on that folder, without a registry",
        )
    return Writer(registry)


def _no_index(settings: Settings) -> Settings:
    from dataclasses import replace

    return replace(settings, index_on_demand=False)
