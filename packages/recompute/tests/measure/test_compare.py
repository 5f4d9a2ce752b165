"""Verdicts of matched runs, each with its reason, and what is refused."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from recompute.errors import InputError
from recompute.measure.candidate import choice_of_text
from recompute.measure.compare import compare
from recompute.measure.ledger import read_ledger
from recompute.measure.row import Outcome, PhaseBytes, Row
from recompute.measure.runs import reference_of
from recompute.measure.types import Compared, MeasuredVerdict
from recompute.report.compare_document import compare_document
from recompute.report.compare_page import phases_svg
from recompute.report.compare_run import compare_ledger
from recompute.report.compare_text import compare_markdown
from recompute.report.compare_timeline import compare_timeline

from .rows import GIB, ledger, row

EXAMPLE = Path(__file__).parents[4] / "examples" / "ledger"
AA = (row("[]"), row("[]", repeat=1, peak=10 * GIB + 1000, slow=1.01))
"""The control and its repeat."""


def only(tmp_path: Path, *rows: Row, **options: Any) -> Compared:
    answer = compare(read_ledger(ledger(tmp_path / "l", rows)), **options)
    (found,) = answer.candidates
    return found


@pytest.mark.parametrize(
    ("candidate", "verdict"),
    [
        (row("[mlp]", peak=8 * GIB, slow=1.2), MeasuredVerdict.PASS),
        (row("[mlp]", peak=10 * GIB + 500), MeasuredVerdict.WITHIN_NOISE),
        (row("[mlp]", peak=10 * GIB + 500, slow=1.2), MeasuredVerdict.WORSE),
        (row("[mlp]", peak=11 * GIB, slow=0.9), MeasuredVerdict.WORSE),
        (row("[mlp]", peak=8 * GIB, optimizer_initialized=False), MeasuredVerdict.INCOMPLETE),
        (row("[mlp]", peak=8 * GIB, warmup_steps=3), MeasuredVerdict.INCOMPLETE),
        (row("[mlp]", peak=8 * GIB, final=False), MeasuredVerdict.INCOMPLETE),
        (row("[mlp]", peak=8 * GIB, world_size=2), MeasuredVerdict.INCOMPLETE),
        (row("[mlp]", outcome=Outcome.OOM, stage="loss"), MeasuredVerdict.OOM),
        (row("[mlp]", outcome=Outcome.HANG), MeasuredVerdict.HANG),
        (row("[mlp]", outcome=Outcome.CRASH), MeasuredVerdict.CRASH),
        (row("[mlp]", outcome=Outcome.NONFINITE), MeasuredVerdict.NONFINITE),
    ],
)
def test_verdicts_against_a_control_that_fits(
    tmp_path: Path, candidate: Row, verdict: MeasuredVerdict
) -> None:
    rows = [*AA, candidate]
    if candidate.world_size == 2:
        rows = [row("[]", world_size=2), candidate]
    assert only(tmp_path, *rows).verdict is verdict


@pytest.mark.parametrize(
    ("candidate", "verdict"),
    [
        (row("[mlp]", outcome=Outcome.OOM, stage="backward"), MeasuredVerdict.OOM),
        (row("[mlp]", outcome=Outcome.OOM, stage="forward", step_seconds=()), MeasuredVerdict.OOM),
        (row("[mlp]", outcome=Outcome.OOM, stage="optimizer_init"), MeasuredVerdict.MOVED_THE_WALL),
        (row("[mlp]"), MeasuredVerdict.PASS),
    ],
)
def test_verdicts_against_a_control_that_runs_out_of_memory(
    tmp_path: Path, candidate: Row, verdict: MeasuredVerdict
) -> None:
    none = {"step_seconds": (), "warmup_steps": 0}
    control = row("[]", outcome=Outcome.OOM, stage="backward", **none)
    if candidate.outcome is Outcome.OOM:
        candidate = row("[mlp]", outcome=Outcome.OOM, stage=candidate.stage, **none)
    found = only(tmp_path, control, candidate)
    assert found.verdict is verdict
    assert found.peak_delta_bytes is None
    assert found.step_time is None


def test_more_steps_than_the_control_also_move_the_wall(tmp_path: Path) -> None:
    control = row("[]", outcome=Outcome.OOM, stage="backward", step_seconds=(1.0,))
    later = row("[mlp]", outcome=Outcome.OOM, stage="forward")
    assert only(tmp_path, control, later).verdict is MeasuredVerdict.MOVED_THE_WALL


def test_figures(tmp_path: Path) -> None:
    found = only(tmp_path, *AA, row("[mlp]", peak=8 * GIB, slow=1.2))
    assert found.peak_delta_bytes == 8 * GIB - (10 * GIB + 1000)
    assert found.step_time is not None
    assert found.step_time.overhead == pytest.approx(1.2 / 1.01**0.5 - 1, abs=1e-3)
    assert found.measured.reserved_peak_bytes == 8 * GIB + 5
    assert found.measured.steady_steps == 4


def test_the_noise_floor_comes_from_the_repeats(tmp_path: Path) -> None:
    noise = compare(read_ledger(ledger(tmp_path / "a", AA))).noise
    assert noise.bytes == 1000
    assert noise.fraction == pytest.approx(0.01)
    alone = compare(read_ledger(ledger(tmp_path / "b", AA[:1])))
    assert alone.noise.bytes is None
    assert any("no A/A repeat" in note for note in alone.notes)


def test_the_hot_rank_and_the_slowest_rank_count(tmp_path: Path) -> None:
    def ranks(candidate: str, peaks: tuple[int, int], slow: float) -> list[Row]:
        both = ((0, peaks[0], 1.0), (1, peaks[1], slow))
        return [row(candidate, rank=r, peak=p, slow=s, world_size=2) for r, p, s in both]

    rows = [*ranks("[]", (9 * GIB, 10 * GIB), 1.5), *ranks("[mlp]", (8 * GIB, 7 * GIB), 1.8)]
    found = only(tmp_path, *rows)
    assert found.measured.hot is not None
    assert (found.measured.hot.rank, found.measured.hot.phase) == (0, "forward")
    assert found.peak_delta_bytes == -2 * GIB
    assert [r.delta_bytes for r in found.measured.ranks] == [-GIB, -3 * GIB]
    assert found.step_time is not None
    assert found.step_time.overhead == pytest.approx(0.2)


@pytest.mark.parametrize("outcome", [Outcome.CRASH, Outcome.HANG, Outcome.OOM])
def test_the_steps_before_a_failure_are_no_step_time(tmp_path: Path, outcome: Outcome) -> None:
    found = only(tmp_path, *AA, row("[mlp]", outcome=outcome, slow=1.5))
    assert (found.step_time, found.peak_delta_bytes) == (None, None)


def test_one_rank_that_fails_fails_the_run(tmp_path: Path) -> None:
    rows = [row("[]", rank=r, world_size=2) for r in (0, 1)]
    rows += [
        row("[mlp]", rank=0, world_size=2, outcome=Outcome.CRASH, stage="backward"),
        row("[mlp]", rank=1, world_size=2, outcome=Outcome.OOM, stage="loss"),
    ]
    found = only(tmp_path, *rows)
    assert (found.verdict, found.measured.stage) == (MeasuredVerdict.OOM, "loss")


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"overrides": ("train.micro_batch_size=1",)}, "train.micro_batch_size: not said -> 1"),
        ({"environment": {"torch": "2.0"}}, "torch: not said -> 2.0"),
        ({"environment": {"gpu": "NVIDIA B200"}}, "gpu: NVIDIA H200 -> NVIDIA B200"),
        ({"world_size": 2}, "world_size: 1 -> 2"),
        ({"meter": "host-rss"}, "meter: cuda -> host-rss"),
    ],
)
def test_more_than_one_difference_is_refused_and_named(
    tmp_path: Path, fields: dict[str, Any], named: str
) -> None:
    held = read_ledger(ledger(tmp_path / "l", [*AA, row("[mlp]", **fields)]))
    with pytest.raises(InputError) as error:
        compare(held)
    assert error.value.code == "ledger-differs"
    assert named in error.value.message
    assert named in compare(held, allow_differences=True).candidates[0].differences


def test_recompute_overrides_are_the_one_difference(tmp_path: Path) -> None:
    overrides = ("model.recompute_granularity=selective", "model.recompute_modules=[mlp]")
    found = only(tmp_path, *AA, row("[mlp]", peak=8 * GIB, overrides=overrides))
    assert found.verdict is MeasuredVerdict.PASS


def test_without_a_control_nothing_passes(tmp_path: Path) -> None:
    answer = compare(
        read_ledger(
            ledger(tmp_path / "l", [row("[mlp]", control_id=None), row("[moe]", control_id=None)])
        )
    )
    assert answer.control is None
    assert not answer.any_passes


def test_where_the_control_does_not_fit_the_cheapest_that_passes_stands_in(tmp_path: Path) -> None:
    rows = [
        row("[]", outcome=Outcome.OOM, stage="loss", step_seconds=(), warmup_steps=0),
        row("full/uniform/1", peak=5 * GIB, slow=1.4),
        row("[mlp]", peak=8 * GIB, slow=1.1),
        row("[mlp]", peak=8 * GIB + 3000, slow=1.1, repeat=1),
    ]
    answer = compare(read_ledger(ledger(tmp_path / "l", rows)))
    assert answer.control is not None
    assert answer.control.outcome is Outcome.OOM
    assert answer.reference is not None
    assert answer.reference.candidate == "[mlp]"
    assert answer.noise.bytes == 3000
    found = {item.measured.candidate: item for item in answer.candidates}
    assert all(item.verdict is MeasuredVerdict.PASS for item in found.values())
    other = found["full/uniform/1"]
    assert other.peak_delta_bytes == 5 * GIB - (8 * GIB + 3000)
    assert other.step_time is not None
    assert other.step_time.overhead == pytest.approx(1.4 / 1.1 - 1)
    assert found["[mlp]"].step_time is None
    said = " ".join(answer.notes)
    assert "no control exists: [] ends in oom in loss" in said
    assert "against [mlp], the cheapest that passes" in said


def test_study_and_comparison_choose_the_same_stand_in(tmp_path: Path) -> None:
    """Neither a candidate without optimizer states nor a slower repeat of the chosen one changes it."""
    rows = [
        row("[]", outcome=Outcome.OOM, stage="loss", step_seconds=(), warmup_steps=0),
        row("[core_attn]", slow=1.0, optimizer_initialized=False),
        row("[mlp]", slow=1.1),
        row("full/uniform/1", slow=1.2),
    ]
    chosen = reference_of([(choice_of_text(one.candidate), (one,)) for one in rows])
    assert chosen == choice_of_text("[mlp]")
    rows.append(row("[mlp]", slow=1.5, repeat=1))
    answer = compare(read_ledger(ledger(tmp_path / "l", rows)))
    assert answer.reference is not None
    assert answer.reference.candidate == "[mlp]"


@pytest.mark.parametrize("outcome", [Outcome.CRASH, Outcome.HANG, Outcome.NONFINITE])
def test_a_control_that_fails_for_another_reason_proves_nothing(
    tmp_path: Path, outcome: Outcome
) -> None:
    found = only(tmp_path, row("[]", outcome=outcome), row("[mlp]", peak=8 * GIB))
    assert found.verdict is MeasuredVerdict.INCOMPLETE
    assert f"the control ended in {outcome}" in found.reason


def test_seeds_of_the_data_are_compared_with_themselves(tmp_path: Path) -> None:
    """The second seed's steps are twice as long for both: neither noise nor overhead may show it."""
    rows = [
        row(name, slow=slow, peak=peak)
        for name, slow, peak in (("[]", 1.0, 10 * GIB), ("[mlp]", 1.2, 8 * GIB))
    ]
    rows += [row("[]", repeat=1, peak=10 * GIB + 500)]
    rows += [row("[]", repeat=2, data_seed=7, slow=2.0, peak=11 * GIB)]
    rows += [row("[mlp]", repeat=2, data_seed=7, slow=2.4, peak=9 * GIB)]
    answer = compare(read_ledger(ledger(tmp_path / "l", rows)))
    assert (answer.noise.bytes, answer.noise.repeats) == (500, 2)
    assert answer.noise.fraction == pytest.approx(0.0)
    (found,) = answer.candidates
    assert found.step_time is not None
    assert found.step_time.overhead == pytest.approx(0.2)
    assert found.step_time.high < 0.25
    assert found.peak_delta_bytes == -2 * GIB


