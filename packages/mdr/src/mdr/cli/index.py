"""``mdr index``."""

from __future__ import annotations

import sys
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import click

from mdr.cli.options import json_option, place_options, print_document, say, store_options, talk
from mdr.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from mdr.registry.harvest import Progress
    from mdr.registry.indexing import Indexed
    from mdr.settings import Settings

SCHEMA = "mdr.index/1"
SHOWN_SKIPS = 20


@click.command("index")
@click.argument("sources", nargs=-1, required=True, metavar="SOURCE...")
@click.option(
    "--as", "name_as", metavar="OWNER/REPO", help="Keep it under this name; one SOURCE only."
)
@click.option("--strict", is_flag=True, help="Exit 1 when anything was skipped.")
@click.option("--allow-private", is_flag=True, help="Let a URL lead to a private address.")
@json_option
@place_options
@store_options
def command(
    *,
    sources: tuple[str, ...],
    name_as: str | None,
    strict: bool,
    allow_private: bool,
    as_json: bool,
    settings: Settings,
) -> int:
    """Index repositories: find artifacts, freeze every version, audit each.

    SOURCE is github:owner/repo, a git URL, a repository or bundle on this machine. An unchanged
    repository costs one reference comparison.
    """
    from mdr.registry.indexing import index_source

    if name_as is not None and len(sources) > 1:
        raise UsageError("usage", "--as names one source", hint="index the sources one by one")
    if settings.registry is not None:
        raise UsageError(
            "registry-read-only",
            "index writes to the local data folder, and --registry or MDR_REGISTRY names another place",
            hint="use --data DIR, without a registry",
        )
    settings = replace(settings, allow_private=allow_private)
    done = []
    for source in sources:
        with show_progress(source) as progress:
            done.append(index_source(source, settings, name_as=name_as, progress=progress))
        if not as_json:
            _report(done[-1])
    if as_json:
        print_document(SCHEMA, {"sources": [_document(each) for each in done]})
    for note in (note for each in done for note in each.notes):
        talk(f"note: {note}")
    return 1 if strict and any(each.skipped for each in done) else 0


def _document(done: Indexed) -> dict[str, Any]:
    return {
        "source": done.source,
        "repository": done.repository,
        "head": done.head,
        "artifacts": done.artifacts,
        "versions": done.versions,
        "new_versions": done.new_versions,
        "skipped": [{"path": each.path, "reason": each.reason} for each in done.skipped],
        "seconds": done.seconds,
    }


def _report(done: Indexed) -> None:
    place = "" if done.host == "github.com" else f"{done.host}/"
    say(
        f"{place}{done.repository} at {done.head[:7]}: {done.artifacts:,} artifacts, "
        f"{done.versions:,} versions ({done.new_versions:,} new), {done.seconds:.1f} s"
    )
    for each in done.skipped[:SHOWN_SKIPS]:
        say(f"  skipped {each.path}: {each.reason}")
    if len(done.skipped) > SHOWN_SKIPS:
        say(f"  and {len(done.skipped) - SHOWN_SKIPS:,} more; --json lists all")


@contextmanager
def show_progress(source: str) -> Iterator[Progress]:
    """Draw a bar on a terminal; say nothing elsewhere."""
    if not sys.stderr.isatty():
        from mdr.registry.indexing import quiet

        yield quiet
        return
    from rich.console import Console
    from rich.markup import escape
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
    )
    # No refresh thread: processes are forked while the bar is alive.
    bar = Progress(*columns, console=Console(stderr=True), auto_refresh=False, transient=True)
    with bar:
        task = bar.add_task(escape(source), total=None)

        def report(stage: str, done: int, total: int) -> None:
            text = escape(f"{source}: {stage}")
            bar.update(task, description=text, completed=done, total=total or None)
            bar.refresh()

        yield report
