"""``mdr update``."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import click

from mdr.cli.options import (
    harmless,
    is_terminal,
    json_option,
    place_options,
    print_document,
    say,
    talk,
)

if TYPE_CHECKING:
    from mdr.install.update import Held, Move
    from mdr.settings import Settings

SCHEMA = "mdr.update/1"
MAX_DIFF_LINES = 400
"""Lines of a diff that are shown; ``mdr diff`` shows the rest."""


@click.command("update")
@click.argument("refs", nargs=-1, metavar="[REF...]")
@click.option(
    "--if-no-new-capability",
    is_flag=True,
    help="Hold what touches a new host, command, tool or credential path.",
)
@click.option(
    "--min-grade", type=click.Choice(list("ABCDF")), help="Lowest grade that passes (default D)."
)
@click.option("--yes", "-y", is_flag=True, help="Do not ask.")
@click.option(
    "--force", is_flag=True, help="Replace edited files, keeping a backup; never moves a sha256."
)
@click.option(
    "--no-index", "--offline", "no_index", is_flag=True, help="Ask no host: use what is indexed."
)
@json_option
@place_options
def command(
    *,
    refs: tuple[str, ...],
    if_no_new_capability: bool,
    min_grade: str | None,
    yes: bool,
    force: bool,
    no_index: bool,
    as_json: bool,
    settings: Settings,
) -> int:
    """Move labels to their newest version, showing lines and meaning of each change first."""
    from mdr.install.refresh import refresh
    from mdr.install.update import Gate, apply, plan
    from mdr.install.workspace import one_entry, open_workspace

    workspace = open_workspace(replace(settings, index_on_demand=not no_index))
    lock = workspace.lock()
    entries = tuple(one_entry(lock, ref) for ref in refs) or lock.entries
    ask = not yes and not as_json and is_terminal()

    def agree(move: Move) -> bool:
        if not as_json:
            show(move)
        return not ask or click.confirm(f"Update {move.after.ref}?", default=True, err=True)

    gate = Gate(
        policy=workspace.policy(),
        asked_grade=min_grade,
        no_new_capability=if_no_new_capability,
        agree=agree,
    )
    registry = workspace.registry()
    for line in refresh(registry, ((entry.host, entry.repository) for entry in entries)):
        talk(f"note: {line}")
    fetcher = workspace.fetcher_of(registry)
    moves, held = plan(registry, entries, gate, fetcher)
    backups = apply(workspace, moves, fetcher, force=force).backups if moves else ()
    _answer(moves, held, backups, as_json=as_json)
    return 1 if any(item.refused for item in held) else 0


def show(move: Move) -> None:
    """Show one change before it is made: what it means, then its lines."""
    comparison = move.comparison
    talk(f"{move.after.ref}: {comparison.before.label} -> {comparison.after.label}")
    for line in semantic_lines(comparison.semantic.to_document()):
        talk(f"  {line}")
    for change in comparison.files:
        talk(f"  {change.change} {harmless(change.path)}")
    if comparison.programs is not None:
        talk(f"  programs: {comparison.programs}")
    lines = comparison.unified.split("\n")[:-1]
    for line in lines[:MAX_DIFF_LINES]:
        talk(f"  {printable(line)}")
    if len(lines) > MAX_DIFF_LINES:
        talk(f"  ... {len(lines) - MAX_DIFF_LINES} more lines; `mdr diff` shows all")


def semantic_lines(semantic: dict[str, Any]) -> list[str]:
    """Write a semantic diff as lines for people; nothing for what did not change."""
    lines = []
    for key, name in (
        ("hosts", "hosts"),
        ("commands", "commands"),
        ("tools", "tools"),
        ("credential_paths", "credential paths"),
    ):
        for sign, word in (("added", "new"), ("removed", "gone")):
            if semantic[key][sign]:
                lines.append(harmless(f"{word} {name}: {', '.join(semantic[key][sign])}"))
    before, after = semantic["tokens"]
    lines.append(f"tokens about {before} -> {after}")
    before, after = semantic["grade"]
    lines.append(f"grade {before} -> {after}")
    return lines


def _answer(
    moves: tuple[Move, ...], held: tuple[Held, ...], backups: tuple[str, ...], *, as_json: bool
) -> None:
    from mdr.install.update import move_document

    if as_json:
        document = {
            "updated": [move_document(move) for move in moves],
            "held": [{"ref": item.ref, "why": item.why} for item in held],
        }
        print_document(SCHEMA, document)
        return
    for move in moves:
        say(f"updated {move.after.ref}: {move.before.label} -> {move.after.label}")
    for item in held:
        say(f"held {item.ref}: {item.why}")
    for backup in backups:
        say(f"kept what was there in {backup}")
    if not moves and not held:
        say("nothing to update")


def printable(line: str) -> str:
    """Keep terminal control sequences of a hostile file from acting."""
    return "\t".join(map(harmless, line.split("\t")))
