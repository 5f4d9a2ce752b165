"""``mdr token``."""

from __future__ import annotations

import getpass
from contextlib import contextmanager
from dataclasses import asdict
from typing import TYPE_CHECKING

import click

from mdr.cli.options import json_option, place_options, print_document, say, store_options, talk
from mdr.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from mdr.registry.stores import Stores
    from mdr.registry.tokens import Token
    from mdr.settings import Settings


@click.group("token")
def command() -> None:
    """Make, list and end the tokens that may change this registry."""


@command.command("issue")
@click.argument("name")
@click.option("--scope", "scopes", multiple=True, required=True, metavar="SCOPE", help="sources:write, versions:yank, versions:tombstone, disputes:write, claims:write or admin; repeatable.")  # fmt: skip
@click.option("--expires", metavar="TIME", help="When it ends, such as 2027-01-31T00:00:00Z; never by default.")  # fmt: skip
@json_option
@place_options
@store_options
def issue_command(
    *, name: str, scopes: tuple[str, ...], expires: str | None, as_json: bool, settings: Settings
) -> int:
    """Make a token for NAME and print its secret, which is kept nowhere."""
    from mdr.registry.tokens import issue

    with opened(settings) as stores:
        token, secret = issue(stores, name=name, scopes=scopes, expires=expires, by=actor())
    if as_json:
        print_document("mdr.token-issue/1", {**asdict(token), "secret": secret})
    else:
        talk(f"{_line(token)}; its secret is shown this once")
        say(secret)
    return 0


@command.command("list")
@json_option
@place_options
@store_options
def list_command(*, as_json: bool, settings: Settings) -> int:
    """List every token; revoked and expired ones too."""
    from mdr.registry.tokens import tokens

    with opened(settings) as stores:
        found = tokens(stores)
    if as_json:
        print_document("mdr.token-list/1", {"tokens": [asdict(token) for token in found]})
        return 0
    for token in found:
        say(_line(token))
    if not found:
        talk("no tokens; mdr token issue NAME --scope SCOPE makes one")
    return 0


@command.command("revoke", short_help="End a token at once, by its id or name.")
@click.argument("named", metavar="ID|NAME")
@json_option
@place_options
@store_options
def revoke_command(*, named: str, as_json: bool, settings: Settings) -> int:
    """End a token at once, by its id, or by its name where only one has it."""
    from mdr.registry.tokens import revoke

    with opened(settings) as stores:
        token = revoke(stores, named, by=actor())
    if as_json:
        print_document("mdr.token-revoke/1", asdict(token))
    else:
        say(_line(token))
    return 0


def actor() -> str:
    """Return who acts at this command line, for the audit trail."""
    try:
        return f"{getpass.getuser()} (command line)"
    except (OSError, KeyError):
        return "somebody (command line)"


@contextmanager
def opened(settings: Settings) -> Iterator[Stores]:
    """Open the stores of this machine's registry.

    Raises:
        mdr.errors.UsageError: registry-read-only.
    """
    from mdr.registry.stores import open_stores

    if settings.registry is not None:
        raise UsageError(
            "registry-read-only",
            "this works on the local data folder, and --registry or MDR_REGISTRY names another place",
            hint="run it where the registry's data is, without a registry",
        )
    stores = open_stores(settings, create=True)
    assert stores is not None
    try:
        yield stores
    finally:
        stores.close()


def _line(token: Token) -> str:
    ends = f"revoked {token.revoked}" if token.revoked else f"expires {token.expires or 'never'}"
    used = f"last used {token.last_used}" if token.last_used else "never used"
    return f"{token.id}  {token.name}  {' '.join(token.scopes)}  created {token.created}, {ends}, {used}"
