"""Which file names are agent-read markdown: one row per convention, first match wins.

Conventions are those of the agents' own documentation, as microsoft/apm's target table collects them.
Each row has one path that it takes and one that it must not take; a test demands both.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from mdr.artifact.types import Kind


@dataclass(frozen=True, slots=True, kw_only=True)
class KindRow:
    """One convention."""

    kind: Kind
    pattern: re.Pattern[str]
    """Matched against the whole path; case counts, as it does in git."""
    suffixes: tuple[str, ...]
    """What is taken off the file's name to get the artifact's name; the first that fits."""
    of: str
    """Whose convention it is."""
    takes: str
    """A path that the row takes."""
    leaves: str
    """A path that no row takes as this kind."""


def _row(  # noqa: PLR0917 - the table reads as columns
    kind: Kind, pattern: str, suffixes: tuple[str, ...], of: str, takes: str, leaves: str
) -> KindRow:
    return KindRow(
        kind=kind,
        pattern=re.compile(rf"(?:.*/)?{pattern}", re.DOTALL),
        suffixes=suffixes,
        of=of,
        takes=takes,
        leaves=leaves,
    )


_MD: Final = (".md",)
_ANY: Final = (".md", ".mdc", ".toml")

KINDS: Final = (
    _row(
        Kind.SKILL,
        r"SKILL\.md",
        _MD,
        "SKILL.md specification",
        "skills/pdf/SKILL.md",
        "skills/pdf/SKILL.md.bak",
    ),
    _row(
        Kind.SKILL,
        r"skill\.md",
        _MD,
        "SKILL.md specification, fallback",
        "skills/pdf/skill.md",
        "skills/pdf/Skill.md",
    ),
    _row(Kind.INSTRUCTIONS, r"AGENTS\.md", _MD, "agents.md, Codex", "AGENTS.md", "AGENTS.txt"),
    _row(
        Kind.INSTRUCTIONS,
        r"CLAUDE\.md",
        _MD,
        "Claude Code",
        "docs/CLAUDE.md",
        "docs/claude.markdown",
    ),
    _row(Kind.INSTRUCTIONS, r"GEMINI\.md", _MD, "Gemini CLI", "GEMINI.md", "GEMINI.json"),
    _row(
        Kind.INSTRUCTIONS,
        r"\.github/copilot-instructions\.md",
        _MD,
        "GitHub Copilot",
        ".github/copilot-instructions.md",
        "copilot-instructions.md",
    ),
    _row(
        Kind.INSTRUCTIONS,
        r"[^/]+\.instructions\.md",
        (".instructions.md",),
        "GitHub Copilot",
        "instructions/go.instructions.md",
        "instructions/go.md",
    ),
    _row(
        Kind.PROMPT,
        r"[^/]+\.prompt\.md",
        (".prompt.md",),
        "GitHub Copilot",
        "prompts/review.prompt.md",
        "prompts/review.md",
    ),
    _row(
        Kind.AGENT,
        r"[^/]+\.agent\.md",
        (".agent.md",),
        "GitHub Copilot",
        "agents/tester.agent.md",
        "src/tester.agent.ts",
    ),
    _row(
        Kind.AGENT,
        r"[^/]+\.chatmode\.md",
        (".chatmode.md",),
        "GitHub Copilot, former name of agents",
        "chatmodes/plan.chatmode.md",
        "chatmodes/plan.md",
    ),
    _row(
        Kind.RULE,
        r"\.cursor/rules/(?:[^/]+/)*[^/]+\.mdc",
        _ANY,
        "Cursor",
        ".cursor/rules/style.mdc",
        "rules/style.mdc",
    ),
    _row(
        Kind.RULE,
        r"\.claude/rules/(?:[^/]+/)*[^/]+\.md",
        _MD,
        "Claude Code",
        ".claude/rules/go.md",
        ".claude/go.md",
    ),
    _row(
        Kind.RULE,
        r"\.windsurf/rules/[^/]+\.md",
        _MD,
        "Windsurf",
        ".windsurf/rules/go.md",
        ".windsurf/go.md",
    ),
    _row(
        Kind.RULE,
        r"\.kiro/steering/[^/]+\.md",
        _MD,
        "Kiro",
        ".kiro/steering/tech.md",
        ".kiro/tech.md",
    ),
    _row(
        Kind.RULE,
        r"\.agents/rules/[^/]+\.md",
        _MD,
        "Antigravity",
        ".agents/rules/go.md",
        ".agents/go.md",
    ),
    _row(Kind.RULE, r"\.grok/rules/[^/]+\.md", _MD, "Grok", ".grok/rules/go.md", ".grok/go.md"),
    _row(
        Kind.RULE, r"\.clinerules/[^/]+\.md", _MD, "Cline", ".clinerules/go.md", "clinerules/go.md"
    ),
    _row(
        Kind.RULE,
        r"\.(?:clinerules|cursorrules|windsurfrules)",
        (),
        "Cline, Cursor, Windsurf",
        ".cursorrules",
        "cursorrules",
    ),
    _row(
        Kind.AGENT,
        r"\.claude/agents/(?:[^/]+/)*[^/]+\.md",
        _MD,
        "Claude Code",
        ".claude/agents/reviewer.md",
        ".claude/agents/reviewer.py",
    ),
    _row(
        Kind.AGENT,
        r"\.cursor/agents/[^/]+\.md",
        _MD,
        "Cursor",
        ".cursor/agents/reviewer.md",
        ".cursor/reviewer.md",
    ),
    _row(
        Kind.AGENT,
        r"\.kiro/agents/[^/]+\.md",
        _MD,
        "Kiro",
        ".kiro/agents/reviewer.md",
        ".kiro/agents/reviewer.json",
    ),
    _row(
        Kind.AGENT,
        r"\.grok/agents/[^/]+\.md",
        _MD,
        "Grok",
        ".grok/agents/reviewer.md",
        ".grok/reviewer.md",
    ),
    _row(
        Kind.AGENT,
        r"\.codex/agents/[^/]+\.toml",
        _ANY,
        "Codex",
        ".codex/agents/reviewer.toml",
        ".codex/config.toml",
    ),
    _row(
        Kind.COMMAND,
        r"\.claude/commands/(?:[^/]+/)*[^/]+\.md",
        _MD,
        "Claude Code",
        ".claude/commands/ship.md",
        ".claude/ship.md",
    ),
    _row(
        Kind.COMMAND,
        r"\.cursor/commands/[^/]+\.md",
        _MD,
        "Cursor",
        ".cursor/commands/ship.md",
        ".cursor/ship.md",
    ),
    _row(
        Kind.COMMAND,
        r"\.grok/commands/[^/]+\.md",
        _MD,
        "Grok",
        ".grok/commands/ship.md",
        ".grok/ship.md",
    ),
    _row(
        Kind.COMMAND,
        r"\.windsurf/workflows/[^/]+\.md",
        _MD,
        "Windsurf",
        ".windsurf/workflows/ship.md",
        "workflows/ship.md",
    ),
    _row(
        Kind.AGENT,
        r"agents/(?!README\.md)[^/]+\.md",
        _MD,
        "Claude Code plugins",
        "plugins/ci/agents/logs-reader.md",
        "agents/README.md",
    ),
    _row(
        Kind.COMMAND,
        r"commands/(?!README\.md)[^/]+\.md",
        _MD,
        "Claude Code plugins",
        "plugins/ci/commands/setup.md",
        "commands/setup.sh",
    ),
    _row(
        Kind.COMMAND,
        r"\.gemini/commands/(?:[^/]+/)*[^/]+\.toml",
        _ANY,
        "Gemini CLI",
        ".gemini/commands/ship.toml",
        ".gemini/settings.toml",
    ),
)
"""The table. ``docs/how-to/add-an-artifact-kind.md`` says how to add a row."""

_QUICK: Final = re.compile(r"(?:\.md|\.mdc|\.toml|rules)\Z")


def row_of(path: str) -> KindRow | None:
    """Return the row that takes ``path``, or ``None``."""
    if _QUICK.search(path) is None:
        return None
    for row in KINDS:
        if row.pattern.fullmatch(path):
            return row
    return None


def near_miss(path: str) -> str | None:
    """Say why a path that looks like a SKILL.md is none: only two spellings are specified."""
    file = path.rpartition("/")[2]
    if file.casefold() == "skill.md" and file not in {"SKILL.md", "skill.md"}:
        return f"named {file}: the specification asks for SKILL.md (or skill.md)"
    return None


def name_of(path: str, row: KindRow, repository: str) -> str:
    """Return the display name of the artifact at ``path``.

    Args:
        path: Path in the repository.
        row: The row that takes it.
        repository: ``owner/repo``; a SKILL.md at the root is named after the repository.

    Returns:
        For a skill the name of its folder, for other kinds the stem of the file.
    """
    folder, _, file = path.rpartition("/")
    if row.kind is Kind.SKILL:
        return folder.rpartition("/")[2] or repository.rpartition("/")[2]
    for suffix in row.suffixes:
        if file.endswith(suffix) and len(file) > len(suffix):
            return file.removesuffix(suffix)
    return file
