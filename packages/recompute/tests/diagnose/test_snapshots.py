"""Snapshots: real ones of an H200 and simulated ones, replayed with each label."""

from __future__ import annotations

import dataclasses
import json
import pickle
from pathlib import Path
from typing import Any

import pytest

from recompute.diagnose.run import Answer, diagnose
from recompute.diagnose.snapshot.structure import from_tree
from recompute.diagnose.snapshot.timeline import build
from recompute.errors import InputError

from .torch_snapshots import BACKWARD, FC1, MIB, Model, Recorder, train

DATA = Path(__file__).parents[1] / "data" / "h200_snapshots"
MEASURED = json.loads((DATA / "measured.json").read_text(encoding="utf-8"))["runs"]
RECORDED = {run["model"]: run for run in MEASURED if "snapshot" in run}
TOLERANCE = 0.015


def label_of(run: dict[str, Any]) -> str | None:
    if run["recompute"]["recompute_granularity"] == "full":
        return "full"
    return "+".join(run["recompute"]["recompute_modules"]) or None


def save(tmp_path: Path, value: Any, name: str = "snapshot.pickle", protocol: int = 4) -> Path:
    path = tmp_path / name
    path.write_bytes(
        json.dumps(value).encode() if name.endswith(".json") else pickle.dumps(value, protocol)
    )
    return path


def run(*paths: Path) -> Answer:
    return diagnose(tuple(str(path) for path in paths))


@pytest.mark.parametrize("model", RECORDED)
def test_the_replayed_peak_is_the_recorded_one_on_an_h200(model: str) -> None:
    recorded = RECORDED[model]
    shown = run(DATA / recorded["snapshot"]).snapshots[0]
    assert shown.peak_bytes == pytest.approx(recorded["peak"], rel=1e-3)
    assert sum(item.bytes for item in shown.alive_at_peak) == shown.peak_bytes


@pytest.mark.parametrize(
    "measured",
    [run for run in MEASURED if "snapshot" not in run and label_of(run)],
    ids=lambda run: f"{run['model']}-{label_of(run)}",
)
def test_the_counterfactual_peak_is_what_the_run_with_the_label_measured(
    measured: dict[str, Any],
) -> None:
    shown = run(DATA / RECORDED[measured["model"]]["snapshot"]).snapshots[0]
    effect = next(item for item in shown.effects if item.label == label_of(measured))
    assert effect.passes > 0
    assert effect.peak_bytes == pytest.approx(measured["peak"], rel=TOLERANCE)
    control = RECORDED[measured["model"]]["peak"]
    assert (effect.peak_bytes < control) == (measured["peak"] < control)


@pytest.mark.parametrize("label", ["core_attn", "layernorm", "mlp"])
@pytest.mark.parametrize(
    "sizes",
    [{}, {"layers": 1}, {"scores": 2 * MIB}, {"logits": 400 * MIB}, {"ffn": 4 * MIB, "layers": 7}],
)
def test_the_counterfactual_agrees_with_the_simulated_run(
    tmp_path: Path, label: str, sizes: dict[str, int]
) -> None:
    model = Model(**sizes)
    shown = run(save(tmp_path, train(model).snapshot())).snapshots[0]
    effect = next(item for item in shown.effects if item.label == label)
    truth = train(dataclasses.replace(model, label=label)).peak
    assert shown.peak_bytes == train(model).peak
    assert effect.peak_bytes == pytest.approx(truth, rel=0.03)


def test_a_label_without_a_region_in_the_run_changes_nothing(tmp_path: Path) -> None:
    shown = run(save(tmp_path, train(Model()).snapshot())).snapshots[0]
    for label in ("moe", "moe_act", "shared_experts", "mla_up_proj", "gdn_norm_out"):
        effect = next(item for item in shown.effects if item.label == label)
        assert (effect.passes, effect.peak_delta_bytes) == (0, 0)


@pytest.mark.parametrize("protocol", range(6))
def test_every_protocol_of_pickle(tmp_path: Path, protocol: int) -> None:
    recorder = train(Model(layers=2))
    shown = run(save(tmp_path, recorder.snapshot(), protocol=protocol)).snapshots[0]
    assert shown.peak_bytes == recorder.peak


def test_json_form(tmp_path: Path) -> None:
    recorder = train(Model(layers=2))
    one = run(save(tmp_path, recorder.snapshot())).snapshots[0]
    two = run(save(tmp_path, recorder.snapshot(), "snapshot.json")).snapshots[0]
    assert dataclasses.replace(two, path=one.path) == one


