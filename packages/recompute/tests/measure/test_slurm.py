"""Studies through a real Slurm: what becomes a result, what is repeated, what is taken on again."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from recompute.config.load import load
from recompute.config.normalize import normalize
from recompute.errors import ConfigError, WorldError
from recompute.measure import slurm as slurm_edge
from recompute.measure.launch import Launcher
from recompute.measure.ledger import read_ledger
from recompute.measure.row import Outcome, Row
from recompute.measure.runs import Settings
from recompute.measure.slurm import (
    GOING,
    STATES,
    Seen,
    Submitted,
    _ended,
    _seen,
    cancel_leftover,
    wait_for_job,
)
from recompute.measure.slurm_script import BatchJob, SlurmOptions, script_of
from recompute.measure.study import run_study

from .slurm_cluster import Cluster, cluster, missing

EXAMPLES = Path(__file__).parents[4] / "examples"
JOB = str(EXAMPLES / "llama3-8b-h200.yaml")
SCRIPT = '''
"""Stands for a training script with a probe in it; with a fault it does not end by itself at its first start."""
import json, os, signal, sys
from recompute.measure.ledger import RowWriter
from recompute.measure.row import Outcome, PhaseBytes, Row

told = json.loads(os.environ["RECOMPUTE_RUN"])
with open(os.path.join(told["ledger"], "calls.txt"), "a") as calls:
    calls.write(f"{told['run']} {told['attempt']} {os.environ.get('SLURM_JOB_ID')}\\n")
fault = os.environ.get("FAULT", "")
if told["candidate"] == "[mlp]" and told["attempt"] == 0:
    if fault == "memory":
        held = bytearray(900 << 20)
    if fault == "exit":
        sys.exit(3)
    if fault:
        signal.pause()
    if os.environ.get("GATE"):
        with open(os.environ["GATE"]) as gate:  # a named pipe: goes on when the test opens it
            gate.read()
phase = PhaseBytes(phase="forward", allocated_peak_bytes=6 << 30, reserved_peak_bytes=6 << 30)
writer = RowWriter(told["ledger"], "rank-00000")
writer.append(Row(
    id=told["run"], candidate=told["candidate"], control_id=told["control_id"], repeat=told["repeat"],
    attempt=told["attempt"], order=told["order"], rank=0, outcome=Outcome.PASS, phases=(phase,),
    step_seconds=(1.0,) * told["steps"], warmup_steps=1, optimizer_initialized=True,
    overrides=tuple(told["overrides"]),
))
'''

real = pytest.mark.skipif(missing() is not None, reason=missing() or "")


@pytest.fixture(scope="module")
def slurm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with cluster(tmp_path_factory.mktemp("slurm")) as made:
        yield made


@pytest.fixture
def script(tmp_path: Path) -> str:
    path = tmp_path / "train.py"
    path.write_text(SCRIPT)
    return str(path)


class Study:
    """``recompute measure --launcher slurm`` as a process."""

    def __init__(self, made: Cluster, script: str, out: Path) -> None:
        self.cluster = made
        self.out = out
        self._command = [sys.executable, "-m", "recompute", "measure", JOB, "--out", str(out)]
        self._command += ["--launcher", "slurm", "--entry", script, "--steps", "5"]
        self._command += ["--candidates", "mlp", "--repeats", "1", "--json"]

    def start(self, *more: str, **environment: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [*self._command, *more],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**self.cluster.environment, **environment},
        )

    def run(self, *more: str, **environment: str) -> tuple[int, dict[str, Any], str]:
        return self.end(self.start(*more, **environment))

    def end(self, process: subprocess.Popen[str]) -> tuple[int, dict[str, Any], str]:
        out, err = process.communicate(timeout=120)
        return process.returncode, json.loads(out), err

    def calls(self) -> list[list[str]]:
        path = self.out / "calls.txt"
        return [line.split() for line in path.read_text().splitlines()] if path.exists() else []

    def row(self, candidate: str = "[mlp]") -> Row:
        (found,) = [r for r in read_ledger(str(self.out)).rows if r.candidate == candidate]
        return found

    def until_mlp_runs(self, process: subprocess.Popen[str]) -> str:
        """Wait until the first start of ``[mlp]`` is inside the script; return its job."""
        _until(process, lambda: any(call[:2] == ["[mlp]-0", "0"] for call in self.calls()))
        return self.calls()[-1][2]


def _until(process: subprocess.Popen[str], holds: Callable[[], bool]) -> None:
    while not holds():
        assert process.poll() is None, process.communicate()


@pytest.fixture
def study(slurm: Cluster, script: str, tmp_path: Path) -> Study:
    return Study(slurm, script, tmp_path / "l")


@real
def test_each_run_is_a_job_of_its_own(study: Study) -> None:
    code, document, said = study.run("--repeats", "2", "--partition", "low")
    assert code == 0, said
    assert [run["outcomes"] for run in document["runs"]] == [["pass"]] * 3
    assert [run["order"] for run in document["runs"]] == [0, 1, 2]
    assert len({job for *_, job in study.calls()}) == 3
    script = (study.out / "logs" / "mlp--0.0.sbatch").read_text()
    assert "#SBATCH --partition=low\n" in script
    assert "#SBATCH --gpus-per-node=1\n" in script
    assert "model.recompute_modules=[mlp]" in script
    assert not (study.out / "running-job.json").exists()
    code, document, _ = study.run("--repeats", "2")
    assert [run["skipped"] for run in document["runs"]] == [True] * 3


@real
def test_a_script_of_the_dry_run_is_one_that_slurm_takes(study: Study, tmp_path: Path) -> None:
    code, document, _ = study.run("--dry-run")
    assert code == 0
    assert not study.out.exists()
    for number, run in enumerate(document["runs"]):
        path = tmp_path / f"{number}.sbatch"
        path.write_text(run["script"])
        study.cluster.ask("sbatch", "--test-only", str(path))


PROBED = """
import sys
from recompute.megatron import MemoryProbe

