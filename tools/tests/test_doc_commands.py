"""Every command of README, tutorial and how-to pages runs, and what a page quotes is what it prints.

A page's blocks run in order in one temporary folder that holds ``examples``, ``skills``, ``.venv``, a
registry, an ``mdr.lock`` and a repository ``our-skills``. Conventions of the fences:

* ``bash``: runs; every line begins with ``recompute``, ``mdr`` (also ``.venv/bin/...``) or ``git``, and
  leaves with 0, or with N where the line ends in ``# exit N``.
* ``bash no-run``: needs the network, a GPU, or holds a placeholder.
* ``text`` right behind a ``bash`` fence: quotes it; each line stands in what the block printed, but for
  a line ``...``.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGES = [
    ROOT / "README.md",
    *sorted([*ROOT.glob("docs/tutorial/*.md"), *ROOT.glob("docs/how-to/*.md")]),
]
FENCE = re.compile(r"^```([^\n]*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
OURS = re.compile(r"^(\$ )?(\.venv/bin/)?(recompute|mdr) ", re.MULTILINE)
RUNS = re.compile(r"(\.venv/bin/)?(recompute|mdr) |git ")
EXIT = re.compile(r"# exit (\d)$")


def fences(page: Path) -> list[tuple[str, str]]:
    return FENCE.findall(page.read_text(encoding="utf-8"))


def environment(folder: Path) -> dict[str, str]:
    inherited = {k: v for k, v in os.environ.items() if not k.startswith(("MDR_", "GIT_"))}
    identity = {
        f"GIT_{who}_{what}": value
        for who in ("AUTHOR", "COMMITTER")
        for what, value in (("NAME", "docs"), ("EMAIL", "docs@example.org"))
    }
    return {
        **inherited,
        **identity,
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        "HOME": str(folder / "home"),
        "MDR_DATA": str(folder / "data"),
        "GIT_CONFIG_GLOBAL": os.devnull,
        "GIT_CONFIG_NOSYSTEM": "1",
        "CI": "",
    }


def shell(folder: Path, line: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["sh", "-c", line],
        cwd=folder / "work",
        env=environment(folder),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Make the folder that the module's docstring describes."""
    work = tmp_path / "work"
    for name in ("examples", "skills"):
        shutil.copytree(ROOT / name, work / name)
    for name in ("activation-recompute", "house-style"):
        shutil.copytree(ROOT / "skills/activation-recompute", work / "our-skills/skills" / name)
    (tmp_path / "home").mkdir()
    (work / ".claude").mkdir()
    (work / ".venv").symlink_to(sys.prefix)
    for line in (
        "git -C our-skills init -q -b main",
        "git -C our-skills add .",
        "git -C our-skills commit -q -m first",
        "mdr index our-skills --as demo/skills",
        "mdr add demo/skills/activation-recompute --yes",
    ):
        done = shell(tmp_path, line)
        assert done.returncode == 0, done.stderr
    return tmp_path


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_every_command_runs_and_every_quotation_is_true(page: Path, folder: Path) -> None:
    printed: str | None = None
    for kind, body in fences(page):
        if kind == "text" and printed is not None:
            quoted = [line for line in body.splitlines() if line.strip() not in {"", "..."}]
            assert [line for line in quoted if line not in printed.splitlines()] == []
        printed = None
        if kind == "bash":
            printed = ""
            for line in body.splitlines():
                wanted = EXIT.search(line)
                done = shell(folder, line)
                assert done.returncode == int(wanted[1] if wanted else 0), (line, done.stderr)
                printed += done.stdout


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_no_command_hides_from_the_runner(page: Path) -> None:
    for kind, body in fences(page):
        if OURS.search(body):
            assert kind in {"bash", "bash no-run", "yaml"}, body
        if kind == "bash":
            assert all(RUNS.match(line) for line in body.splitlines()), body


def test_enough_commands_are_run() -> None:
    lines = [
        line
        for page in PAGES
        for kind, body in fences(page)
        if kind == "bash"
        for line in body.splitlines()
    ]
    assert len(lines) > 30
