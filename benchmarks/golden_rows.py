"""Give the rows of data/megatron_golden.yaml what held when each golden value was recorded.

::

    python benchmarks/golden_rows.py MEGATRON_GIT TRANSFORMER_ENGINE_GIT

Golden values and arguments of Megatron-LM's functional tests change in different commits, so a value is
often older than the arguments beside it. For each row this finds the commit that recorded the value and
writes what differed then as overrides: the arguments, the version of Megatron Core, the release of
Transformer Engine that its pyproject.toml asked for, and the GPU of an A100 machine. It also notes the
peak after the second step, the first one with optimizer states: shapes are the same from then on, so a
peak that still grows can only come from a routing that grows uneven.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Final

import yaml

import recompute
from accuracy import DATA, GOLDEN
from recompute.config.normalize import normalize
from recompute.config.schema import JobConfig
from recompute.config.yaml_text import yaml_value
from recompute.errors import RecomputeError

REVISION: Final = "d98e8a64ddf34856e74b24714e3bedb2f5a39553"
TESTS: Final = "tests/functional_tests/test_cases"
PEAK: Final = "mem-max-allocated-bytes"
SECTIONS: Final = ("model", "train", "ddp", "optimizer")
KEPT: Final = ("vocab_size", "train_iters", "recompute_")
"""Fields that the data file says itself, or that no prediction reads."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Recorded:
    """Where and when a golden value was recorded."""

    commit: str
    date: str
    folder: str
    peaks: tuple[float, ...]


class Repository:
    """A git directory, read-only."""

    def __init__(self, path: str) -> None:
        self.path = path

    def git(self, *words: str) -> str | None:
        """Run git; ``None`` where it fails."""
        done = subprocess.run(
            ("git", "--git-dir", self.path, *words), capture_output=True, text=True, check=False
        )
        return done.stdout if done.returncode == 0 else None

    def text(self, commit: str, path: str) -> str | None:
        """Return a file at a commit."""
        return self.git("show", f"{commit}:{path}")


def recorded(megatron: Repository, row: str) -> Recorded:
    """Find the oldest commit since which a row's golden values are what they are."""
    kind, rest = row.split("-", 1)
    name, machine = rest.rsplit("-", 1)
    folder = f"{TESTS}/{kind}/{name}"
    path = f"{folder}/golden_values_{machine}.json"
    peaks = _peaks(megatron.text(REVISION, path))
    found = None
    log = megatron.git("log", "--format=%H %as", REVISION, "--", path) or ""
    for line in log.splitlines():
        commit, date = line.split()
        if _peaks(megatron.text(commit, path)) != peaks:
            break
        found = Recorded(commit=commit, date=date, folder=folder, peaks=peaks)
    if found is None:
        raise SystemExit(f"{row}: no golden values at {path}")
    return found


def _peaks(text: str | None) -> tuple[float, ...]:
    try:
        values = json.loads(text or "")[PEAK]["values"].values()
    except (ValueError, KeyError):
        return ()
    return tuple(float(value) for value in values if value != "nan")


def overrides_of(row: dict[str, Any], job: Any, at: Recorded, sources: Sources) -> list[str]:
    """Return what differed from the stored job, as overrides."""
    result = [f"framework.megatron_core={_core(sources.megatron, at.commit)}"]
    engine = _engine(sources, at.commit)
    if engine:
        result.append(f"framework.transformer_engine={engine}")
    if "muon" in row["id"] and not _packs(sources.megatron, at.commit):
        result.append("optimizer.use_layer_wise_param_layout=false")
    if row["id"].endswith(("_a100", "-lts")):
        result.append("hardware.gpu=a100-80gb")
    arguments = sources.megatron.text(at.commit, f"{at.folder}/model_config.yaml") or ""
    stored = _job(yaml.safe_dump(job))
    given = [f"{name}={job[name.split('.')[0]][name.split('.')[1]]}" for name in _said(job)]
    try:
        then = _job(arguments.replace("\\", ""), *given)
    except RecomputeError as error:
        print(f"{row['id']}: arguments of {at.date} not read: {error.message}", file=sys.stderr)
        return result
    return result + sorted(_differences(stored, then))