probe = MemoryProbe(sys.argv[1], candidate="[]", run="control-0", snapshots=False)
with probe, probe.step():
    pass
"""


@real
def test_a_probe_in_tasks_of_srun_knows_its_rank(slurm: Cluster, tmp_path: Path) -> None:
    """A loop that srun starts, one task a GPU, has no RANK before it joins its processes."""
    out, script = tmp_path / "l", tmp_path / "train.py"
    script.write_text(PROBED)
    slurm.ask("srun", "--ntasks=3", "--mem=300", sys.executable, str(script), str(out))
    rows = sorted(read_ledger(str(out)).rows, key=lambda row: row.rank)
    assert [(row.rank, row.world_size) for row in rows] == [(0, 3), (1, 3), (2, 3)]


@real
def test_the_time_limit_ends_a_job(study: Study) -> None:
    code, _, said = study.run("--limit", "3", FAULT="hang")
    assert code == 0, said
    assert study.row().outcome is Outcome.HANG
    assert "was ended" in str(study.row().message)
    assert study.cluster.jobs() == []


@real
def test_a_job_that_fails_is_a_crash(study: Study) -> None:
    code, _, said = study.run(FAULT="exit")
    assert code == 0, said
    assert (study.row().outcome, study.row().final) == (Outcome.CRASH, True)
    assert "exit status 3" in str(study.row().message)


@real
def test_too_much_host_memory_is_out_of_memory(study: Study) -> None:
    code, _, said = study.run("--sbatch=--mem=300", FAULT="memory")
    assert code == 0, said
    assert (study.row().outcome, study.row().final) == (Outcome.OOM, True)
    assert "host memory" in str(study.row().message)


@real
def test_a_lost_node_says_nothing_and_the_run_is_repeated(study: Study) -> None:
    process = study.start(FAULT="wait")
    job = study.until_mlp_runs(process)
    node = f"NodeName={study.cluster.host}"
    study.cluster.ask("scontrol", "update", node, "State=DOWN", "Reason=test")
    _until(process, lambda: job not in {number for number, *_ in study.cluster.jobs()})
    _until(process, study.cluster.node_is_back)
    code, document, said = study.end(process)
    assert code == 0, said
    assert document["runs"][1]["outcomes"] == ["pass"]
    assert [call[1] for call in study.calls() if call[0] == "[mlp]-0"] == ["0", "1"]
    lines = (study.out / "rows" / "launcher.jsonl").read_text().splitlines()
    (interrupted,) = [json.loads(line) for line in lines]
    assert interrupted["interrupted"]
    assert "lost a node" in interrupted["message"]


@real
def test_a_preempted_run_is_repeated(study: Study) -> None:
    process = study.start("--sbatch=--cpus-per-task=16", FAULT="wait")
    job = study.until_mlp_runs(process)
    words = ("sbatch", "--parsable", "--partition=high", "--cpus-per-task=16", "--output=/dev/null")
    other = study.cluster.ask(*words, "--wrap", "sleep 1000").strip()
    _until(process, lambda: job not in {number for number, *_ in study.cluster.jobs()})
    study.cluster.ask("scancel", other)
    code, document, said = study.end(process)
    assert code == 0, said
    assert document["runs"][1]["outcomes"] == ["pass"]
    assert "was preempted" in (study.out / "rows" / "launcher.jsonl").read_text()


@real
def test_a_job_that_another_cancels_is_left_for_the_next_time(study: Study) -> None:
    process = study.start(FAULT="wait")
    study.cluster.ask("scancel", study.until_mlp_runs(process))
    code, document, said = study.end(process)
    assert code == 3
    assert "ended from outside" in said
    assert [run["interrupted"] for run in document["runs"]] == [False, True]
    words = [sys.executable, "-m", "recompute", "compare", str(study.out), "--json"]
    done = subprocess.run(words, capture_output=True, check=False)
    (candidate,) = json.loads(done.stdout)["candidates"]
    assert candidate["verdict"] == "incomplete"
    assert "was cancelled" in candidate["reason"]
    code, document, _ = study.run()
    assert (code, document["runs"][1]["outcomes"]) == (0, ["pass"])
    assert (study.row().attempt, study.row().interrupted) == (1, False)


@real
@pytest.mark.parametrize("sign", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_who_ends_the_study_ends_its_job(study: Study, sign: signal.Signals) -> None:
    process = study.start(FAULT="wait")
    study.until_mlp_runs(process)
    process.send_signal(sign)
    code, document, _ = study.end(process)
    assert code == 3
    assert document["code"] == "interrupted"
    going = [state for *_, state in study.cluster.jobs() if state in {"RUNNING", "PENDING"}]
    assert going == []
    assert not (study.out / "running-job.json").exists()


@real
def test_a_job_that_is_still_there_is_taken_on(study: Study, tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    os.mkfifo(gate)
    process = study.start(GATE=str(gate))
    job = study.until_mlp_runs(process)
    process.kill()
    process.communicate()
    again = study.start(GATE=str(gate))
    assert again.stderr is not None
    while f"job {job} was already there" not in (line := again.stderr.readline()):
        assert line, "the job was not taken on"
    gate.write_text("go")
    code, document, _ = study.end(again)
    assert (code, document["runs"][1]["outcomes"]) == (0, ["pass"])
    assert [call[0] for call in study.calls()] == ["control-0", "[mlp]-0"]


@real
def test_a_job_that_ended_while_nobody_waited_is_not_repeated(study: Study, tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    os.mkfifo(gate)
    process = study.start(GATE=str(gate))
    job = study.until_mlp_runs(process)
    process.kill()
    process.communicate()
    gate.write_text("go")
    while job in {number for number, *_ in study.cluster.jobs()}:
        pass
    _, document, _ = study.run()
    assert [run["skipped"] for run in document["runs"]] == [True, True]
    assert len(study.calls()) == 2
    assert not (study.out / "running-job.json").exists()


@real
def test_a_job_left_behind_by_a_study_that_has_changed_is_cancelled(study: Study) -> None:
    process = study.start(FAULT="wait")
    job = study.until_mlp_runs(process)
    process.kill()
    process.communicate()
    code, _, said = study.run("--candidates", "core_attn")
    assert code == 0, said
    assert job not in {number for number, *_ in study.cluster.jobs("--states=RUNNING,PENDING")}


@real
def test_what_slurm_refuses_is_said(study: Study) -> None:
    code, document, _ = study.run("--partition", "nowhere")
    assert (code, document["code"]) == (3, "slurm-refused")
    assert "Invalid partition" in document["message"]
    assert not (study.out / "running-job.json").exists()


def test_without_slurm_it_is_said(script: str, tmp_path: Path) -> None:
    words = [sys.executable, "-m", "recompute", "measure", JOB, "--out", str(tmp_path / "l")]
    words += ["--launcher", "slurm", "--candidates", "mlp", "--entry", script, "--json"]
    done = subprocess.run(
        words, capture_output=True, text=True, check=False, env={**os.environ, "PATH": ""}
    )
    assert done.returncode == 3
    assert json.loads(done.stdout)["code"] == "launcher-failed"


@pytest.fixture
def silent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Put programs on PATH that say what Slurm's say while its controller is away; return their notes."""
    folder, notes = tmp_path / "bin", tmp_path / "asked.txt"
    folder.mkdir()
    for name in ("scontrol", "squeue", "scancel"):
        program = folder / name
        text = "slurm_load_jobs error: Unable to contact slurm controller (connect failure)"
        program.write_text(f'#!/bin/sh\necho {name} >>"{notes}"\necho "{text}" >&2\nexit 1\n')
        program.chmod(0o755)
    monkeypatch.setenv("PATH", str(folder), prepend=os.pathsep)
    return notes


