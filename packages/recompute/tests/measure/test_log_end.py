"""What the end of a log says: of torchrun the rank that failed first, else the last line with words."""

from __future__ import annotations

from pathlib import Path

import pytest

from recompute.measure.log_end import TAIL_BYTES, end_of, tail_of

ELASTIC = """\
torch.distributed.elastic.multiprocessing.errors.ChildFailedError:
=======================================================
train.py FAILED
-------------------------------------------------------
Failures:
[1]:
  time      : 2026-12-02_11:22:50
  host      : localhost
  rank      : 0 (local_rank: 0)
  exitcode  : -15 (pid: 16636)  (SIGTERM)
  error_file: <N/A>
  traceback : Signal 15 (SIGTERM) received by PID 16636
-------------------------------------------------------
Root Cause (first observed failure):
[0]:
  time      : 2026-12-02_11:22:50
  host      : localhost
  rank      : 2 (local_rank: 2)
  exitcode  : {code}
  error_file: <N/A>
  traceback : {traceback}
=======================================================
"""
HINT = "To enable traceback see: https://pytorch.org/docs/stable/elastic/errors.html"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("step 1\nlast words\n\n", "last words"),
        ("last words\n=======\n  ---- \n", "last words"),
        ("", ""),
        ("\n===\n", ""),
        (
            ELASTIC.format(
                code="-9 (pid: 16638)", traceback="Signal 9 (SIGKILL) received by PID 1"
            ),
            "rank 2 failed first, exit code -9, Signal 9 (SIGKILL) received by PID 1",
        ),
        (
            ELASTIC.format(code="17 (pid: 1)", traceback=HINT),
            "rank 2 failed first, exit code 17",
        ),
        ("Root Cause (first observed failure):\n", "Root Cause (first observed failure):"),
        ("Root Cause (first observed failure):\n  rank : \nwords", "words"),
    ],
)
def test_the_end_of_a_log(tmp_path: Path, text: str, said: str) -> None:
    log = tmp_path / "x.log"
    log.write_text(text)
    assert tail_of(log) == said


def test_prefixes_of_launchers_are_looked_through(tmp_path: Path) -> None:
    log = tmp_path / "x.log"
    text = ELASTIC.format(code="1 (pid: 1)", traceback=HINT)
    log.write_text("".join(f"job/0 {line}\n" for line in text.splitlines()))
    assert tail_of(log) == "rank 2 failed first, exit code 1"


def test_no_more_than_the_end_is_read(tmp_path: Path) -> None:
    log = tmp_path / "x.log"
    log.write_bytes(b"\xff" * (1 << 20) + b"end")
    assert end_of(log).endswith("end")
    assert len(end_of(log)) == TAIL_BYTES
    assert end_of(tmp_path / "absent") == ""
