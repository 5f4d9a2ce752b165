"""The audit of dependencies fails for advisories and loose locks, and never for want of a network."""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parents[2]
GOOD = "alembic==1.20.1 \\\n    --hash=sha256:" + "a" * 64 + "\n    # via -r requirements.in\n"


@pytest.fixture(scope="module")
def tool() -> ModuleType:
    spec = importlib.util.spec_from_file_location(
        "dependency_audit", ROOT / "tools/dependency_audit.py"
    )
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["dependency_audit"] = module
    spec.loader.exec_module(module)
    return module


def auditor(folder: Path, *, out: str = "", err: str = "", status: int = 0) -> list[str]:
    """Stand in for pip-audit, which cannot be asked without a network."""
    program = folder / "auditor.py"
    program.write_text(
        f"import sys\nsys.stdout.write({out!r})\nsys.stderr.write({err!r})\nsys.exit({status})\n",
        encoding="utf-8",
    )
    return [sys.executable, str(program)]


def answer(*flaws: str) -> str:
    vulns = [{"id": flaw, "fix_versions": ["9.9"], "description": ""} for flaw in flaws]
    return json.dumps(
        {"dependencies": [{"name": "alembic", "version": "1.20.1", "vulns": vulns}], "fixes": []}
    )


@pytest.fixture
def lock(tmp_path: Path) -> Path:
    path = tmp_path / "some.lock"
    path.write_text(GOOD, encoding="utf-8")
    return path


def test_nothing_known_passes(
    tool: ModuleType, lock: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert tool.main([lock], auditor(tmp_path, out=answer())) == 0
    assert "1 asked about" in capsys.readouterr().out


def test_an_advisory_fails(
    tool: ModuleType, lock: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert tool.main([lock], auditor(tmp_path, out=answer("GHSA-1"), status=1)) == 1
    assert "advisory: alembic 1.20.1: GHSA-1, fixed in 9.9" in capsys.readouterr().out


def test_no_network_passes_and_says_that_nobody_was_asked(
    tool: ModuleType, lock: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    err = "requests.exceptions.ConnectionError: Max retries exceeded"
    assert tool.main([lock], auditor(tmp_path, err=err, status=1)) == 0
    told = capsys.readouterr().out
    assert "advisories NOT checked" in told
    assert "advisories were not" in told


@pytest.mark.parametrize("err", ["ValueError: bad lock", ""])
def test_a_broken_audit_is_no_pass(tool: ModuleType, lock: Path, tmp_path: Path, err: str) -> None:
    assert tool.main([lock], auditor(tmp_path, err=err, status=1)) == 1


def test_a_dependency_that_could_not_be_looked_up_is_no_pass(
    tool: ModuleType, lock: Path, tmp_path: Path
) -> None:
    out = json.dumps({"dependencies": [{"name": "x", "skip_reason": "not found"}]})
    assert tool.main([lock], auditor(tmp_path, out=out)) == 1


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (GOOD + "loose>=1\n", "not pinned: loose>=1"),
        (GOOD + "bare==1.0\n", "no hash: bare"),
        (
            GOOD + "pkg @ https://example.org/pkg.whl\n",
            "not pinned: pkg @ https://example.org/pkg.whl",
        ),
    ],
)
def test_a_loose_requirement_fails_without_any_network(
    *,
    tool: ModuleType,
    lock: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    text: str,
    problem: str,
) -> None:
    lock.write_text(text, encoding="utf-8")
    assert tool.main([lock], auditor(tmp_path, err="ConnectionError", status=1)) == 1
    assert problem in capsys.readouterr().out


def test_the_real_locks_are_tight(tool: ModuleType) -> None:
    for path in tool.LOCKS:
        lock = tool.read_lock(path.read_text(encoding="utf-8"))
        assert lock.problems == []
        assert len(lock.pins) > 50
        assert tool.unlicensed(sorted(lock.pins)) == []
