"""The audit on public files, when a copy is at hand: nothing of them is kept in this repository."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from mdr.audit.run import audit
from mdr.audit.types import Status

SEED = {
    "03379723143dfcd3cce4338c148fecc2aa515649ab85d3624e43a29b80f03e4e": 18915,
    "e4244526231220b8a6745e362d29dee5fe0239239c5f3b46b4060316fa86a982": 9197,
    "cf79a2658f157c6344de12148c37f097674470ae5d87c56ff3747332784643a5": 10151,
    "e69bd87564923f89f91f31641a90449105dc41a52ced23a38d1670bebd8b8193": 9295,
}
"""SHA-256 -> bytes of the four published versions of
NVIDIA/skills skills/nemo-mbridge-perf-activation-recompute/SKILL.md: all grade A, 17 passes."""


def folder(variable: str) -> Path:
    name = os.environ.get(variable)
    if not name:
        pytest.skip(f"{variable} names no folder with public files")
    return Path(name)


def test_the_four_seed_versions_grade_a_with_17_passes() -> None:
    seen = {}
    for path in sorted(folder("MDR_SEED_DIR").iterdir()):
        result = audit(path.read_bytes())
        if result.sha256 in SEED:
            seen[result.sha256] = result.size
            assert result.grade == "A"
            assert [check.status for check in result.checks] == [Status.PASS] * 17
    assert seen == SEED


@pytest.mark.slow
def test_nvidia_skills_grade_a_but_for_one_percent() -> None:
    """``MDR_NVIDIA_SKILLS`` is a git directory or a work tree of NVIDIA/skills."""
    git = ["git", "-C", str(folder("MDR_NVIDIA_SKILLS"))]
    names = subprocess.run(
        [*git, "ls-tree", "-rz", "--name-only", "HEAD"], capture_output=True, text=True, check=True
    )
    paths = [name for name in names.stdout.split("\0") if name.endswith("/SKILL.md")]
    grades = Counter(
        audit(
            subprocess.run([*git, "show", f"HEAD:{path}"], capture_output=True, check=True).stdout
        ).grade
        for path in paths
    )
    assert grades["A"] >= 0.99 * len(paths)
    assert len(paths) > 300


@pytest.mark.parametrize("python", os.environ.get("MDR_PYTHONS", "").split() or [None])
def test_other_pythons_say_the_same(python: str | None) -> None:
    """``MDR_PYTHONS`` lists interpreters that have google-re2 and PyYAML installed."""
    if python is None:
        pytest.skip("MDR_PYTHONS names no other interpreter")
    program = (
        "import json, sys\n"
        "from mdr.audit.run import audit\n"
        "from mdr.audit.vectors import vectors_of\n"
        "json.dump([audit(v.data).to_document() for v in vectors_of('r1')], sys.stdout)\n"
    )
    source = str(Path(sys.modules["mdr.audit"].__path__[0]).parents[1])
    outputs = [
        json.loads(
            subprocess.run(
                [each, "-c", program], capture_output=True, check=True, env={"PYTHONPATH": source}
            ).stdout
        )
        for each in (sys.executable, python)
    ]
    assert outputs[0] == outputs[1]
