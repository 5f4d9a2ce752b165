"""``mdr show``."""

from __future__ import annotations

import sys
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import click

from mdr.cli.options import harmless, json_option, place_options, print_document, say, talk

if TYPE_CHECKING:
    from collections.abc import Mapping

    from mdr.registry.interface import Registry, Resolved
    from mdr.settings import Settings

SCHEMA = "mdr.show/1"


@click.command("show")
@click.argument("ref")
@click.option(
    "--content", "raw", is_flag=True, help="Write the file's bytes, exactly, and nothing else."
)
@click.option(
    "--no-index", "--offline", "no_index", is_flag=True, help="Ask no host: use what is indexed."
)
@json_option
@place_options
def command(*, ref: str, raw: bool, no_index: bool, as_json: bool, settings: Settings) -> int:
    """Show an artifact and its versions, or with @LABEL or @sha256:HEX one version and its files."""
    from mdr.reference.parse import parse
    from mdr.registry import open_registry
    from mdr.registry.showing import content, show_artifact, show_version
    from mdr.registry.viewed import fill_views

    reference = parse(ref)
    registry = open_registry(replace(settings, index_on_demand=not no_index))
    if raw:
        data = content(registry, registry.resolve(reference).version)
        sys.stdout.buffer.write(data)
        sys.stdout.buffer.flush()
        return 0
    named = "@" in ref
    document = (show_version if named else show_artifact)(registry, reference)
    resolved = registry.resolve(reference)
    for note in resolved.notes:
        talk(f"note: {harmless(note)}")
    if as_json:
        fill_views(registry, [document["artifact"]])
        print_document(SCHEMA, document)
    else:
        _report(document, _license(registry, resolved))
    return 0


def _license(registry: Registry, resolved: Resolved) -> str:
    """Return what the host says, else what the frontmatter says, named as such."""
    from mdr.artifact.license import declared_license
    from mdr.registry.showing import content

    if resolved.source.license is not None:
        return resolved.source.license
    declared = declared_license(content(registry, resolved.version))
    return f"{declared} by its frontmatter" if declared else "not known"


def _report(document: Mapping[str, Any], license_: str) -> None:
    artifact, audit, versions = document["artifact"], document["audit"], document["versions"]
    say(f"{harmless(artifact['ref'])}  {artifact['kind']}  {audit['grade']}")
    if artifact["description"]:
        say(harmless(artifact["description"]))
    say(f"\npath     {harmless(artifact['path'])}")
    for earlier in artifact["previously"]:
        say(f"before   {harmless(earlier)}")
    say(f"source   {_source_line(artifact, license_)}")
    say("\nversions")
    for each in versions:
        latest = " latest" if each["latest"] else ""
        folder = f"  +{len(each['folder_revisions'])} folder" if each["folder_revisions"] else ""
        say(
            f"  {each['label']}{latest:7}  {each['committed'][:10]}  {each['commit'][:7]}  "
            f"{each['size']:>9,} B  {each['grade'] or '-'}  {each['sha256'][:16]}{folder}"
            f"{_yanked(each)}"
        )
    if "files" in document:
        say(f"\nfiles of {document['version']['label']}")
        for file in document["files"]:
            say(
                f"  {file['sha256'][:16]}  {file['mode']}  {file['size']:>9,} B  {harmless(file['path'])}"
            )
    say("\naudit")
    for check in audit["checks"]:
        detail = f" ({harmless(check['detail'])})" if check["detail"] else ""
        say(f"  {check['status']}: {check['title']}{detail}")
    say("a grade is about the text of this one file; it does not say that the file is safe")
    if shown := _meant(document):
        say(f"\ninstall  mdr add {harmless(artifact['ref'])}@{shown['label']}")
        say(f"         mdr add {harmless(artifact['ref'])}@sha256:{shown['sha256'][:16]}")


def _meant(document: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """Return the version that was asked for, else the one that is offered, else the newest."""
    if "version" in document:
        named: Mapping[str, Any] = document["version"]
        return named
    versions = document["versions"]
    return next((each for each in versions if each["latest"]), versions[0] if versions else None)


def _yanked(version: Mapping[str, Any]) -> str:
    yanked = version["yanked"]
    return "" if yanked is None else f"  yanked: {harmless(yanked['reason'])}"


def _source_line(artifact: Mapping[str, Any], license_: str) -> str:
    source = artifact["source"]
    stars = "stars not known" if source["stars"] is None else f"{source['stars']:,} stars"
    words = [
        harmless(artifact["repository"]),
        stars,
        f"license {harmless(license_)}",
        f"pushed {(source['pushed'] or 'not known')[:10]}",
        f"branch {harmless(source['branch'] or 'not known')}",
    ]
    return " · ".join(words)
