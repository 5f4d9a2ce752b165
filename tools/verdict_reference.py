"""Write docs/reference/verdicts.md from the tables of diagnose: ``python tools/verdict_reference.py``."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Final

from recompute.diagnose import accounting
from recompute.diagnose.actions import ACTIONS, FALLBACK, PLANS
from recompute.diagnose.events import EVENTS
from recompute.diagnose.message_shapes import SHAPES
from recompute.diagnose.phrases import PHRASES
from recompute.diagnose.types import Stage, Verdict
from recompute.diagnose.verdicts import TABLE
from recompute.units import GIB

ROOT: Final = Path(__file__).resolve().parent.parent
PAGE: Final = ROOT / "docs" / "reference" / "verdicts.md"

MEANINGS: Final[dict[Verdict, str]] = {
    Verdict.ACTIVATION: "tensors that the forward keeps for backward, or the forward's own working memory",
    Verdict.LOGITS: "the logits, their cross entropy or log-probs; no recompute label covers them",
    Verdict.FRAGMENTATION: "the memory was there, in pieces: slack covers the request and is above 5% of the card",
    Verdict.OPTIMIZER_STATE: "moments and master copies; they stay from the first applied step on",
    Verdict.PARAMETERS: "weights: the card was full before a step ran",
    Verdict.GRADIENTS: "gradient buffers or their reduction",
    Verdict.GRAPH_POOLS: "private pools of captured CUDA graphs, or the capture itself",
    Verdict.IMBALANCE: "one rank holds far more than the others because it received more tokens",
    Verdict.OTHER_PROCESS: "more than 10% of the card is held by somebody else: an engine, a left-over process",
    Verdict.NON_TORCH_MEMORY: "NCCL, cuBLAS or the driver got nothing outside torch's cache, or hold too much",
    Verdict.THRASH: "no error: reserved memory at the limit, allocation retries, steps many times slower",
    Verdict.LEAK: "allocated memory rises from step to step",
    Verdict.CAPACITY: "the device was full and nothing in the input shows with what",
    Verdict.IMPOSSIBLE_REQUEST: "one request is larger than the device, or its size is garbage",
    Verdict.DEVICE_LIMIT: "the device had room and a fraction, the driver or a mapping limit refused",
    Verdict.HOST_MEMORY: "host RAM, a cgroup or shared memory ran out, not the GPU",
    Verdict.RECOMPUTE_FAULT: "a checkpoint could not be replayed, or a setting was refused: not memory at all",
    Verdict.NOT_OOM: "nothing in the input is a memory failure",
    Verdict.UNKNOWN: "the input does not show it; the first action says what to collect",
}
SOURCES: Final = ROOT / "packages" / "recompute" / "tests" / "diagnose" / "reported_cases.py"

HEAD: Final = """\
# Verdicts of recompute diagnose

Written by `python tools/verdict_reference.py` from the tables in `packages/recompute/src/recompute/diagnose/`; do not edit.
`recompute diagnose FILE` gives one verdict with a stage, the rank that failed first, the allocator's numbers, quoted
evidence, next actions (cheapest first) and `rules`: the rows below that fired, the deciding one first.
"""


def page() -> str:
    """Return the page."""
    parts = [HEAD, _verdicts(), _order(), _account(), _events(), _phrases(), _shapes(), _sources()]
    return "\n".join(parts)


def _verdicts() -> str:
    lines = [
        "## Each verdict and its first action",
        "",
        "| verdict | means | first action |",
        "|---|---|---|",
    ]
    lines += [
        f"| `{verdict}` | {MEANINGS[verdict]} | {_text(FALLBACK[verdict][0])} |"
        for verdict in Verdict
    ]
    stages = ", ".join(f"`{stage}`" for stage in Stage)
    return "\n".join([*lines, "", f"Stages: {stages}.", ""])


def _order() -> str:
    lines = [
        "## The order of evidence",
        "",
        "Strength first: faults that are not memory, the allocator's numbers, measurements and stacks, libraries without",
        "numbers, what people write, what is left over. The first row that speaks decides.",
        "",
        "| row | asks |",
        "|---|---|",
    ]
    lines += [
        f"| `{row.id}` | {(row.test.__doc__ or '').strip().splitlines()[0]} |" for row in TABLE
    ]
    special = [key for key in PLANS if key not in {row.id for row in (*EVENTS, *PHRASES)}]
    lines += [
        "",
        "Rows of `rules` with a first action of their own:",
        "",
        "| rule | first action |",
        "|---|---|",
    ]
    lines += [f"| `{key}` | {_text(PLANS[key][0])} |" for key in special]
    return "\n".join([*lines, ""])


def _account() -> str:
    return f"""\