def test_a_candidate_without_the_controls_seeds_is_refused(tmp_path: Path) -> None:
    rows = [*AA, row("[]", repeat=2, data_seed=7), row("[mlp]", peak=8 * GIB)]
    with pytest.raises(InputError, match="data_seed"):
        compare(read_ledger(ledger(tmp_path / "l", rows)))


def test_a_run_that_leaks_has_no_steady_peak(tmp_path: Path) -> None:
    found = only(tmp_path, *AA, row("[mlp]", peak=8 * GIB, growth_bytes_per_step=1 << 20))
    assert "grows by 1048576 bytes" in " ".join(found.measured.notes)
    assert found.verdict is MeasuredVerdict.INCOMPLETE
    assert "no steady" in found.reason


def seen(*spans: tuple[int, int, str], **more: Any) -> dict[str, Any]:
    """Return what a probe reads back from a model of four layers."""
    found = [{"layers": [a, b], "modules": labels.split("+")} for a, b, labels in spans]
    names = ("recompute_method", "recompute_num_layers")
    values = {"recompute_granularity": "selective", **dict.fromkeys(names), **more}
    return {**values, "per_layer": found, "layers_seen": 4}


FULL = {"recompute_granularity": "full", "recompute_method": "uniform", "recompute_num_layers": 1}


