"""Runs from logs and event files become rows, are compared, and say what they cannot prove."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from recompute.imports.rows import ImportedRun
from recompute.imports.run import import_run
from recompute.imports.training_log import series_of_logs
from recompute.measure.ledger import read_ledger
from recompute.measure.row import Outcome

DATA = Path(__file__).parent / "data"
EXAMPLES = Path(__file__).parents[4] / "examples"
MEGATRON = str(DATA / "events.out.tfevents.megatron-lm")
JOB = str(EXAMPLES / "llama3-8b-h200.yaml")


def lines(seconds: float, peak_mb: float, *, steps: int = 8, total: int = 8) -> str:
    """Return a log in the shape of Megatron-LM's, one rank for each pipeline stage."""
    text = ""
    for step in range(1, steps + 1):
        took = seconds * (4 if step == 1 else 1) * 1000
        text += (
            f" [2026-01-01 00:00:0{step % 10}] iteration {step:8d}/{total:8d} | consumed samples: 8 | "
            f"elapsed time per iteration (ms): {took:.1f} | learning rate: 1.0E-04 | global batch size: 8 | "
            "lm loss: 1.0E+01 | loss scale: 1.0 | number of skipped iterations:   0 | "
            "number of nan iterations:   0 |\n"
        )
        if step <= 2:
            for rank in (0, 4):
                text += (
                    f"[Rank {rank}] (after {step} iterations) memory (MB) | allocated: 9000.00 | "
                    f"max allocated: {peak_mb - rank * 100 + step:.2f} | reserved: 30000.00 | "
                    "max reserved: 31000.00\n"
                )
    return text


def run(*words: str) -> tuple[int, dict[str, Any]]:
    done = subprocess.run(
        [sys.executable, "-m", "recompute", *words, "--json"],
        capture_output=True,
        text=True,
        check=False,
    )
    return done.returncode, json.loads(done.stdout)


def test_logs_are_compared_as_runs_are(tmp_path: Path) -> None:
    for name, text in (
        ("control", lines(1.0, 20000)),
        ("again", lines(1.01, 20000)),
        ("mlp", lines(1.2, 16000)),
    ):
        (tmp_path / f"{name}.log").write_text(text)
    out = str(tmp_path / "l")
    common = ("--out", out, "--job", JOB)
    run("import", str(tmp_path / "control.log"), "--candidate", "[]", *common)
    run("import", str(tmp_path / "again.log"), "--candidate", "[]", "--repeat", "1", *common)
    code, document = run("import", str(tmp_path / "mlp.log"), "--candidate", "mlp", *common)
    assert code == 0
    assert document["schema"] == "recompute.import/1"
    assert [(row["rank"], row["peak_bytes"]) for row in document["runs"]] == [
        (0, 16002 << 20),
        (4, 15602 << 20),
    ]
    code, answer = run("compare", out)
    assert code == 0
    assert answer["noise_floor"]["fraction"] == pytest.approx(0.01)
    (candidate,) = answer["candidates"]
    assert (candidate["verdict"], candidate["peak_phase"]) == ("pass", "whole_run")
    assert candidate["peak_delta_bytes"] == -(4000 << 20)
    assert candidate["step_time_overhead"] == pytest.approx(1.2 / 1.005 - 1, abs=1e-3)
    assert candidate["prediction_error"] is not None
    assert any("imported from a log" in note for note in candidate["notes"])


def test_event_files_give_figures_and_no_verdict(tmp_path: Path) -> None:
    out = str(tmp_path / "l")
    bridge = str(DATA / "events.out.tfevents.bridge")
    run("import", MEGATRON, "--out", out, "--candidate", "[]")
    code, document = run("import", bridge, "--out", out, "--candidate", "[mlp]")
    assert (code, document["source"]) == (0, "tensorboard")
    code, answer = run("compare", out)
    assert code == 1
    (candidate,) = answer["candidates"]
    assert candidate["verdict"] == "incomplete"
    assert candidate["peak_delta_bytes"] == 21_500_000_000 - 24_000_000_000
    assert candidate["step_time_overhead"] == pytest.approx(0.6 / 0.5075 - 1, rel=1e-2)
    assert any("do not say that the run ended well" in note for note in candidate["notes"])


