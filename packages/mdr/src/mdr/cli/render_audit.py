"""The audit as text for people: the 17 lines, the findings under them, and what a grade is not."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from mdr.audit.shown import harmless

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from mdr.audit.types import AuditResult, BundleResult, CheckResult, SpecFinding

PROMISE: Final = (
    "A grade covers {count} text checks on this one file. It does not say that the file is safe, that its\n"
    "advice is right, or anything about programs it starts.\n"
)
MAX_LISTED: Final = 40
"""Lines of a section; the JSON document holds all."""


def render(
    name: str, result: AuditResult, spec: Sequence[SpecFinding], bundle: BundleResult | None
) -> str:
    """Return the report.

    Args:
        name: What was audited.
        result: The verdict on the file.
        spec: Departures from the SKILL.md specification.
        bundle: The audit of the folder, where there is one.
    """
    lines = [
        f"{plain(name)}  grade {result.grade}  ({result.kind}, {result.size} bytes, ruleset {result.ruleset})",
        f"sha256 {result.sha256}",
        "",
    ]
    if result.error is not None:
        lines += [f"cannot be audited: {result.error.message} [{result.error.code}]", ""]
    for check in result.checks:
        lines += _check(check)
    if spec:
        lines += ["", "SKILL.md specification (not part of the grade)"]
        lines += _listed(_spec(spec))
    if bundle is not None:
        lines += ["", *_bundle(bundle)]
    return "\n".join(lines) + "\n\n" + PROMISE.format(count=len(result.checks))


def plain(text: str) -> str:
    """Return a name that is safe on a terminal."""
    return harmless(text.encode("utf-8", "surrogateescape"))


def _check(check: CheckResult) -> Iterator[str]:
    yield check.line
    for finding in check.findings:
        shown = f"  {finding.shown}" if finding.shown else ""
        yield f"      {finding.line}:{finding.column} {finding.status}: {finding.why}{shown}"


def _spec(findings: Iterable[SpecFinding]) -> Iterator[str]:
    for finding in findings:
        kind = "advice" if finding.advice else "departs"
        field = f"{plain(finding.field)}: " if finding.field else ""
        yield f"  {kind}: {field}{plain(finding.message)} [{finding.code}]"


def _bundle(bundle: BundleResult) -> Iterator[str]:
    yield (
        f"folder: {bundle.status} (not part of the grade; {bundle.files} files, {bundle.bytes} bytes, "
        f"{bundle.read} read as text, {len(bundle.unread)} unread)"
    )
    if bundle.scripts:
        shown = ", ".join(plain(path) for path in bundle.scripts[:8])
        more = f" and {len(bundle.scripts) - 8} more" if len(bundle.scripts) > 8 else ""
        yield f"  may be run: {shown}{more}"
    yield from _listed(
        f"  {item.status}: {plain(item.path)}{f':{item.line}' if item.line else ''}: {plain(item.why)} [{item.rule}]"
        for item in bundle.findings
    )


def _listed(lines: Iterable[str]) -> Iterator[str]:
    every = list(lines)
    yield from every[:MAX_LISTED]
    if len(every) > MAX_LISTED:
        yield f"  and {len(every) - MAX_LISTED} more; --json lists all"