@pytest.mark.parametrize(
    ("candidate", "read_back", "said"),
    [
        ("[mlp]", seen((0, 3, "mlp")), None),
        ("[mlp]", seen((2, 2, "mlp")), None),
        ("[mlp]", {"per_layer": "of another form"}, None),
        ("[mlp]", {"per_layer": [{"layers": [0], "modules": ["moe"]}]}, None),
        ("[mlp]", {"per_layer": [{"layers": [0, 1 << 40], "modules": ["moe"]}]}, None),
        ("[mlp]", seen(), "not active on any layer"),
        ("[mlp]", seen((0, 3, "core_attn")), "layer 0 of the built model recomputes core_attn"),
        ("[mlp]", seen((0, 1, "mlp"), (2, 3, "mlp+moe")), "layer 2 of the built model"),
        ("[mlp]", seen(**FULL), "recomputes full/uniform/1"),
        ("full/uniform/1", seen(**FULL), None),
        ("full/uniform/1", seen((0, 3, "full")), None),
        ("full/uniform/1", seen((0, 2, "full")), "recomputes full"),
        ("full/uniform/2", seen(**FULL), "recomputes full/uniform/1"),
        ("full/uniform/1", seen((0, 3, "core_attn")), "recomputes core_attn"),
        ("full/block/1", seen(), "recomputes nothing"),
        ("per-layer/1-2=mlp+moe", seen((1, 1, "mlp"), (2, 2, "moe")), None),
        ("per-layer/1-2=mlp", seen((0, 3, "mlp")), "layer 0 of the built model recomputes mlp"),
        ("per-layer/1-2=mlp", seen(), "not active on any layer"),
        ("per-layer/1-2=mlp", seen(**FULL), "recomputes full/uniform/1"),
    ],
)
def test_a_model_that_recomputes_something_else_is_not_the_candidate(
    tmp_path: Path, candidate: str, read_back: dict[str, Any], said: str | None
) -> None:
    found = only(tmp_path, *AA, row(candidate, peak=8 * GIB, recompute_seen=read_back))
    if said is None:
        assert found.verdict is MeasuredVerdict.PASS
        assert not found.measured.notes
        return
    assert found.verdict is MeasuredVerdict.INCOMPLETE
    assert "not the candidate" in found.reason
    assert said in " ".join(found.measured.notes)


