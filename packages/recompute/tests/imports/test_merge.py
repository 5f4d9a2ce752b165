"""Two ledgers of one job become one: runs keep their figures, and their names do not clash."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from recompute.errors import InputError
from recompute.imports.merge import merge_ledger
from recompute.measure.compare import compare
from recompute.measure.ledger import RowWriter, read_ledger, write_manifest
from recompute.measure.row import Row

from ..measure.rows import GIB, row

JOB = "train: {micro_batch_size: 1}\n"


def ledger(root: Path, *rows: Row, job: str | None = JOB, **more: Any) -> str:
    environment = more.pop("environment", {"gpu": "NVIDIA H200"})
    write_manifest(str(root), environment=environment, job_yaml=job, **more)
    writer = RowWriter(str(root), "rank-00000")
    for item in rows:
        writer.append(item)
    writer.close()
    return str(root)


def control(repeat: int = 0, **more: Any) -> Row:
    return row("[]", id=f"control-{repeat}", control_id="control-0", repeat=repeat, **more)


def candidate(name: str, repeat: int = 0, **more: Any) -> Row:
    return row(name, repeat=repeat, control_id="control-0", **more)


def run(*words: str) -> tuple[int, dict[str, Any]]:
    done = subprocess.run(
        [sys.executable, "-m", "recompute", "import", *words, "--json"],
        capture_output=True,
        text=True,
        check=False,
    )
    return done.returncode, json.loads(done.stdout)


def test_runs_of_two_studies_are_repeats_of_one(tmp_path: Path) -> None:
    one = ledger(
        tmp_path / "one", control(), candidate("[mlp]", peak=8 * GIB), control(1, slow=1.01)
    )
    two = ledger(
        tmp_path / "two",
        control(slow=1.02),
        candidate("[mlp]", peak=8 * GIB + 4096),
        candidate("[moe]", peak=7 * GIB),
    )
    with pytest.raises(InputError, match="both end run"):  # what copying the files would give
        _copied(tmp_path, one, two)
    code, document = run(two, "--out", one)
    assert code == 0
    assert [item["id"] for item in document["runs"]] == ["control-2", "[mlp]-1", "[moe]-0"]
    assert document["notes"] == ["control-0 is control-2 here", "[mlp]-0 is [mlp]-1 here"]
    answer = compare(read_ledger(one))
    assert answer.noise.repeats == 3
    figures = {item.measured.candidate: item for item in answer.candidates}
    assert figures["[mlp]"].measured.repeats == 2
    assert figures["[moe]"].peak_delta_bytes == -3 * GIB
    assert {item.control_id for item in read_ledger(one).rows} == {"control-0"}


def _copied(folder: Path, *ledgers: str) -> None:
    both = ledger(folder / "both")
    for number, path in enumerate(ledgers):
        data = Path(path, "rows", "rank-00000.jsonl").read_bytes()
        Path(both, "rows", f"{number}.jsonl").write_bytes(data)
    read_ledger(both)


def test_a_second_time_changes_nothing(tmp_path: Path) -> None:
    two = ledger(tmp_path / "two", control(), candidate("[mlp]"))
    one = str(tmp_path / "new")
    merge_ledger(two, one)
    before = read_ledger(one).rows
    assert {item.id for item in before} == {"control-0", "[mlp]-0"}
    series, added = merge_ledger(two, one)
    assert added == ()
    assert series.notes == ["control-0 is there already", "[mlp]-0 is there already"]
    assert read_ledger(one).rows == before


def test_ranks_of_a_run_stay_together(tmp_path: Path) -> None:
    ranks = [candidate("[mlp]", rank=rank, world_size=2) for rank in (0, 1)]
    one = ledger(tmp_path / "one", control(), candidate("[mlp]", slow=2.0))
    merge_ledger(ledger(tmp_path / "two", *ranks), one)
    merged = [item for item in read_ledger(one).rows if item.id == "[mlp]-1"]
    assert [(item.rank, item.world_size) for item in merged] == [(0, 2), (1, 2)]


def test_where_a_run_was_measured_goes_with_it(tmp_path: Path) -> None:
    one = ledger(tmp_path / "one", control())
    two = ledger(tmp_path / "two", candidate("[mlp]", peak=GIB), environment={"gpu": "NVIDIA H100"})
    merge_ledger(two, one)
    with pytest.raises(InputError, match="gpu: NVIDIA H200 -> NVIDIA H100"):
        compare(read_ledger(one))


@pytest.mark.parametrize(
    ("other", "code"),
    [
        ({"job": "train: {micro_batch_size: 2}\n"}, "ledger-of-another-job"),
        ({"job": None}, "ledger-of-another-job"),
        ({"study": {"steps": 9}}, "ledger-of-another-study"),
    ],
)
def test_what_is_not_matched_is_not_merged(
    tmp_path: Path, other: dict[str, Any], code: str
) -> None:
    one = ledger(tmp_path / "one", control(), study={"steps": 8})
    two = ledger(tmp_path / "two", control(slow=2.0), **other)
    with pytest.raises(InputError) as caught:
        merge_ledger(two, one)
    assert caught.value.code == code
    assert len(read_ledger(one).rows) == 1


def test_a_ledger_says_itself_what_was_run(tmp_path: Path) -> None:
    two = ledger(tmp_path / "two", control())
    code, document = run(two, "--out", str(tmp_path / "one"), "--candidate", "mlp")
    assert (code, document["code"]) == (2, "usage")
    log = tmp_path / "a.log"
    log.write_text("nothing")
    code, document = run(str(log), "--out", str(tmp_path / "one"))
    assert (code, document["code"]) == (2, "usage")
    assert not (tmp_path / "one").exists()
