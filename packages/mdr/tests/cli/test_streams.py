"""The answer goes somewhere: full disks, readers that leave, closed streams, narrow encodings."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

FULL = Path("/dev/full")
BODY = "---\nname: sn\ndescription: Say — and 🎫 — to people.\n---\n" + "Say it. " * 40 + "\n"


@pytest.fixture
def skill(tmp_path: Path) -> Path:
    path = tmp_path / "sn — 🎫" / "SKILL.md"
    path.parent.mkdir()
    path.write_text(BODY, encoding="utf-8")
    return path


def mdr(*arguments: str, redirect: str = "") -> list[str]:
    """Return a command line that runs mdr below ``sh`` with redirections."""
    command = [sys.executable, "-m", "mdr", *arguments]
    return ["sh", "-c", f'exec "$@" {redirect}', "sh", *command] if redirect else command


def run(command: list[str], **env: str) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(
        command, capture_output=True, check=False, timeout=120, env={**os.environ, **env}
    )


@pytest.mark.parametrize("encoding", ["ascii", "latin-1"])
def test_json_is_utf_8_in_every_locale(skill: Path, encoding: str) -> None:
    done = run(mdr("list", "--json", str(skill)), PYTHONIOENCODING=encoding)
    assert "🎫" in json.loads(done.stdout.decode("utf-8"))["message"]
    done = run(mdr("audit", str(skill), "--json"), PYTHONIOENCODING=encoding)
    assert done.returncode == 0
    assert json.loads(done.stdout.decode("utf-8"))["schema"] == "mdr.audit/1"


@pytest.mark.parametrize("encoding", ["ascii", "latin-1"])
def test_text_keeps_the_encoding_and_escapes_what_it_lacks(skill: Path, encoding: str) -> None:
    done = run(mdr("audit", str(skill)), PYTHONIOENCODING=encoding)
    assert (done.returncode, done.stderr) == (0, b"")
    assert b"sn \\u2014 \\U0001f3ab" in done.stdout


@pytest.mark.skipif(not FULL.exists(), reason="no /dev/full on this system")
@pytest.mark.parametrize("arguments", [["--json"], []])
def test_a_full_disk_behind_the_answer_is_told(skill: Path, arguments: list[str]) -> None:
    done = run(mdr("audit", str(skill), *arguments, redirect="> /dev/full"))
    assert done.returncode == 3
    assert done.stderr.startswith(b"mdr: [Errno 28]")
    assert done.stderr.count(b"\n") == 1


@pytest.mark.skipif(os.name != "posix", reason="a shell closes the streams")
def test_a_reader_that_left_is_no_answer_no(skill: Path) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    command = mdr("audit", str(skill), "--json")
    done = subprocess.run(command, stdout=writing, stderr=subprocess.PIPE, check=False, timeout=120)
    os.close(writing)
    assert (done.returncode, done.stderr) == (3, b"")


@pytest.mark.skipif(os.name != "posix", reason="a shell closes the streams")
@pytest.mark.parametrize("closed", [">&-", "<&-", "2>&-", "<&- >&- 2>&-"])
def test_closed_streams_do_not_matter(skill: Path, closed: str) -> None:
    done = run(mdr("audit", str(skill), redirect=closed))
    assert (done.returncode, done.stderr) == (0, b"")


def test_bytes_of_a_name_that_are_not_utf_8_are_escaped(tmp_path: Path) -> None:
    done = run(mdr("list", "--json", os.fsdecode(b"a\xff")), HOME=str(tmp_path))
    assert "\udcff" in json.loads(done.stdout.decode("utf-8"))["message"]