def test_every_rank_is_asked_what_it_recomputes(tmp_path: Path) -> None:
    control = [row("[]", world_size=2), row("[]", rank=1, world_size=2)]
    first = row("[mlp]", peak=8 * GIB, world_size=2, recompute_seen=seen((0, 1, "mlp")))
    second = row("[mlp]", peak=8 * GIB, world_size=2, rank=1, recompute_seen=seen())
    assert only(tmp_path, *control, first, second).verdict is MeasuredVerdict.PASS
    other = replace(second, recompute_seen=seen((2, 3, "core_attn")))
    found = only(tmp_path / "other", *control, first, other)
    assert found.verdict is MeasuredVerdict.INCOMPLETE


def test_a_control_that_recomputes_is_no_control(tmp_path: Path) -> None:
    """A script that ignores its overrides runs its own choice under every name."""
    own = seen((0, 3, "core_attn"))
    rows = [
        row("[]", recompute_seen=own),
        row("[mlp]", peak=8 * GIB, recompute_seen=seen((0, 3, "mlp"))),
    ]
    answer = compare(read_ledger(ledger(tmp_path / "l", rows)))
    (found,) = answer.candidates
    assert found.verdict is MeasuredVerdict.INCOMPLETE
    assert "the control: what ran is not" in found.reason
    assert answer.control is not None
    assert "recomputes core_attn" in " ".join(answer.control.notes)


