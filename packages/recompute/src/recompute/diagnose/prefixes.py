"""What launchers put in front of a line, taken off: rank, time, colour.

Shapes: ``[rank7]: `` and its doubling (torch), ``[default3]:`` (torchrun), ``12: `` (srun --label),
``(WorkerDict pid=1, ip=10.0.0.1) `` (Ray), torchelastic's indented ``traceback : ``, time stamps of
logging, Megatron and Kubernetes. A rank that a line does not carry may be in its file's name.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

_ANSI: Final = re.compile(
    r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]{0,200}(?:\x07|\x1b\\)|[@-Z\\-_])"
)
_TIME: Final = re.compile(
    r"\[?(?P<date>[0-9]{4}-[0-9]{2}-[0-9]{2})[T ](?P<clock>[0-9]{2}:[0-9]{2}:[0-9]{2}(?:[.,][0-9]{1,9})?)"
    r"(?:Z|[+-][0-9]{2}:?[0-9]{2})?\]?[ :,-]*"
)
_RANK: Final = re.compile(r"\[(?:rank|Rank|RANK)[ :=]?(?P<rank>[0-9]{1,6})\]:?[ ]?")
_LOCAL: Final = re.compile(r"\[default(?P<rank>[0-9]{1,3})\]:[ ]?")
_SRUN: Final = re.compile(r"(?P<rank>[0-9]{1,6}): ")
_RAY: Final = re.compile(
    r"\((?P<actor>[A-Za-z_][\w.:<> -]{0,80}?) (?:rank=(?P<rank>[0-9]{1,12}) )?pid=(?P<pid>[0-9]{1,12})(?:, ip=[0-9a-fA-F.:]+)?\) ?"
)
_ELASTIC: Final = re.compile(r"  traceback : ")
_LEVEL: Final = re.compile(
    r"(?:\[?(?:DEBUG|INFO|WARNING|WARN|ERROR|CRITICAL|FATAL)\]?|[IWEF][0-9]{4} [0-9:.]+ +[0-9]{1,12} [^ \]]{1,80}\])[: ]{1,3}"
)
_IN_NAME: Final = re.compile(
    r"(?:^|[^a-z])(?:global[-_]?)?rank[-_.]?([0-9]{1,6})(?![0-9])", re.IGNORECASE
)
_ELASTIC_PATH: Final = re.compile(
    r"attempt_[0-9]{1,12}[/\\]([0-9]{1,6})[/\\](?:stdout|stderr|error)"
)
_BARE_NUMBER: Final = re.compile(r"^([0-9]{1,6})\.(?:log|out|err|txt)(?:\.gz|\.zst)?$")

MAX_PREFIXES: Final = 6


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """One line without its prefixes."""

    number: int
    """In its file, from 1."""
    text: str
    raw: str
    rank: int | None = None
    key: str = ""
    """Which stream of an interleaved log this is: rank, actor or label."""
    time: str | None = None
    """Sortable text, ``YYYY-MM-DD HH:MM:SS.ffffff``."""
    prefixed: bool = False


def strip_ansi(text: str) -> str:
    """Return ``text`` without terminal escape sequences."""
    return _ANSI.sub("", text) if "\x1b" in text else text


def read_line(raw: str, number: int, file_rank: int | None = None) -> Line:
    """Take the prefixes off one line.

    Args:
        raw: The line as printed, without its newline.
        number: Its number in the file.
        file_rank: Rank that the file's name carries.
    """
    text = strip_ansi(raw).rstrip("\r")
    rank, key, time = None, "", None
    position = 0
    for _ in range(MAX_PREFIXES):
        for pattern in (_RANK, _LOCAL, _RAY, _TIME, _SRUN, _ELASTIC, _LEVEL):
            match = pattern.match(text, position)
            if match is None:
                continue
            groups = match.groupdict()
            if groups.get("rank") is not None and not key.startswith("rank"):
                rank = int(groups["rank"])
                key = f"rank{rank}"
            elif groups.get("actor") is not None and not key:
                key = f"{groups['actor']}:{groups['pid']}"
            if "date" in groups and time is None:
                time = _sortable(groups["date"], groups["clock"])
            position = match.end()
            break
        else:
            break
    if rank is None and file_rank is not None:
        rank, key = file_rank, key or f"rank{file_rank}"
    return Line(
        number=number,
        text=text[position:],
        raw=text,
        rank=rank,
        key=key,
        time=time,
        prefixed=position > 0,
    )


def rank_of_path(path: str) -> int | None:
    """Return the rank that a file's name carries, if it carries one."""
    name = path.replace("\\", "/").rsplit("/", 1)[-1]
    for match in (_ELASTIC_PATH.search(path), _IN_NAME.search(name), _BARE_NUMBER.match(name)):
        if match is not None:
            return int(match[1])
    return None


def _sortable(date: str, clock: str) -> str:
    whole, _, fraction = clock.replace(",", ".").partition(".")
    return f"{date} {whole}.{fraction[:6].ljust(6, '0')}"
