"""Diagnose reads a ledger by the rules of every other reader: one set of limits, one schema, one message."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from recompute.diagnose.run import diagnose
from recompute.errors import InputError
from recompute.ledger import MAX_LINE, MAX_MANIFEST, SCHEMA
from recompute.measure.ledger import read_ledger

OOM = {
    "id": "a-0",
    "candidate": "[mlp]",
    "rank": 2,
    "repeat": 0,
    "outcome": "oom",
    "stage": "backward",
}


def ledger(root: Path, *rows: str, manifest: str = json.dumps({"schema": SCHEMA})) -> str:
    """Write a ledger of one file, its lines as they are given."""
    (root / "rows").mkdir(parents=True)
    (root / "manifest.json").write_text(manifest, encoding="utf-8")
    (root / "rows" / "rank-00000.jsonl").write_text("".join(rows), encoding="utf-8")
    return str(root)


def line(**changes: Any) -> str:
    return json.dumps({**OOM, **changes}) + "\n"


def long_manifest(size: int) -> str:
    head = json.dumps({"schema": SCHEMA, "notes": [""]})
    return head.replace('""', '"' + "n" * (size - len(head)) + '"')


REFUSED = {
    "a manifest of another schema": ({"manifest": '{"schema": "recompute.ledger/2"}'}, ()),
    "a manifest without schema": ({"manifest": "{}"}, ()),
    "a manifest that is cut": ({"manifest": '{"schema": "recompute.led'}, ()),
    "a manifest that is a list": ({"manifest": "[]"}, ()),
    "a manifest that is nested without end": ({"manifest": "[" * 100_000}, ()),
    "a manifest that is too long": ({"manifest": long_manifest(MAX_MANIFEST + 1)}, ()),
    "a row that is too long": ({}, (" " * MAX_LINE + line(),)),
    "a row that is no JSON": ({}, (line(), "not json\n")),
    "a row with a number that JSON does not have": ({}, (line(), '{"a": NaN}\n')),
}


@pytest.mark.parametrize("name", REFUSED)
def test_both_readers_refuse_the_same_ledger_with_the_same_words(tmp_path: Path, name: str) -> None:
    manifest, rows = REFUSED[name]
    root = ledger(tmp_path / "l", *rows, **manifest)
    said = []
    for read in (read_ledger, lambda root: diagnose((root,))):
        with pytest.raises(InputError) as error:
            read(root)
        said.append((error.value.code, error.value.message, error.value.hint, error.value.data))
    assert said[0] == said[1]
    assert said[0][0] == "bad-ledger"


def test_a_row_that_is_no_object_is_refused_by_file_and_line(tmp_path: Path) -> None:
    root = ledger(tmp_path / "l", line(), "\n", "[]\n")
    with pytest.raises(InputError) as error:
        diagnose((root,))
    assert (error.value.code, error.value.data["line"]) == ("bad-ledger", 3)


def test_a_manifest_and_a_row_up_to_the_limit_are_read(tmp_path: Path) -> None:
    long = line(note="n" * (2 << 20))
    root = ledger(tmp_path / "l", long, line(id="b-0"), manifest=long_manifest(MAX_MANIFEST))
    assert len(read_ledger(root).rows) == 2
    found = diagnose((root,)).diagnosis
    assert (found.verdict, found.stage, found.rank) == ("activation", "backward", 2)
    assert [item.line for item in found.evidence] == [1, 2]
    assert all(len(item.text) <= 400 for item in found.evidence)


def test_of_a_run_that_was_started_again_the_last_attempt_counts(tmp_path: Path) -> None:
    again = {"attempt": 1, "outcome": "pass", "stage": None}
    for number, rows in enumerate(((line(), line(**again)), (line(**again), line()))):
        root = ledger(tmp_path / str(number), *rows)
        found = diagnose((root,)).diagnosis
        (stands,) = read_ledger(root).rows
        assert (stands.outcome, found.verdict) == ("pass", "not_oom")
        assert found.summary == "no row ran out of memory; 1 passed"
        (note,) = found.notes
        assert (
            note == "1 row(s) of earlier attempts do not count, some of them out of memory: [mlp]"
        )


def test_each_rank_and_repeat_has_attempts_of_its_own(tmp_path: Path) -> None:
    again = {"attempt": 1, "outcome": "pass"}
    rows = (line(), line(rank=3, **again), line(repeat=1, **again), line(id="b-0", **again))
    root = ledger(tmp_path / "l", *rows, line(attempt=1, stage="loss"))
    found = diagnose((root,)).diagnosis
    assert (found.verdict, found.stage, found.rank) == ("logits", "loss", 2)
    assert [item.line for item in found.evidence] == [5]
    assert found.summary.endswith("3 row(s) passed")
    assert found.summary.startswith("1 row(s) of 1 candidate(s)")
    assert len(read_ledger(root).rows) == 4


def test_a_row_written_while_the_run_went_on_counts_until_its_end_is_written(
    tmp_path: Path,
) -> None:
    early = line(outcome="pass", final=False)
    assert diagnose((ledger(tmp_path / "a", early),)).diagnosis.verdict == "not_oom"
    ended = diagnose((ledger(tmp_path / "b", early, line()),)).diagnosis
    assert (ended.verdict, ended.notes) == ("activation", ())


def test_a_run_that_two_files_end_differently_is_refused_by_both_readers(tmp_path: Path) -> None:
    root = ledger(tmp_path / "l", line())
    second = Path(root, "rows", "second.jsonl")
    second.write_text(line(), encoding="utf-8")
    assert diagnose((root,)).diagnosis.summary.startswith("1 row(s) of 1 candidate(s)")
    second.write_text(line(outcome="pass"), encoding="utf-8")
    said = []
    for read in (read_ledger, lambda root: diagnose((root,))):
        with pytest.raises(InputError) as error:
            read(root)
        said.append((error.value.code, error.value.message, error.value.data))
    assert said[0] == said[1]
    assert said[0][0] == "ledger-conflict"


@pytest.mark.parametrize("name", [{"id": None}, {"id": []}, {"id": 3}])
def test_rows_that_do_not_name_their_run_are_each_counted(
    tmp_path: Path, name: dict[str, Any]
) -> None:
    rows = (line(**name), line(**name, attempt=[]), line(**name, rank={}, repeat="x"))
    found = diagnose((ledger(tmp_path / "l", *rows),)).diagnosis
    assert found.summary.startswith("3 row(s) of 1 candidate(s)")


@pytest.mark.parametrize("outcome", ["oom", "pass"])
def test_a_torn_last_line_is_passed_over_and_said(tmp_path: Path, outcome: str) -> None:
    root = ledger(tmp_path / "l", line(outcome=outcome), line()[:40])
    found = diagnose((root,)).diagnosis
    assert found.verdict == ("activation" if outcome == "oom" else "not_oom")
    assert found.notes == tuple(read_ledger(root).notes)
    assert "torn last line" in found.notes[0]


@pytest.mark.parametrize("stage", [[], {}, None, 3, "elsewhere"])
def test_a_stage_that_is_none_is_unknown(tmp_path: Path, stage: object) -> None:
    found = diagnose((ledger(tmp_path / "l", line(stage=stage)),)).diagnosis
    assert (found.verdict, found.stage) == ("capacity", "unknown")
