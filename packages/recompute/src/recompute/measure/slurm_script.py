"""The batch script of one run under Slurm. Pure text.

Source: the options are those of sbatch(1) and srun(1), Slurm 22.05 to 25.05; the rendezvous is that of
torchrun over several nodes (pytorch/pytorch v2.8.0 docs/source/elastic/run.rst).
"""

from __future__ import annotations

import math
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from recompute.errors import ConfigError

GPU_OPTIONS: Final = ("--gpus", "--gpus-per-node", "--gpus-per-task", "--gres", "--exclusive")
"""A line of the user's that starts with one of these, or with ``-G``, takes the place of ours."""
FIRST_PORT: Final = 20000
PORTS: Final = 20000
"""The rendezvous port is made from the job's number, so that two jobs on a node do not meet."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SlurmOptions:
    """What a cluster wants to be told."""

    partition: str | None = None
    account: str | None = None
    gpus_per_node: int = 8
    """Ranks that one node takes."""
    lines: tuple[str, ...] = ()
    """Further options of sbatch: ``--constraint=h100``."""
    srun: tuple[str, ...] = ()
    """Further options of srun: ``--container-image=...``."""
    setup: tuple[str, ...] = ()
    """Shell lines before the run: ``module load cuda``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchJob:
    """One run as a batch job."""

    name: str
    """Of the job: unique, so that it can be found again."""
    log: str
    """Absolute path."""
    python: str
    target: tuple[str, ...]
    """What the interpreter runs: a script or ``-m module``, with its arguments."""
    world: int
    variables: Mapping[str, str]
    limit_seconds: float


def nodes_of(world: int, options: SlurmOptions) -> tuple[int, int]:
    """Return nodes and ranks on each.

    Raises:
        ConfigError: ``nodes-uneven``.
    """
    each = min(world, options.gpus_per_node)
    if world % each:
        raise ConfigError(
            "nodes-uneven",
            f"{world} ranks do not fill nodes of {each}",
            hint=f"--gpus-per-node with a divisor of {world}",
            data={"world": world, "gpus_per_node": options.gpus_per_node},
        )
    return world // each, each


def script_of(job: BatchJob, options: SlurmOptions) -> str:
    """Return the script; ``sbatch`` takes it as it is.

    Raises:
        ConfigError: ``nodes-uneven``; ``bad-sbatch-line``: a text that would break out of its line.
    """
    nodes, each = nodes_of(job.world, options)
    lines = ["#!/bin/bash", *(f"#SBATCH {line}" for line in _header(job, nodes, each, options))]
    lines += [f"export {name}={shlex.quote(text)}" for name, text in job.variables.items()]
    lines += options.setup
    launch = ["srun", "--ntasks-per-node=1", "--kill-on-bad-exit=1", *map(_word, options.srun)]
    if job.world > 1:
        lines += _rendezvous(nodes)
    command = [*launch, *_command(job, nodes, each)]
    return "\n".join([*lines, " ".join(command), ""])


def _header(job: BatchJob, nodes: int, each: int, options: SlurmOptions) -> Iterator[str]:
    yield f"--job-name={_line(job.name)}"
    yield f"--output={_path(job.log)}"
    yield "--open-mode=append"
    yield f"--nodes={nodes}"
    yield "--ntasks-per-node=1"
    yield f"--time={max(1, math.ceil(job.limit_seconds / 60))}"
    yield "--no-requeue"
    if options.partition is not None:
        yield f"--partition={_line(options.partition)}"
    if options.account is not None:
        yield f"--account={_line(options.account)}"
    if not any(map(_is_about_gpus, options.lines)):
        yield f"--gpus-per-node={each}"
    for line in options.lines:
        if not line.startswith("-"):
            raise _bad(line, "starts with no dash")
        yield _line(line)


def _is_about_gpus(line: str) -> bool:
    words = line.partition("=")[0].split()
    return line.startswith("-G") or (bool(words) and words[0] in GPU_OPTIONS)


def _rendezvous(nodes: int) -> Sequence[str]:
    port = f"port=$(({FIRST_PORT} + SLURM_JOB_ID % {PORTS}))"
    if nodes == 1:
        return ("head=localhost", port)
    return ('head=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)', port)


def _command(job: BatchJob, nodes: int, each: int) -> Iterator[str]:
    yield shlex.quote(job.python)
    if job.world > 1:
        yield f"-m torch.distributed.run --nnodes={nodes} --nproc-per-node={each}"
        yield '--rdzv-backend=c10d --rdzv-id="$SLURM_JOB_ID" --rdzv-endpoint="$head:$port"'
    yield from map(shlex.quote, job.target)


def _path(text: str) -> str:
    """Return a path as sbatch reads it: quoted, and without the patterns it would fill in."""
    if '"' in text or "\\" in text:
        raise _bad(text, "holds a quote or a backslash, which sbatch cannot take in a path")
    return f'"{_line(text)}"'.replace("%", "%%")


def _word(text: str) -> str:
    return shlex.quote(_line(text))


def _line(text: str) -> str:
    if not text.isprintable():
        raise _bad(text, "holds a character that ends or hides a line")
    return text


def _bad(text: str, why: str) -> ConfigError:
    return ConfigError(
        "bad-sbatch-line",
        f"{text[:120]!r} {why}",
        hint="give each option of sbatch or srun as --name=value",
        data={"text": text[:400]},
    )
