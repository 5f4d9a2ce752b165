"""Megatron-LM jobs: launch scripts, argument lists and the ``MODEL_ARGS`` YAML of its functional tests."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

from recompute.config.draft import Draft
from recompute.config.launch_script import read_launch_script
from recompute.config.megatron_args import megatron_flags, parse_flags
from recompute.config.megatron_defaults import to_draft
from recompute.config.shell_lexer import Token, unknown
from recompute.config.yaml_source import YamlDocument
from recompute.errors import ConfigError

_VARIABLE: Final = re.compile(r"\$\{?([A-Za-z_]\w*)\}?")
_LIST: Final = re.compile(r"^\s*\[([^\]]+)\]\s*$")


def read_script(text: str, path: str) -> Draft:
    """Read a launch script or an argument list.

    Raises:
        ConfigError: what :mod:`recompute.config.launch_script` and ``megatron_args`` raise.
    """
    script = read_launch_script(text, megatron_flags())
    draft = to_draft(parse_flags(script.arguments, path))
    draft.environment.update(script.environment)
    if script.num_gpus is not None:
        draft.set("hardware", "num_gpus", script.num_gpus, f"{path}: launcher")
    for index, note in enumerate(script.notes):
        draft.assume(f"script-{index}", note)
    return draft


def read_model_args(document: YamlDocument, path: str) -> Draft:
    """Read a functional-test file: ``ENV_VARS`` and ``MODEL_ARGS``, flags as keys.

    Raises:
        ConfigError: ``wrong-type``, and what ``megatron_args`` raises.
    """
    tree = document.value
    flags = tree.get("MODEL_ARGS")
    if not isinstance(flags, Mapping):
        raise ConfigError(
            "wrong-type",
            f"{path}: MODEL_ARGS is not a mapping of flags to values",
            hint="write for example '--num-layers: 12' below it",
            data={"path": path},
        )
    words: list[Token] = []
    for flag, value in flags.items():
        line = document.lines.get(("MODEL_ARGS", str(flag)), 1)
        words += [Token(text=word, line=line) for word in _words(str(flag), value)]
    draft = to_draft(parse_flags(words, path))
    environment = tree.get("ENV_VARS")
    if isinstance(environment, Mapping):
        draft.environment.update({str(name): str(item) for name, item in environment.items()})
    return draft


def _words(flag: str, value: Any) -> list[str]:
    """Return a flag and its values as words: true is a switch, false and null leave it out."""
    row = megatron_flags().get(flag)
    if value is True:
        return [flag] if row is None or row[1] == 0 else [flag, "true"]
    if value is False or value is None:
        return []
    if isinstance(value, tuple):
        return [flag, *(str(item) for item in value)]
    # The test runner fills in ${NAME}; here it is a value from outside.
    text = _VARIABLE.sub(lambda match: unknown(match[1]), str(value))
    takes_many = row is not None and row[1] not in (0, 1)
    # The runner also takes the brackets off a value that is wrapped in them (_run_training.sh).
    return [flag, *(_LIST.sub(r"\1", text).split() if takes_many else [text.strip()])]
