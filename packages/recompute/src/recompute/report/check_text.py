"""``check`` for people: what to paste, and why, most urgent first."""

from __future__ import annotations

import textwrap
from typing import Final

from recompute.report.check_document import Checked, Group, all_overrides, grouped
from recompute.report.text import notices, pasted
from recompute.rules.types import Finding

WIDTH: Final = 100
MARKS: Final = {"error": "error", "warning": "warn ", "note": "note "}
WHEN: Final = {
    "config": "Megatron refuses it when it builds the config",
    "cli": "Megatron-LM refuses the arguments",
    "bridge": "Megatron Bridge refuses it",
    "build": "fails when layers are built",
    "forward": "fails in the first forward",
    "backward": "fails in backward",
    "launch": "said at the start",
    "never": "Megatron says nothing",
}
"""When the framework itself speaks up."""


def check_text(answer: Checked, *, notes: bool = True) -> str:
    """Return the report for one job.

    Args:
        answer: What was found.
        notes: Also show notes; they need no change.
    """
    lines = [_headline(answer), *notices(answer.job.assumptions)]
    shown = [f for f in answer.findings if notes or f.severity != "note"]
    for group in grouped(shown):
        lines += ["", *_group(group, answer)]
    overrides = pasted(all_overrides(answer.findings), answer.job)
    if len(overrides) > 1:
        lines += ["", "all changes together:", *(f"    {line}" for line in overrides)]
    if answer.job.assumptions:
        lines += ["", *(f"assumed: {item.text}" for item in answer.job.assumptions)]
    return "\n".join(lines)


def _headline(answer: Checked) -> str:
    counts = [
        f"{len(found)} {name}{'s' * (len(found) != 1)}"
        for name in ("error", "warning", "note")
        if (found := [f for f in answer.findings if f.severity == name])
    ]
    target = f"Megatron Core {answer.mcore}"
    if answer.source is not None:
        target = f"{answer.source} (version {answer.version}, rules of {answer.mcore})"
    verdict = ", ".join(counts) if counts else "nothing to say"
    return f"{answer.job.identity.path} on {target}: {verdict}"


def _group(group: Group, answer: Checked) -> list[str]:
    lines = [line for finding in group.findings for line in _finding(finding)]
    if group.overrides:
        lines += [
            "    change:",
            *(f"        {line}" for line in pasted(group.overrides, answer.job)),
        ]
    return lines


def _finding(finding: Finding) -> list[str]:
    source = finding.source
    lines = _wrap(f"{MARKS[finding.severity]} {finding.rule}: ", finding.message)
    if finding.advice:
        lines += _wrap("      do: ", finding.advice)
    where = f"{source.repository} {source.revision} {source.path} {source.where}"
    warned = finding.severity != "error" and finding.raised == "config"
    said = "Megatron only warns" if warned else WHEN[finding.raised]
    lines.append(f"      {said}; {where}")
    if not finding.confirmed:
        lines.append("      unconfirmed: your source differs from the one this rule was read in")
    return lines


def _wrap(first: str, text: str) -> list[str]:
    return textwrap.wrap(
        text,
        width=WIDTH,
        initial_indent=first,
        subsequent_indent="      ",
        break_long_words=False,
        break_on_hyphens=False,
    )
