"""--calibrate and --expert-load as a user types them."""

from __future__ import annotations

import contextlib
import io
import json
import re
import sys
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from recompute.__main__ import main

DENSE = """\
model: {num_layers: 4, hidden_size: 1024, num_attention_heads: 8, ffn_hidden_size: 4096,
  vocab_size: 32768, seq_length: 2048, normalization: RMSNorm, gated_linear_unit: true,
  activation_func: silu, add_bias_linear: false, hidden_dropout: 0.0, attention_dropout: 0.0,
  position_embedding_type: rope, share_embeddings_and_output_weights: false,
  recompute_granularity: selective, recompute_modules: []}
train: {micro_batch_size: 4, global_batch_size: 8}
mixed_precision: bf16_mixed
hardware: {num_gpus: 1, gpu: h200}
"""
EXPERTS = ", num_moe_experts: 8, moe_router_topk: 2, moe_ffn_hidden_size: 2048, moe_grouped_gemm: true, moe_token_dispatcher_type: alltoall,\n  expert_model_parallel_size: 4}"


def run(*arguments: str) -> tuple[int, str, str]:
    out, err = io.StringIO(), io.StringIO()
    with (
        mock.patch.object(sys, "argv", ["recompute", *arguments]),
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
        pytest.raises(SystemExit) as left,
    ):
        main()
    return int(left.value.code or 0), out.getvalue(), err.getvalue()


def explained(*arguments: str) -> Any:
    code, out, err = run("explain", *arguments, "--json")
    assert code == 0, out + err
    return json.loads(out)


@pytest.fixture
def dense(tmp_path: Path) -> str:
    path = tmp_path / "dense.yaml"
    path.write_text(DENSE, encoding="utf-8")
    return str(path)


@pytest.fixture
def moe(tmp_path: Path) -> str:
    path = tmp_path / "moe.yaml"
    text = DENSE.replace("num_gpus: 1", "num_gpus: 4").replace("batch_size: 8", "batch_size: 32")
    text = text.replace("recompute_modules: []}", "recompute_modules: []" + EXPERTS)
    path.write_text(text, encoding="utf-8")
    return str(path)


def log(path: Path, allocated: int, peak: int) -> str:
    mb = [size / 2**20 for size in (allocated, peak)]
    path.write_text(
        f"[Rank 0] (after 5 iterations) memory (MB) | allocated: {mb[0]:.6f} | "
        f"max allocated: {mb[1]:.6f} | reserved: {mb[1]:.6f} | max reserved: {mb[1]:.6f}\n",
        encoding="utf-8",
    )
    return str(path)


def row(explanation: Any) -> tuple[int, int]:
    hot = explanation["ranks"][0]
    return sum(hot["static_bytes"].values()), hot["peak_bytes"]


def test_a_log_corrects_every_choice(dense: str, tmp_path: Path) -> None:
    static, peak = row(explained(dense))
    seen = log(tmp_path / "train.log", static + (1 << 30), peak + (3 << 29))
    again = explained(dense, "--calibrate", seen)
    assert row(again) == pytest.approx((static + (1 << 30), peak + (3 << 29)), abs=1024)
    other = "model.recompute_modules=[mlp]"
    before, after = row(explained(dense, other)), row(explained(dense, other, "--calibrate", seen))
    assert after[0] - before[0] == pytest.approx(1 << 30, abs=1024)
    assert any(a["id"] == "calibration" for a in again["assumptions"])
    code, out, _ = run("explain", dense, "--calibrate", seen)
    assert code == 0
    assert "corrected by train.log: pp 0: static +1.00 GiB" in out


def test_a_row_of_a_ledger_does_too_and_plan_obeys(dense: str, tmp_path: Path) -> None:
    static, peak = row(explained(dense))
    rows = tmp_path / "rows.jsonl"
    item = {
        "id": "control-0", "candidate": "[]", "control_id": "control-0", "rank": 0, "outcome": "pass",
        "static_bytes": static + (1 << 30), "optimizer_initialized": True,
        "phases": [{"phase": "loss", "allocated_peak_bytes": peak + (1 << 30), "reserved_peak_bytes": None}],
    }  # fmt: skip
    rows.write_text(json.dumps(item) + "\n", encoding="utf-8")
    budget = str(peak + (1 << 29))
    assert run("plan", dense, "--budget", budget)[1].startswith("already fits")
    code, out, err = run("plan", dense, "--budget", budget, "--calibrate", str(rows))
    assert (code, err) == (0, "")
    assert out.startswith("plan: ")
    assert "corrected by rows.jsonl" in out