@pytest.mark.parametrize(
    "lacks", [{"optimizer_initialized": False}, {"step_seconds": (1.0, 1.0)}, {"final": False}]
)
def test_a_control_without_optimizer_states_or_steady_steps_is_compared_with_nothing(
    tmp_path: Path, lacks: dict[str, Any]
) -> None:
    found = only(tmp_path, row("[]", **lacks), row("[mlp]", peak=8 * GIB))
    assert found.verdict is MeasuredVerdict.INCOMPLETE
    assert found.reason.startswith("the control: ")


def test_labels_that_act_nowhere_and_graphs_are_said(tmp_path: Path) -> None:
    read_back = seen((0, 3, "mlp"), cuda_graph_impl="local")
    found = only(tmp_path, *AA, row("[layernorm,mlp]", peak=8 * GIB, recompute_seen=read_back))
    assert found.verdict is MeasuredVerdict.PASS
    text = " ".join(found.measured.notes)
    assert "not active on any layer of the built model: layernorm" in text
    assert "CUDA graphs (local)" in text


@pytest.mark.parametrize(
    ("ended", "known"),
    [
        ({}, True),
        ({"outcome": Outcome.NONFINITE}, True),
        ({"outcome": Outcome.HANG}, False),
        ({"outcome": Outcome.CRASH, "interrupted": True, "final": False}, False),
        ({"interrupted": True}, False),
        ({"final": False}, False),
        ({"outcome": Outcome.OOM}, False),
    ],
)
def test_a_run_that_was_cut_short_has_no_prediction_error(
    tmp_path: Path, ended: dict[str, Any], known: bool
) -> None:
    """It may not have reached the peak that was predicted."""
    whole = only(tmp_path / "candidate", *AA, row("[mlp]", **ended))
    candidate = replace(whole, predicted_peak_bytes=11 * GIB)
    assert candidate.prediction_error == (pytest.approx(0.1) if known else None)
    rows = (row("[]", **ended), row("[mlp]"))
    answer = compare(read_ledger(ledger(tmp_path / "control", rows)))
    answer = replace(answer, control_predicted_peak_bytes=11 * GIB)
    assert answer.control_prediction_error == (pytest.approx(0.1) if known else None)
    assert ("+10.0%" in compare_markdown(answer)) == known


