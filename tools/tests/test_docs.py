"""Docs that a test can hold: links, the tables of stages, the list of decisions."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent
PAGES = sorted(
    path
    for path in [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("packages/*/*.md")]
    if path.is_file()
)
LINK = re.compile(r"\[[^\]]*\]\(([^)#\s]+)(?:#[^)]*)?\)")


@pytest.mark.parametrize("page", PAGES, ids=lambda p: str(p.relative_to(ROOT)))
def test_every_relative_link_leads_somewhere(page: Path) -> None:
    text = re.sub(r"```.*?```", "", page.read_text("utf-8"), flags=re.DOTALL)
    missing = [
        target
        for target in LINK.findall(text)
        if "://" not in target
        and not target.startswith("mailto:")
        and not (page.parent / target).exists()
    ]
    assert missing == []


def stages_in_docs(package: str) -> list[str]:
    text = (ROOT / "docs/explanation/architecture.md").read_text("utf-8")
    section = text.split(f"## {package}\n")[1].split("\n## ")[0]
    return re.findall(r"^\| `(\w+)` \|", section, flags=re.MULTILINE)


@pytest.mark.parametrize("package", ["recompute", "mdr"])
def test_the_architecture_page_lists_every_stage(package: str) -> None:
    source = ROOT / "packages" / package / "src" / package
    names = {p.parent.name for p in source.glob("*/__init__.py")}
    names |= {p.stem for p in source.glob("*.py")} - {
        "__init__",
        "__main__",
        "errors",
        "units",
        "digest",
    }
    assert set(stages_in_docs(package)) == names


def test_every_decision_is_listed() -> None:
    folder = ROOT / "docs/adr"
    listed = set(re.findall(r"\((\d{4}-[\w-]+\.md)\)", (folder / "README.md").read_text("utf-8")))
    assert listed == {path.name for path in folder.glob("[0-9]*.md")}