def left_behind(root: Path) -> Path:
    """Leave behind what a killed study does."""
    root.mkdir()
    memory = root / "running-job.json"
    memory.write_text(json.dumps({"name": "recompute-l-1", "job": "77", "stem": "s", "told": {}}))
    return memory


def test_a_controller_that_never_answers_is_not_waited_for_without_end(
    tmp_path: Path, silent: Path
) -> None:
    memory = left_behind(tmp_path / "l")
    root = str(tmp_path / "l")
    job = Submitted(job="77", name="recompute-l-1", log=tmp_path / "x.log")
    said: list[str] = []
    with pytest.raises(WorldError) as caught:
        wait_for_job(job, root, limit=60, say=said.append, patience=0)
    assert (caught.value.code, caught.value.data) == ("slurm-silent", {"job": "77"})
    assert "Unable to contact slurm controller" in caught.value.message
    assert len(said) == 1
    assert memory.exists()  # the same command takes the job on
    assert "scancel" not in silent.read_text()


def test_a_study_whose_controller_falls_silent_leaves_its_job_for_the_next_start(
    tmp_path: Path, silent: Path, script: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    sbatch = tmp_path / "bin" / "sbatch"
    sbatch.write_text("#!/bin/sh\necho 88\n")
    sbatch.chmod(0o755)
    monkeypatch.setattr(slurm_edge, "SILENCE_SECONDS", 0.0)
    monkeypatch.setattr(slurm_edge, "SHORT_SILENCE_SECONDS", 0.0)
    root = tmp_path / "l"
    settings = Settings(
        out=str(root), launcher=Launcher.SLURM, python=sys.executable, entry=(script,)
    )
    study = run_study(normalize(load(JOB)), (), settings, lambda _: None)
    with pytest.raises(WorldError) as caught:
        next(study)
    assert caught.value.code == "slurm-silent"
    assert json.loads((root / "running-job.json").read_text())["job"] == "88"
    assert "scancel" not in silent.read_text()


def test_a_job_left_behind_does_not_stop_a_study_where_slurm_cannot_be_asked(
    tmp_path: Path, silent: Path, script: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    memory = left_behind(tmp_path / "l")
    said = cancel_leftover(str(tmp_path / "l"), patience=0)
    assert said is not None
    assert "job 77 of an earlier recompute measure may still run" in said
    assert memory.exists()
    monkeypatch.setenv("PATH", "")
    words = [sys.executable, "-m", "recompute", "measure", JOB, "--out", str(tmp_path / "l")]
    words += ["--candidates", "mlp", "--repeats", "1", "--entry", script, "--steps", "5"]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert (
        "job 77 of an earlier recompute measure may still run: cannot start scontrol" in done.stderr
    )
    assert {row.outcome for row in read_ledger(str(tmp_path / "l")).rows} == {Outcome.PASS}


# --- the script, and what Slurm answers


def job(**fields: Any) -> BatchJob:
    values: dict[str, Any] = {
        "name": "recompute-x",
        "log": "/data/a b/100%/x.log",
        "python": "/opt/my env/bin/python",
        "target": ("train.py", "model.recompute_modules=[]", "it's"),
        "world": 1,
        "variables": {"RECOMPUTE_RUN": '{"run": "it\'s $HOME"}'},
        "limit_seconds": 61.0,
    }
    return BatchJob(**values | fields)


def test_a_script_carries_every_text_unchanged(tmp_path: Path) -> None:
    """The shell is the judge: srun is a function that prints what it was given."""
    text = script_of(job(), SlurmOptions(srun=("--container-image=a b",), setup=("set -e",)))
    assert '#SBATCH --output="/data/a b/100%%/x.log"\n' in text
    assert "#SBATCH --time=2\n" in text
    show = 'srun() { printf "%s\\n" "$@" "$RECOMPUTE_RUN"; }\n'
    done = subprocess.run(["bash", "-c", show + text], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == [
        "--ntasks-per-node=1",
        "--kill-on-bad-exit=1",
        "--container-image=a b",
        "/opt/my env/bin/python",
        "train.py",
        "model.recompute_modules=[]",
        "it's",
        '{"run": "it\'s $HOME"}',
    ]


def test_ranks_are_spread_over_nodes() -> None:
    text = script_of(job(world=16), SlurmOptions(gpus_per_node=8, account="a"))
    assert "#SBATCH --nodes=2\n#SBATCH --ntasks-per-node=1\n" in text
    assert "#SBATCH --gpus-per-node=8\n" in text
    assert "--nnodes=2 --nproc-per-node=8" in text
    assert "scontrol show hostnames" in text
    with pytest.raises(ConfigError) as error:
        script_of(job(world=12), SlurmOptions(gpus_per_node=8))
    assert error.value.code == "nodes-uneven"


@pytest.mark.parametrize("line", ["--gres=gpu:8", "--gpus 4", "-G8", "-G 8", "--exclusive"])
def test_a_line_of_the_users_about_gpus_takes_the_place_of_ours(line: str) -> None:
    text = script_of(job(), SlurmOptions(lines=(line,)))
    assert f"#SBATCH {line}\n" in text
    assert "--gpus-per-node" not in text


@pytest.mark.parametrize(
    "options",
    [
        SlurmOptions(partition="a\nrm -rf /"),
        SlurmOptions(account="a\x00"),
        SlurmOptions(lines=("constraint=x",)),
        SlurmOptions(lines=("--comment=a\nb",)),
        SlurmOptions(srun=("--x\n",)),
    ],
)
def test_a_text_that_would_break_out_of_its_line_is_refused(options: SlurmOptions) -> None:
    with pytest.raises(ConfigError) as error:
        script_of(job(), options)
    assert error.value.code == "bad-sbatch-line"


def seen(state: str) -> Seen:
    return Seen(name="x", state=state, run_seconds=5.0, code=1, reason="None")


@pytest.mark.parametrize(
    ("state", "outcome", "outside", "again"),
    [
        ("COMPLETED", None, False, False),
        ("FAILED", None, False, False),
        ("TIMEOUT", Outcome.HANG, False, False),
        ("OUT_OF_MEMORY", Outcome.OOM, False, False),
        ("NODE_FAIL", Outcome.CRASH, True, True),
        ("BOOT_FAIL", Outcome.CRASH, True, True),
        ("PREEMPTED", Outcome.CRASH, True, True),
        ("CANCELLED", Outcome.CRASH, True, False),
        ("DEADLINE", Outcome.CRASH, True, False),
        ("REVOKED", Outcome.CRASH, True, False),
        ("A_NEW_ONE", Outcome.CRASH, True, False),
    ],
)
def test_what_the_end_of_a_job_means(
    tmp_path: Path, state: str, outcome: Outcome | None, outside: bool, again: bool
) -> None:
    assert (state in STATES) == (state != "A_NEW_ONE")
    assert not seen(state).going
    submitted = Submitted(job="7", name="x", log=tmp_path / "none")
    ended = _ended(submitted, seen(state), too_long=False)
    assert (ended.outcome, ended.outside, ended.again) == (outcome, outside, again)
    assert ended.timed_out == (state == "TIMEOUT")


def test_every_state_ends_or_goes_on() -> None:
    assert not GOING & set(STATES)
    assert seen("COMPLETING").going
    assert _ended(
        Submitted(job="7", name="x", log=Path("none")), None, too_long=False
    ).outside  # forgotten by Slurm


def test_answers_of_scontrol_are_read() -> None:
    text = "JobId=7 JobName=recompute-x UserId=a(1) JobState=FAILED Reason=NonZeroExitCode "
    text += "ExitCode=0:9 RunTime=1-02:03:04 TimeLimit=00:02:00 Command=/x JobState=RUNNING"
    found = _seen(text)
    assert (found.name, found.state, found.reason) == ("recompute-x", "FAILED", "NonZeroExitCode")
    assert (found.code, found.run_seconds) == (-9, 93784.0)