def test_the_peak_of_whole_steps_counts_and_a_tie_names_the_phase(tmp_path: Path) -> None:
    def run(candidate: str, whole: int) -> Row:
        last = PhaseBytes(phase="whole_step", allocated_peak_bytes=whole, reserved_peak_bytes=whole)
        plain = row(candidate, peak=8 * GIB)
        return replace(plain, phases=(*plain.phases, last), phase_steps=(0, 1, 2))

    found = only(tmp_path, *AA, run("[mlp]", 8 * GIB))
    assert found.measured.hot is not None
    assert (found.verdict, found.measured.hot.phase) == (MeasuredVerdict.PASS, "forward")
    assert found.measured.above_phases_bytes is None
    assert not any("looked at once" in note for note in found.measured.notes)
    found = only(tmp_path / "more", *AA, run("[mlp]", 11 * GIB))
    hot = found.measured.hot
    assert hot is not None
    assert (found.verdict, hot.peak_bytes, hot.phase) == (
        MeasuredVerdict.WORSE,
        11 * GIB,
        "forward",
    )
    assert found.measured.phases == (("forward", 8 * GIB), ("backward", 8 * GIB - 7))
    assert found.measured.above_phases_bytes == 11 * GIB
    assert sum(f"reached {3 * GIB} bytes more" in note for note in found.measured.notes) == 1
    document = compare_document(compare(read_ledger(str(tmp_path / "more" / "l"))))
    (candidate,) = document["candidates"]
    assert [phase["phase"] for phase in candidate["phases"]] == ["forward", "backward"]
    assert (candidate["peak_phase"], candidate["whole_step_peak_bytes"]) == ("forward", 11 * GIB)


def test_a_row_that_knows_whole_steps_alone_still_has_their_peak() -> None:
    last = PhaseBytes(phase="whole_step", allocated_peak_bytes=GIB, reserved_peak_bytes=GIB)
    peak = replace(row("[]"), phases=(last,)).peak
    assert peak == last


@pytest.mark.parametrize("above", [0, GIB])
def test_pictures_draw_whole_steps_above_every_phase_as_a_line_and_never_as_a_bar(
    above: int,
) -> None:
    answer = compare_ledger(str(EXAMPLE))
    control = answer.control
    assert control is not None
    assert control.hot is not None
    whole = replace(control, whole_step_bytes=control.hot.peak_bytes + above)
    answer = replace(answer, control=whole)
    timeline = compare_timeline(answer)
    assert timeline is not None
    assert ("steps looked at once" in timeline) == bool(above)
    bars = phases_svg([whole])
    assert ("steps looked at once" in bars) == bool(above)
    assert "whole step" not in bars


def test_no_rows(tmp_path: Path) -> None:
    with pytest.raises(InputError) as error:
        compare(read_ledger(ledger(tmp_path / "l", [])))
    assert error.value.code == "no-rows"


