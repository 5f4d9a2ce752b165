"""``mdr diff``."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import click

from mdr.cli.options import harmless, json_option, place_options, print_document, say, talk
from mdr.errors import UsageError

if TYPE_CHECKING:
    from mdr.install.workspace import Workspace
    from mdr.reference.types import Reference
    from mdr.registry.compare import Comparison
    from mdr.registry.interface import Registry
    from mdr.settings import Settings

SCHEMA = "mdr.diff/1"


@click.command("diff")
@click.argument("ref")
@click.argument("before", metavar="[A]", required=False)
@click.argument("after", metavar="[B]", required=False)
@click.option("--exit-code", "exit_code", is_flag=True, help="Exit 1 when the versions differ.")
@click.option(
    "--no-index", "--offline", "no_index", is_flag=True, help="Ask no host: use what is indexed."
)
@json_option
@place_options
def command(
    *,
    ref: str,
    before: str | None,
    after: str | None,
    exit_code: bool,
    no_index: bool,
    as_json: bool,
    settings: Settings,
) -> int:
    """Compare version A of REF with B: lines, meaning, files. A and B are labels or sha256:HEX.

    Without B: with the latest. Without A: the version in mdr.lock. REF@A REF@B is taken too.
    """
    from mdr.install.workspace import open_workspace
    from mdr.registry.compare import compare_references
    from mdr.registry.viewed import fill_views

    workspace = open_workspace(replace(settings, index_on_demand=not no_index))
    registry = workspace.registry()
    one, two = _sides(ref, tuple(text for text in (before, after) if text is not None), workspace)
    _ask_for_the_latest(registry, two)
    comparison = compare_references(registry, one, two)
    if as_json:
        document = comparison.to_document()
        fill_views(registry, [document["artifact"]])
        print_document(SCHEMA, document)
    else:
        _report(comparison)
    return 1 if exit_code and comparison.differs else 0


def _sides(ref: str, rest: tuple[str, ...], workspace: Workspace) -> tuple[Reference, Reference]:
    """Find out which two versions are meant.

    Raises:
        mdr.errors.BadReference: bad-reference, digest-too-short.
        mdr.errors.UsageError: usage.
        mdr.errors.MdrError: not-in-lock and the codes of the lock, when no version is named.
    """
    from mdr.reference.parse import parse
    from mdr.reference.types import Latest

    first = parse(ref)
    versions = ([first] if "@" in ref else []) + [_side(first, text) for text in rest]
    if len(versions) > 2:
        raise UsageError(
            "usage",
            f"{ref} names a version, and two more follow",
            hint="usage: mdr diff REF A B, or mdr diff REF@A REF@B",
        )
    if not versions:
        versions = [_locked(workspace, ref)]
    if len(versions) == 1:
        versions.append(replace(versions[0], selector=Latest()))
    return versions[0], versions[1]


def _locked(workspace: Workspace, ref: str) -> Reference:
    """Return the locked version of REF."""
    from mdr.install.candidate import reference_to
    from mdr.install.workspace import one_entry
    from mdr.reference.types import Label

    try:
        entry = one_entry(workspace.lock_or_new(), ref)
    except UsageError as error:
        if error.code != "not-in-lock":
            raise
        raise UsageError(
            "not-in-lock",
            f"{ref} is not in mdr.lock, so the versions must be named",
            hint=f"usage: mdr diff REF A B; `mdr show {ref}` lists the versions",
            data={"ref": ref},
        ) from error
    return reference_to(entry, Label(label=entry.label))


def _side(reference: Reference, text: str) -> Reference:
    """Read a label, a hash, ``latest``, or a whole reference."""
    from mdr.reference.parse import parse, parse_selector

    selector = text.removeprefix("@")
    if "/" in selector and not selector.startswith(("git:", "sha256:")):
        return parse(text)
    return replace(reference, selector=parse_selector(selector))


def _ask_for_the_latest(registry: Registry, reference: Reference) -> None:
    from mdr.install.refresh import refresh
    from mdr.reference.types import Latest

    if isinstance(reference.selector, Latest):
        for line in refresh(registry, [(reference.host, reference.repository)]):
            talk(f"note: {line}")


def _report(comparison: Comparison) -> None:
    from mdr.cli.update import printable, semantic_lines

    say(
        f"{harmless(comparison.artifact.ref)}: {comparison.before.label} -> {comparison.after.label}"
    )
    say(f"lines +{comparison.added_lines} -{comparison.removed_lines}")
    for line in semantic_lines(comparison.semantic.to_document()):
        say(line)
    for change in comparison.files:
        say(f"{change.change} {harmless(change.path)}")
    if comparison.programs is not None:
        say(f"programs: {comparison.programs}")
    for line in comparison.unified.split("\n")[:-1]:
        say(printable(line))
