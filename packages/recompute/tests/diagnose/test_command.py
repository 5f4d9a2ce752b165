"""The command: documents, exit codes, text, page."""

from __future__ import annotations

import json
import pickle
import subprocess
import sys
from pathlib import Path

import pytest

from .torch_snapshots import FC1, MIB, Model, train

LOG = (
    "[rank3]: Traceback (most recent call last):\n"
    '[rank3]:   File "/opt/megatron/core/transformer/mlp.py", line 12, in forward\n'
    "[rank3]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 3 has a total capacity of 79.11 GiB of which 1.00 GiB is free. "
    "Of the allocated memory 76.00 GiB is allocated by PyTorch, and 512.00 MiB is reserved by PyTorch but unallocated. <script>alert(1)</script>\n"
)
VERDICTS = [
    "activation",
    "logits",
    "fragmentation",
    "optimizer_state",
    "parameters",
    "gradients",
    "graph_pools",
    "imbalance",
    "other_process",
    "non_torch_memory",
    "thrash",
    "leak",
    "capacity",
    "impossible_request",
    "device_limit",
    "host_memory",
    "recompute_fault",
    "not_oom",
    "unknown",
]


def command(*arguments: str, stdin: str | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "recompute", "diagnose", *arguments],
        input=stdin,
        capture_output=True,
        text=True,
        check=False,
    )


def test_the_document_of_the_contract(tmp_path: Path) -> None:
    path = tmp_path / "a.log"
    path.write_text(LOG, encoding="utf-8")
    done = command(str(path), "--json")
    assert done.returncode == 0
    assert done.stderr == ""
    assert done.stdout.startswith('{"schema": "recompute.diagnose/1"')
    found = json.loads(done.stdout)
    assert set(found) >= {
        "schema",
        "job",
        "changes",
        "assumptions",
        "verdict",
        "stage",
        "rank",
        "numbers",
        "evidence",
        "next_actions",
        "rules",
    }
    assert set(found["job"]) == {"path", "sha256", "format"}
    assert found["verdict"] in VERDICTS
    assert (found["verdict"], found["stage"], found["rank"]) == ("activation", "forward", 3)
    assert found["numbers"] == {
        "requested_bytes": 2 << 30,
        "total_bytes": 84943715696,
        "free_bytes": 1 << 30,
        "allocated_bytes": 76 << 30,
        "reserved_unallocated_bytes": 512 << 20,
        "private_pool_bytes": None,
        "non_torch_bytes": 84943715696 - (77 << 30) - (512 << 20),
    }
    assert found["evidence"][0] == {"file": str(path), "line": 3, "text": LOG.split("\n")[2][:400]}
    assert found["evidence"][1]["line"] == 2
    assert all(set(action) == {"action", "overrides", "why"} for action in found["next_actions"])
    assert all(isinstance(rule, str) for rule in found["rules"])


def test_text_is_short_and_can_be_pasted(tmp_path: Path) -> None:
    path = tmp_path / "a.log"
    path.write_text(LOG, encoding="utf-8")
    done = command(str(path))
    assert done.returncode == 0
    lines = done.stdout.splitlines()
    assert lines[0].startswith("activation in forward, rank 3")
    assert "asked for 2.00 GiB" in lines[1]
    assert "model.recompute_granularity=selective model.recompute_modules=[mlp]" in done.stdout
    assert len(lines) < 40


def test_standard_input() -> None:
    done = command("-", "--json", stdin=LOG)
    assert json.loads(done.stdout)["evidence"][0]["file"] == "-"


@pytest.mark.parametrize(
    "text", ["", "\n", "nothing of note\n", "RuntimeError: CUDA out of memory\n"]
)
def test_exit_code_is_zero_whatever_is_found(text: str) -> None:
    assert command("-", stdin=text).returncode == 0


def test_unreadable_input_is_exit_two_with_one_document(tmp_path: Path) -> None:
    done = command(str(tmp_path / "none.log"), "--json")
    assert done.returncode == 2
    error = json.loads(done.stdout)
    assert (error["schema"], error["code"]) == ("recompute.error/1", "not-found")
    path = tmp_path / "bad.pickle"
    path.write_bytes(pickle.dumps(Path("a")))
    done = command(str(path))
    assert done.returncode == 2
    assert "GLOBAL" in done.stderr
    assert "Traceback" not in done.stderr
    assert command().returncode == 2


def test_a_wrong_revision_or_job_is_exit_two(tmp_path: Path) -> None:
    path = tmp_path / "a.log"
    path.write_text(LOG, encoding="utf-8")
    assert command(str(path), "--mcore", "9.9").returncode == 2
    assert command(str(path), "--job", str(tmp_path / "none.yaml")).returncode == 2


def test_the_page_holds_pictures_and_escapes_what_it_quotes(tmp_path: Path) -> None:
    log, snapshot, page = tmp_path / "a.log", tmp_path / "snapshot.pickle", tmp_path / "a.html"
    log.write_text(LOG, encoding="utf-8")
    recorder = train(Model(), steps=1)
    recorder.oom(512 * MIB, MIB, FC1)
    snapshot.write_bytes(pickle.dumps(recorder.snapshot()))
    done = command(str(log), str(snapshot), "--html", str(page))
    assert done.returncode == 0
    text = page.read_text(encoding="utf-8")
    assert text.count("<svg") >= 3
    assert "<script" not in text
    assert "&lt;script&gt;" in text
    assert "src=" not in text
    assert "a.log:3" in text


def test_a_ledger(tmp_path: Path) -> None:
    (tmp_path / "rows").mkdir()
    (tmp_path / "manifest.json").write_text('{"schema": "recompute.ledger/1"}', encoding="utf-8")
    rows = [
        {"candidate": "[]", "outcome": "oom", "stage": "optimizer_init", "rank": 2},
        {"candidate": "[mlp]", "outcome": "pass", "rank": 0},
    ]
    (tmp_path / "rows" / "a.jsonl").write_text(
        "\n".join(json.dumps(row) for row in rows), encoding="utf-8"
    )
    found = json.loads(command(str(tmp_path), "--json").stdout)
    assert (found["verdict"], found["stage"], found["rank"]) == (
        "optimizer_state",
        "optimizer_init",
        2,
    )
    (tmp_path / "rows" / "b.jsonl").write_text("not json\n", encoding="utf-8")
    assert command(str(tmp_path)).returncode == 2


def test_the_answer_quotes_a_log_without_what_a_terminal_acts_on(tmp_path: Path) -> None:
    path = tmp_path / "a\x1b[2J.log"
    path.write_text(LOG.replace("GPU 3", "\x07\x1b(B\u202eGPU 3"), encoding="utf-8")
    done = command(str(path))
    assert done.returncode == 0
    assert all(sign.isprintable() or sign == "\n" for sign in done.stdout)
    assert "a\\x1b[2J.log:3" in done.stdout
    assert "\\x07\\x1b(B\\u202eGPU 3" in done.stdout


def test_help_imports_nothing_heavy() -> None:
    code = "import sys; from recompute.cli.main import run; sys.argv=['recompute','diagnose','--help']\ntry: run()\nexcept SystemExit: pass\nprint([m for m in ('matplotlib','rich','yaml','zstandard','recompute.diagnose.run') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[]"
