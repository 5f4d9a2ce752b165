"""``mdr install``."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from mdr.cli.options import in_ci, json_option, place_options, print_document, say, talk

if TYPE_CHECKING:
    from mdr.install.installer import Report
    from mdr.settings import Settings

SCHEMA = "mdr.install/1"


@click.command("install")
@click.option(
    "--frozen/--no-frozen",
    default=None,
    help="Never fetch a repository to look something up; the default when CI is true.",
)
@click.option("--offline", is_flag=True, help="Use only what this machine has.")
@click.option("--force", is_flag=True, help="Replace bytes mdr did not write, keeping a backup.")
@json_option
@place_options
def command(
    *, frozen: bool | None, offline: bool, force: bool, as_json: bool, settings: Settings
) -> int:
    """Make every target hold what mdr.lock says: all of it, or nothing."""
    from mdr.install.run import install_from_lock
    from mdr.install.workspace import open_workspace

    is_frozen = in_ci() if frozen is None else frozen
    workspace = open_workspace(settings)
    report = install_from_lock(workspace, frozen=is_frozen, offline=offline, force=force)
    if as_json:
        from mdr.install.documents import install_document

        print_document(SCHEMA, install_document(report, frozen=is_frozen, offline=offline))
    else:
        _report(report)
    if not report.failed:
        return 0
    return 3 if all(failure.error.exit_code == 3 for failure in report.failed) else 1


def _report(report: Report) -> None:
    for failure in report.failed:
        hint = f"\n  hint: {failure.error.hint}" if failure.error.hint else ""
        talk(f"failed {failure.entry.ref}: {failure.error.message} [{failure.error.code}]{hint}")
    if report.failed:
        say(f"nothing was installed: {len(report.failed)} failed")
        return
    for shown in dict.fromkeys(placed.shown for placed in report.installed):
        say(f"installed {shown}")
    for backup in report.backups:
        say(f"kept what was there in {backup}")
    say(f"{len(report.installed)} installed, {len(report.unchanged)} unchanged")