## The account

`total = free + allocated + reserved but unallocated + outside torch`. Before raising, PyTorch frees every cached block it
can, so what is reserved but unallocated is fragmentation or private pools. From torch 2.4 on, allocated includes private
pools. The tip at the end of the message is fixed text and never evidence.

| test, in order | reading |
|---|---|
| request > total (or > {accounting.LARGEST_DEVICE // GIB} GiB where total is unknown) | `impossible_request` |
| an `allowed` clause, or free >= request and >= {accounting.FREE_SHARE:.0%} of total | `device_limit` |
| others hold > {accounting.OUTSIDE_SHARE:.0%} of total | `other_process` |
| this process holds > {accounting.OUTSIDE_SHARE:.0%} of total outside torch | `non_torch_memory` |
| private pools > slack and >= {accounting.POOL_SHARE:.0%} of total | `graph_pools` |
| slack >= request and > {accounting.SLACK_SHARE:.0%} of total | `fragmentation` |
| slack >= request, less of total | nearly full: expandable segments may rescue the run, plan for less |
| otherwise | whose memory: the stack, measurements, then what the report says |

`Process N has ... in use` alone does not make another process: inside a container it may be this one.
"""


def _events() -> str:
    lines = [
        "## Texts that are evidence by themselves",
        "",
        "| row | kind | source | first action |",
        "|---|---|---|---|",
    ]
    for row in EVENTS:
        first = _text(PLANS[row.id][0]) if row.id in PLANS else ""
        lines.append(f"| `{row.id}` | {row.kind} | {row.source} | {first} |")
    return "\n".join([*lines, ""])


def _phrases() -> str:
    lines = [
        "## Sentences of a report",
        "",
        "Read in short files only, and only where nothing stronger speaks.",
        "",
        "| row | verdict | such as | first action |",
        "|---|---|---|---|",
    ]
    for row in PHRASES:
        key = PLANS.get(row.id, FALLBACK[row.verdict])[0]
        lines.append(f"| `{row.id}` | `{row.verdict}` | {row.passing} | {_text(key)} |")
    return "\n".join([*lines, ""])


def _shapes() -> str:
    lines = ["## Message shapes", "", "| row | versions |", "|---|---|"]
    lines += [f"| `{row.id}` | {row.versions} |" for row in SHAPES]
    return "\n".join([*lines, ""])


def _sources() -> str:
    """List the public reports that the tests hold the verdicts against."""
    namespace: dict[str, object] = {"__name__": "reported_cases"}
    exec(compile(SOURCES.read_text(encoding="utf-8"), str(SOURCES), "exec"), namespace)  # noqa: S102 - our own test data
    cases = namespace["CASES"]
    assert isinstance(cases, tuple)
    seen = dict.fromkeys((case.url, case.verdict, case.stage) for case in cases)
    lines = ["## Public reports behind it", ""]
    lines += [
        f"- <{url}>: `{verdict}`" + ("" if stage == "unknown" else f", {stage}")
        for url, verdict, stage in seen
    ]
    return "\n".join([*lines, ""])


def _text(key: str) -> str:
    return ACTIONS[key].text.replace("|", "\\|")


def main() -> int:
    """Write the page; with ``--check`` only compare."""
    text = page()
    if "--check" in sys.argv:
        return int(PAGE.read_text(encoding="utf-8") != text)
    PAGE.write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