@pytest.mark.parametrize(
    ("name", "text", "code"),
    [
        ("none.log", None, "not-found"),
        ("empty.log", "nothing here\n", "nothing-measured"),
        ("bad.jsonl", "{", "bad-ledger"),
        ("none.jsonl", None, "cannot-read"),
        ("list.jsonl", "[1]\n", "bad-ledger"),
    ],
)
def test_what_is_no_run_is_told(
    dense: str, tmp_path: Path, name: str, text: str | None, code: str
) -> None:
    path = tmp_path / name
    if text is not None:
        path.write_text(text, encoding="utf-8")
    status, out, _ = run("explain", dense, "--calibrate", str(path), "--json")
    assert status == 2
    assert json.loads(out)["code"] == code


def test_uneven_experts_widen_the_range_and_name_the_labels(moe: str) -> None:
    even, hot = explained(moe), explained(moe, "--expert-load", "2")
    assert hot["ranks"][0]["peak_bytes"] > even["ranks"][0]["peak_bytes"]
    assert hot["ranks"][0]["peak_range_bytes"][0] == even["ranks"][0]["peak_range_bytes"][0]
    notes = {label["label"]: label["note"] for label in hot["labels"]}
    assert "depends on the expert load" in notes["moe_act"]
    assert "does not depend on the expert load" in notes["core_attn"]
    assert "hot rank gets 2 times" in run("plan", moe, "--budget", "60GiB", "--expert-load", "2")[1]


def test_one_expert_group_has_no_hot_rank(moe: str) -> None:
    alone = (moe, "model.expert_model_parallel_size=1")
    even, hot = explained(*alone), explained(*alone, "--expert-load", "3")
    assert hot["ranks"][0]["peak_bytes"] == even["ranks"][0]["peak_bytes"]


@pytest.mark.parametrize("load", ["0.5", "nan", "1e9", "hot"])
def test_a_load_below_balance_is_refused(moe: str, load: str) -> None:
    assert run("explain", moe, "--expert-load", load)[0] == 2


@pytest.mark.parametrize("more", [["--joint"], ["--sweep", "train.micro_batch_size=1,2"]])
def test_corrections_are_about_one_plan(dense: str, more: list[str]) -> None:
    code, _, err = run("plan", dense, "--budget", "60GiB", "--expert-load", "2", *more)
    assert code == 2
    assert "Traceback" not in err


def picture_peak(page: Path) -> float:
    found = re.search(r">peak ([\d.]+) GiB<", page.read_text(encoding="utf-8"))
    assert found, "the picture names its peak"
    return float(found[1])


def test_pictures_are_those_of_the_figures(dense: str, moe: str, tmp_path: Path) -> None:
    static, peak = row(explained(dense))
    seen = log(tmp_path / "train.log", static + (1 << 30), peak + (3 << 30))
    for job, options in (
        (dense, ("--calibrate", seen)),
        (moe, ("--expert-load", "3")),
        (moe, ("--expert-load", "1.5")),
    ):
        page = tmp_path / "page.html"
        said = row(explained(job, *options, "--html", str(page)))[1]
        assert picture_peak(page) == pytest.approx(said / 2**30, abs=0.02)


def test_a_ledger_with_times_sets_the_step_time() -> None:
    examples = Path(__file__).resolve().parents[4] / "examples"
    arguments = ("plan", str(examples / "llama3-8b-h200.yaml"), "--budget", "20GiB", "--json")
    _, out, _ = run(*arguments, "--calibrate", str(examples / "ledger-per-layer"))
    answer = json.loads(out)
    assert answer["control_seconds"] == pytest.approx(0.192, abs=0.001)
    assert any(item["id"] == "step-calibration" for item in answer["assumptions"])
