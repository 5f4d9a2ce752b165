"""The tools over the real protocol: a client session talks to the server as a process."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from recompute.mcp.server import TOOLS

JOB = """\
model:
  num_layers: 24
  hidden_size: 1024
  num_attention_heads: 16
  recompute_granularity: full
  recompute_method: uniform
  recompute_num_layers: 7
"""


async def _talk(calls: list[tuple[str, dict[str, Any]]]) -> tuple[list[str], list[Any]]:
    from mcp import ClientSession, StdioServerParameters
    from mcp.client.stdio import stdio_client

    server = StdioServerParameters(command=sys.executable, args=["-m", "recompute", "mcp"])
    async with stdio_client(server) as streams, ClientSession(*streams) as session:
        await session.initialize()
        names = [tool.name for tool in (await session.list_tools()).tools]
        answers = []
        for name, arguments in calls:
            result = await session.call_tool(name, arguments)
            answers.append(json.loads(result.content[0].text))
        return names, answers


@pytest.mark.filterwarnings("ignore")
def test_tools_answer_with_the_documents_of_the_commands(tmp_path: Path) -> None:
    job = tmp_path / "job.yaml"
    job.write_text(JOB, encoding="utf-8")
    names, answers = asyncio.run(
        _talk(
            [
                ("check", {"job": str(job), "mcore": "0.16"}),
                ("check", {"job": str(job), "mcore": "9.9"}),
                ("check", {"job": "-"}),
                ("rules", {"mcore": "0.13", "rule": "fp8-act-norm-any"}),
                ("rules_diff", {"before": "0.16", "after": "0.19", "job": str(job)}),
            ]
        )
    )
    assert names == list(TOOLS)
    checked, unknown, stdin, listed, difference = answers
    assert checked["schema"] == "recompute.check/1"
    assert not checked["ok"]
    assert checked["findings"][0]["rule"] == "uniform-nondividing"
    assert (unknown["schema"], unknown["code"]) == ("recompute.error/1", "unknown-revision")
    assert stdin["code"] == "no-stdin"
    assert [row["rule"] for row in listed["rules"]] == ["fp8-act-norm-any"]
    assert {change["kind"] for change in difference["diff"]} == {
        "becomes legal",
        "changes meaning",
    }


DENSE = """\
model: {num_layers: 4, hidden_size: 1024, num_attention_heads: 8, ffn_hidden_size: 4096,
  vocab_size: 32768, seq_length: 2048, gated_linear_unit: true, activation_func: silu,
  add_bias_linear: false, hidden_dropout: 0.0, attention_dropout: 0.0}
train: {micro_batch_size: 4, global_batch_size: 8}
mixed_precision: bf16_mixed
"""
OOM = (
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 200.00 GiB. GPU 0 has a total "
    "capacity of 79.11 GiB of which 70.00 GiB is free. Of the allocated memory 4.00 GiB is allocated "
    "by PyTorch, and 1.00 GiB is reserved by PyTorch but unallocated.\n"
)


LEDGER = Path(__file__).parents[4] / "examples" / "ledger"


@pytest.mark.filterwarnings("ignore")
def test_measured_candidates_are_compared_as_by_the_command(tmp_path: Path) -> None:
    calls = [("compare", {"ledger": str(path)}) for path in (LEDGER, tmp_path, "-")]
    _, (compared, empty, stdin) = asyncio.run(_talk(calls))
    done = subprocess.run(
        [sys.executable, "-m", "recompute", "compare", str(LEDGER), "--json"],
        capture_output=True,
        check=True,
    )
    assert compared == json.loads(done.stdout)
    assert (empty["code"], stdin["code"]) == ("not-a-ledger", "no-stdin")


@pytest.mark.filterwarnings("ignore")
def test_an_agent_goes_from_a_peak_to_a_plan_over_the_protocol(tmp_path: Path) -> None:
    job, log = tmp_path / "job.yaml", tmp_path / "train.log"
    job.write_text(DENSE, encoding="utf-8")
    log.write_text(OOM, encoding="utf-8")
    half = {"job": str(job), "overrides": ["train.micro_batch_size=2"]}
    _, answers = asyncio.run(
        _talk(
            [
                ("show", half),
                ("explain", {"job": str(job)}),
                ("explain", {"job": str(job), "rank": 5}),
                ("plan", {"job": str(job), "budget": "5000MiB", "top": 2}),
                ("plan", {"job": str(job), "gpu": "h100-80gb"}),
                ("plan", {"job": str(job)}),
                ("plan", {"job": str(job), "budget": "5000MiB", "top": 0}),
                ("plan", {"job": str(job), "budget": "5000MiB", "mcore": "9.9"}),
                ("diagnose", {"files": [str(log)]}),
                ("diagnose", {"files": ["-"]}),
            ]
        )
    )
    shown, explained, no_rank, planned, fits, no_budget, no_top, no_core, why, stdin = answers
    assert {"field": "train.micro_batch_size", "value": 2, "origin": "override"} in shown["fields"]
    assert shown["schema"] == "recompute.show/1"
    hot = max(row["peak_bytes"] for row in explained["ranks"])
    assert hot > 5000 << 20
    assert no_rank["code"] == "unknown-rank"
    assert (planned["schema"], planned["status"]) == ("recompute.plan/1", "planned")
    assert planned["predicted"]["peak_bytes"] <= 5000 << 20
    assert len(planned["alternatives"]) == 2
    assert fits["status"] == "already_fits"
    assert fits["choice"]["recompute_modules"] == []
    assert [answer["code"] for answer in (no_budget, no_top, no_core, stdin)] == [
        "missing-budget",
        "bad-value",
        "unknown-revision",
        "no-stdin",
    ]
    assert why["verdict"] == "impossible_request"
    assert why["numbers"]["requested_bytes"] == 200 << 30
