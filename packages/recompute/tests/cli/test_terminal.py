"""What stands on a terminal while a command works: a real pseudo-terminal as standard error."""

from __future__ import annotations

import os
import pty
import re
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).resolve().parents[4] / "examples"
JOB = str(EXAMPLES / "llama3-8b-h200.yaml")
SWEEP = ("--budget", "60GiB", "--sweep", "train.micro_batch_size=1,2")
CLEARED = "\r\x1b[K"
HOSTILE = "\x1b]0;owned\x07\x1b[2J\u202e"
"""Sets a window's title, clears the screen and turns the direction of writing."""

AT_ONCE = """\
import sys
from recompute.cli import diagnose, progress
progress.FIRST_SECONDS = progress.TERMINAL_SECONDS = -1.0
diagnose.PROGRESS_BYTES = 0
{more}
from recompute.cli.main import run
sys.argv = ["recompute", *sys.argv[1:]]
run()
"""
"""The command as it is, with nothing too short to be worth a line."""


def on_terminal(*arguments: str, more: str = "") -> tuple[int, str]:
    """Run a command and return its exit code and what it wrote to its terminal."""
    ours, theirs = pty.openpty()
    words = [sys.executable, "-c", AT_ONCE.format(more=more), *arguments]
    environment = {**os.environ, "TERM": "xterm", "COLUMNS": "100"}
    with subprocess.Popen(
        words, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=theirs, env=environment
    ) as process:
        os.close(theirs)
        written = b""
        while block := _read(ours):
            written += block
        code = process.wait()
    os.close(ours)
    return code, written.decode().replace("\r\n", "\n")


def _read(terminal: int) -> bytes:
    try:
        return os.read(terminal, 65536)
    except OSError:  # Linux says that the other side has closed by EIO
        return b""


@pytest.mark.parametrize(
    ("arguments", "what"),
    [
        (SWEEP, "jobs planned"),
        ((*SWEEP, "--workers", "2"), "jobs planned"),
        (("train.global_batch_size=8", "--gpu", "h200", "--joint"), "layouts tried"),
    ],
)
def test_a_long_search_writes_over_one_line_and_leaves_none(
    arguments: tuple[str, ...], what: str
) -> None:
    code, written = on_terminal("plan", JOB, *arguments)
    assert code in {0, 1}, written
    before, *shown, left = written.split(CLEARED)
    assert (before, left) == ("", "")
    assert any(re.fullmatch(rf"{what}: \d+ of at most \d+", line) for line in shown)
    assert all(re.fullmatch(r"[a-z ]+: \d+ of at most \d+", line) for line in shown if line)


def test_what_a_search_says_stays_and_carries_nothing_that_a_terminal_acts_on() -> None:
    more = f"""
from recompute.cli.progress import Watched
watched = Watched()
list(watched.ordered(len, ["a", "b"], what="tables", of=2))
watched.say("lost: " + {HOSTILE!r})
watched.finish()
sys.exit(0)
"""
    _, written = on_terminal("plan", more=more)
    *_, last = written.split(CLEARED)
    assert CLEARED + "tables: 2 of at most 2" + CLEARED in written
    assert last == "lost: \\x1b]0;owned\\x07\\x1b[2J\\u202e\n"


@pytest.mark.parametrize("name", ["plain.log", "[red]a[/blue].log", f"{HOSTILE}.log"])
def test_the_bar_of_diagnose_shows_any_name_and_goes_away(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes((EXAMPLES / "logs" / "healthy.log").read_bytes())
    code, written = on_terminal("diagnose", str(path))
    assert code == 0, written
    assert "Traceback" not in written
    shown = name.replace(HOSTILE, "\\x1b]0;owned\\x07\\x1b[2J\\u202e")
    assert shown in written
    assert "\x1b]" not in written
    assert "\x1b[2J" not in written
    assert "\\x1b[2K" not in written
    assert written.rindex("\x1b[2K") > written.rindex(shown), "the bar's line is cleared at the end"


def test_what_measure_quotes_of_others_is_shown_and_not_acted_on(tmp_path: Path) -> None:
    more = f"""
from recompute.measure import study
def run_study(job, choices, settings, say):
    say("Slurm does not answer: " + {HOSTILE!r})
    return iter(())
study.run_study = run_study
"""
    out = str(tmp_path / "ledger")
    code, written = on_terminal(
        "measure", JOB, "--out", out, "--candidates", "mlp", "--entry", "train.py", more=more
    )
    assert code == 0
    assert written == "Slurm does not answer: \\x1b]0;owned\\x07\\x1b[2J\\u202e\n"


def test_diagnose_needs_no_standard_error(tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    line = '"$1" -m recompute diagnose "$2" --html "$3" --json 2>&-'
    log = str(EXAMPLES / "logs" / "healthy.log")
    words = ["sh", "-c", line, "sh", sys.executable, log, str(page)]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert done.returncode == 0
    assert done.stdout.count("\n") == 1, "the document and nothing beside it"
    assert page.exists()
