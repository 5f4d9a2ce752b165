"""Where each agent looks for skills, rules, prompts, agents, commands and instructions.

One row an agent. A row says only where files go: mdr copies bytes and never converts a format, so an
artifact whose file name does not fit the agent's own form is refused by name (``format-mismatch``).

Sources: README of vercel-labs/skills 1.3.9 (skills folders) and the target matrix of microsoft/apm
(other kinds). OpenClaw's user folder follows apm (``~/.openclaw``), its present name.
Adding a row: docs/how-to/add-an-agent.md.
"""

from __future__ import annotations

from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Final

from mdr.artifact.types import Kind

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path


@dataclass(frozen=True, slots=True)
class Place:
    """Where files of one kind and form go for one agent."""

    kind: Kind
    form: str
    """Shell pattern that the file's own name must match; ``*`` for skills, whose folder is copied."""
    project: str | None
    """Folder below the project, ``""`` for the project itself, ``None`` when there is none."""
    user: str | None
    """Folder below the home folder."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Agent:
    """One row."""

    name: str
    """What ``--to`` and the lock call it."""
    title: str
    places: tuple[Place, ...]
    project_marks: tuple[str, ...]
    """Paths below the project whose presence says that the agent is used there."""
    user_marks: tuple[str, ...]
    """Paths below the home folder whose presence says that the agent is installed."""

    def place(self, kind: Kind, file_name: str) -> Place | None:
        """Return the first place for this kind whose form fits the file's name."""
        fitting = (p for p in self.places if p.kind is kind and fnmatchcase(file_name, p.form))
        return next(fitting, None)

    def forms(self, kind: Kind) -> tuple[str, ...]:
        """Return the file names that this agent takes for ``kind``; none when it has no such kind."""
        return tuple(place.form for place in self.places if place.kind is kind)


def _row(
    name: str,
    title: str,
    project: str,
    user: str,
    *more: Place,
    marks: tuple[str, ...] = (),
    user_marks: tuple[str, ...] = (),
) -> Agent:
    """Build a row; an agent's own dot folders are its marks unless others are named."""
    own = project.partition("/")[0]
    default = (own,) if own.startswith(".") and own not in {".agents", ".agent"} else ()
    home = user.rpartition("/")[0]
    return Agent(
        name=name,
        title=title,
        places=(Place(Kind.SKILL, "*", project, user), *more),
        project_marks=marks or default,
        user_marks=user_marks or ((home,) if home not in {".config/agents", ".agents"} else ()),
    )


def _own(name: str, title: str, *more: Place) -> Agent:
    """Build the row of an agent with ``.NAME/skills`` below both roots."""
    return _row(name, title, f".{name}/skills", f".{name}/skills", *more)


_SHARED: Final = ".agents/skills"
_AGENTS_MD: Final = Place(Kind.INSTRUCTIONS, "AGENTS.md", "", None)

