"""The bytes of a job and where they came from. The only reader of files in this stage.

Guarantees: at most :data:`MAX_BYTES` are read, whatever the file is; what is returned is UTF-8
text without NUL; every failure is a :class:`~recompute.errors.ConfigError` or, where the disk is at
fault, a :class:`~recompute.errors.WorldError`.
"""

from __future__ import annotations

import hashlib
import os
import re
import stat
import sys
from dataclasses import dataclass
from typing import Final

from recompute.errors import ConfigError, RecomputeError, WorldError

MAX_BYTES: Final = 8 << 20
"""No job file comes near this; a larger one is something else. Bytes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobText:
    """The text of a job."""

    path: str
    """As the user wrote it; ``-`` for standard input."""
    text: str
    sha256: str
    """Of the bytes, 64 digits."""


def read_job(path: str, stdin: bytes | None = None) -> JobText:
    """Read a job file, or standard input where ``path`` is ``-``.

    Args:
        path: File, or ``-``.
        stdin: Bytes to take for standard input instead of reading it.

    Raises:
        ConfigError: ``not-found``, ``not-a-file``, ``unreadable``, ``too-large``, ``not-utf8``,
            ``not-text`` or ``empty-job``.
        WorldError: ``read-failed``.
    """
    data = _read_stdin(stdin) if path == "-" else _read_file(path)
    if len(data) > MAX_BYTES:
        raise ConfigError(
            "too-large",
            f"{path}: more than {MAX_BYTES} bytes; a job file is never that large",
            hint="give the job file itself, not a log or a checkpoint",
            data={"path": path, "limit_bytes": MAX_BYTES},
        )
    return JobText(path=path, text=_decode(path, data), sha256=hashlib.sha256(data).hexdigest())


def _read_stdin(stdin: bytes | None) -> bytes:
    if stdin is not None:
        return stdin[: MAX_BYTES + 1]
    if sys.stdin is None:  # closed by whoever started the command
        raise ConfigError(
            "unreadable",
            "-: standard input is closed",
            hint="give the path of a job file, or a pipe or file as standard input",
        )
    return sys.stdin.buffer.read(MAX_BYTES + 1)


def _read_file(path: str) -> bytes:
    try:
        # O_NONBLOCK: opening a pipe that nobody writes to must not hang.
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except (OSError, ValueError) as error:
        raise _open_error(path, error) from error
    try:
        with os.fdopen(descriptor, "rb") as stream:
            if stat.S_ISDIR(os.fstat(descriptor).st_mode):
                raise _not_a_file(path)
            if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                os.set_blocking(descriptor, True)
            return stream.read(MAX_BYTES + 1)
    except IsADirectoryError as error:
        raise _not_a_file(path) from error
    except OSError as error:
        raise WorldError("read-failed", f"{path}: {error.strerror}", hint="try again") from error


def _open_error(path: str, error: OSError | ValueError) -> RecomputeError:
    data = {"path": path}
    if isinstance(error, ValueError):
        return ConfigError("not-found", f"{path!r} is not a file name", data=data)
    if isinstance(error, IsADirectoryError):
        return _not_a_file(path)
    if isinstance(error, FileNotFoundError | NotADirectoryError):
        return ConfigError(
            "not-found",
            f"{path}: no such file",
            hint=_hint_for_absent(path),
            data=data,
        )
    return ConfigError(
        "unreadable",
        f"{path}: {error.strerror}",
        hint="give a file that can be read",
        data=data,
    )


def _hint_for_absent(path: str) -> str:
    """Say what somebody meant who wrote no file: a recipe's name, or a model of the Hugging Face Hub."""
    from recompute.config.recipe import recipe_named

    recipe = recipe_named(path)
    if recipe is not None:
        return f"did you mean recipe:{recipe}?"
    owner = _HUB_MODEL.fullmatch(path)
    if owner is not None and not os.path.isdir(owner[1]):  # noqa: PTH112
        return f"if {path} is a model of the Hugging Face Hub, give its config.json as a file"
    return "give a job file, recipe:NAME, or - for standard input"


_HUB_MODEL: Final = re.compile(
    r"([A-Za-z][\w-]{0,95})/(?!\S*\.(?:ya?ml|json|sh|args|txt)$)[A-Za-z][\w.-]{0,95}"
)
"""``owner/name`` without the ending of a job file, as ``meta-llama/Llama-3.1-8B``."""


def _not_a_file(path: str) -> ConfigError:
    found = _job_file_in(path)
    return ConfigError(
        "not-a-file",
        f"{path} is a directory",
        hint=f"give the job file in it, for example {path.rstrip('/')}/{found}"
        if found
        else "give a job file: a YAML, a launch script or a config.json; this folder holds none",
        data={"path": path},
    )


def _job_file_in(folder: str) -> str | None:
    """Return the name of a file in a folder that is a job by its name, those that frameworks write first."""
    try:
        names = sorted(entry.name for entry in os.scandir(folder) if entry.is_file())
    except OSError:
        return None
    first = ("run_config.yaml", "config.json", "model_config.yaml", "config.yaml", "train.sh")
    known = (name for name in first if name in names)
    other = (name for name in names if name.endswith((".yaml", ".yml", ".sh", ".args")))
    return next(known, next(other, None))


def _decode(path: str, data: bytes) -> str:
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ConfigError(
            "not-utf8",
            f"{path}: byte {error.start} is not UTF-8",
            hint="a job file is text in UTF-8",
            data={"path": path, "offset": error.start},
        ) from error
    if "\0" in text:
        raise ConfigError(
            "not-text",
            f"{path}: holds a NUL byte, so it is not text",
            hint="a job file is text in UTF-8",
            data={"path": path},
        )
    if not text.strip():
        raise ConfigError(
            "empty-job",
            f"{path}: nothing in it",
            hint="recompute show recipe:llama3_8b_pretrain_8gpu_h100_bf16_config prints a whole job",
            data={"path": path},
        )
    return text
