"""plan and explain as commands: exit codes, one JSON document, hostile options."""

from __future__ import annotations

import contextlib
import io
import json
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from recompute.__main__ import main

JOB = """\
model: {num_layers: 4, hidden_size: 1024, num_attention_heads: 8, ffn_hidden_size: 4096,
  vocab_size: 32768, seq_length: 2048, normalization: RMSNorm, gated_linear_unit: true,
  activation_func: silu, add_bias_linear: false, hidden_dropout: 0.0, attention_dropout: 0.0,
  position_embedding_type: rope, share_embeddings_and_output_weights: false}
train: {micro_batch_size: 4, global_batch_size: 8}
mixed_precision: bf16_mixed
"""


@pytest.fixture
def job(tmp_path: Path) -> str:
    path = tmp_path / "job.yaml"
    path.write_text(JOB, encoding="utf-8")
    return str(path)


@dataclass
class Done:
    """What one command left: exit code and both streams."""

    returncode: int
    stdout: str
    stderr: str


def run(*arguments: str) -> Done:
    """Run a command as the console script does, in this process: a start costs more than a plan."""
    out, err = io.StringIO(), io.StringIO()
    with (
        mock.patch.object(sys, "argv", ["recompute", *arguments]),
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
        pytest.raises(SystemExit) as left,
    ):
        main()
    return Done(int(left.value.code or 0), out.getvalue(), err.getvalue())


def answer(done: Done) -> dict[str, Any]:
    document: dict[str, Any] = json.loads(done.stdout)
    assert done.stdout.count("\n") == 1
    return document


@pytest.mark.parametrize(
    ("budget", "status", "code"),
    [("60GiB", "already_fits", 0), ("5500MiB", "planned", 0), ("1GiB", "infeasible", 1)],
)
def test_plan_exits_one_only_when_nothing_fits(
    job: str, budget: str, status: str, code: int
) -> None:
    done = run("plan", job, "--budget", budget, "--json")
    assert (done.returncode, done.stderr) == (code, "")
    assert answer(done)["status"] == status


def test_text_goes_to_stdout_and_talk_to_stderr(job: str, tmp_path: Path) -> None:
    page = tmp_path / "plan.html"
    done = run("plan", job, "--gpu", "H200", "--html", str(page))
    assert done.returncode == 0
    assert done.stdout.startswith("already fits")
    assert done.stderr == f"wrote {page}\n"
    assert page.read_text(encoding="utf-8").startswith("<!doctype html>")


def test_pasted_overrides_give_the_choice_back(job: str) -> None:
    document = answer(run("plan", job, "--budget", "5500MiB", "--json"))
    pasted = document["overrides"]["hydra"].split()
    again = answer(run("explain", job, *pasted, "--json"))
    assert again["choice"] == document["choice"]
    peaks = [row["peak_bytes"] for row in again["ranks"]]
    assert max(peaks) == document["predicted"]["peak_bytes"]


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (("--budget", "much"), "bad-size"),
        (("--gpu", "h300"), "unknown-gpu"),
        (("--budget", "5GiB", "--margin", "6GiB"), "bad-margin"),
        (("--budget", "5GiB", "--mcore", "9.9"), "unknown-revision"),
        (("--top", "0", "--budget", "5GiB"), "usage"),
        ((), "missing-budget"),
        (("model.nun_layers=3", "--budget", "5GiB"), "unknown-field"),
    ],
)
def test_bad_input_is_exit_two_with_one_document(
    job: str, arguments: tuple[str, ...], code: str
) -> None:
    done = run("plan", job, *arguments, "--json")
    assert done.returncode == 2
    document = answer(done)
    assert document["schema"] == "recompute.error/1"
    assert document["code"] == code
    assert "Traceback" not in done.stderr


def test_explain_exits_zero_and_shows_one_rank(job: str) -> None:
    done = run(
        "explain",
        job,
        "model.pipeline_model_parallel_size=2",
        "hardware.num_gpus=2",
        "--rank",
        "1",
        "--json",
    )
    assert done.returncode == 0
    document = answer(done)
    assert [row["rank"]["pp"] for row in document["ranks"]] == [1]


def test_a_rank_beyond_the_job_is_exit_two(job: str) -> None:
    done = run("explain", job, "--rank", "5")
    assert done.returncode == 2
    assert "unknown-rank" in done.stderr


def test_a_job_from_standard_input() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "recompute", "plan", "-", "--budget", "60GiB"],
        input=JOB,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_a_page_that_cannot_be_written_is_exit_three(job: str, tmp_path: Path) -> None:
    done = run("explain", job, "--html", str(tmp_path / "none" / "x.html"))
    assert done.returncode == 3


@pytest.mark.parametrize("command", ["plan", "explain"])
def test_help_names_every_option(command: str) -> None:
    done = run(command, "--help")
    assert done.returncode == 0
    assert "--json" in done.stdout
    assert "--html" in done.stdout


def test_lists_give_a_table_and_a_document_of_rows(job: str) -> None:
    arguments = ("plan", job, "--gpu", "a100-80gb,h200", "--sweep", "train.micro_batch_size=1,3,4")
    document = answer(run(*arguments, "--json"))
    assert document["schema"] == "recompute.what-if/1"
    assert len(document["rows"]) == 6
    assert [row["status"] is None for row in document["rows"]] == [
        False,
        False,
        True,
        True,
        False,
        False,
    ]
    done = run(*arguments)
    assert done.returncode == 0
    assert "largest train.micro_batch_size that fits" in done.stdout


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (("--sweep", "train.micro_batch_size"), "bad-sweep"),
        (("--sweep", "model.nun_layers=1,2"), "unknown-field"),
        (("--budget", "9GiB..1GiB"), "bad-range"),
        (("--gpu", "h200,nope"), "unknown-gpu"),
        (("--budget", "1GiB,2GiB", "--calibrate", "x"), "usage"),
        (("--budget", "1GiB", "--workers", "2"), "usage"),
        (("--budget", "1GiB,2GiB", "--workers", "2", "--cluster", "tcp://h:1"), "usage"),
        (("--budget", "1GiB,2GiB", "--cluster", "nowhere"), "cluster-unreachable"),
        (("--joint", "--per-layer", "--budget", "1GiB"), "usage"),
        (("--joint", "--html", "x.html", "--budget", "1GiB"), "usage"),
        (("--sweep", "model.seq_length=" + ",".join(map(str, range(1, 300)))), "too-many-variants"),
    ],
)
def test_bad_tables_are_exit_two(job: str, arguments: tuple[str, ...], code: str) -> None:
    done = run("plan", job, *arguments, "--json")
    assert done.returncode == 2
    assert answer(done)["code"] == code


def test_a_table_in_which_nothing_fits_is_exit_one(job: str) -> None:
    assert run("plan", job, "--budget", "1GiB,2GiB").returncode == 1


def test_the_joint_search_prints_layouts_that_can_be_pasted(job: str) -> None:
    sizes = ("hardware.num_gpus=4", "train.global_batch_size=32")
    arguments = ("plan", job, *sizes, "--budget", "60GiB")
    document = answer(run(*arguments, "--joint", "--top", "2", "--json"))
    assert len(document["rows"]) == 2
    pasted = document["rows"][0]["changes"]
    again = answer(run(*arguments, *pasted, "--json"))
    assert again["predicted"] == document["rows"][0]["outcome"]["predicted"]
    assert run(*arguments, "--joint").returncode == 0
    assert run("plan", job, "--budget", "60GiB", "--joint").returncode == 2
