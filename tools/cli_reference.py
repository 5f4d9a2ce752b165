"""Write docs/reference/cli.md from the commands themselves: ``python tools/cli_reference.py``."""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import click

from recompute.cli.main import COMMANDS
from recompute.config.gpus import GPUS
from recompute.report.text import gib

PAGE: Final = Path(__file__).resolve().parent.parent / "docs" / "reference" / "cli.md"

HEAD: Final = """\
# The recompute command

Written by `python tools/cli_reference.py` from the commands; do not edit.

`recompute COMMAND JOB [section.field=value ...] [options]`. JOB is a job file in any accepted form, \
`recipe:NAME`, or `-` for standard input. Answers go to standard output, talk and progress to standard \
error. `--json` prints one JSON document; when the command fails that document is \
`{"schema": "recompute.error/1", "code", "message", "hint", "data"}`.

## Exit codes

| code | meaning |
|---|---|
| 0 | yes, or done |
| 1 | the answer is no: `check` found an error, `plan` found nothing that fits, `compare` found no candidate that passes |
| 2 | usage, or input that cannot be read or meant |
| 3 | the world failed: disk, launcher, another program |
"""

GPU_HEAD: Final = """\
## GPUs

Names for `--gpu` and `hardware.gpu`; case does not matter.

| name | memory, GiB | bf16, TFLOP/s | bandwidth, TB/s | links, GB/s | network, GB/s | domain |
|---|---|---|---|---|---|---|
"""


def render() -> str:
    """Return the page."""
    sections = [_section(name, *row) for name, row in COMMANDS.items()]
    return "\n".join((HEAD, *sections, _gpus()))


def _section(name: str, module: str, line: str) -> str:
    if importlib.util.find_spec(module) is None:
        return f"## {name}\n\n{line[0].upper()}{line[1:]}. Not in this version.\n"
    command: click.Command = importlib.import_module(module).command
    context = click.Context(command, info_name=f"recompute {name}")
    usage = command.get_usage(context).removeprefix("Usage: ")
    text = " ".join((command.help or line).split())
    rows = list(_options(command, context))
    table = "\n".join(("| option | meaning |", "|---|---|", *rows))
    return f"## {name}\n\n{text}\n\n```\n{usage}\n```\n\n{table}\n"


def _options(command: click.Command, context: click.Context) -> Iterator[str]:
    for parameter in command.params:
        if not isinstance(parameter, click.Option) or parameter.hidden:
            continue
        record = parameter.get_help_record(context)
        if record is not None:
            names, meaning = (part.replace("|", "\\|") for part in record)
            yield f"| `{names}` | {meaning} |"


def _gpus() -> str:
    rows = (
        f"| `{gpu.name}` | {gib(gpu.memory_bytes)} | {gpu.flops('bf16') / 1e12:.0f} "
        f"| {gpu.bandwidth / 1e12:.2f} | {gpu.nvlink / 1e9:.0f} | {gpu.network / 1e9:.0f} "
        f"| {gpu.domain} |"
        for gpu in GPUS
    )
    return GPU_HEAD + "\n".join(rows) + "\n"


if __name__ == "__main__":
    PAGE.write_text(render(), encoding="utf-8")