def _said(job: Any) -> Iterator[str]:
    for name in ("hardware.num_gpus", "model.vocab_size", "hardware.gpu"):
        section, _, field = name.partition(".")
        if job.get(section, {}).get(field) is not None:
            yield name


def _job(text: str, *overrides: str) -> JobConfig:
    return normalize(recompute.load("-", *overrides, stdin=text.encode()))


def _differences(stored: JobConfig, then: JobConfig) -> Iterator[str]:
    for section in SECTIONS:
        ours, theirs = getattr(stored, section), getattr(then, section)
        for field in fields(ours) if ours is not None and theirs is not None else ():
            ours_value, value = getattr(ours, field.name), getattr(theirs, field.name)
            if field.name == "hybrid_override_pattern" and ours_value:
                ours_value = ours_value.split("/")[0]  # MTP was an argument of its own
                value = value.split("/")[0]
            if ours_value != value and not field.name.startswith(KEPT):
                yield f"{section}.{field.name}={yaml_value(value)}"


def _packs(megatron: Repository, commit: str) -> bool:
    """Say whether the layer-wise optimizer packed its shards already."""
    arguments = megatron.text(commit, "megatron/training/arguments.py") or ""
    return "use_layer_wise_param_layout" in arguments


def _core(megatron: Repository, commit: str) -> str:
    text = megatron.text(commit, "megatron/core/package_info.py") or ""
    parts = [
        re.search(rf"^{part} = (\d+)", text, re.MULTILINE) for part in ("MAJOR", "MINOR", "PATCH")
    ]
    return ".".join(part[1] for part in parts if part)


def _engine(sources: Sources, commit: str) -> str | None:
    text = sources.megatron.text(commit, "pyproject.toml") or ""
    found = re.search(r'transformer-engine\s*=\s*\{[^}]*rev\s*=\s*"([^"]+)"', text)
    if not found:
        return None
    for revision in (found[1], f"origin/{found[1]}"):
        version = sources.engine.text(revision, "build_tools/VERSION.txt")
        if version:
            return version.strip()
    return None


@dataclass(frozen=True, slots=True, kw_only=True)
class Sources:
    """The two repositories."""

    megatron: Repository
    engine: Repository


def main(arguments: list[str]) -> int:
    """Rewrite the rows; the jobs above them and the comments stay."""
    sources = Sources(megatron=Repository(arguments[0]), engine=Repository(arguments[1]))
    path = DATA / GOLDEN
    text = path.read_text(encoding="utf-8")
    head, _, _ = text.partition("\nrows:\n")
    data = yaml.safe_load(text)
    lines = [_line(row, data["jobs"][row["job"]], sources) for row in data["rows"]]
    Path(path).write_text(f"{head}\nrows:\n" + "\n".join(lines) + "\n", encoding="utf-8")
    return 0


def _environment(at: Recorded, megatron: Repository) -> dict[str, str]:
    """Return the variables of the run that decide bytes."""
    tree = yaml.safe_load(megatron.text(at.commit, f"{at.folder}/model_config.yaml") or "{}")
    given = tree.get("ENV_VARS") or {}
    return {name: str(given[name]) for name in ("CUBLAS_WORKSPACE_CONFIG",) if name in given}


def _line(row: dict[str, Any], job: Any, sources: Sources) -> str:
    at = recorded(sources.megatron, row["id"])
    measured = {**row["measured"], "second": round(at.peaks[1])}
    extra = {
        "overrides": overrides_of(row, job, at, sources),
        "environment": _environment(at, sources.megatron),
        "measured": measured,
        "recorded": f"{at.commit[:10]} {at.date}",
    }
    extra = {name: value for name, value in extra.items() if value}
    flow = yaml.safe_dump({**row, **extra}, default_flow_style=True, width=10**6, sort_keys=False)
    return f"  - {flow.strip()}"


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
