"""What lies in deploy/ is what the commands take: files parse, commands and their options exist, metrics are told."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
from functools import lru_cache
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[2]
DEPLOY = ROOT / "deploy"
UNITS = sorted([*DEPLOY.glob("systemd/*.service"), *DEPLOY.glob("systemd/*.timer")])
PROGRAM = "/opt/mdr/bin/mdr"


def composed() -> dict[str, Any]:
    return yaml.safe_load((DEPLOY / "compose.yaml").read_text(encoding="utf-8"))


def container() -> list[str]:
    return (DEPLOY / "Containerfile").read_text(encoding="utf-8").splitlines()


def commands() -> dict[str, list[str]]:
    """Every command line of ours in the files, by where it stands."""
    found = {
        f"compose:{name}": service["command"]
        for name, service in composed()["services"].items()
        if "command" in service
    }
    for unit in UNITS:
        for line in unit.read_text(encoding="utf-8").splitlines():
            if line.startswith("ExecStart="):
                program, *words = shlex.split(line.removeprefix("ExecStart="))
                assert program == PROGRAM, unit
                found[unit.name] = [word.replace("%i", "1") for word in words]
    (line,) = [line for line in container() if line.startswith("CMD ")]
    found["Containerfile"] = yaml.safe_load(line.removeprefix("CMD "))
    return found


@lru_cache
def help_of(words: tuple[str, ...]) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "mdr", *words, "--help"],
        check=False,
        capture_output=True,
        text=True,
        env={**os.environ, "COLUMNS": "200"},
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("where", sorted(commands()))
def test_every_command_and_option_exists(where: str) -> None:
    name, *rest = commands()[where]
    if rest and not rest[0].startswith("-") and rest[0] in help_of((name,)):
        sub = [rest[0]] if name == "worker" else []
    else:
        sub = []
    told = help_of((name, *sub))
    for word in rest[len(sub) :]:
        if word.startswith("--"):
            assert re.search(rf"{re.escape(word.partition('=')[0])}\b", told), word


def test_the_composition_fits_together() -> None:
    file = composed()
    services, volumes, networks = file["services"], set(file["volumes"]), set(file["networks"])
    assert set(services) == {"database", "migrate", "server", "worker", "backup"}
    for name, service in services.items():
        assert set(service.get("depends_on", {})) <= set(services), name
        assert set(service.get("networks", [])) <= networks, name
        named = {
            v.partition(":")[0] for v in service["volumes"] if not v.startswith(("$", ".", "/"))
        }
        assert named <= volumes, name
    after_migration = {"migrate": {"condition": "service_completed_successfully"}}
    assert services["server"]["depends_on"] == services["worker"]["depends_on"] == after_migration
    build = services["server"]["build"]
    assert (DEPLOY / build["context"]).resolve() == ROOT
    assert (ROOT / build["dockerfile"]).is_file()
    grace = services["worker"]["command"][4]
    assert int(grace.removeprefix("--grace=")) < int(services["worker"]["stop_grace_period"][:-1])


def test_nothing_runs_as_root_or_may_gain_rights() -> None:
    assert any(line.startswith("USER 10001") for line in container())
    for name in ("migrate", "server", "worker", "backup"):
        service = composed()["services"][name]
        assert (service["cap_drop"], service["read_only"]) == (["ALL"], True)
    for unit in UNITS:
        if unit.suffix == ".service":
            text = unit.read_text(encoding="utf-8")
            assert {"User=mdr", "NoNewPrivileges=yes", "ProtectSystem=strict"} <= set(
                text.split("\n")
            )


def test_what_the_container_file_copies_is_there() -> None:
    for line in container():
        if line.startswith("COPY ") and "--from" not in line:
            for word in line.split()[1:-1]:
                assert (ROOT / word).exists(), word


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd is not installed")
@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: unit.name)
def test_systemd_takes_the_units(unit: Path, tmp_path: Path) -> None:
    program = tmp_path / "mdr"
    program.write_text("#!/bin/sh\n", encoding="utf-8")
    program.chmod(0o755)
    for each in UNITS:
        text = each.read_text(encoding="utf-8").replace(PROGRAM, str(program))
        (tmp_path / each.name).write_text(text, encoding="utf-8")
    name = unit.name.replace("@.", "@1.")
    (tmp_path / name).write_text((tmp_path / unit.name).read_text("utf-8"), encoding="utf-8")
    done = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", str(tmp_path / name)],
        check=False,
        capture_output=True,
        text=True,
        env={**os.environ, "SYSTEMD_UNIT_PATH": f"{tmp_path}:"},
    )
    ours = [line for line in done.stderr.splitlines() if "mdr-" in line]
    assert (done.returncode, ours) == (0, [])


def test_alerts_join_nothing_that_has_labels_with_what_has_none() -> None:
    """``a and b`` keeps what has the same labels on both sides: here both are summed up to none."""
    rules = yaml.safe_load((DEPLOY / "alerts.yaml").read_text(encoding="utf-8"))
    for rule in (rule for group in rules["groups"] for rule in group["rules"]):
        sides = rule["expr"].split(" and ")
        if len(sides) > 1:
            assert all(re.match(r"(sum|max|min)\(", side) for side in sides), rule["alert"]


def test_alerts_name_metrics_that_are_told() -> None:
    rules = yaml.safe_load((DEPLOY / "alerts.yaml").read_text(encoding="utf-8"))
    expressions = " ".join(rule["expr"] for group in rules["groups"] for rule in group["rules"])
    named = set(re.findall(r"\bmdr_[a-z_]+", expressions))
    sources = [
        (ROOT / "packages/mdr/src/mdr" / part).read_text(encoding="utf-8")
        for part in ("serving/metrics.py", "crawl/metrics.py")
    ]
    told = set(re.findall(r"\"(mdr_[a-z_]+)\"", "\n".join(sources)))
    suffixes = ("_total", "_bucket")
    for name in named:
        bare = next((name.removesuffix(s) for s in suffixes if name.endswith(s)), name)
        assert bare in told, name