def test_older_snapshots_keep_the_stack_in_a_history(tmp_path: Path) -> None:
    frames = [{"filename": "/opt/megatron/core/transformer/mlp.py", "line": 3, "name": "forward"}]
    block = {
        "size": 512,
        "state": "active_allocated",
        "history": [{"addr": 4096, "real_size": 500, "frames": frames}],
    }
    segment = {"device": 0, "address": 4096, "total_size": 2 * MIB, "blocks": [block]}
    shown = run(save(tmp_path, {"segments": [segment]})).snapshots[0]
    assert (shown.alive_at_peak[0].owner, shown.alive_at_peak[0].bytes) == ("mlp", 512)
    assert run(save(tmp_path, [segment])).snapshots[0].alive_at_peak == shown.alive_at_peak


def test_what_was_alive_before_the_recording_counts() -> None:
    recorder = train(Model(), steps=1)
    whole = build(from_tree(recorder.snapshot(), "a"))
    cut = recorder.snapshot()
    cut["device_traces"] = [cut["device_traces"][0][120:]]
    late = build(from_tree(cut, "b"))
    assert late.baseline == whole.curve[119]
    assert late.curve == whole.curve[120:]


def test_the_oom_event_is_the_verdict(tmp_path: Path) -> None:
    recorder = train(Model(), steps=1)
    recorder.oom(512 * MIB, 100 * MIB, FC1)
    found = run(save(tmp_path, recorder.snapshot())).diagnosis
    assert (str(found.verdict), str(found.stage)) == ("activation", "forward")
    assert found.numbers.requested_bytes == 512 * MIB
    assert found.numbers.free_bytes == 100 * MIB
    assert "core_attn would have brought this run" in found.next_actions[0].action


def test_holes_that_fit_the_request_are_fragmentation(tmp_path: Path) -> None:
    recorder = Recorder()
    recorder.alloc(100 * MIB, FC1)
    recorder.oom(32 * MIB, 1 * MIB, FC1)
    assert str(run(save(tmp_path, recorder.snapshot())).diagnosis.verdict) == "fragmentation"
    recorder.oom(65 * MIB, 1 * MIB, FC1)
    recorder.events.pop(-2)
    assert str(run(save(tmp_path, recorder.snapshot())).diagnosis.verdict) == "activation"


def test_growth_over_steps_names_who_holds_it(tmp_path: Path) -> None:
    found = run(save(tmp_path, train(Model(leak=20 * MIB), steps=6).snapshot()))
    assert str(found.diagnosis.verdict) == "leak"
    growth = found.snapshots[0].growth
    assert growth is not None
    assert growth.bytes_per_step == 20 * MIB
    assert growth.where[0].owner == "logits"
    steady = run(save(tmp_path, train(Model(), steps=6).snapshot()))
    assert steady.snapshots[0].growth is None


def test_two_snapshots_are_compared(tmp_path: Path) -> None:
    before = save(tmp_path, train(Model()).snapshot(), "a.pickle")
    after = save(tmp_path, train(Model(scores=96 * MIB)).snapshot(), "b.pickle")
    comparison = run(before, after).comparison
    assert comparison is not None
    assert comparison.peak_delta_bytes == 2 * 4 * 48 * MIB
    assert comparison.differences[0].owner == "attention"
    assert comparison.differences[0].delta_bytes == 2 * 4 * 48 * MIB


def test_a_log_keeps_its_verdict_beside_a_snapshot(tmp_path: Path) -> None:
    log = tmp_path / "a.log"
    log.write_text(
        "slurmstepd: error: Detected 1 oom_kill event in StepId=9.0.\n", encoding="utf-8"
    )
    answer = run(log, save(tmp_path, train(Model()).snapshot()))
    assert str(answer.diagnosis.verdict) == "host_memory"
    assert answer.snapshots


class Bomb:
    """Runs a command when unpickled."""

    def __reduce__(self) -> tuple[Any, ...]:
        return (exec, ("raise SystemExit('executed')",))


class Stateful:
    """Needs BUILD."""

    def __init__(self) -> None:
        self.value = 1


def forged(*opcodes: bytes) -> bytes:
    return b"\x80\x04" + b"".join(opcodes) + b"."


