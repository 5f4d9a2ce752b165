"""The skill of this repository: valid by the specification, grade A, and every command in it runs."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from mdr.audit.run import audit
from mdr.audit.spec import spec_conformance

ROOT = Path(__file__).resolve().parents[2]
SKILL = ROOT / "skills/activation-recompute/SKILL.md"
FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def commands() -> list[str]:
    """Return every line of every fence; a fence that is not shell is an error, not a skip."""
    fences = FENCE.findall(SKILL.read_text(encoding="utf-8"))
    assert {language for language, _ in fences} == {"bash"}
    return [line for _, body in fences for line in body.splitlines() if line.strip()]


@pytest.mark.parametrize("command", commands(), ids=lambda command: command[:60])
def test_every_command_runs(command: str) -> None:
    """Run a line as the shell would, from the root, with our own program first on the path."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(
        ["sh", "-c", command],
        cwd=ROOT,
        env={**os.environ, "PATH": path},
        capture_output=True,
        check=False,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr.decode()
    assert done.stdout.strip()


def test_each_command_of_the_skill_is_there_once() -> None:
    programs = [line.partition("recompute ")[2].partition(" ")[0] for line in commands()]
    assert set(programs) == {"show", "check", "explain", "plan", "diagnose"}


def test_the_grade_is_a_and_the_specification_is_kept() -> None:
    data = SKILL.read_bytes()
    result = audit(data)
    assert result.grade == "A", result.findings
    assert spec_conformance(data, SKILL.parent.name) == ()


def test_bytes_are_plain() -> None:
    data = SKILL.read_bytes()
    assert data.isascii()
    assert b"\r" not in data
    assert data.endswith(b"\n")
