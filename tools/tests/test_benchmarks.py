"""benchmarks/accuracy.py on its own data, and on a ledger."""

from __future__ import annotations

import importlib.util
import json
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def accuracy() -> ModuleType:
    spec = importlib.util.spec_from_file_location("accuracy", ROOT / "benchmarks" / "accuracy.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["accuracy"] = module
    spec.loader.exec_module(module)
    return module


def test_the_dense_h200_rows_are_within_the_promised_errors(accuracy: ModuleType) -> None:
    rows = [
        row
        for row in accuracy.rows_of_file(accuracy.DATA / "h200.yaml")
        if row.group == "h200-dense"
    ]
    predictors: dict[int, object] = {}
    compared = [accuracy.compare(row, predictors) for row in rows]
    assert len(compared) == 22
    for item in compared:
        assert item.activation == pytest.approx(item.measured_activation, rel=0.03)
        assert item.after_forward == pytest.approx(item.row.measured["after_forward"], rel=0.02)
    right, every = accuracy.ordered_pairs(compared)
    assert (right, every) == (every, every)
    assert every > 200


def test_every_row_of_the_data_is_read(accuracy: ModuleType) -> None:
    for path in sorted(accuracy.DATA.glob("*.yaml")):
        rows = list(accuracy.rows_of_file(path))
        ids = [row.id for row in rows]
        assert len(set(ids)) == len(ids)
        assert all(row.control in {None, *ids} for row in rows)


def test_public_rows_name_their_source(accuracy: ModuleType) -> None:
    import yaml

    data = yaml.safe_load((accuracy.DATA / "public.yaml").read_text(encoding="utf-8"))
    assert all("github.com/" in row["source"] for row in data["rows"])


def test_a_ledger_is_compared_with_its_control(
    accuracy: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = tmp_path / "ledger" / "rows"
    rows.mkdir(parents=True)
    control = {"recompute_granularity": "selective", "recompute_modules": []}
    mlp = {**control, "recompute_modules": ["mlp"]}
    lines = []
    for name, candidate, peak, step in (
        ("a", control, 26_855_571_968, 0.188),
        ("b", mlp, 17_842_321_408, 0.234),
    ):
        lines.append(
            {
                "id": name,
                "candidate": candidate,
                "control_id": "a",
                "rank": 0,
                "outcome": "pass",
                "phases": [{"phase": "backward", "allocated_peak_bytes": peak}],
                "step_seconds": [step, step],
            }
        )
    text = "".join(json.dumps(line) + "\n" for line in lines)
    (rows / "rank0.jsonl").write_text(text, encoding="utf-8")
    job = str(ROOT / "examples" / "llama3-8b-h200.yaml")
    assert accuracy.main([str(tmp_path / "ledger"), "--job", job]) == 0
    out = capsys.readouterr().out
    assert "-8.39" in out
    assert "sign of the change 1 of 1" in out


def test_a_ledger_without_its_job_is_a_usage_error(accuracy: ModuleType, tmp_path: Path) -> None:
    with pytest.raises(SystemExit) as left:
        accuracy.main([str(tmp_path)])
    assert left.value.code == 2


def test_the_loads_that_ranges_reach_to_are_those_of_the_golden_rows(
    capsys: pytest.CaptureFixture[str],
) -> None:
    import expert_loads
    from recompute.timeline.loads import HIGH_LOAD, USUAL_LOAD

    assert expert_loads.main() == 0
    said = capsys.readouterr().out.splitlines()[-1]
    assert said.endswith(f"median {USUAL_LOAD:.2f}, 99th percentile {HIGH_LOAD:.2f}")


def test_the_page_states_what_the_benchmark_computes() -> None:
    import accuracy_page

    assert accuracy_page.main(["--check"]) == 0, "run benchmarks/accuracy_page.py"


def test_the_page_and_the_readme_state_what_the_studies_compute() -> None:
    import study_report

    assert study_report.main(["--check"]) == 0, "run benchmarks/study_report.py --write"


@pytest.mark.parametrize("module", ["accuracy_page", "study_report"])
@pytest.mark.parametrize(
    ("stale", "shown"),
    [
        (r"(seven architectures and precisions \|) \d+ \|", r"\1 1 |"),
        (r"(seven architectures and precisions .*)\(\d+ rows\)", r"\1(1 rows)"),
        (r"(on twelve models.* \|) \d+ \|", r"\1 1 |"),
        (r"(on twelve models.* \| )\d+\.\d / \d+\.\d / (\d+\.\d \|)$", r"\g<1>9.9 / 9.9 / \2"),
    ],
)
def test_a_stale_figure_of_the_readme_is_found_and_mended(
    module: str, stale: str, shown: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    checker = importlib.import_module(module)
    right = (ROOT / "README.md").read_text("utf-8")
    wrong, count = re.subn(stale, shown, right, flags=re.MULTILINE)
    assert count == 1
    readme = tmp_path / "README.md"
    readme.write_text(wrong, "utf-8")
    page = tmp_path / "page.md"
    page.write_text(checker.PAGE.read_text("utf-8"), "utf-8")
    monkeypatch.setattr(checker, "README", readme)
    monkeypatch.setattr(checker, "PAGE", page)
    if module == "study_report":
        monkeypatch.setattr(checker, "draw", lambda _: None)
    ours = ("seven" in stale) == (module == "accuracy_page")
    assert checker.main(["--check"]) == int(ours)
    assert checker.main(["--write"]) == 0
    assert readme.read_text("utf-8") == (right if ours else wrong)


@pytest.mark.parametrize(
    ("statuses", "worst"), [((0, 0), 0), ((3, 0), 3), ((0, 2), 2), ((2, 4), 4), ((4, 2), 4)]
)
def test_real_loops_take_relative_folders_and_end_with_the_worst_status(
    tmp_path: Path, statuses: tuple[int, int], worst: int
) -> None:
    """A stand-in for the interpreter notes where it runs and what it was told, and fails as it should."""
    (tmp_path / "lm").mkdir()
    python = tmp_path / "python"
    python.write_text(
        f"""#!/bin/sh
out=; before=
for word; do [ "$before" = --out ] && out=$word; before=$word; done
[ -f "$4" ] || exit 99
mkdir -p "$out" && pwd >"$out/ran"
echo "$PYTHONPATH" >>"$out/ran"
case $out in *-oom) exit {statuses[1]} ;; *) exit {statuses[0]} ;; esac
""",
        "utf-8",
    )
    python.chmod(0o755)
    script = str(ROOT / "benchmarks" / "studies" / "real_loops.sh")
    done = subprocess.run(
        ["/bin/sh", script, "lm", "out"],
        cwd=tmp_path,
        env={"PATH": "/usr/bin:/bin", "PYTHON": "./python"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == worst, done.stderr
    assert done.stderr.count("exit status") == sum(status != 0 for status in statuses)
    for name in ("megatron-lm", "megatron-lm-oom"):
        where, path = (tmp_path / "out" / name / "ran").read_text("utf-8").splitlines()
        assert where == str(tmp_path / "lm")
        assert path.split(":")[0] == where


def test_jobs_of_one_process_join_it_once_and_leave_nothing_to_each_other(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks" / "studies"))
    import cases  # type: ignore[import-not-found]

    done: list[str] = []
    torch = SimpleNamespace(cuda=SimpleNamespace(empty_cache=lambda: done.append("emptied")))
    monkeypatch.setattr(cases.trainer, "device_of", lambda *_: "cuda:0")
    monkeypatch.setattr(
        cases.trainer, "begin_distributed", lambda _, work, place: done.append(f"joined {place}")
    )
    found: dict[str, object] = {}
    named = (("dense-bias", ()), ("dense-gqa", ("train.micro_batch_size=1",)))
    for case in cases.cases(torch, named):
        done.append(case.name)
        found[case.name] = case.workload["micro_batch_size"]
        cases.answer(str(tmp_path / "out.json"), found, case.name)
        assert json.loads((tmp_path / "out.json").read_text("utf-8")) == found
    assert done == ["joined cuda:0", "dense-bias", "emptied", "dense-gqa", "emptied"]
    assert found == {"dense-bias": 4, "dense-gqa": 1}
    assert capsys.readouterr().out == '{"dense-bias": 4}\n{"dense-gqa": 1}\n'
