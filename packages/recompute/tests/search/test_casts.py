"""What quantizing costs in time: products in their own format, casts beside them, against FP8 on an H200."""

from __future__ import annotations

import pytest

import study_figures as studies
from recompute.config.choice import NO_RECOMPUTE
from recompute.config.gpus import find_gpu
from recompute.config.load import load
from recompute.config.normalize import normalize
from recompute.model.layer import LAYER_KINDS
from recompute.model.shape import shape_of
from recompute.model.tape import OpClass, Tape
from recompute.search.cost import CostModel
from recompute.search.efficiency import EFFICIENCIES
from recompute.timeline.predict import Predictor
from recompute.timeline.types import Replay
from recompute.timeline.work import weight_casts_of, work_of

from ..model.jobs import job

H200 = find_gpu("h200")
FP8 = {"fp8": "hybrid", "fp8_recipe": "tensorwise"}
STUDIES = ("dense-fp8", "dense-fp8-delayed", "dense-fp8-blockwise")


def tape_of(**fields: object) -> Tape:
    one = job(**fields)
    return LAYER_KINDS["attention+mlp"](one.model, shape_of(one))


def test_quantized_products_run_at_the_rate_of_their_format_and_others_at_their_own() -> None:
    cost = CostModel(job(**FP8), H200)
    wide = cost.seconds(Replay(flops=((OpClass.GEMM, 10**15),)))
    narrow = cost.seconds(Replay(flops=((OpClass.NARROW_GEMM, 10**15),)))
    assert wide / narrow == pytest.approx(H200.flops("fp8") / H200.flops("bf16"))
    assert dict(work_of(tape_of(**FP8).ops).flops).keys() == {
        kind if kind is not OpClass.GEMM else OpClass.NARROW_GEMM
        for kind in dict(work_of(tape_of().ops).flops)
    }


def test_inputs_are_cast_in_forward_and_gradients_in_backward() -> None:
    cost, memory = CostModel(job(**FP8), H200), H200.bandwidth * EFFICIENCIES["hopper"].memory
    inputs = Replay(traffic=((OpClass.CAST, 10**9),))
    gradients = Replay(traffic=((OpClass.GRADIENT_CAST, 10**9),))
    once = pytest.approx(10**9 / memory)
    assert (cost.seconds(inputs), cost.seconds(inputs, backward=True)) == (once, 0.0)
    assert (cost.seconds(gradients), cost.seconds(gradients, backward=True)) == (0.0, once)


@pytest.mark.parametrize(("recipe", "moved"), [("delayed", 4), ("tensorwise", 6)])
def test_a_cast_reads_the_tensor_and_writes_both_layouts(recipe: str, moved: int) -> None:
    """The scale of now needs the largest value first: one more read."""
    op = next(
        op for op in tape_of(fp8="hybrid", fp8_recipe=recipe).ops if op.name == "mlp.linear_fc2"
    )
    inputs, outputs = op.widths
    assert op.casts is not None
    assert op.casts.weight == inputs * outputs * moved
    assert op.casts.source * outputs == op.casts.gradient * inputs


def test_nothing_is_cast_in_16_bits() -> None:
    ops = tape_of().ops
    assert not any(op.casts for op in ops)
    assert weight_casts_of(ops) == Replay()


@pytest.mark.parametrize("name", STUDIES)
def test_steps_and_overheads_of_the_fp8_studies(name: str) -> None:
    study = studies.study_of(name)
    one = normalize(load(str(studies.STUDIES / name / "job.yaml")))
    control = next(row for row in study.rows if row.candidate == "[]")
    predicted = CostModel(one, H200).step_seconds(Predictor(one).predict(NO_RECOMPUTE))
    assert predicted == pytest.approx(control.step, rel=0.08)
    assert all(abs(row.overhead_error) < 0.05 for row in study.rows)