HOSTILE = {
    "reduce": (pickle.dumps({"segments": [Bomb()]}, 4), "unsafe-pickle"),
    "protocol 0 global": (pickle.dumps({"segments": Bomb()}, 0), "unsafe-pickle"),
    "object": (pickle.dumps(Stateful(), 2), "unsafe-pickle"),
    "set": (pickle.dumps({1, 2}, 4), "unsafe-pickle"),
    "complex": (pickle.dumps(1j, 4), "unsafe-pickle"),
    "bytearray": (pickle.dumps(bytearray(b"x"), 5), "unsafe-pickle"),
    "persistent id": (forged(b"X\x01\x00\x00\x00a", b"Q"), "unsafe-pickle"),
    "extension": (forged(b"\x82\x01"), "unsafe-pickle"),
    "inst": (b"\x80\x02(ios\nsystem\n.", "unsafe-pickle"),
    "memo far away": (forged(b"}", b"r\xff\xff\xff\x7f"), "corrupt-pickle"),
    "endless text": (forged(b"\x8d" + (1 << 60).to_bytes(8, "little")), "pickle-limit"),
    "text past the end": (forged(b"X\xff\x00\x00\x00a"), "corrupt-pickle"),
    "endless integer": (forged(b"\x8b\xff\xff\xff\x7f"), "pickle-limit"),
    "deep": (forged(b"(" * 5000), "pickle-limit"),
    "dict key of a dict": (forged(b"}", b"}", b"N", b"s"), "corrupt-pickle"),
    "append to a dict": (forged(b"}", b"N", b"a"), "corrupt-pickle"),
    "pop below a mark": (forged(b"N(", b"a"), "corrupt-pickle"),
    "stack empty": (forged(b"u"), "corrupt-pickle"),
    "no such opcode": (forged(b"\xff"), "corrupt-pickle"),
    "cut": (pickle.dumps(train(Model(layers=1)).snapshot())[:-3000], "corrupt-pickle"),
    "a list of numbers": (pickle.dumps([1, 2, 3]), "not-a-snapshot"),
    "no segments": (pickle.dumps({"a": 1}), "not-a-snapshot"),
    "negative size": (pickle.dumps({"segments": [{"total_size": -1}]}), "not-a-snapshot"),
    "text for a trace": (
        pickle.dumps({"segments": [], "device_traces": ["abc"]}),
        "not-a-snapshot",
    ),
    "huge size": (pickle.dumps({"segments": [{"total_size": 1 << 70}]}), "not-a-snapshot"),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_pickle_is_refused_and_nothing_runs(tmp_path: Path, name: str) -> None:
    data, code = HOSTILE[name]
    path = tmp_path / "snapshot.pickle"
    path.write_bytes(data)
    with pytest.raises(InputError) as caught:
        run(path)
    assert caught.value.code == code
    assert caught.value.exit_code == 2


@pytest.mark.parametrize(
    ("name", "opcode"),
    [
        ("reduce", "STACK_GLOBAL"),
        ("protocol 0 global", "GLOBAL"),
        ("object", "GLOBAL"),
        ("set", "EMPTY_SET"),
        ("persistent id", "BINPERSID"),
        ("extension", "EXT1"),
        ("inst", "INST"),
    ],
)
def test_the_refused_opcode_is_named(tmp_path: Path, name: str, opcode: str) -> None:
    path = tmp_path / "snapshot.pickle"
    path.write_bytes(HOSTILE[name][0])
    with pytest.raises(InputError) as caught:
        run(path)
    assert caught.value.data["opcode"] == opcode
    assert opcode in caught.value.message


def test_a_self_reference_does_not_hang(tmp_path: Path) -> None:
    loop: list[Any] = []
    loop.append(loop)
    path = save(tmp_path, {"segments": loop})
    with pytest.raises(InputError):
        run(path)


def test_the_same_frames_are_stored_once() -> None:
    recorder = Recorder()
    for _ in range(2000):
        recorder.free(recorder.alloc(512, BACKWARD))
    from recompute.diagnose.snapshot.unpickle import PickleMachine

    value = PickleMachine(pickle.dumps(recorder.snapshot()), "a").load()
    stacks = {id(event.stack) for event in value["device_traces"][0] if event.stack}
    assert len(stacks) == 1


def test_reading_does_not_touch_pickle_itself(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    path = save(tmp_path, train(Model(layers=1)).snapshot())

    def explode(*_: object) -> None:
        raise AssertionError("pickle was used")

    monkeypatch.setattr(pickle, "load", explode)
    monkeypatch.setattr(pickle, "loads", explode)
    monkeypatch.setattr(pickle, "Unpickler", explode)
    assert run(path).snapshots[0].events > 0
