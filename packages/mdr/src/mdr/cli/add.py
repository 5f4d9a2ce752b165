"""``mdr add``."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import click

from mdr.cli.options import (
    counted,
    is_terminal,
    json_option,
    place_options,
    print_document,
    say,
    talk,
)

if TYPE_CHECKING:
    from mdr.install.add import Added, Candidate
    from mdr.install.workspace import Workspace
    from mdr.settings import Settings

SCHEMA = "mdr.add/1"
SHOWN_FINDINGS = 5
"""Findings of the folder that are shown."""


@click.command("add")
@click.argument("ref")
@click.option(
    "--to", "agents", multiple=True, metavar="AGENT", help="Agent to install for; repeatable."
)
@click.option("--user", is_flag=True, help="Install in the home folder instead of the project.")
@click.option("--yes", "-y", is_flag=True, help="Do not ask.")
@click.option(
    "--min-grade", type=click.Choice(list("ABCDF")), help="Lowest grade that passes (default D)."
)
@click.option("--force", is_flag=True, help="Replace bytes mdr did not write, keeping a backup.")
@click.option(
    "--no-index", "--offline", "no_index", is_flag=True, help="Ask no host: use what is indexed."
)
@json_option
@place_options
def command(
    *,
    ref: str,
    agents: tuple[str, ...],
    user: bool,
    yes: bool,
    min_grade: str | None,
    force: bool,
    no_index: bool,
    as_json: bool,
    settings: Settings,
) -> int:
    """Install REF for your agents and write it to mdr.lock.

    REF is owner/repo/name, with @git:YYYYMMDD.sha7 to follow releases or @sha256:HEX to freeze bytes.
    """
    from mdr.install.add import apply, check_policy, choose_targets, prepare
    from mdr.install.workspace import open_workspace
    from mdr.reference.parse import parse

    reference = parse(ref)
    workspace = open_workspace(replace(settings, index_on_demand=not no_index))
    names = tuple(name for text in agents for name in text.split(",") if name)
    targets, alone = choose_targets(workspace, names, user=user)
    workspace.policy()
    workspace.lock_or_new()
    candidate = prepare(workspace, reference, targets, guessed=not names)
    _describe(candidate, as_json=as_json)
    check_policy(workspace, candidate, asked=min_grade)
    if alone:
        talk("no agent found here: using the shared folder .agents/skills (--to names another)")
    if not yes and not as_json and is_terminal():
        where = ", ".join(str(target) for target in candidate.entry.targets)
        click.confirm(f"Install for {where}?", default=True, abort=True, err=True)
    added = apply(workspace, candidate, force=force)
    if as_json:
        print_document(SCHEMA, _document(workspace, candidate, added))
    else:
        _report(workspace, added)
    return 0


def _describe(candidate: Candidate, *, as_json: bool) -> None:
    """Show what would be installed, before anything is written."""
    from mdr.install.judge import hosts

    if as_json:
        for note in (*candidate.warnings, *candidate.resolved.notes):
            talk(f"note: {note}")
        return
    entry, (license_id, claimed) = candidate.entry, candidate.license
    talk(f"{entry.ref}@{entry.label}  ({entry.kind})")
    talk(f"  sha256   {entry.sha256}")
    talk(f"  grade    {entry.grade} by {entry.ruleset}; {_findings(candidate)}")
    talk(
        f"  size     {entry.size:,} B; {counted(len(entry.files), 'file')}, {candidate.bytes_in_all:,} B in all"
    )
    talk(f"  license  {license_id or 'not known'}{' by its frontmatter' * claimed}")
    talk(f"  hosts    {', '.join(hosts(candidate.fetcher.read(entry.sha256))) or 'none mentioned'}")
    for finding in candidate.verdict.findings:
        talk(
            f"  {finding.status}: {finding.check}, line {finding.line}: {finding.why}: {finding.shown}"
        )
    _describe_folder(candidate)
    for note in (*candidate.warnings, *candidate.resolved.notes):
        talk(f"  note: {note}")


def _describe_folder(candidate: Candidate) -> None:
    """Show the audit of the folder and the specification, apart from the grade of the one file."""
    from mdr.registry.capability import programs

    document = candidate.audit_document()
    bundle, spec = document["bundle"], document["spec"]
    runs = programs(candidate.entry.files)
    if runs is not None:
        talk(f"  programs {runs}")
    if bundle is not None:
        found = bundle["findings"]
        talk(
            f"  folder   {bundle['status']}; {counted(len(found), 'finding')}; not part of the grade"
        )
        for finding in found[:SHOWN_FINDINGS]:
            talk(f"  folder {finding['status']}: {finding['path']}: {finding['why']}")
        if len(found) > SHOWN_FINDINGS:
            talk(f"  folder: {len(found) - SHOWN_FINDINGS} more; `mdr audit` lists all")
    if spec:
        talk(f"  spec     {counted(len(spec), 'departure')} from the SKILL.md specification")


def _findings(candidate: Candidate) -> str:
    if candidate.verdict.error is not None:
        return f"not readable: {candidate.verdict.error.message}"
    count = len(candidate.verdict.findings)
    return counted(count, "finding") if count else "no findings"


def _document(workspace: Workspace, candidate: Candidate, added: Added) -> dict[str, Any]:
    from mdr.install.documents import entry_document, state_of

    state = state_of(added.entry, workspace.roots, candidate.fetcher.get)
    replaced = added.replaced
    return {
        "entry": entry_document(added.entry, state),
        "replaced": None if replaced is None else entry_document(replaced, "not_installed"),
        "audit": candidate.audit_document(),
        "written": list(added.written),
    }


def _report(workspace: Workspace, added: Added) -> None:
    from mdr.install.attributes import advice
    from mdr.install.lock import LOCK_NAME, Scope

    places = {p.shown: p for p in (*added.report.installed, *added.report.unchanged)}
    for shown in places:
        say(f"installed {added.entry.ref}@{added.entry.label} in {shown}")
    for backup in added.report.backups:
        say(f"kept what was there in {backup}")
    say(f"locked    sha256:{added.entry.sha256} in {LOCK_NAME}")
    talk(
        f"next: commit {LOCK_NAME}; others run `mdr install`, CI runs `mdr install --frozen` and `mdr verify`"
    )
    project = [shown for shown, placed in places.items() if placed.target.scope is Scope.PROJECT]
    lines = advice(workspace.roots.project, project)
    if lines:
        talk("advice: git may change line ends here; add to .gitattributes:")
        for line in lines:
            talk(f"  {line}")
