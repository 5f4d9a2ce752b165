"""Settings that move memory elsewhere: sharding, offloading, overlap; and what is refused."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from recompute.config.choice import NO_RECOMPUTE, selective
from recompute.config.schema import (
    DdpConfig,
    FrameworkConfig,
    JobConfig,
    OptimizerConfig,
    PeftConfig,
)
from recompute.errors import UnsupportedError
from recompute.timeline.predict import Predictor
from recompute.timeline.static import ParameterCount, state_bytes
from recompute.timeline.supported import LISTED, REFUSED
from recompute.timeline.types import Phase, RankPeak

from .jobs import megatron_job

COUNT = ParameterCount(dense=8_000_000, expert=0)
EXPERTS: dict[str, Any] = {
    "num_moe_experts": 8,
    "moe_ffn_hidden_size": 2048,
    "moe_grouped_gemm": True,
    "moe_token_dispatcher_type": "alltoall",
    "multi_latent_attention": True,
    "q_lora_rank": 512,
}


def fsdp(strategy: str, *, gpus: int = 8, core: str = "0.16", **ddp: Any) -> JobConfig:
    given = megatron_job(gpus=gpus, batch=2 * gpus)
    wrapper = DdpConfig(
        use_megatron_fsdp=True,
        use_distributed_optimizer=True,
        data_parallel_sharding_strategy=strategy,
        grad_reduce_in_fp32=True,
        **ddp,
    )
    return replace(given, ddp=wrapper, framework=FrameworkConfig(megatron_core=core))


def hot(job: JobConfig) -> RankPeak:
    return Predictor(job).predict(NO_RECOMPUTE).hot


@pytest.mark.parametrize(
    ("strategy", "parameters", "gradients", "states"),
    [
        ("no_shard", 2, 4, 12),
        ("optim", 2, 4, 12 / 8),
        ("optim_grads", 2, 4 / 8, 12 / 8),
        ("optim_grads_params", 2 / 8, 4 / 8, 12 / 8),
    ],
)
def test_each_strategy_splits_what_its_name_says(
    strategy: str, parameters: float, gradients: float, states: float
) -> None:
    static = state_bytes(fsdp(strategy), COUNT).static
    assert static.parameters == parameters * COUNT.dense
    assert static.gradients == gradients * COUNT.dense
    assert static.optimizer == states * COUNT.dense


def test_main_gradients_have_the_parameters_dtype_from_core_0_17_on() -> None:
    newer = fsdp("optim", core="0.17")
    assert state_bytes(newer, COUNT).static.gradients == 2 * COUNT.dense
    asked = replace(newer, unmodelled={"ddp.megatron_fsdp_main_grads_dtype": "fp32"})
    assert state_bytes(asked, COUNT).static.gradients == 4 * COUNT.dense


def test_sharding_everything_pays_with_whole_weights_while_a_layer_runs() -> None:
    whole, split = hot(fsdp("optim_grads")), hot(fsdp("optim_grads_params"))
    assert split.static.parameters < whole.static.parameters / 7
    assert split.activation_bytes_at_peak > whole.activation_bytes_at_peak
    assert split.peak.peak_bytes < whole.peak.peak_bytes


def test_one_rank_shards_nothing() -> None:
    assert hot(fsdp("optim_grads_params", gpus=1)).peak.phase is hot(megatron_job()).peak.phase
    alone = Predictor(fsdp("optim_grads_params", gpus=1)).predict(NO_RECOMPUTE, composition=True)
    assert "gathered weights" not in {o.owner for o in alone.hot.alive_at_peak}


def test_gathered_weights_are_named_where_they_are_alive() -> None:
    row = Predictor(fsdp("optim_grads_params")).predict(NO_RECOMPUTE, composition=True).hot
    owners = {o.owner: o.bytes for o in row.alive_at_peak}
    assert owners["gathered weights"] > 0
    assert sum(owners.values()) == pytest.approx(row.peak.peak_bytes, rel=1e-3)


def test_double_buffers_are_there_all_step_long() -> None:
    plain, double = fsdp("optim_grads_params"), fsdp("optim_grads_params", fsdp_double_buffer=True)
    assert hot(double).static.other > hot(plain).static.other


def test_torch_fsdp2_splits_everything_and_its_gradients_appear_in_backward() -> None:
    given = replace(
        megatron_job(gpus=8, batch=16),
        ddp=DdpConfig(use_torch_fsdp2=True),
        optimizer=OptimizerConfig(),
    )
    state = state_bytes(given, COUNT)
    assert state.static.parameters == 2 * COUNT.dense // 8
    assert (state.static.gradients, state.gradients_in_backward) == (0, 2 * COUNT.dense // 8)
    assert state.static.optimizer == 12 * COUNT.dense // 8
    assert state.step_transient == 4 * COUNT.dense // 8
    row = hot(given)
    assert row.peak.peak_bytes < hot(megatron_job(gpus=8, batch=16)).peak.peak_bytes


def test_torch_fsdp2_splits_experts_over_the_one_mesh_that_it_has() -> None:
    """Tensor parallelism outside the experts makes their own groups larger, which FSDP2 does not use."""
    sizes = {"tensor_model_parallel_size": 2, "sequence_parallel": True}
    given = replace(
        megatron_job(gpus=8, batch=16, **{**EXPERTS, **sizes, "expert_tensor_parallel_size": 1}),
        ddp=DdpConfig(use_torch_fsdp2=True),
        optimizer=OptimizerConfig(),
    )
    count = ParameterCount(dense=4_000_000, expert=80_000_000)
    state = state_bytes(given, count)
    assert state.static.parameters == 2 * count.total // 4
    assert state.static.optimizer == 12 * count.total // 4
    assert state.gradients_in_backward == 2 * count.total // 4


def test_a_layer_of_torch_fsdp2_is_whole_with_all_its_experts_while_it_runs() -> None:
    given = replace(
        megatron_job(gpus=8, batch=16, **EXPERTS),
        ddp=DdpConfig(use_torch_fsdp2=True),
        optimizer=OptimizerConfig(),
    )
    predictor = Predictor(given)
    stage = predictor.stages[0]
    plain = predictor._book.units(stage.chunks[0], stage, NO_RECOMPUTE)
    whole = predictor._units(predictor._book, stage.chunks[0], stage, NO_RECOMPUTE)
    layer = predictor._book.tape(stage.layers[0].kind).weight_bytes
    assert predictor._book.tape(stage.layers[0].kind).expert_weight_bytes > layer // 2
    at = next(i for i, unit in enumerate(plain) if unit.name.endswith("+moe"))
    # this layer and the one gathered ahead, in 16 bits; one gradient that appears, one that is reduced
    assert whole[at].forward_peak - plain[at].forward_peak == 2 * layer
    assert whole[at + 1].backward_peak - plain[at + 1].backward_peak == 4 * layer
    assert whole[at].weight_grads == -(-layer // 8)


@pytest.mark.parametrize(
    "name", ["ddp.reshard_after_forward", "arguments.torch_fsdp2_reshard_after_forward"]
)
def test_weights_that_are_not_split_again_stay_whole_until_their_backward(name: str) -> None:
    given = replace(
        megatron_job(gpus=8, batch=16),
        ddp=DdpConfig(use_torch_fsdp2=True),
        optimizer=OptimizerConfig(),
    )
    split, kept = (
        Predictor(replace(given, unmodelled={name: value}))
        .predict(NO_RECOMPUTE, composition=True)
        .hot
        for value in (True, False)
    )
    book = Predictor(given)._book
    stage = Predictor(given).stages[0]
    weights = sum(raw.weight_bytes for raw, _ in book.tapes(stage))
    held = kept.activation_bytes_after_forward - split.activation_bytes_after_forward
    assert held == weights
    owners = {o.owner: o.bytes for o in kept.alive_at_peak}
    assert sum(owners.values()) == pytest.approx(kept.peak.peak_bytes, rel=1e-3)


@pytest.mark.parametrize(("share", "left"), [(0.0, 12), (0.5, 6), (1.0, 0)])
def test_optimizer_states_on_the_host(share: float, left: int) -> None:
    offload = OptimizerConfig(
        use_distributed_optimizer=True,
        optimizer_cpu_offload=True,
        optimizer_offload_fraction=share,
    )
    given = replace(megatron_job(), optimizer=offload)
    assert state_bytes(given, COUNT).static.optimizer == left * COUNT.dense


def test_cpu_offloading_moves_the_first_layers() -> None:
    kept, moved = (
        hot(megatron_job(cpu_offloading=on, cpu_offloading_num_layers=4)) for on in (False, True)
    )
    layers = kept.activation_bytes_after_forward - moved.activation_bytes_after_forward
    assert layers > 0.4 * kept.activation_bytes_after_forward
    assert moved.peak.peak_bytes < kept.peak.peak_bytes


def test_fine_grained_offloading_empties_all_layers_but_the_last() -> None:
    modules = ("core_attn", "attn_proj", "expert_fc1", "moe_act")
    job = megatron_job(**EXPERTS, fine_grained_activation_offloading=True, offload_modules=modules)
    kept, moved = hot(megatron_job(**EXPERTS)), hot(job)
    assert moved.activation_bytes_after_forward < 0.7 * kept.activation_bytes_after_forward
    half = hot(replace(job, model=replace(job.model, activation_offload_fraction=0.5)))
    assert (
        moved.activation_bytes_after_forward
        < half.activation_bytes_after_forward
        < kept.activation_bytes_after_forward
    )


def test_an_output_that_another_module_saves_too_stays_unless_both_offload() -> None:
    """attn_proj's input is core_attn's output (Megatron refuses attn_proj alone for that)."""
    one, both = (
        hot(
            megatron_job(
                **EXPERTS, fine_grained_activation_offloading=True, offload_modules=modules
            )
        )
        for modules in (("core_attn",), ("core_attn", "attn_proj"))
    )
    assert both.activation_bytes_after_forward < one.activation_bytes_after_forward


def test_small_tensors_stay() -> None:
    job = megatron_job(
        **EXPERTS,
        fine_grained_activation_offloading=True,
        offload_modules=("core_attn", "attn_proj"),
        min_offloaded_tensor_size=1 << 40,
    )
    assert hot(job).phases == hot(megatron_job(**EXPERTS)).phases


def test_a_replay_reads_inputs_that_had_left() -> None:
    job = megatron_job(
        **EXPERTS,
        fine_grained_activation_offloading=True,
        offload_modules=("attn_norm", "qkv_linear", "mlp_norm", "moe_act"),
    )
    choice = selective("layernorm", "moe_act", "mla_up_proj")
    alone = Predictor(megatron_job(**EXPERTS)).predict(choice).hot
    both = Predictor(job).predict(choice).hot
    assert both.activation_bytes_after_forward < alone.activation_bytes_after_forward
    assert both.peak.peak_bytes < alone.peak.peak_bytes


SPARSE: dict[str, Any] = {
    "multi_latent_attention": True,
    "experimental_attention_variant": "dsa",
    "dsa_indexer_n_heads": 4,
    "dsa_indexer_head_dim": 64,
    "dsa_indexer_topk": 64,
    "dsa_indexer_loss_coeff": 0.01,
    "add_bias_linear": False,
}
REFUSED_JOBS: dict[str, JobConfig] = {
    "framework.megatron_core": replace(
        megatron_job(**SPARSE), framework=FrameworkConfig(megatron_core="0.18.2")
    ),
    "model.dsa_kernel_backend": megatron_job(**SPARSE, dsa_kernel_backend="cudnn"),
    "model.dsa_indexer_topk_freq": megatron_job(**SPARSE, dsa_indexer_topk_freq=4),
    "model.context_parallel_size": megatron_job(gpus=2, **SPARSE, context_parallel_size=2),
    "model.sequence_parallel": megatron_job(gpus=2, **SPARSE, tensor_model_parallel_size=2),
    "model.fp8": megatron_job(**SPARSE, fp8="hybrid"),
    "peft": replace(megatron_job(**SPARSE), peft=PeftConfig()),
    "ddp.megatron_fsdp_grad_comm_dtype": replace(
        fsdp("optim_grads", core="0.19"),
        unmodelled={"ddp.megatron_fsdp_grad_comm_dtype": "torch.float32"},
    ),
    "ddp.param_name_patterns_for_fp32_local_accumulation": replace(
        megatron_job(),
        ddp=DdpConfig(param_name_patterns_for_fp32_local_accumulation=("*router*",)),
    ),
    "ddp.outer_dp_sharding_strategy": replace(
        fsdp("optim_grads_params"), unmodelled={"ddp.outer_dp_sharding_strategy": "optim"}
    ),
    "ddp.use_torch_fsdp2": replace(
        megatron_job(gpus=2, **{**EXPERTS, "expert_model_parallel_size": 2}),
        ddp=DdpConfig(use_torch_fsdp2=True),
    ),
    "model.cpu_offloading_weights": megatron_job(
        cpu_offloading=True, cpu_offloading_num_layers=2, cpu_offloading_weights=True
    ),
    "model.cpu_offloading": replace(
        megatron_job(cpu_offloading=True, cpu_offloading_num_layers=2),
        framework=FrameworkConfig(transformer_engine="2.9"),
    ),
    "model.cpu_offloading_double_buffering": megatron_job(
        cpu_offloading=True, cpu_offloading_num_layers=2, cpu_offloading_double_buffering=True
    ),
    "model.moe_paged_stash": megatron_job(moe_paged_stash=True, **EXPERTS),
}


@pytest.mark.parametrize("row", REFUSED, ids=lambda row: row.field)
def test_what_is_not_modelled_is_named(row: Any) -> None:
    with pytest.raises(UnsupportedError, match="is not modelled") as caught:
        Predictor(REFUSED_JOBS[row.field])
    assert caught.value.code == "unsupported-setting"
    assert caught.value.data == {"field": row.field}
    assert not row.when(megatron_job())


LISTED_JOBS: dict[str, JobConfig] = {
    "fp32-reduction": replace(
        megatron_job(), ddp=DdpConfig(reduce_scatter_with_fp32_accumulation=True)
    ),
    "graph-pools": megatron_job(cuda_graph_impl="local"),
    "delayed-weight-gradients": megatron_job(delay_wgrad_compute=True),
    "overlapped-expert-exchange": megatron_job(overlap_moe_expert_parallel_comm=True, **EXPERTS),
    "offload-keeps-up": megatron_job(cpu_offloading=True, cpu_offloading_num_layers=2),
    "fsdp-gathering": fsdp("optim_grads"),
    "tensor-overlap-buffers": megatron_job(
        gpus=2, tensor_model_parallel_size=2, sequence_parallel=True, tp_comm_overlap=True
    ),
    "user-buffers": fsdp("optim_grads_params", nccl_ub=True),
    "sparse-attention-workspaces": megatron_job(**SPARSE),
    "optimizer-offload": replace(
        megatron_job(), optimizer=OptimizerConfig(optimizer_cpu_offload=True)
    ),
}


@pytest.mark.parametrize("row", LISTED, ids=lambda row: row.id)
def test_what_is_left_out_comes_with_the_answer(row: Any) -> None:
    ids = {a.id for a in Predictor(LISTED_JOBS[row.id]).predict(NO_RECOMPUTE).assumptions}
    assert row.id in ids
    plain = Predictor(megatron_job()).predict(NO_RECOMPUTE).assumptions
    assert row.id not in {a.id for a in plain}


def test_whole_gradients_wait_for_at_most_a_communication_unit() -> None:
    """One billion elements of 4 bytes: a chunk with more of them stops growing there."""
    small, large = (
        Predictor(replace(fsdp("optim_grads"), model=replace(megatron_job().model, num_layers=n)))
        for n in (2, 48)
    )
    for predictor in (small, large):
        phases = {p.phase for p in predictor.predict(NO_RECOMPUTE).hot.phases}
        assert Phase.BACKWARD in phases
    assert large._queue == 4 * 10**9


def test_the_layer_before_the_head_stays_though_the_head_has_a_chunk_of_its_own() -> None:
    fields: dict[str, Any] = {
        "pipeline_model_parallel_size": 2,
        "fine_grained_activation_offloading": True,
        "offload_modules": ("core_attn", "attn_proj"),
    }
    apart = megatron_job(gpus=2, batch=32, pipeline_model_parallel_layout="Ettt|tt|tt|tL", **fields)
    alone = megatron_job(gpus=2, batch=32, pipeline_model_parallel_layout="Ettt|tt|ttt|L", **fields)
    for job in (apart, alone):
        predictor = Predictor(job)
        stage = predictor.stages[-1]
        layers = [chunk for chunk in stage.chunks if chunk.layers]
        assert [stage.runs_back_at_once(chunk) for chunk in stage.chunks].count(True) == 1
        units = predictor._book.units(layers[-1], stage, NO_RECOMPUTE)
        kept = next(u for u in reversed(units) if u.name != "head")
        gone = predictor._book.units(layers[0], stage, NO_RECOMPUTE)[0]
        assert kept.saved > gone.saved
    assert not any(
        map(Predictor(alone).stages[0].runs_back_at_once, Predictor(alone).stages[0].chunks)
    )
