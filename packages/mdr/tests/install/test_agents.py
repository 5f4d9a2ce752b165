"""The table of agents against a second, independent list of folders, row by row."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from mdr.artifact.types import Kind
from mdr.install.agents import AGENTS, BY_NAME, detect

if TYPE_CHECKING:
    from pathlib import Path

    from conftest import Bench

SKILLS = {
    "agents": (".agents/skills", ".agents/skills"),
    "claude": (".claude/skills", ".claude/skills"),
    "codex": (".agents/skills", ".codex/skills"),
    "cursor": (".cursor/skills", ".cursor/skills"),
    "copilot": (".agents/skills", ".copilot/skills"),
    "gemini": (".agents/skills", ".gemini/skills"),
    "opencode": (".agents/skills", ".config/opencode/skills"),
    "amp": (".agents/skills", ".config/agents/skills"),
    "kimi": (".agents/skills", ".config/agents/skills"),
    "replit": (".agents/skills", ".config/agents/skills"),
    "antigravity": (".agent/skills", ".gemini/antigravity/skills"),
    "windsurf": (".windsurf/skills", ".codeium/windsurf/skills"),
    "openclaw": ("skills", ".openclaw/skills"),
    "goose": (".goose/skills", ".config/goose/skills"),
    "crush": (".crush/skills", ".config/crush/skills"),
    "pi": (".pi/skills", ".pi/agent/skills"),
    "trae-cn": (".trae/skills", ".trae-cn/skills"),
    **{
        name: (f".{name}/skills", f".{name}/skills")
        for name in [
            "kiro",
            "grok",
            "cline",
            "continue",
            "augment",
            "codebuddy",
            "commandcode",
            "factory",
            "junie",
            "iflow",
            "kilocode",
            "kode",
            "mcpjam",
            "vibe",
            "mux",
            "openhands",
            "qoder",
            "qwen",
            "roo",
            "trae",
            "zencoder",
            "neovate",
            "pochi",
            "adal",
        ]
    },
}
OTHER_KINDS = [
    ("claude", Kind.RULE, "style.md", ".claude/rules/style.md", "~/.claude/rules/style.md"),
    ("claude", Kind.AGENT, "tester.md", ".claude/agents/tester.md", "~/.claude/agents/tester.md"),
    ("claude", Kind.COMMAND, "fix.md", ".claude/commands/fix.md", "~/.claude/commands/fix.md"),
    ("claude", Kind.INSTRUCTIONS, "CLAUDE.md", "CLAUDE.md", "~/.claude/CLAUDE.md"),
    ("cursor", Kind.RULE, "style.mdc", ".cursor/rules/style.mdc", None),
    ("cursor", Kind.COMMAND, "fix.md", ".cursor/commands/fix.md", "~/.cursor/commands/fix.md"),
    ("copilot", Kind.PROMPT, "ask.prompt.md", ".github/prompts/ask.prompt.md", None),
    ("copilot", Kind.AGENT, "t.agent.md", ".github/agents/t.agent.md", None),
    (
        "copilot",
        Kind.INSTRUCTIONS,
        "c.instructions.md",
        ".github/instructions/c.instructions.md",
        None,
    ),
    (
        "copilot",
        Kind.INSTRUCTIONS,
        "copilot-instructions.md",
        ".github/copilot-instructions.md",
        None,
    ),
    ("codex", Kind.INSTRUCTIONS, "AGENTS.md", "AGENTS.md", "~/.codex/AGENTS.md"),
    ("gemini", Kind.INSTRUCTIONS, "GEMINI.md", "GEMINI.md", "~/.gemini/GEMINI.md"),
    ("kiro", Kind.RULE, "tech.md", ".kiro/steering/tech.md", "~/.kiro/steering/tech.md"),
    ("windsurf", Kind.COMMAND, "ship.md", ".windsurf/workflows/ship.md", None),
    ("antigravity", Kind.RULE, "r.md", ".agents/rules/r.md", None),
    ("cline", Kind.RULE, "r.md", ".clinerules/r.md", None),
    ("grok", Kind.RULE, "r.md", ".grok/rules/r.md", "~/.grok/rules/r.md"),
]


def test_the_table_has_these_rows_and_no_others() -> None:
    assert {agent.name for agent in AGENTS} == set(SKILLS)
    assert len(AGENTS) == len(BY_NAME) >= 30


@pytest.mark.parametrize("name", SKILLS)
def test_a_skill_lands_where_this_agent_looks(name: str, bench: Bench) -> None:
    bench.registry.add("demo")
    entry = bench.entry("acme/skills/demo", f"project:{name}", f"user:{name}")
    report = bench.install(entry)
    project, user = SKILLS[name]
    assert [placed.shown for placed in report.installed] == [f"{project}/demo", f"~/{user}/demo"]
    assert list(bench.tree()) == [f"{project}/demo/SKILL.md"]
    assert list(bench.tree("user")) == [f"{user}/demo/SKILL.md"]


@pytest.mark.parametrize("row", OTHER_KINDS, ids=lambda row: f"{row[0]}-{row[2]}")
def test_other_kinds_keep_their_name_and_form(
    row: tuple[str, Kind, str, str, str | None], bench: Bench
) -> None:
    name, kind, file, project, user = row
    stem = file.partition(".")[0]
    bench.registry.add(stem, {file: b"Do it.\n"}, path=f"things/{file}", kind=kind)
    targets = [f"project:{name}"] + ([f"user:{name}"] if user else [])
    report = bench.install(bench.entry(f"acme/skills:things/{file}", *targets))
    assert [placed.shown for placed in report.installed] == [project] + ([user] if user else [])
    assert bench.tree()[project] == b"Do it.\n"


@pytest.mark.parametrize(
    ("name", "kind", "file"),
    [
        ("cursor", Kind.RULE, "style.md"),  # Cursor reads .mdc only, and mdr does not convert
        ("copilot", Kind.PROMPT, "ask.md"),
        ("gemini", Kind.COMMAND, "fix.md"),  # Gemini commands are TOML
        ("codex", Kind.INSTRUCTIONS, "CLAUDE.md"),
        ("claude", Kind.PROMPT, "ask.md"),
    ],
)
def test_a_form_that_the_agent_does_not_read_has_no_place(name: str, kind: Kind, file: str) -> None:
    assert BY_NAME[name].place(kind, file) is None


@pytest.mark.parametrize("agent", AGENTS, ids=lambda agent: agent.name)
def test_each_agent_is_found_by_its_own_marks(agent: object, tmp_path: Path) -> None:
    for index, mark in enumerate(agent.project_marks):  # type: ignore[attr-defined]
        project = tmp_path / f"p{index}"
        (project / mark).mkdir(parents=True)
        assert agent.name in detect(project, tmp_path / "nobody")  # type: ignore[attr-defined]
    for index, mark in enumerate(agent.user_marks):  # type: ignore[attr-defined]
        home = tmp_path / f"h{index}"
        (home / mark).mkdir(parents=True)
        assert agent.name in detect(tmp_path / "empty", home)  # type: ignore[attr-defined]


def test_the_project_s_agents_win_over_the_person_s(tmp_path: Path) -> None:
    (tmp_path / "project" / ".cursor").mkdir(parents=True)
    (tmp_path / "home" / ".claude").mkdir(parents=True)
    assert detect(tmp_path / "project", tmp_path / "home") == ("cursor",)
    assert detect(tmp_path / "elsewhere", tmp_path / "home") == ("claude",)
    assert detect(tmp_path / "elsewhere", tmp_path / "nobody") == ()
