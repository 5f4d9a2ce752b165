from __future__ import annotations

import re

from recompute.config.job_writers import job_yaml
from recompute.config.load import load
from recompute.config.normalize import normalize
from recompute.report.check_run import check_job
from recompute.report.check_text import check_text
from recompute.report.explain_document import explain_document
from recompute.report.explain_text import explain_text
from recompute.report.plan_text import plan_text
from recompute.report.text import percent, quantity, signed_gib, table
from recompute.search.budget import budget_of
from recompute.search.explain import explain
from recompute.search.plan import plan
from recompute.units import GIB

from ..search.fakes import small_job
from ..timeline.jobs import job as h200_job


def test_columns_align() -> None:
    lines = table(("name", "n", "note|"), [("a", "1", "x"), ("bcd", "200", "yy")]).splitlines()
    assert lines == ["  name    n  note", "  a       1  x", "  bcd   200  yy"]


def test_amounts() -> None:
    assert quantity(2.7e15, "FLOP") == "2.70 PFLOP"
    assert quantity(0, "B") == "0"
    assert signed_gib(-(1 << 30)) == "-1.00"
    assert percent(0.0) == "0"


def test_the_verdict_comes_first_and_the_overrides_can_be_pasted() -> None:
    text = plan_text(plan(h200_job(), "18GiB"))
    first = text.splitlines()[0]
    assert first == "plan: full/block/5 is the cheapest that fits 18.00 GiB"
    assert "model.recompute_method=block model.recompute_num_layers=5" in text
    assert text.index("why") < text.index("paste") < text.index("choices, best first")


def test_an_infeasible_plan_says_what_is_closest_and_pastes_nothing() -> None:
    text = plan_text(plan(h200_job(), "1GiB"))
    assert text.startswith("infeasible: no recompute choice fits 1.00 GiB")
    assert "closest" in text
    assert "paste" not in text


def test_a_job_that_says_so_already_has_nothing_to_paste() -> None:
    job = small_job(recompute_granularity="selective", recompute_modules=())
    assert "nothing: the job says so already" in plan_text(plan(job, "70GiB"))


def test_a_long_ranking_is_cut_and_says_how_to_see_all() -> None:
    answer = plan(h200_job(num_layers=48), "60GiB")
    short = plan_text(answer)
    whole = plan_text(answer, top=len(answer.alternatives))
    assert f"--top {len(answer.alternatives)} lists all" in short
    assert whole.count("full/uniform/") == 48
    assert "lists all" not in whole


def test_a_per_layer_plan_prints_layers_and_the_gain() -> None:
    text = plan_text(plan(h200_job(), "20GiB", per_layer=True))
    assert "per-layer is the cheapest" in text
    assert "  layers     0 to " in text
    assert "the best stock choice" in text


def test_explain_shows_ranks_owners_and_labels() -> None:
    text = explain_text(explain(h200_job()))
    assert text.startswith("[]: peak ")
    assert "alive at the peak of pp 0" in text
    assert "core_attn" in text
    assert "+0.62" in text


SCRIPT = b"""\
torchrun pretrain_gpt.py --num-layers 8 --hidden-size 4096 --num-attention-heads 32 --bf16 \\
  --vocab-size 32000 --seq-length 8192 --micro-batch-size 4 --swiglu --no-bias-swiglu-fusion \\
  --recompute-granularity selective
"""


def test_a_script_is_answered_in_flags() -> None:
    job = load("-", "hardware.num_gpus=8", stdin=SCRIPT)
    text = plan_text(plan(job, "60GiB"))
    paste = text[text.index("\npaste\n") :]
    assert paste.index("Megatron-LM:") < paste.index("Hydra:")
    levers = text[text.index("may be cheaper") : text.index("choices, best first")]
    assert "--use-distributed-optimizer" in levers
    assert "--micro-batch-size 2" in levers
    assert "train.micro_batch_size" not in levers
    checked = check_text(check_job(load("-", "model.recompute_method=block", stdin=SCRIPT), None))
    assert "drop --recompute-method" in checked
    assert "model.recompute_method=null" not in checked


