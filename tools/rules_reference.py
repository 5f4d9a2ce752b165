"""Write docs/reference/rules.md from the rule table: ``python tools/rules_reference.py``."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from recompute.config.choice import LABELS
from recompute.config.revision import NAMES
from recompute.report.rules_document import span
from recompute.rules.allowed import LABELS_OF
from recompute.rules.table import RULES, TOPICS
from recompute.rules.types import REFS, Example, Rule

PAGE: Final = Path(__file__).resolve().parent.parent / "docs" / "reference" / "rules.md"

HEAD: Final = """\
# The rules of recompute

Written by `python tools/rules_reference.py` from the table in `packages/recompute/src/recompute/rules/`; \
do not edit. `recompute rules` prints the same table, `recompute check JOB` applies it.

- error: Megatron refuses the job, or it does not do what it says; warning: it does less than it says, or \
costs for nothing; note: good to know.
- said: when Megatron itself speaks up (building its config, checking arguments, Bridge's checks, building \
layers, the first forward, backward, the start), or never.
- fails, passes: one example of each, as fields that differ from a small valid job; the tests run both.
- inferred: follows from the code path and was not run; report: rests on the public report that is named.
"""


def render() -> str:
    """Return the page."""
    parts = [HEAD, _revisions(), _labels()]
    parts += [f"## {topic}\n\n" + "\n".join(_rule(rule) for rule in rows) for topic, rows in TOPICS]
    return "\n".join(parts)


def _revisions() -> str:
    rows = "\n".join(f"| {name} | `{REFS[name]}` |" for name in NAMES)
    return (
        f"## Revisions\n\n{len(RULES)} rules over these revisions of NVIDIA/Megatron-LM. `pin` is the "
        "commit that Megatron Bridge 067f987d pins.\n\n| name | read at |\n|---|---|\n"
        + rows
        + "\n"
    )


def _labels() -> str:
    head = "| label | accepted by |\n|---|---|\n"
    rows = "\n".join(
        f"| `{label}` | {', '.join(name for name in NAMES if label in LABELS_OF[name])} |"
        for label in LABELS
    )
    note = "\n\nBefore 0.12 there is no label field: selective means core attention.\n"
    return "## Labels\n\n" + head + rows + note


def _rule(rule: Rule) -> str:
    source = rule.source.at(next(n for n in reversed(NAMES) if n in rule.revisions))
    where = f"{source.repository} {source.revision}, {source.path}, {source.where}"
    entries = "" if len(rule.entries) == 3 else f"; {', '.join(sorted(rule.entries))} only"
    lines = [
        f"### {rule.id}",
        "",
        f"{rule.title[0].upper()}{rule.title[1:]}.",
        "",
        f"- {rule.severity}; said: {rule.raised}; revisions: {span(rule)}{entries}",
        f"- fails: {_example(rule.bad)}",
        f"- passes: {_example(rule.good)}",
    ]
    if rule.fix is not None:
        lines.append("- fix: printed as overrides")
    if rule.advice:
        lines.append(f"- do: {rule.advice}")
    basis = "" if rule.basis == "code" else f" ({rule.basis})"
    lines.append(f"- source: {where}{basis}")
    return "\n".join(lines) + "\n"


def _example(example: Example) -> str:
    fields = ", ".join(f"`{name}={_value(value)}`" for name, value in example.fields.items())
    return f"{example.revision}, {example.entry}: {fields or 'the base job'}"


def _value(value: object) -> str:
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, tuple):
        return "[" + ", ".join(_value(item) for item in value) + "]"
    return str(value)


def main() -> None:
    """Write the page."""
    PAGE.write_text(render(), encoding="utf-8")


if __name__ == "__main__":
    main()
