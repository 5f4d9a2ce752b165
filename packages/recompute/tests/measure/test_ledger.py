"""A ledger holds what was written, survives kills and refuses what it cannot mean."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from recompute.config.choice import LayerSpan, RecomputeChoice, full, selective
from recompute.diagnose.run import diagnose
from recompute.errors import InputError, WorldError
from recompute.ledger import MAX_LINE
from recompute.measure.candidate import choice_of_document, choice_of_text, text_of
from recompute.measure.ledger import RowWriter, read_ledger, read_rows, write_manifest, write_whole
from recompute.measure.row import Outcome, PhaseBytes, Row, row_of

from .rows import ledger, lines, row

CONTRACT = {
    "id",
    "candidate",
    "control_id",
    "repeat",
    "rank",
    "outcome",
    "stage",
    "static_bytes",
    "phases",
    "step_seconds",
    "optimizer_initialized",
    "recompute_seen",
    "overrides",
}

sizes = st.none() | st.integers(0, 1 << 50)
words = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=20)
seconds = st.floats(0, 1e6).map(lambda value: round(value, 7))
rows = st.builds(
    Row,
    id=words,
    candidate=words,
    rank=st.integers(0, 4096),
    outcome=st.sampled_from(Outcome),
    control_id=st.none() | words,
    repeat=st.integers(0, 9),
    stage=st.none() | words,
    static_bytes=sizes,
    phases=st.lists(
        st.builds(PhaseBytes, phase=words, allocated_peak_bytes=sizes, reserved_peak_bytes=sizes),
        unique_by=lambda p: p.phase,
        max_size=4,
    ).map(tuple),
    step_seconds=st.lists(seconds, max_size=5).map(tuple),
    phase_steps=st.none() | st.lists(st.integers(0, 1 << 40), max_size=5).map(tuple),
    optimizer_initialized=st.booleans(),
    overrides=st.lists(words, max_size=3).map(tuple),
    final=st.booleans(),
    message=st.none() | words,
)


@given(rows)
def test_a_row_reads_back_as_written(given_row: Row) -> None:
    assert row_of(json.loads(json.dumps(given_row.to_document()))) == given_row


def test_a_written_row_has_every_field_of_the_contract(tmp_path: Path) -> None:
    document = lines(ledger(tmp_path / "l", [row("[mlp]")]))[0]
    assert set(document) >= CONTRACT
    assert document["outcome"] == "pass"
    assert document["phases"][0]["phase"] == "forward"


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"outcome": "great"}, "outcome 'great' is none of"),
        ({"rank": -1}, "rank must be a whole number"),
        ({"rank": True}, "rank must be a whole number"),
        ({"static_bytes": 1.5}, "static_bytes must be"),
        ({"step_seconds": [-1.0]}, "step_seconds must be a finite"),
        ({"step_seconds": "1"}, "step_seconds must be a list"),
        ({"step_seconds": [10**400]}, "step_seconds must be a finite"),
        ({"phases": [{"phase": "forward"}, {"phase": "forward"}]}, "names a phase twice"),
        ({"phases": [3]}, "phases must hold objects"),
        ({"optimizer_initialized": 1}, "must be true or false"),
        ({"recompute_seen": []}, "must be an object or null"),
        ({"phase_steps": [-1]}, "phase_steps must be a whole number"),
        ({"phase_steps": 3}, "phase_steps must be a list"),
        ({"warmup_steps": 9}, "warmup_steps is more than"),
        ({"candidate": ""}, "candidate must be text"),
        ({"id": None}, "id must be text"),
    ],
)
def test_a_bad_row_is_named_by_file_line_and_field(
    tmp_path: Path, change: dict[str, Any], reason: str
) -> None:
    root = ledger(tmp_path / "l", [row("[]")])
    path = Path(root, "rows", "rank-00000.jsonl")
    document = lines(root)[0] | change
    path.write_text(path.read_text() + json.dumps(document) + "\n", encoding="utf-8")
    with pytest.raises(InputError) as error:
        read_ledger(root)
    assert error.value.code == "bad-ledger"
    assert f"{path}:2: " in error.value.message
    assert reason in error.value.message


@pytest.mark.parametrize(
    "line", ["{", "[" * 100_000, "\x00", '{"a": NaN}', "[]", "1" * 5000, "\udcff"]
)
def test_a_line_that_is_no_row_is_an_error_unless_it_is_the_torn_last_one(
    tmp_path: Path, line: str
) -> None:
    root = ledger(tmp_path / "l", [row("[]")])
    path = Path(root, "rows", "rank-00000.jsonl")
    data = line.encode("utf-8", "surrogateescape")
    path.write_bytes(data + b"\n" + path.read_bytes())
    with pytest.raises(InputError) as error:
        read_ledger(root)
    assert error.value.code == "bad-ledger"


@pytest.mark.parametrize("at", [1, 40, -2])
def test_a_torn_last_line_is_passed_over_and_cut_by_the_next_writer(
    tmp_path: Path, at: int
) -> None:
    root = ledger(tmp_path / "l", [row("[]"), row("[mlp]")])
    path = Path(root, "rows", "rank-00000.jsonl")
    whole = path.read_bytes()
    first = whole.index(b"\n") + 1
    path.write_bytes(whole[: first + at] if at > 0 else whole[:at])
    held = read_ledger(root)
    assert [r.candidate for r in held.rows] == ["[]"]
    assert "torn" in held.notes[0]
    writer = RowWriter(root, "rank-00000")
    writer.append(row("full/uniform/1"))
    writer.close()
    assert [r.candidate for r in read_ledger(root).rows] == ["[]", "full/uniform/1"]


def test_rows_written_before_a_kill_are_there(tmp_path: Path) -> None:
    root = ledger(tmp_path / "l", [])
    code = (
        "import os, signal\n"
        "from recompute.measure.ledger import RowWriter\n"
        "from recompute.measure.row import Outcome, Row\n"
        f"w = RowWriter({root!r}, 'rank-00007')\n"
        "w.append(Row(id='a', candidate='[]', rank=7, outcome=Outcome.CRASH, stage='backward', final=False))\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], check=False)
    assert done.returncode == -signal.SIGKILL
    (only,) = read_ledger(root).rows
    assert (only.rank, only.outcome, only.stage) == (7, Outcome.CRASH, "backward")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_a_full_disk_is_a_clear_error(tmp_path: Path) -> None:
    root = ledger(tmp_path / "l", [])
    Path(root, "rows", "rank-00001.jsonl").symlink_to("/dev/full")
    with pytest.raises(WorldError) as error:
        RowWriter(root, "rank-00001").append(row("[]"))
    assert error.value.code == "cannot-write"
    assert "No space left" in error.value.message


def test_the_last_attempt_and_the_final_row_stand(tmp_path: Path) -> None:
    first = row("[]", outcome=Outcome.CRASH, final=False)
    done = row("[]", final=True)
    again = row("[]", outcome=Outcome.OOM, attempt=1, final=False)
    other = replace(first, rank=1)
    for number, (rows, stand) in enumerate(
        (
            ([first, done], (done,)),
            ([done, first], (done,)),
            ([done, again], (again,)),
            ([again, done], (again,)),
            ([first, other], (first, other)),
        )
    ):
        root = ledger(tmp_path / str(number), rows)
        assert read_ledger(root).rows == stand
        assert read_rows(str(Path(root, "rows", "rank-00000.jsonl"))) == stand


def test_a_file_of_rows_alone_is_read_by_the_same_rules(tmp_path: Path) -> None:
    root = ledger(tmp_path / "l", [row("[]"), row("[mlp]")])
    path = Path(root, "rows", "rank-00000.jsonl")
    whole = path.read_bytes()
    path.write_bytes(b"\n" + whole + b" \n")
    assert read_rows(str(path)) == read_ledger(root).rows
    path.write_bytes(whole[:-2])
    with pytest.raises(InputError) as error:
        read_rows(str(path))
    assert (error.value.code, error.value.data["line"]) == ("bad-ledger", 2)
    path.write_bytes(b" " * (MAX_LINE + 1))
    with pytest.raises(InputError) as error:
        read_rows(str(path))
    assert error.value.code == "bad-ledger"
    with pytest.raises(InputError) as error:
        read_rows(str(tmp_path))
    assert (error.value.code, error.value.data) == ("cannot-read", {"path": str(tmp_path)})


def test_a_file_of_rows_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    root = ledger(tmp_path / "l", [row("[]")])
    Path(root, "rows", "a.jsonl").mkdir()
    for read in (read_ledger, lambda root: diagnose((root,))):
        with pytest.raises(InputError) as error:
            read(root)
        assert (error.value.code, "a.jsonl" in error.value.message) == ("cannot-read", True)


def test_ledgers_merge_by_copying_files(tmp_path: Path) -> None:
    one = ledger(tmp_path / "1", [row("[]"), row("[mlp]")])
    two = ledger(tmp_path / "2", [row("[]"), row("full/uniform/1")])
    source = Path(two, "rows", "rank-00000.jsonl")
    Path(one, "rows", "second.jsonl").write_bytes(source.read_bytes())
    candidates = {r.candidate for r in read_ledger(one).rows}
    assert candidates == {"[]", "[mlp]", "full/uniform/1"}


def test_different_ends_of_one_run_conflict(tmp_path: Path) -> None:
    root = ledger(tmp_path / "l", [row("[]")])
    writer = RowWriter(root, "other")
    writer.append(row("[]", peak=1 << 33))
    writer.close()
    with pytest.raises(InputError) as error:
        read_ledger(root)
    assert error.value.code == "ledger-conflict"


@pytest.mark.parametrize(
    ("manifest", "code"),
    [
        (None, "not-a-ledger"),
        ("{", "bad-ledger"),
        ("[]", "bad-ledger"),
        ('{"schema": "recompute.ledger/2"}', "bad-ledger"),
        ('{"schema": "recompute.ledger/1", "job": {"sha256": "00"}}', "bad-ledger"),
    ],
)
def test_a_folder_that_is_no_ledger(tmp_path: Path, manifest: str | None, code: str) -> None:
    if manifest is not None:
        (tmp_path / "manifest.json").write_text(manifest)
    with pytest.raises(InputError) as error:
        read_ledger(str(tmp_path))
    assert error.value.code == code


def test_a_ledger_belongs_to_one_job(tmp_path: Path) -> None:
    root = str(tmp_path / "l")
    write_manifest(root, environment={}, job_yaml="model: {}\n")
    write_manifest(root, environment={"other": 1}, job_yaml="model: {}\n")
    with pytest.raises(InputError) as error:
        write_manifest(root, environment={}, job_yaml="model: {num_layers: 1}\n")
    assert error.value.code == "ledger-of-another-job"
    Path(root, "job.yaml").write_text("model: {num_layers: 9}\n")
    with pytest.raises(InputError) as error:
        read_ledger(root)
    assert error.value.code == "bad-ledger"


spans = st.lists(
    st.sampled_from([("mlp",), ("core_attn", "mlp"), ("full",)]), min_size=1, max_size=4
)
choices = st.one_of(
    st.sets(st.sampled_from(["core_attn", "mlp", "layernorm", "moe"])).map(lambda s: selective(*s)),
    st.builds(full, st.sampled_from(["uniform", "block"]), st.integers(1, 99)),
    spans.map(
        lambda rows: RecomputeChoice(
            per_layer=tuple(
                LayerSpan(first=2 * i, last=2 * i + 1, modules=m) for i, m in enumerate(rows)
            )
        )
    ),
)


@given(choices)
def test_a_choice_reads_back_from_text_and_from_a_document(choice: RecomputeChoice) -> None:
    assert choice_of_text(text_of(choice)) == choice
    assert choice_of_document(choice.to_document()) == choice


def test_short_spellings_and_multi_token_prediction_layers() -> None:
    assert choice_of_text("layernorm, core_attn") == selective("core_attn", "layernorm")
    assert choice_of_text("none") == selective()
    document = {"per_layer": [{"layers": ["mtp.0", "mtp.1"], "modules": ["mlp"]}]}
    span = LayerSpan(first=8, last=9, modules=("mlp",))
    assert choice_of_document(document, 8).per_layer == (span,)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "full",
        "full/uniform/0",
        "full/other/1",
        "[mlp",
        "MLP",
        "a b",
        "per-layer/3-1=mlp",
        "x" * 5000,
    ],
)
def test_what_is_no_choice_is_refused(text: str) -> None:
    with pytest.raises(InputError) as error:
        choice_of_text(text)
    assert error.value.code == "bad-candidate"


@pytest.mark.parametrize(
    "document",
    [
        {"per_layer": 3},
        {"per_layer": [{"layers": [0], "modules": ["mlp"]}]},
        {"per_layer": [{"layers": [0, "x"], "modules": ["mlp"]}]},
        {"per_layer": [{"layers": ["mtp.0", "mtp.0"], "modules": ["mlp"]}]},
        {"per_layer": [{"layers": [2, 1], "modules": ["mlp"]}]},
        {"recompute_granularity": "full"},
        {"recompute_modules": [{}]},
    ],
)
def test_what_is_no_choice_document_is_refused(document: dict[str, Any]) -> None:
    with pytest.raises(InputError) as error:
        choice_of_document(document)
    assert error.value.code == "bad-candidate"


def test_ranks_of_two_nodes_with_one_process_id_may_begin_a_ledger_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In containers every node numbers its processes alike, and all of them write into the shared folder."""
    path = tmp_path / "manifest.json"
    replace_file = Path.replace
    others = ["the other node"]

    def late(draft: Path, target: Path) -> Path:
        if others:
            write_whole(path, others.pop())
        return replace_file(draft, target)

    monkeypatch.setattr(Path, "replace", late)
    write_whole(path, "this node")
    assert path.read_text() == "this node"
    assert [one.name for one in tmp_path.iterdir()] == ["manifest.json"]
