"""Commands whose streams are closed, full, cut off or of a poor encoding: real processes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

JOB = b"""\
model: {num_layers: 4, hidden_size: 1024, num_attention_heads: 8, ffn_hidden_size: 4096,
  vocab_size: 32768, seq_length: 2048, add_bias_linear: false}
train: {micro_batch_size: 4, global_batch_size: 8}
"""
ASCII = {
    **os.environ,
    "LC_ALL": "C",
    "PYTHONUTF8": "0",
    "PYTHONCOERCECLOCALE": "0",
    "PYTHONIOENCODING": "ascii",
}
FULL = Path("/dev/full")


@pytest.fixture
def job(tmp_path: Path) -> Path:
    path = tmp_path / "job.yaml"
    path.write_bytes(JOB)
    return path


def shell(script: str, *values: str) -> subprocess.CompletedProcess[bytes]:
    """Run a line of sh in which ``recompute`` is this environment's, with values as $1, $2, ..."""
    line = f'recompute() {{ "{sys.executable}" -m recompute "$@"; }}; {script}'
    done = subprocess.run(["sh", "-c", line, "sh", *values], capture_output=True, check=False)
    assert b"Traceback" not in done.stderr
    assert b"Exception ignored" not in done.stderr
    return done


def test_a_closed_standard_input_is_bad_input() -> None:
    done = shell("recompute check - --json <&-")
    assert done.returncode == 2
    assert json.loads(done.stdout)["code"] == "unreadable"


@pytest.mark.skipif(not FULL.exists(), reason="needs the full device")
@pytest.mark.parametrize("form", ["--json", "--no-notes"])
@pytest.mark.parametrize("name", ["", "absent"])
def test_an_answer_that_cannot_be_written_is_exit_three(job: Path, form: str, name: str) -> None:
    done = shell(f"recompute check $1{name} {form} >/dev/full", str(job))
    refused = name == "absent" and form != "--json"  # that answer goes to standard error
    assert done.returncode == (2 if refused else 3)
    assert done.stderr.startswith(b"recompute: ")


def test_a_reader_that_goes_away_is_met_in_silence(job: Path) -> None:
    done = shell("recompute plan $1 --budget 9GiB | head -1", str(job))
    assert done.stderr == b""
    assert done.stdout.count(b"\n") == 1


def test_closed_output_streams_change_no_exit_code(job: Path) -> None:
    assert shell("recompute check $1 >&- 2>&-", str(job)).returncode == 0
    assert shell("recompute check absent >&- 2>&-").returncode == 2


@pytest.mark.parametrize("name", ["\u2603\U0001f600.yaml", os.fsdecode(b"\xff.yaml")])
@pytest.mark.parametrize("environment", [dict(os.environ), ASCII], ids=["own", "ascii"])
def test_json_is_utf8_whatever_the_name_and_the_locale(
    name: str, environment: dict[str, str]
) -> None:
    command = [sys.executable, "-m", "recompute", "check", name]
    done = subprocess.run([*command, "--json"], capture_output=True, check=False, env=environment)
    assert (done.returncode, done.stderr) == (2, b"")
    document = json.loads(done.stdout.decode("utf-8"))
    assert document["code"] == "not-found"
    assert document["message"].endswith(".yaml: no such file")
    text = subprocess.run(command, capture_output=True, check=False, env=environment)
    assert (text.returncode, text.stdout) == (2, b"")
    assert b"no such file [not-found]" in text.stderr


@pytest.mark.parametrize("command", ["plan", "explain"])
def test_a_page_that_cannot_be_written_leaves_one_document(
    job: Path, command: str, tmp_path: Path
) -> None:
    where = str(tmp_path / "absent" / "page.html")
    budget = "--gpu h200" if command == "plan" else ""
    done = shell(f"recompute {command} $1 {budget} --html $2 --json", str(job), where)
    assert done.returncode == 3
    assert done.stdout.count(b"\n") == 1
    assert json.loads(done.stdout)["code"] == "cannot-write"


def test_a_message_quotes_a_file_without_what_a_terminal_acts_on(tmp_path: Path) -> None:
    job = tmp_path / "job.yaml"
    job.write_text("model: {\u202enum_layers: 4}\n", encoding="utf-8")
    done = shell("recompute plan $1", str(job))
    assert done.returncode == 2
    assert "\u202e".encode() not in done.stderr
    assert rb"\u202enum_layers" in done.stderr


@pytest.mark.parametrize("manifest", ['{"schema":"recompute.ledger/1"', "[" * 100_000, "[]"])
def test_diagnose_refuses_a_ledger_whose_manifest_is_broken(tmp_path: Path, manifest: str) -> None:
    (tmp_path / "rows").mkdir()
    (tmp_path / "manifest.json").write_text(manifest)
    done = shell("recompute diagnose $1", str(tmp_path))
    assert (done.returncode, done.stdout) == (2, b"")
    assert b"[bad-ledger]" in done.stderr
