"""The command reference names every command, option and GPU there is, and no other."""

from __future__ import annotations

import importlib
import importlib.util
import re
from pathlib import Path

import click
import pytest

from recompute.cli.main import COMMANDS
from recompute.config.gpus import gpu_names

PAGE = Path(__file__).resolve().parents[4] / "docs" / "reference" / "cli.md"
SECTIONS = dict(
    re.findall(r"^## (\S+)\n(.*?)(?=^## |\Z)", PAGE.read_text("utf-8"), re.MULTILINE | re.DOTALL)
)


def test_every_command_has_a_section_in_the_order_of_help() -> None:
    named = [name for name in SECTIONS if name not in {"Exit", "GPUs"}]
    assert named == list(COMMANDS), "run: python tools/cli_reference.py"


@pytest.mark.parametrize("name", COMMANDS)
def test_a_section_lists_exactly_the_options_of_its_command(name: str) -> None:
    module = COMMANDS[name][0]
    if importlib.util.find_spec(module) is None:
        assert "Not in this version" in SECTIONS[name]
        return
    command: click.Command = importlib.import_module(module).command
    options = {
        option
        for parameter in command.params
        if isinstance(parameter, click.Option) and not parameter.hidden
        for option in parameter.opts
        if option.startswith("--")
    }
    listed = set(re.findall(r"^\| `(?:-\w, )?(--[a-z-]+)", SECTIONS[name], re.MULTILINE))
    assert listed == options, "run: python tools/cli_reference.py"


def test_every_gpu_is_listed() -> None:
    assert re.findall(r"^\| `([a-z0-9-]+)` \|", SECTIONS["GPUs"], re.MULTILINE) == list(gpu_names())
