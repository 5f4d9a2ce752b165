"""``make demo`` once, as a newcomer runs it: exit code, order of its parts, what it must say."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
ORDER = (
    "$ mdr index",
    "$ mdr add demo/megatron-recompute/activation-recompute@sha256:",
    "$ mdr verify\n  ok: 1 artifact",
    "one byte is changed on disk",
    "1 problem",
    "$ mdr install --frozen --offline --force",
    "$ mdr verify\n  ok: 1 artifact",
    "Llama 3 8B, 8 GPUs, CP 2",
    "Llama 3 70B, 64 GPUs",
    "Llama 3.1 405B",
    "$ .venv/bin/recompute plan examples/llama3-70b.yaml",
    "paste",
    "what to do next\n  .venv/bin/recompute plan",
)


def test_the_parts_come_in_order_and_the_last_is_what_to_do_next() -> None:
    done = subprocess.run(
        [sys.executable, str(ROOT / "tools/demo.py")],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    position = 0
    for words in ORDER:
        found = done.stdout.find(words, position)
        assert found >= 0, f"{words!r} does not come after {ORDER[: ORDER.index(words)]}"
        position = found + len(words)
    assert done.stdout[position:].count("\n") < 10
    assert done.stdout.endswith("\n")