AGENTS: Final = (
    _row("agents", "Shared folder", _SHARED, ".agents/skills", _AGENTS_MD, marks=(".agents",)),
    _row(
        "claude",
        "Claude Code",
        ".claude/skills",
        ".claude/skills",
        Place(Kind.INSTRUCTIONS, "CLAUDE.md", "", ".claude"),
        Place(Kind.RULE, "*.md", ".claude/rules", ".claude/rules"),
        Place(Kind.AGENT, "*.md", ".claude/agents", ".claude/agents"),
        Place(Kind.COMMAND, "*.md", ".claude/commands", ".claude/commands"),
        marks=(".claude", "CLAUDE.md"),
    ),
    _row(
        "codex",
        "Codex",
        _SHARED,
        ".codex/skills",
        Place(Kind.INSTRUCTIONS, "AGENTS.md", "", ".codex"),
        marks=(".codex",),
    ),
    _row(
        "cursor",
        "Cursor",
        ".cursor/skills",
        ".cursor/skills",
        _AGENTS_MD,
        Place(Kind.RULE, "*.mdc", ".cursor/rules", None),
        Place(Kind.AGENT, "*.md", ".cursor/agents", ".cursor/agents"),
        Place(Kind.COMMAND, "*.md", ".cursor/commands", ".cursor/commands"),
    ),
    _row(
        "copilot",
        "GitHub Copilot",
        _SHARED,
        ".copilot/skills",
        Place(Kind.INSTRUCTIONS, "copilot-instructions.md", ".github", None),
        Place(Kind.INSTRUCTIONS, "*.instructions.md", ".github/instructions", None),
        _AGENTS_MD,
        Place(Kind.PROMPT, "*.prompt.md", ".github/prompts", None),
        Place(Kind.AGENT, "*.agent.md", ".github/agents", None),
        marks=(".github/copilot-instructions.md", ".github/instructions", ".github/prompts"),
    ),
    _row(
        "gemini",
        "Gemini CLI",
        _SHARED,
        ".gemini/skills",
        Place(Kind.INSTRUCTIONS, "GEMINI.md", "", ".gemini"),
        marks=(".gemini", "GEMINI.md"),
        user_marks=(".gemini/settings.json", ".gemini/skills", ".gemini/GEMINI.md"),
    ),
    _row(
        "opencode",
        "OpenCode",
        _SHARED,
        ".config/opencode/skills",
        Place(Kind.INSTRUCTIONS, "AGENTS.md", "", ".config/opencode"),
        marks=(".opencode", "opencode.json"),
    ),
    _row(
        "amp",
        "Amp",
        _SHARED,
        ".config/agents/skills",
        _AGENTS_MD,
        marks=(".amp",),
        user_marks=(".config/amp",),
    ),
    _row(
        "kimi",
        "Kimi CLI",
        _SHARED,
        ".config/agents/skills",
        _AGENTS_MD,
        marks=(".kimi",),
        user_marks=(".kimi",),
    ),
    _row("replit", "Replit", _SHARED, ".config/agents/skills", marks=(".replit",)),
    _row(
        "antigravity",
        "Antigravity",
        ".agent/skills",
        ".gemini/antigravity/skills",
        Place(Kind.RULE, "*.md", ".agents/rules", None),
        marks=(".agent",),
    ),
    _row(
        "windsurf",
        "Windsurf",
        ".windsurf/skills",
        ".codeium/windsurf/skills",
        Place(Kind.RULE, "*.md", ".windsurf/rules", None),
        Place(Kind.COMMAND, "*.md", ".windsurf/workflows", None),
    ),
    _own(
        "kiro",
        "Kiro",
        Place(Kind.RULE, "*.md", ".kiro/steering", ".kiro/steering"),
        Place(Kind.AGENT, "*.md", ".kiro/agents", ".kiro/agents"),
    ),
    _own(
        "grok",
        "Grok",
        Place(Kind.RULE, "*.md", ".grok/rules", ".grok/rules"),
        Place(Kind.AGENT, "*.md", ".grok/agents", ".grok/agents"),
        Place(Kind.COMMAND, "*.md", ".grok/commands", ".grok/commands"),
    ),
    _own("cline", "Cline", Place(Kind.RULE, "*.md", ".clinerules", None)),
    _row("openclaw", "OpenClaw", "skills", ".openclaw/skills", marks=(".openclaw",)),
    _row("goose", "Goose", ".goose/skills", ".config/goose/skills"),
    _row("crush", "Crush", ".crush/skills", ".config/crush/skills"),
    _row("pi", "Pi", ".pi/skills", ".pi/agent/skills", user_marks=(".pi",)),
    _row("trae-cn", "Trae CN", ".trae/skills", ".trae-cn/skills", marks=(".trae-cn",)),
    _own("continue", "Continue"),
    _own("augment", "Augment"),
    _own("codebuddy", "CodeBuddy"),
    _own("commandcode", "Command Code"),
    _own("factory", "Factory Droid"),
    _own("junie", "Junie"),
    _own("iflow", "iFlow CLI"),
    _own("kilocode", "Kilo Code"),
    _own("kode", "Kode"),
    _own("mcpjam", "MCPJam"),
    _own("vibe", "Mistral Vibe"),
    _own("mux", "Mux"),
    _own("openhands", "OpenHands"),
    _own("qoder", "Qoder"),
    _own("qwen", "Qwen Code"),
    _own("roo", "Roo Code"),
    _own("trae", "Trae"),
    _own("zencoder", "Zencoder"),
    _own("neovate", "Neovate"),
    _own("pochi", "Pochi"),
    _own("adal", "AdaL"),
)
"""Every agent. ``agents`` is the shared folder that most of them read in a project."""

BY_NAME: Final = {agent.name: agent for agent in AGENTS}
SHARED_AGENT: Final = "agents"
"""What ``add`` writes for when no agent is found and none is named."""


def detect(project: Path, home: Path) -> tuple[str, ...]:
    """Return the agents that are present, in the order of the table.

    Marks inside the project win: they are what the team uses. Only when there is none are the agents
    that are installed for this person returned.
    """
    here = tuple(agent.name for agent in AGENTS if _marked(project, agent.project_marks))
    if here or project == home:
        return here
    return tuple(agent.name for agent in AGENTS if _marked(home, agent.user_marks))


def _marked(root: Path, marks: Iterable[str]) -> bool:
    return any((root / mark).exists() for mark in marks)