def test_a_per_layer_plan_is_saved_and_applied_whatever_the_framework() -> None:
    job = load("-", "hardware.num_gpus=8", stdin=SCRIPT)
    answer = plan(job, "70GiB", per_layer=True)
    assert answer.chosen is not None
    assert answer.chosen.choice.per_layer is not None
    text = plan_text(answer)
    command = "recompute plan - hardware.num_gpus=8 --budget 70GiB --per-layer --json > plan.json"
    assert command in text
    assert 'recompute.megatron.apply(model, json.load(open("plan.json")))' in text
    assert "Megatron Bridge, Python:" not in text
    assert answer.stock is not None
    choices = text[text.index("choices, best first") :]
    assert f"  {answer.stock.choice.label()} " in choices
    assert "the best stock choice" in choices


def test_the_gpu_count_stands_beside_the_verdict_and_the_assumptions_at_the_end() -> None:
    text = plan_text(plan(load("-", stdin=SCRIPT), "70GiB"))
    verdict, rest = text.split("\n\n", 1)
    assert "planned for 1 GPU (TP x PP x CP = 1 x 1 x 1; hardware.num_gpus is not given)" in verdict
    assumptions = rest[rest.index("\nassumptions\n") :]
    assert "model.context_parallel_size is not given; 1" in assumptions
    given = plan_text(plan(load("-", "hardware.num_gpus=8", stdin=SCRIPT), "70GiB"))
    assert "hardware.num_gpus is not given" not in given


def test_an_unknown_provider_stands_in_the_first_lines_of_every_text() -> None:
    text = b"""\
model: {_target_: my.Own, num_layers: 4, hidden_size: 512, num_attention_heads: 8, vocab_size: 1024, seq_length: 1024}
train: {micro_batch_size: 1}
"""
    job = load("-", stdin=text)
    said = "model._target_ my.Own is not known: fields not given fell to GPT defaults"
    for answer in (
        plan_text(plan(job, "70GiB")),
        explain_text(explain(job)),
        check_text(check_job(job, None)),
    ):
        assert said in "\n".join(answer.splitlines()[:6])


def test_no_granularity_is_shown_beside_a_list_that_does_nothing() -> None:
    job = normalize(load("-", "model.recompute_granularity=null", stdin=SCRIPT))
    lines = job_yaml(job).splitlines()
    where = next(i for i, line in enumerate(lines) if "recompute_modules: [core_attn]" in line)
    assert lines[where - 1].startswith("  recompute_granularity: null  # ")
    assert lines[where - 1].endswith("no recompute")


def test_an_explanation_is_held_against_a_gpu_and_against_full_recompute() -> None:
    job = load("-", stdin=SCRIPT)
    answer = explain(job)
    peak = answer.prediction.hot.peak.peak_bytes
    tight, wide = budget_of(job, peak - (1 << 30)), budget_of(job, peak + (1 << 30))
    assert f"over {tight.name} by 1.00 GiB" in explain_text(answer, tight).splitlines()[1]
    assert f"fits {wide.name} with 1.00 GiB to spare" in explain_text(answer, wide).splitlines()[1]
    assert explain_document(answer, tight)["over_bytes"] == 1 << 30
    whole = plan(job, "70GiB")
    row = next(o for o in whole.alternatives if o.choice.label() == "full/uniform/1")
    assert answer.full is not None
    assert answer.full.peak_delta_bytes == row.peak_bytes - whole.control.peak_bytes
    assert answer.full.step_time_overhead == row.step_time_overhead
    labels = explain_text(answer)
    assert "change of peak, GiB" in labels
    assert "  full/uniform/1 " in labels


def test_sizes_are_written_in_gib_and_what_has_to_shrink_is_what_is_allocated() -> None:
    job = load("-", "hardware.num_gpus=8", "hardware.gpu=a100-40gb", stdin=SCRIPT)
    answer = plan(job, gpu="a100-40gb")
    assert re.search(r"\d+\.\d\d GiB are kept for memory outside torch", plan_text(answer))
    tight = plan(job, gpu="a100-40gb", margin="38GiB")
    assert tight.closest is not None
    said = re.search(r"together they have to shrink by (\d+\.\d\d) GiB", plan_text(tight))
    assert said is not None
    assert float(said[1]) < tight.closest.peak_bytes / GIB, "no more than there is"
