"""Studies with a stand-in for the training script: order, failures, time limits, kills and resuming."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from recompute.config.choice import NO_RECOMPUTE, full, selective
from recompute.config.load import load
from recompute.config.normalize import normalize
from recompute.errors import UnsupportedError
from recompute.measure.ledger import read_ledger
from recompute.measure.row import Outcome
from recompute.measure.runs import Settings, first_runs, later_runs
from recompute.measure.workload import workload_of

from .rows import row

EXAMPLES = Path(__file__).parents[4] / "examples"
JOB = str(EXAMPLES / "llama3-8b-h200.yaml")
SCRIPT = '''
"""Stands for a training script with a probe in it: writes its rows, or fails as it is told."""
import json, os, pathlib, signal, sys, time
from recompute.measure.ledger import RowWriter
from recompute.measure.row import Outcome, PhaseBytes, Row

told = json.loads(os.environ["RECOMPUTE_RUN"])
with open(os.path.join(told["ledger"], "calls.txt"), "a") as calls:
    calls.write(told["run"] + " " + " ".join(sys.argv[1:]) + "\\n")
peak = 6 if "mlp" in told["candidate"] else 9


def row(outcome, final, steps):
    phase = PhaseBytes(phase="forward", allocated_peak_bytes=peak << 30, reserved_peak_bytes=peak << 30)
    return Row(
        id=told["run"], candidate=told["candidate"], control_id=told["control_id"], repeat=told["repeat"],
        attempt=told["attempt"], order=told["order"], data_seed=told["data_seed"], rank=0, outcome=outcome, final=final, stage=None if final else "backward",
        phases=(phase,), step_seconds=(1.0,) * steps, warmup_steps=min(steps, told["warmup_steps"]),
        optimizer_initialized=True, overrides=tuple(told["overrides"]), environment={"torch": "9.9"},
        recompute_seen=json.loads(os.environ.get("SEEN", "null")),
    )


writer = RowWriter(told["ledger"], "rank-00000")
writer.append(row(Outcome.CRASH, False, 1))
fault = os.environ.get("FAULT", "")
if fault not in ("", "no-control") and told["candidate"] == "[mlp]":
    print("about to fail", flush=True)
    if fault == "hang":
        signal.signal(signal.SIGTERM, signal.SIG_IGN if os.environ.get("STUBBORN") else signal.SIG_DFL)
        time.sleep(600)
    if fault == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    sys.exit(3)
if fault == "no-control" and told["candidate"] == "[]":
    writer.append(row(Outcome.OOM, True, 0))
    sys.exit(1)
if fault == "silent":
    os.unlink(writer.path)
    sys.exit(0)
writer.append(row(Outcome.PASS, True, told["steps"]))
'''


@pytest.fixture
def script(tmp_path: Path) -> str:
    path = tmp_path / "train.py"
    path.write_text(SCRIPT)
    return str(path)


def command(script: str, out: Path, *more: str) -> list[str]:
    start = [sys.executable, "-m", "recompute", "measure", JOB, "--out", str(out)]
    return [*start, "--entry", f"{script} --data mock", "--steps", "6", *more]


def measure(
    script: str, out: Path, *more: str, fault: str = "", **environment: str
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command(script, out, *more),
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "FAULT": fault, **environment},
    )


def calls(out: Path) -> list[list[str]]:
    return [line.split() for line in (out / "calls.txt").read_text().splitlines()]


def test_the_control_comes_first_and_runs_differ_in_one_thing(tmp_path: Path, script: str) -> None:
    out = tmp_path / "l"
    done = measure(script, out, "--candidates", "mlp,core_attn+mlp,full/uniform/1", "--json")
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    assert document["schema"] == "recompute.measure/1"
    names = [run["id"] for run in document["runs"]]
    assert names == ["control-0", "[mlp]-0", "[core_attn,mlp]-0", "full/uniform/1-0", "control-1"]
    assert all(run["outcomes"] == ["pass"] for run in document["runs"])
    started = {words[0]: words[1:] for words in calls(out)}
    assert started["control-0"][:2] == ["--data", "mock"]
    assert "model.recompute_modules=[]" in started["control-0"]
    assert "model.recompute_modules=[core_attn,mlp]" in started["[core_attn,mlp]-0"]
    assert "model.recompute_num_layers=1" in started["full/uniform/1-0"]
    compared = subprocess.run(
        [sys.executable, "-m", "recompute", "compare", str(out), "--json"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert compared.returncode == 0, compared.stderr
    answer = json.loads(compared.stdout)
    assert answer["environment"] == {"torch": "9.9"}
    assert json.loads((out / "manifest.json").read_text())["environment"] == {"torch": "9.9"}
    assert answer["noise_floor"]["bytes"] == 0
    verdicts = {row["candidate"]: row["verdict"] for row in answer["candidates"]}
    assert verdicts["[mlp]"] == "pass"
    assert verdicts["full/uniform/1"] == "within noise"


def test_what_has_ended_is_not_run_again(tmp_path: Path, script: str) -> None:
    out = tmp_path / "l"
    measure(script, out, "--candidates", "mlp", "--repeats", "1")
    before = calls(out)
    done = measure(script, out, "--candidates", "mlp,core_attn", "--repeats", "1", "--json")
    assert [run["skipped"] for run in json.loads(done.stdout)["runs"]] == [True, True, False]
    assert calls(out)[: len(before)] == before
    assert len(calls(out)) == len(before) + 1


@pytest.mark.parametrize(
    ("fault", "outcome", "said"),
    [
        ("exit", Outcome.CRASH, "exit status 3: about to fail"),
        ("kill", Outcome.CRASH, "exit status -9"),
    ],
)
def test_a_failure_is_a_row_and_the_study_goes_on(
    tmp_path: Path, script: str, fault: str, outcome: Outcome, said: str
) -> None:
    out = tmp_path / "l"
    done = measure(script, out, "--candidates", "mlp,core_attn", "--repeats", "1", fault=fault)
    assert done.returncode == 0, done.stderr
    rows = {row.candidate: row for row in read_ledger(str(out)).rows}
    assert (rows["[mlp]"].outcome, rows["[mlp]"].stage, rows["[mlp]"].final) == (
        outcome,
        "backward",
        True,
    )
    assert said in str(rows["[mlp]"].message)
    assert rows["[core_attn]"].outcome is Outcome.PASS


@pytest.mark.parametrize("stubborn", ["", "1"])
def test_a_hang_ends_at_the_time_limit(
    tmp_path: Path, script: str, stubborn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from recompute.measure import launch

    out = tmp_path / "l"
    monkeypatch.setattr(launch, "GRACE_SECONDS", 0.2)
    ended = launch.run_process(
        str(_begun(out)),
        "x",
        [sys.executable, script],
        {"RECOMPUTE_RUN": json.dumps(_told(out)), "FAULT": "hang", "STUBBORN": stubborn},
        limit=5,
    )
    assert ended.timed_out
    assert ended.code == (-signal.SIGKILL if stubborn else -signal.SIGTERM)


def _begun(out: Path) -> Path:
    (out / "rows").mkdir(parents=True)
    return out


def _told(out: Path) -> dict[str, Any]:
    return {
        "ledger": str(out),
        "run": "[mlp]-0",
        "candidate": "[mlp]",
        "control_id": None,
        "repeat": 0,
        "attempt": 0,
        "order": 0,
        "data_seed": 0,
        "warmup_steps": 1,
        "steps": 3,
        "overrides": [],
    }


WAITS = """
import sys
from recompute.megatron import trainer
trainer.LOADED_AHEAD = ()
trainer._wait_for_turn()
open(sys.argv[1], "w").write("ran")
"""


def _gated(out: Path) -> Any:
    from recompute.measure import launch

    command = [sys.executable, "-c", WAITS, str(out / "ran.txt")]
    return launch.start_process(str(out), "x", command, {}, gated=True)


def test_a_run_started_ahead_waits_for_its_turn(tmp_path: Path) -> None:
    from recompute.measure import launch

    out = _begun(tmp_path / "l")
    first, second = _gated(out), _gated(out)
    with pytest.raises(subprocess.TimeoutExpired):
        first.process.wait(timeout=3)
    assert not (out / "ran.txt").exists()
    assert launch.wait_for(first, str(out), limit=60).code == 0
    assert (out / "ran.txt").read_text() == "ran"
    assert second.process.poll() is None
    second.abandon()
    assert second.process.poll() is not None


def test_a_run_started_ahead_ends_with_its_launcher(tmp_path: Path) -> None:
    out = _begun(tmp_path / "l")
    started = _gated(out)
    os.close(started.gate)  # as when the launcher is killed
    assert started.process.wait(timeout=60) == 1
    assert not (out / "ran.txt").exists()


def test_ahead_is_for_the_built_in_trainer(tmp_path: Path, script: str) -> None:
    done = measure(script, tmp_path / "l", "--candidates", "mlp", "--ahead", "2")
    assert done.returncode == 2
    assert "--ahead is for the built-in trainer" in done.stderr


def test_a_hang_is_a_row(tmp_path: Path, script: str) -> None:
    out = tmp_path / "l"
    options = ("--candidates", "mlp", "--repeats", "1", "--limit", "5")
    done = measure(script, out, *options, fault="hang")
    assert done.returncode == 0, done.stderr
    rows = {row.candidate: row for row in read_ledger(str(out)).rows}
    assert rows["[mlp]"].outcome is Outcome.HANG
    assert str(rows["[mlp]"].message).endswith("was ended: about to fail")


SAYS_GOODBYE = """
import signal, sys, time
signal.signal(signal.SIGTERM, lambda *_: sys.exit("torn down by a signal"))
print("step 3 of 9", flush=True)
time.sleep(600)
"""


def test_of_a_hang_the_last_words_are_those_before_it_was_ended(tmp_path: Path) -> None:
    """torchrun answers SIGTERM with a traceback of its own, which says nothing about the run."""
    from recompute.measure import launch

    out = _begun(tmp_path / "l")
    command = [sys.executable, "-c", SAYS_GOODBYE]
    ended = launch.run_process(str(out), "x", command, {}, limit=4)
    assert ended.timed_out
    assert ended.tail == "step 3 of 9"
    assert "torn down" in (out / "logs" / "x.log").read_text()


def test_a_script_that_ignores_its_overrides_is_found_out_while_the_study_runs(
    tmp_path: Path, script: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    spans = [{"layers": [0, 31], "modules": ["core_attn"]}]
    seen = {"recompute_granularity": "selective", "per_layer": spans}
    monkeypatch.setenv("SEEN", json.dumps(seen))
    out = tmp_path / "l"
    done = measure(script, out, "--candidates", "mlp,core_attn", "--repeats", "1")
    assert done.returncode == 0
    assert done.stderr.count("layer 0 of the built model recomputes core_attn") == 2
    compared = subprocess.run(
        [sys.executable, "-m", "recompute", "compare", str(out), "--json"],
        capture_output=True,
        text=True,
        check=False,
    )
    verdicts = {row["verdict"] for row in json.loads(compared.stdout)["candidates"]}
    assert (compared.returncode, verdicts) == (1, {"incomplete"})


def test_a_script_that_writes_nothing_is_a_crash(tmp_path: Path, script: str) -> None:
    out = tmp_path / "l"
    measure(script, out, "--candidates", "core_attn", "--repeats", "1", fault="silent")
    rows = read_ledger(str(out)).rows
    assert {row.outcome for row in rows} == {Outcome.CRASH}
    assert {row.message for row in rows} == {
        "ended with status 0 and wrote no row: does the script hold a MemoryProbe? it printed nothing"
    }


def test_a_killed_launcher_is_resumed_and_its_run_is_ended(tmp_path: Path, script: str) -> None:
    out = tmp_path / "l"
    options = ("--candidates", "mlp", "--repeats", "1")
    launcher = subprocess.Popen(
        command(script, out, *options),
        stderr=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        text=True,
        env={**os.environ, "FAULT": "hang"},
    )
    assert launcher.stderr is not None
    while "[mlp]-0" not in launcher.stderr.readline():
        assert launcher.poll() is None
    log = out / "logs" / "mlp--0.0.log"  # a run says this once its place is written down
    while not (log.exists() and "about to fail" in log.read_text()):
        assert launcher.poll() is None
    launcher.kill()
    launcher.wait()
    launcher.stderr.close()
    left = json.loads((out / "running.json").read_text())["pid"]
    os.kill(left, 0)  # it is still there
    done = measure(script, out, *options, "--json")
    assert "left behind" in done.stderr
    assert [run["skipped"] for run in json.loads(done.stdout)["runs"]] == [True, False]
    rows = {row.candidate: row for row in read_ledger(str(out)).rows}
    assert rows["[mlp]"].outcome is Outcome.PASS
    assert not (out / "running.json").exists()


def test_a_run_is_found_again_however_early_its_launcher_was_killed(tmp_path: Path) -> None:
    """What identifies a run is on the disk before its process is there."""
    from recompute.measure import launch

    out = _begun(tmp_path / "l")
    told = json.dumps(_told(out))
    peek = f"print(open({str(out / 'running.json')!r}).read(), flush=True); import time; time.sleep(600)"
    command = [sys.executable, "-c", peek]
    started = launch.start_process(str(out), "x", command, {"RECOMPUTE_RUN": told})
    while not started.log.read_text():
        assert started.process.poll() is None
    assert json.loads(started.log.read_text()) == {"mark": told}
    assert launch.end_leftovers(str(out))
    assert started.process.wait() == -signal.SIGKILL
    assert not (out / "running.json").exists()


@pytest.mark.parametrize("text", ["", "[]", "7", '{"pid": null}', '{"pid": "x"}', '{"mark": 3}'])
def test_a_broken_note_of_a_run_ends_nothing(tmp_path: Path, text: str) -> None:
    from recompute.measure import launch

    (tmp_path / "running.json").write_text(text)
    assert not launch.end_leftovers(str(tmp_path))


def test_what_failed_is_run_again_on_request_alone(tmp_path: Path, script: str) -> None:
    """An interpreter without torch, a wrong path: what was mended since must not need a new ledger."""
    out = tmp_path / "l"
    options = ("--candidates", "mlp", "--repeats", "1")
    first = measure(script, out, *options, fault="exit")
    assert "--retry" not in first.stdout  # it had begun
    again = measure(script, out, *options)
    assert "crash (before)" in again.stderr
    other = measure(script, out, *options, "--retry", "hang", "--retry", "oom")
    assert "crash (before)" in other.stderr
    done = measure(script, out, *options, "--retry", "crash", "--json")
    document = json.loads(done.stdout)
    assert [(run["outcomes"], run["skipped"]) for run in document["runs"]] == [
        (["pass"], True),
        (["pass"], False),
    ]
    (kept,) = [one for one in read_ledger(str(out)).rows if one.candidate == "[mlp]"]
    assert (kept.outcome, kept.attempt) == (Outcome.PASS, 1)


def test_a_study_that_never_began_says_how_to_go_on(tmp_path: Path) -> None:
    done = measure(str(tmp_path / "absent.py"), tmp_path / "l", "--candidates", "mlp")
    assert done.returncode == 0
    assert "the same command with --retry crash" in done.stdout


def test_two_studies_never_share_a_ledger(tmp_path: Path, script: str) -> None:
    """The second would take the runs of the first for left behind, and end them."""
    out = tmp_path / "l"
    options = ("--candidates", "mlp", "--repeats", "1")
    first = subprocess.Popen(
        command(script, out, *options),
        stderr=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        env={**os.environ, "FAULT": "hang"},
    )
    log = out / "logs" / "mlp--0.0.log"
    while not (log.exists() and "about to fail" in log.read_text()):
        assert first.poll() is None
    left = json.loads((out / "running.json").read_text())["pid"]
    second = measure(script, out, *options, "--json")
    assert second.returncode == 3
    assert json.loads(second.stdout)["code"] == "ledger-in-use"
    os.kill(left, 0)  # the run of the first goes on
    assert first.poll() is None
    first.kill()
    first.wait()
    assert measure(script, out, *options).returncode == 0


@pytest.mark.parametrize(
    ("more", "said"),
    [
        (("--steps", "9"), "steps was 6, now 9"),
        (("--seed", "4"), "seed was 0, now 4"),
        (("--warmup", "1"), "warmup_steps was 2, now 1"),
        (("--seed-argument", "seed={seed}"), 'seed_argument was null, now "seed={seed}"'),
        (("--entry", "other.py"), "entry was"),
        (
            ("--data-seeds", "5", "--seed-argument", "seed={seed}"),
            "seed_argument",
        ),
    ],
)
def test_a_study_goes_on_as_it_was_begun_or_not_at_all(
    tmp_path: Path, script: str, more: tuple[str, ...], said: str
) -> None:
    out = tmp_path / "l"
    measure(script, out, "--candidates", "mlp", "--repeats", "1")
    before = calls(out)
    done = measure(script, out, "--candidates", "core_attn", "--repeats", "1", "--json", *more)
    document = json.loads(done.stdout)
    assert (done.returncode, document["code"]) == (2, "ledger-of-another-study")
    assert said in document["message"]
    assert calls(out) == before


def test_runs_keep_their_seed_of_the_data(tmp_path: Path, script: str) -> None:
    out = tmp_path / "l"
    options = ("--candidates", "mlp", "--seed-argument", "seed={seed}", "--data-seeds", "0,1")
    measure(script, out, *options, "--repeats", "1")
    done = measure(script, out, *options, "--repeats", "2")  # run 1 would be a repeat of seed 0
    assert done.returncode == 2
    assert "run control-1 has data seed 1, now 0" in done.stderr
    more = ("--candidates", "mlp", "--seed-argument", "seed={seed}", "--data-seeds", "0,1,2")
    assert measure(script, out, *more, "--repeats", "1").returncode == 0


def test_of_the_ranks_of_a_run_the_worst_outcome_is_shown(tmp_path: Path) -> None:
    """One rank's crash follows another's running out of memory, and is nothing to look into."""
    from recompute.measure.runs import PlannedRun
    from recompute.measure.study import Done
    from recompute.report.measure_document import measure_text

    run = PlannedRun(name="[mlp]-0", choice=selective("mlp"), repeat=0)
    ranks = (
        row("[mlp]", outcome=Outcome.CRASH, stage="backward"),
        row("[mlp]", rank=1, outcome=Outcome.OOM, stage="optimizer_init"),
    )
    text = measure_text("l", [Done(run=run, rows=ranks, skipped=False)])
    assert "oom      optimizer init" in text
    assert "crash" not in text


def test_repeats_come_after_the_candidates_in_an_order_of_the_seed() -> None:
    settings = Settings(out="x", python="python", repeats=3, repeat_all=True)
    choices = (selective("mlp"), NO_RECOMPUTE, full("uniform", 1), selective("mlp"))
    runs = [r.name for r in (*first_runs(choices, settings), *later_runs(choices, settings))]
    assert runs[:3] == ["control-0", "[mlp]-0", "full/uniform/1-0"]
    assert sorted(runs[3:]) == sorted(
        f"{name}-{n}" for n in (1, 2) for name in ("control", "[mlp]", "full/uniform/1")
    )
    assert runs[3:] == [run.name for run in later_runs(choices, settings)]


def test_a_control_that_does_not_fit_is_not_repeated_but_the_cheapest_that_does(
    tmp_path: Path, script: str
) -> None:
    out = tmp_path / "l"
    done = measure(script, out, "--candidates", "mlp,core_attn", "--json", fault="no-control")
    assert done.returncode == 0, done.stderr
    names = [run["id"] for run in json.loads(done.stdout)["runs"]]
    assert names == ["control-0", "[mlp]-0", "[core_attn]-0", "[mlp]-1"]
    assert "no control" in done.stderr


def test_every_candidate_is_measured_under_each_seed_of_the_data(
    tmp_path: Path, script: str
) -> None:
    out = tmp_path / "l"
    options = ("--candidates", "mlp", "--data-seeds", "3,5", "--seed-argument", "data.seed={seed}")
    done = measure(script, out, *options, "--json")
    assert done.returncode == 0, done.stderr
    runs = {run["id"]: run["data_seed"] for run in json.loads(done.stdout)["runs"]}
    assert runs == {"control-0": 3, "[mlp]-0": 3, "control-1": 3, "control-2": 5, "[mlp]-2": 5}
    for words in calls(out):
        assert words[-1] == f"data.seed={runs[words[0]]}"
    rows = read_ledger(str(out)).rows
    assert {row.id: row.data_seed for row in rows} == runs
    assert sorted(row.order for row in rows if row.order is not None) == [0, 1, 2, 3, 4]
    started = [words[0] for words in calls(out)]
    assert max(rows, key=lambda row: row.order or 0).id == started[-1]


def test_a_megatron_lm_script_takes_flags_in_place_of_its_own(tmp_path: Path, script: str) -> None:
    out = tmp_path / "l"
    words = command(script, out, "--candidates", "mlp,full/block/2", "--repeats", "1")
    at = words.index("--entry") + 1
    words[at] += " --recompute-granularity full --recompute-modules mlp moe --lr 1e-4"
    done = subprocess.run(
        [*words, "--entry-style", "megatron-lm"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    started = {call[0]: call[3:] for call in calls(out)}
    full = "--recompute-granularity full --recompute-method block --recompute-num-layers 2"
    assert {name: " ".join(words) for name, words in started.items()} == {
        "control-0": "--lr 1e-4",
        "[mlp]-0": "--lr 1e-4 --recompute-granularity selective --recompute-modules mlp",
        "full/block/2-0": f"--lr 1e-4 {full}",
    }


@pytest.mark.parametrize("sign", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_who_ends_the_study_ends_its_run(tmp_path: Path, script: str, sign: signal.Signals) -> None:
    out = tmp_path / "l"
    launcher = subprocess.Popen(
        command(script, out, "--candidates", "mlp", "--repeats", "1", "--json"),
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        env={**os.environ, "FAULT": "hang"},
    )
    log = out / "logs" / "mlp--0.0.log"
    while not (log.exists() and "about to fail" in log.read_text()):
        assert launcher.poll() is None
    run = json.loads((out / "running.json").read_text())["pid"]
    launcher.send_signal(sign)
    answer, _ = launcher.communicate(timeout=60)
    assert (launcher.returncode, json.loads(answer)["code"]) == (3, "interrupted")
    with pytest.raises(ProcessLookupError):
        os.kill(run, 0)


@pytest.mark.parametrize(
    ("options", "code", "error"),
    [
        (("--candidates", "moe_act"), 2, "illegal-candidate"),
        (("--candidates", "a b"), 2, "bad-candidate"),
        (("--python", "/nonexistent/python", "--candidates", "mlp"), 3, "launcher-failed"),
        (("--entry", "train.py 'open", "--candidates", "mlp"), 2, "usage"),
        (("--data-seeds", "1,1", "--seed-argument", "{seed}", "--candidates", "mlp"), 2, "usage"),
        (("--data-seeds", "1,-2", "--seed-argument", "{seed}", "--candidates", "mlp"), 2, "usage"),
        (("--data-seeds", "1,2", "--candidates", "mlp"), 2, "usage"),
        (("--seed-argument", "{seed.real}", "--candidates", "mlp"), 2, "usage"),
        (("--partition", "x", "--candidates", "mlp"), 2, "usage"),
        (("--executor", "x.py:y", "--candidates", "mlp"), 2, "usage"),
        (("--out", "/dev/null/x", "--candidates", "mlp"), 3, "cannot-write"),
        (("--launcher", "local", "hardware.num_gpus=2", "--candidates", "mlp"), 2, "usage"),
    ],
)
def test_refusals(
    tmp_path: Path, script: str, options: tuple[str, ...], code: int, error: str
) -> None:
    done = measure(script, tmp_path / "l", *options, "--json")
    assert done.returncode == code
    assert json.loads(done.stdout)["code"] == error


def test_the_planners_candidates(tmp_path: Path, script: str) -> None:
    done = measure(script, tmp_path / "l", "--dry-run", "--budget", "22GiB")
    rows = [line.split() for line in done.stdout.splitlines()[1:]]
    names = [row[0] for row in rows]
    assert all("--data mock model.recompute_granularity" in " ".join(row) for row in rows)
    assert names[0] == "control-0"
    assert names[-1] == "control-1"
    assert 3 <= len(names) <= 7
    assert not (tmp_path / "l").exists()


@pytest.mark.parametrize(
    "overrides",
    [
        ("peft.scheme=lora",),
        ("ddp.use_distributed_optimizer=true",),
        ("hardware.num_gpus=2",),
        ("ddp.use_torch_fsdp2=true",),
    ],
)
def test_what_the_built_in_trainer_does_not_run_is_refused(overrides: tuple[str, ...]) -> None:
    job = normalize(load(JOB, *overrides))
    with pytest.raises(UnsupportedError) as error:
        workload_of(job)
    assert error.value.code == "workload-unsupported"


def test_a_workload_is_plain_json_and_names_what_the_job_changes() -> None:
    workload = workload_of(normalize(load(JOB)))
    assert json.loads(json.dumps(workload)) == workload
    assert workload["microbatches"] == 1
    assert workload["world_size"] == 1
    assert {"num_layers", "normalization"} <= set(workload["given"])
    assert "moe_latent_size" not in workload["given"]


@pytest.mark.parametrize("module", ["trainer", "probe", "applied", "build", "journal", "follow"])
def test_the_side_that_trains_needs_no_third_party_package(module: str) -> None:
    """torch and Megatron Core are there, and nothing that pip would bring with this package."""
    source = Path(__file__).parents[2] / "src"
    code = f"import sys; sys.path.insert(0, {str(source)!r}); import recompute.megatron.{module}"
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-c", code], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
