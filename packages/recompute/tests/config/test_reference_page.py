"""The commands of docs/reference/job-file.md run, and its job is a job."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from recompute.config.load import load

ROOT = Path(__file__).parents[4]
PAGE = (ROOT / "docs/reference/job-file.md").read_text(encoding="utf-8")
COMMANDS = [
    line
    for block in re.findall(r"```bash\n(.*?)```", PAGE, re.DOTALL)
    for line in block.splitlines()
]


@pytest.mark.parametrize("line", COMMANDS)
def test_commands_run(line: Any, tmp_path: Path) -> None:
    program = tmp_path / "recompute"
    program.write_text(f'#!/bin/sh\nexec {sys.executable} -m recompute "$@"\n')
    program.chmod(0o755)
    environment = {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}"}
    result = subprocess.run(
        ["bash", "-o", "pipefail", "-c", line],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 0, result.stderr


def test_the_job_of_the_page_is_a_job() -> None:
    text = re.findall(r"```yaml\n(.*?)```", PAGE, re.DOTALL)[0]
    job = load(
        "-", stdin=text.encode(), require=("architecture", "vocabulary", "sequence", "batch", "gpu")
    )
    assert job.model.bf16