# --- the command, on real rows of an H200


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "recompute", "compare", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_the_example_ledger_of_an_h200(tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    done = run(str(EXAMPLE), "--json", "--html", str(page))
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    assert list(document)[:2] == ["schema", "job"]
    assert document["schema"] == "recompute.compare/1"
    assert document["control"]["repeats"] == 3
    assert 0 < document["noise_floor"]["fraction"] < 0.02
    rows = {row["candidate"]: row for row in document["candidates"]}
    assert len(rows) == 25
    assert rows["[core_attn]"]["verdict"] == "worse"
    assert rows["[mlp]"]["verdict"] == "pass"
    assert rows["[mlp]"]["choice"]["recompute_modules"] == ["mlp"]
    assert rows["[mlp]"]["peak_delta_bytes"] == pytest.approx(-4.9 * GIB, rel=0.01)
    low, high = rows["[mlp]"]["interval"]
    assert low < rows["[mlp]"]["step_time_overhead"] < high
    assert all(abs(row["prediction_error"]) < 0.005 for row in rows.values())
    assert all(
        abs(row["predicted_delta_bytes"] - row["peak_delta_bytes"]) < 0.11 * GIB
        for row in rows.values()
    )
    html = page.read_text("utf-8")
    assert html.count("<svg") == 3  # against step time, over one step, by phase
    assert "One step: predicted (lines), measured in each phase (bars)" in html
    assert "<script" not in html


def test_a_page_that_cannot_be_written_is_one_error_document(tmp_path: Path) -> None:
    done = run(str(EXAMPLE), "--json", "--html", str(tmp_path / "absent" / "page.html"))
    assert done.returncode == 3
    document = json.loads(done.stdout)
    assert (document["schema"], document["code"]) == ("recompute.error/1", "cannot-write")


def test_a_table_for_a_pull_request() -> None:
    done = run(str(EXAMPLE), "--format", "markdown")
    lines = done.stdout.splitlines()
    table = [line for line in lines if line.startswith("|")]
    assert len(table) == 2 + 26
    assert len({line.count("|") - line.count("\\|") for line in table}) == 1
    assert any(line.startswith("| `[mlp]` | **pass** |") for line in table)


@pytest.mark.parametrize("ranks", [4, 500])
def test_a_page_shows_every_rank(tmp_path: Path, ranks: int) -> None:
    rows = [
        row(name, rank=rank, peak=peak * GIB, world_size=ranks)
        for name, peak in (("[]", 10), ("[mlp]", 8))
        for rank in range(ranks)
    ]
    page = tmp_path / "page.html"
    assert run(ledger(tmp_path / "l", rows), "--html", str(page)).returncode == 0
    assert "Peak of each rank" in page.read_text("utf-8")


def test_exit_codes(tmp_path: Path) -> None:
    worse = ledger(tmp_path / "a", [*AA, row("[mlp]", peak=12 * GIB)])
    assert run(worse).returncode == 1
    assert run(str(tmp_path)).returncode == 2
    differs = ledger(tmp_path / "b", [*AA, row("[mlp]", overrides=("train.seed=1",))])
    done = run(differs, "--json")
    assert done.returncode == 2
    assert json.loads(done.stdout)["code"] == "ledger-differs"
    assert run(differs, "--allow-differences").returncode == 1


@pytest.mark.parametrize(
    "name", ["$\\frac{1}{$", "a\x00b\x1b[31m\u202ec", "\u4e2d\u6587\u0378", "_hidden", "<b>&amp;"]
)
def test_pictures_take_every_name(tmp_path: Path, name: str) -> None:
    """A name is text: no formula to be set, nothing that a terminal or a reader acts on, no warning."""
    page = tmp_path / "page.html"
    root = ledger(tmp_path / "l", [*AA, row(name, peak=8 * GIB)])
    done = subprocess.run(
        [sys.executable, "-m", "recompute", "compare", root, "--html", str(page)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr == f"wrote {page}\n"
    text = page.read_text("utf-8")
    assert all(sign.isprintable() or sign == "\n" for sign in text)
    assert "<b>" not in text


def test_names_from_a_ledger_are_escaped(tmp_path: Path) -> None:
    name = "<script>|`x`\n\x1b[2J"
    phases = (PhaseBytes(phase="<b>", allocated_peak_bytes=1, reserved_peak_bytes=1),)
    rows = [*AA, row(name, phases=phases, message="<img src=x>|a")]
    root = ledger(tmp_path / "l", rows)
    page = tmp_path / "page.html"
    done = run(root, "--format", "markdown", "--html", str(page))
    assert done.returncode == 0, done.stderr
    assert "<script" not in page.read_text("utf-8")
    assert "<img" not in done.stdout
    table = [line for line in done.stdout.splitlines() if line.startswith("|")]
    assert len({line.count("|") - line.count("\\|") for line in table}) == 1
    assert "\x1b" not in run(root).stdout


@pytest.mark.parametrize(
    ("kernels", "share", "noted"), [(0.99, 0.99, False), (1.2, 1.0, False), (0.6, 0.6, True)]
)
def test_the_share_of_kernels_says_who_bounds_the_step(
    tmp_path: Path, kernels: float, share: float, noted: bool
) -> None:
    rows = [row("[]"), row("[mlp]", peak=6 * GIB, kernel_seconds=kernels)]
    (candidate,) = compare(read_ledger(ledger(tmp_path, rows))).candidates
    assert candidate.measured.kernel_share == pytest.approx(share)
    assert any("the host's" in note for note in candidate.measured.notes) is noted
