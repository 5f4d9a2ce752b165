"""A disk that fills up: what was written stays, the message is clear, and the study goes on afterwards."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from recompute.measure.ledger import read_ledger
from recompute.measure.row import Outcome

JOB = str(Path(__file__).parents[4] / "examples" / "llama3-8b-h200.yaml")
SCRIPT = '''
"""Writes its row, then fills the disk before the second candidate ends, as a checkpoint would."""
import json, os
from recompute.measure.ledger import RowWriter
from recompute.measure.row import Outcome, PhaseBytes, Row

told = json.loads(os.environ["RECOMPUTE_RUN"])
if told["candidate"] == "[mlp]" and os.environ.get("FILL"):
    with open(os.path.join(told["ledger"], "checkpoint.bin"), "wb", buffering=0) as sink:
        try:
            while sink.write(b"0" * 4096):
                pass
        except OSError:
            pass
writer = RowWriter(told["ledger"], "rank-00000")
phase = PhaseBytes(phase="forward", allocated_peak_bytes=6 << 30, reserved_peak_bytes=6 << 30)
writer.append(Row(
    id=told["run"], candidate=told["candidate"], control_id=told["control_id"], repeat=told["repeat"],
    attempt=told["attempt"], rank=0, outcome=Outcome.PASS, phases=(phase,), step_seconds=(1.0,) * 1000,
    optimizer_initialized=True,
))
'''


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """Mount a file system of 256 KiB."""
    where = tmp_path / "disk"
    where.mkdir()
    words = ["mount", "-t", "tmpfs", "-o", "size=256k", "tmpfs", str(where)]
    try:
        done = subprocess.run(words, capture_output=True, text=True, check=False)
    except OSError as error:
        pytest.skip(f"no mount: {error}")
    if done.returncode:
        pytest.skip(f"no file system can be mounted here: {done.stderr.strip()}")
    try:
        yield where
    finally:
        subprocess.run(["umount", "--lazy", str(where)], check=True)


def measure(script: Path, out: Path, **environment: str) -> tuple[int, dict[str, Any], str]:
    words = [sys.executable, "-m", "recompute", "measure", JOB, "--out", str(out), "--json"]
    words += ["--entry", str(script), "--candidates", "mlp,core_attn", "--repeats", "1"]
    done = subprocess.run(
        words, capture_output=True, text=True, check=False, env={**os.environ, **environment}
    )
    return done.returncode, json.loads(done.stdout), done.stderr


def test_a_disk_that_fills_up_loses_nothing(tmp_path: Path, small_disk: Path) -> None:
    script, out = tmp_path / "train.py", small_disk / "l"
    script.write_text(SCRIPT)
    code, document, said = measure(script, out, FILL="1")
    assert (code, document["code"]) == (3, "cannot-write"), said
    assert "No space left on device" in document["message"]
    assert "Traceback" not in said
    (kept,) = read_ledger(str(out)).rows
    assert (kept.id, kept.outcome) == ("control-0", Outcome.PASS)
    (out / "checkpoint.bin").unlink()
    code, document, said = measure(script, out)
    assert code == 0, said
    assert [run["skipped"] for run in document["runs"]] == [True, False, False]
    assert [run["outcomes"] for run in document["runs"]] == [["pass"]] * 3
