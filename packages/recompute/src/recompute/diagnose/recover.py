"""The job that a log printed, as text that the loader reads."""

from __future__ import annotations

import ast
import dataclasses
from typing import TYPE_CHECKING, Any, Final

from recompute.errors import RecomputeError

if TYPE_CHECKING:
    from recompute.config.schema import JobConfig
    from recompute.diagnose.observation import Observation

_SECTIONS: Final = ("model", "train", "optimizer", "ddp", "dataset", "checkpoint")


def job_text(seen: Observation) -> str | None:
    """Return the job of a log as Bridge YAML or as a Megatron-LM argument list.

    Args:
        seen: What was read. A whole YAML wins over an argument block, that over a summary.
    """
    if seen.yaml_text:
        return seen.yaml_text
    if len(seen.arguments) >= 5:
        return arguments_text(seen.arguments)
    if seen.summary.get("model"):
        return summary_text(seen.summary)
    return None


def arguments_text(arguments: dict[str, str]) -> str:
    """Write a dump of argparse values back as flags, one a line."""
    from recompute.config.megatron_args import megatron_flags

    lines = []
    for flag, row in sorted(megatron_flags().items()):
        name, count = row[0], row[1]
        printed = arguments.get(name)
        if printed is None or printed == "None":
            continue
        if count == 0:
            if len(row) > 3 and str(row[3]) == printed:
                lines.append(flag)
            continue
        words = _words(printed)
        if words and not any(_odd(word) for word in words):
            lines.append(" ".join([flag, *words]))
    return "\n".join(lines) + "\n"


def _words(printed: str) -> list[str]:
    if printed.startswith(("[", "(")):
        value = _literal(printed)
        return [str(item) for item in value] if isinstance(value, list | tuple) else []
    return [printed] if printed else []


def _odd(word: str) -> bool:
    """Tell whether a printed value is no word that a flag takes (an object, a path with spaces)."""
    return (
        not word
        or any(character in word for character in " \"'$`\\<>|;&()*?#\n")
        or word.startswith(("-", "torch."))
    )


def summary_text(summary: dict[str, dict[str, str]]) -> str:
    """Write Bridge's summary of non-default values as YAML."""
    import json

    lines = []
    for section in _SECTIONS:
        values = {name: _literal(printed) for name, printed in summary.get(section, {}).items()}
        plain = {name: value for name, value in values.items() if _is_plain(value)}
        if plain:
            lines.append(f"{section}:")
            lines += [f"  {name}: {json.dumps(value)}" for name, value in sorted(plain.items())]
    return "\n".join(lines) + "\n"


def _literal(printed: str) -> Any:
    if len(printed) > 4000:
        return None
    try:
        return ast.literal_eval(printed)
    except (ValueError, SyntaxError, MemoryError, RecursionError, TypeError):
        return None


def _is_plain(value: Any) -> bool:
    if isinstance(value, list | tuple):
        return all(_is_plain(item) and not isinstance(item, list | tuple) for item in value)
    return isinstance(value, str | int | float | bool)


def recovered_job(seen: Observation) -> tuple[JobConfig | None, str | None]:
    """Return the job that the log printed and a note for people.

    A dump that the loader refuses is a note, never an error: the log is what was asked about.
    """
    from recompute.config.load import load

    text = job_text(seen)
    if text is None:
        return None, None
    try:
        job = load("-", stdin=text.encode("utf-8", "replace"))
    except RecomputeError as error:
        return None, f"the configuration in the log was not understood: {error.message}"
    path = seen.files[0].path if seen.files else "-"
    job = dataclasses.replace(job, identity=dataclasses.replace(job.identity, path=path))
    gpus = seen.arguments.get("world_size", "")
    if job.hardware.num_gpus is None and gpus.isascii() and gpus.isdecimal() and 0 < len(gpus) < 8:
        hardware = dataclasses.replace(job.hardware, num_gpus=int(gpus))
        job = dataclasses.replace(job, hardware=hardware)
    return job, "the job was recovered from the configuration that the log prints"
