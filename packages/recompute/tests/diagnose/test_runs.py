"""Logs of one run are judged together, those of several runs each by itself."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from recompute.diagnose.run import Answer, diagnose
from recompute.report.diagnose_document import diagnose_document
from recompute.report.diagnose_page import diagnose_page
from recompute.report.diagnose_text import MOST_RUNS, diagnose_text

LOGS = Path(__file__).parents[4] / "examples" / "logs"


def step(number: int, seconds: float, planned: int = 500) -> str:
    return f" iteration {number:8}/{planned:8} | elapsed time per iteration (ms): {seconds} | lm loss: 1.0 |\n"


def full(rank: int, asked: str = "1.50 GiB", held: str = "76.88") -> str:
    return (
        f"[rank{rank}]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate {asked}. GPU 0 has a "
        f"total capacity of 79.11 GiB of which 0.69 GiB is free. Including non-PyTorch memory, this process has "
        f"78.42 GiB memory in use. Of the allocated memory {held} GiB is allocated by PyTorch, and 0.31 GiB is "
        f"reserved by PyTorch but unallocated.\n"
    )


def answer_of(folder: Path, files: Mapping[str, str]) -> Answer:
    for name, text in files.items():
        target = folder / name
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text, encoding="utf-8")
    return diagnose((str(folder),))


ONE_RUN: dict[str, dict[str, str]] = {
    "a log for each rank": {f"rank_{n}.log": full(n) for n in range(12)},
    "a log for each node, progress in the last": {
        "node-a.log": full(0) + full(3),
        "node-b.log": step(1, 9.0) + step(2, 8.0) + full(9, held="70.00"),
    },
    "both streams of a rank": {
        "0/stdout.log": step(1, 9.0) + step(2, 8.0),
        "0/stderr.log": full(0),
        "1/stderr.log": full(1, held="60.00"),
    },
    "the same lines twice": {
        "slurm-71.out": step(1, 9.0) + step(2, 8.0) + full(0),
        "train.txt": step(1, 9.0) + step(2, 8.0) + full(0),
    },
    "notes beside the log": {"a.log": full(0), "notes.txt": "look at this tomorrow\n"},
}


@pytest.mark.parametrize("name", ONE_RUN)
def test_logs_of_one_run_get_one_verdict(name: str, tmp_path: Path) -> None:
    answer = answer_of(tmp_path, ONE_RUN[name])
    assert answer.runs == ()
    assert len(answer.sources) == len(ONE_RUN[name])
    assert diagnose_document(answer)["runs"] == []


SEVERAL: dict[str, tuple[dict[str, str], list[list[str]]]] = {
    "other progress": (
        {"a.log": step(1, 9.0) + full(0), "b.log": step(1, 5.0) + step(2, 4.0)},
        [["a.log"], ["b.log"]],
    ),
    "another number of steps": (
        {"a.log": step(1, 9.0, 10) + full(0), "b.log": step(1, 9.0, 20)},
        [["a.log"], ["b.log"]],
    ),
    "one rank failed twice": (
        {"a.log": full(0), "b.log": full(0, held="50.00")},
        [["a.log"], ["b.log"]],
    ),
    "what contradicts nothing is still no part of either": (
        {"a.log": full(0), "b.log": full(0, held="50.00"), "engine.log": full(5)},
        [["a.log"], ["b.log"], ["engine.log"]],
    ),
    "attempts of a launcher": (
        {
            f"attempt_{a}/{r}/stderr.log": full(r, held=f"{60 + a}.00")
            for a in (0, 1)
            for r in (0, 1)
        },
        [
            ["attempt_0/0/stderr.log", "attempt_0/1/stderr.log"],
            ["attempt_1/0/stderr.log", "attempt_1/1/stderr.log"],
        ],
    ),
    "jobs one after the other": (
        {
            "slurm-71.out": step(1, 9.0) + full(0),
            "slurm-72.out": step(2, 9.0) + full(0, held="1.00"),
        },
        [["slurm-71.out"], ["slurm-72.out"]],
    ),
}


@pytest.mark.parametrize("name", SEVERAL)
def test_logs_that_contradict_each_other_are_told_apart(name: str, tmp_path: Path) -> None:
    files, expected = SEVERAL[name]
    answer = answer_of(tmp_path, files)
    found = [
        [Path(source.path).relative_to(tmp_path).as_posix() for source in run.sources]
        for run in answer.runs
    ]
    assert found == expected


def test_each_run_of_the_examples_gets_the_verdict_that_it_has_alone() -> None:
    answer = diagnose((str(LOGS),))
    alone = {path: diagnose((str(path),)) for path in sorted(LOGS.glob("*.log"))}
    assert [run.diagnosis for run in answer.runs] == [one.diagnosis for one in alone.values()]
    document = diagnose_document(answer)
    assert [run["verdict"] for run in document["runs"]] == [
        "optimizer_state",
        "not_oom",
        "activation",
        "other_process",
        "fragmentation",
    ]
    assert [run["files"] for run in document["runs"]] == [[str(path)] for path in alone]
    assert document["verdict"] == "optimizer_state", "of the first run that went out of memory"
    text, page = diagnose_text(answer), diagnose_page(answer)
    assert text.startswith("5 runs, told apart by")
    for path in alone:
        assert f"== {path}\n" in text
        assert f"<h2>{path}</h2>" in page
    assert page.count("<h3>Next</h3>") == len(alone)


@pytest.mark.parametrize("name", [*SEVERAL, *ONE_RUN])
def test_logs_get_the_answer_of_their_folder_when_each_is_named(name: str, tmp_path: Path) -> None:
    """A shell that expands ``folder/*`` changes nothing."""
    folder = answer_of(tmp_path, SEVERAL[name][0] if name in SEVERAL else ONE_RUN[name])
    named = diagnose(tuple(source.path for source in folder.sources))
    assert diagnose_text(named) == diagnose_text(folder)
    assert diagnose_document(named) == diagnose_document(folder)


def test_two_runs_of_which_one_is_healthy_are_told_apart_when_named() -> None:
    paths = tuple(str(LOGS / name) for name in ("healthy.log", "srun-fragmentation.log"))
    for given in (paths, paths[::-1]):
        answer = diagnose(given)
        found = {run.sources[0].path: str(run.diagnosis.verdict) for run in answer.runs}
        assert found == dict(zip(paths, ("not_oom", "fragmentation"), strict=True))
        assert answer.diagnosis.verdict == "fragmentation"
        assert "moved the wall" not in diagnose_text(answer)


def arguments(**more: str) -> str:
    """Return the job as Megatron-LM prints it."""
    job = {
        "num_layers": "4",
        "hidden_size": "1024",
        "num_attention_heads": "16",
        "seq_length": "2048",
        "max_position_embeddings": "2048",
        "micro_batch_size": "2",
        "recompute_granularity": "None",
        "recompute_modules": "None",
        **more,
    }
    rows = "".join(f"  {name} {'.' * (48 - len(name))} {value}\n" for name, value in job.items())
    return f"{'-' * 24} arguments {'-' * 24}\n{rows}{'-' * 20} end of arguments {'-' * 21}\n"


MLP = arguments(recompute_granularity="selective", recompute_modules="['mlp']")
COMPARED = {
    "no job is printed": ("", "", "first"),
    "without and with recompute": (arguments(), MLP, "first"),
    "with and without recompute": (MLP, arguments(), "second"),
    "another model": (arguments(), arguments(num_layers="8"), None),
    "another micro-batch": (arguments(), arguments(micro_batch_size="1"), None),
}


@pytest.mark.parametrize("name", COMPARED)
def test_of_two_runs_of_one_comparison_it_is_said_which_got_further(
    name: str, tmp_path: Path
) -> None:
    first_job, second_job, control = COMPARED[name]
    first, second = tmp_path / "a.log", tmp_path / "b.log"
    first.write_text(first_job + step(1, 9.0) + full(0))
    second.write_text(second_job + step(1, 8.0) + step(2, 8.0) + full(0, held="70.00"))
    answer = diagnose((str(first), str(second)))
    assert [[source.path for source in run.sources] for run in answer.runs] == [
        [str(first)],
        [str(second)],
    ]
    if first_job:
        assert all(run.job is not None for run in answer.runs)
    for one in (answer, *answer.runs):
        said = [note for note in one.diagnosis.notes if "moved the wall" in note]
        assert len(said) == (control is not None)
        if control is not None:
            assert said[0].startswith(
                f"moved the wall: {first if control == 'first' else second} failed"
            )


def test_many_runs_are_listed_and_some_printed_in_full(tmp_path: Path) -> None:
    count = MOST_RUNS + 2
    files = {f"job{chr(97 + n)}.log": step(1, 9.0 + n) + full(0) for n in range(count)}
    text = diagnose_text(answer_of(tmp_path, files))
    assert text.startswith(f"{count} runs")
    assert text.count("\n== ") == MOST_RUNS
    assert f"the first {MOST_RUNS} of them" in text


def test_a_pipe_beside_logs_is_read_once(tmp_path: Path) -> None:
    shutil.copy(LOGS / "healthy.log", tmp_path / "a.log")
    shutil.copy(LOGS / "srun-fragmentation.log", tmp_path / "b.log")
    done = subprocess.run(
        [sys.executable, "-m", "recompute", "diagnose", "a.log", "b.log", "-", "--json"],
        cwd=tmp_path,
        input=(LOGS / "megatron-lm-activations.log").read_bytes(),
        capture_output=True,
        check=True,
        env=os.environ,
    )
    document = json.loads(done.stdout)
    assert document["runs"] == []
    assert any(item["file"] == "-" for item in document["evidence"])


def test_no_recompute_is_proposed_for_a_failure_in_the_optimizer_step() -> None:
    answer = diagnose((str(LOGS / "srun-fragmentation.log"),))
    assert answer.diagnosis.stage == "optimizer_step"
    assert not any(
        "recompute" in line for a in answer.diagnosis.next_actions for line in a.overrides
    )


def test_a_healthy_log_is_no_occasion_to_speak_of_plans() -> None:
    answer = diagnose((str(LOGS / "healthy.log"),), predict=lambda *_: ())
    assert not any("no plan" in note for note in answer.diagnosis.notes)


def test_without_a_job_the_stack_says_whether_flags_are_pasted(tmp_path: Path) -> None:
    frame = '[rank0]:   File "/opt/megatron/core/transformer/mlp.py", line 164, in forward\n'
    start = "[rank0]: Traceback (most recent call last):\n"
    script = '[rank0]:   File "/opt/pretrain_gpt.py", line 310, in <module>\n'
    shown = []
    for name, text in {"script": start + script + frame, "other": start + frame}.items():
        log = tmp_path / f"{name}.log"
        log.write_text(text + full(0))
        shown.append(diagnose_text(diagnose((str(log),))))
    assert "--recompute-granularity selective --recompute-modules mlp" in shown[0]
    assert "model.recompute_granularity=selective model.recompute_modules=[mlp]" in shown[1]