def test_imported_and_measured_runs_are_not_held_against_each_other_unasked(
    tmp_path: Path,
) -> None:
    out = tmp_path / "l"
    log = tmp_path / "a.log"
    log.write_text(lines(1.0, 20000))
    run("import", str(log), "--out", str(out), "--candidate", "[]")
    measured = read_ledger(str(out)).rows[0].to_document()
    measured |= {"id": "[mlp]-0", "candidate": "[mlp]", "imported": None, "world_size": 2}
    rows = [measured, measured | {"rank": 4}]
    (out / "rows" / "rank.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    code, document = run("compare", str(out))
    assert (code, document["code"]) == (2, "ledger-differs")
    assert "read from: log -> probe" in document["message"]


def test_a_later_import_of_a_run_takes_its_place(tmp_path: Path) -> None:
    out, log = str(tmp_path / "l"), tmp_path / "a.log"
    for seconds in (1.0, 2.0):
        log.write_text(lines(seconds, 20000))
        run("import", str(log), "--out", out, "--candidate", "[]")
    assert {row.step_seconds[-1] for row in read_ledger(out).rows} == {2.0}


def test_a_log_that_ends_in_out_of_memory_is_that(tmp_path: Path) -> None:
    series = series_of_logs([str(EXAMPLES / "logs" / "bridge-second-step.log")])
    assert (series.outcome, series.stage) == (Outcome.OOM, "forward")
    assert series.last == 1


def test_a_log_that_ends_early_without_a_failure_says_so(tmp_path: Path) -> None:
    log = tmp_path / "a.log"
    log.write_text(lines(1.0, 20000, steps=6, total=500))
    series = series_of_logs([str(log)])
    assert series.outcome is None
    assert "ends at iteration 6 of 500" in str(series.message)


def test_a_run_that_was_resumed_counts_a_step_once(tmp_path: Path) -> None:
    log = tmp_path / "a.log"
    log.write_text(lines(1.0, 20000, steps=5) + lines(2.0, 20000, steps=8))
    series = series_of_logs([str(log)])
    assert [series.seconds[step] for step in range(2, 9)] == [2.0] * 7


@pytest.mark.parametrize(
    "changed",
    [
        lambda text: text.replace("\n", "\r\n"),
        lambda text: "".join(
            f"\x1b[32m0: \x1b[0m{line}" for line in text.splitlines(keepends=True)
        ),
        lambda text: text.replace("iteration", "\x1b[1miteration\x1b[0m"),
        lambda text: text.replace("elapsed", "\x1b[33melapsed").replace(
            "max alloc", "\x1b[0mmax alloc"
        ),
        lambda text: text.replace("\n", "\r"),
        lambda text: "\ufeff" + text,
    ],
)
def test_colours_and_other_line_ends_change_nothing(tmp_path: Path, changed: Any) -> None:
    log = tmp_path / "a.log"
    log.write_bytes(lines(1.0, 20000).encode())
    plain = series_of_logs([str(log)])
    log.write_bytes(changed(lines(1.0, 20000)).encode())
    assert series_of_logs([str(log)]) == plain
    assert len(plain.seconds) == 8


def test_steps_that_are_not_kept_are_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("recompute.imports.series.MAX_STEPS", 5)
    monkeypatch.setattr("recompute.imports.run.MAX_STEPS", 5)
    log = tmp_path / "a.log"
    log.write_text(lines(1.0, 20000))
    run = ImportedRun(id="a", candidate="[]")
    series, (first, _) = import_run([str(log)], str(tmp_path / "l"), run)
    assert len(first.step_seconds) == 5
    assert series.notes == ["the last 5 steps are kept, 3 before them are not"]


def test_a_line_without_end_is_read_in_bounded_memory(tmp_path: Path) -> None:
    log = tmp_path / "a.log"
    log.write_text("iteration " * 400_000 + "\n" + lines(1.0, 20000))
    assert series_of_logs([str(log)]).last == 8


@pytest.mark.parametrize(
    ("content", "code"),
    [
        (b"nothing of interest\n", "nothing-to-import"),
        (b"\x00\x01\x02" * 500, "not-a-log"),
        (None, "not-found"),
    ],
)
def test_what_holds_no_run_is_refused(tmp_path: Path, content: bytes | None, code: str) -> None:
    path = tmp_path / "x.log"
    if content is not None:
        path.write_bytes(content)
    status, document = run("import", str(path), "--out", str(tmp_path / "l"), "--candidate", "[]")
    assert (status, document["code"]) == (2, code)
    assert not (tmp_path / "l").exists()


def test_both_kinds_of_source_together_are_refused(tmp_path: Path) -> None:
    log = tmp_path / "a.log"
    log.write_text(lines(1.0, 20000))
    words = ("import", str(log), MEGATRON, "--out", str(tmp_path / "l"), "--candidate", "[]")
    status, document = run(*words)
    assert (status, document["code"]) == (2, "mixed-sources")
