"""The tools over the real protocol: a client session talks to the server as a process."""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path
from typing import Any

import pytest

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
    assert {"check", "rules", "rules_diff"} <= set(names)
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
