"""docs/reference/agent-folders.md is the table of agents, no more and no less."""

from __future__ import annotations

from pathlib import Path

from mdr.install.agents import AGENTS

PAGE = Path(__file__).resolve().parents[2] / "docs/reference/agent-folders.md"


def rows(after: str) -> list[list[str]]:
    section = PAGE.read_text("utf-8").partition(f"\n## {after}\n")[2].partition("\n## ")[0]
    lines = [line for line in section.splitlines() if line.startswith("| `")]
    return [[cell.strip(" `") for cell in line.strip("|").split("|")] for line in lines]


def test_every_agent_has_its_row_with_both_skill_folders() -> None:
    expected = [
        [agent.name, agent.title, agent.places[0].project, f"~/{agent.places[0].user}"]
        for agent in AGENTS
    ]
    assert rows("Skills") == expected


def test_every_other_place_has_its_row() -> None:
    expected = [
        [
            agent.name,
            p.kind.value,
            p.form,
            p.project or "the project itself",
            f"~/{p.user}" if p.user else "",
        ]
        for agent in AGENTS
        for p in agent.places[1:]
    ]
    assert rows("Other kinds") == expected
