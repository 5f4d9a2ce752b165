"""Plans put on real models: gradients are those of the unpatched model, and memory is that of the label."""

from __future__ import annotations

import copy
import functools
import gc
import itertools
import subprocess
import sys
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest
import torch
from megatron.core.models.gpt import gpt_layer_specs
from megatron.core.models.gpt.gpt_model import GPTModel
from megatron.core.transformer.transformer_config import TransformerConfig

from recompute.config.choice import LayerSpan, RecomputeChoice, selective
from recompute.errors import InputError
from recompute.megatron import apply, read_back
from recompute.megatron.boundaries import active_boundaries, layers_of

sys.path.insert(0, str(Path(__file__).parent))
import cpu_layers
import cpu_model

MODELS: Final = {
    "dense": cpu_model.DENSE,
    "gpt3": cpu_model.GPT3,
    "moe": cpu_model.MOE,
    "latent": cpu_model.LATENT,
}
PLANS: Final[dict[str, list[str]]] = {
    "dense": [
        "[core_attn]",
        "[mlp]",
        "[layernorm]",
        "[core_attn,layernorm,mlp]",
        "full/uniform/1",
        "per-layer/0-1=mlp/3-3=core_attn+layernorm",
        "per-layer/0-0=full/1-2=mlp_act",
        "per-layer/0-3=mlp_act+layernorm+core_attn",
        "per-layer/0-3=norm_act",
        "per-layer/0-0=full/1-1=norm_act+mlp_act+core_attn/2-2=layernorm",
    ],
    "gpt3": [
        "[core_attn]",
        "[layernorm]",
        "per-layer/0-0=full/1-1=mlp_act+core_attn",
        "per-layer/0-1=norm_act+mlp_act",
    ],
    "moe": [
        "[moe]",
        "[shared_experts,layernorm]",
        "[mlp]",
        "per-layer/0-0=mlp/1-1=moe/2-2=shared_experts",
        "per-layer/1-1=full",
        "per-layer/0-2=norm_act",
    ],
    "latent": [
        "[mla_up_proj]",
        "[mla_up_proj,core_attn,layernorm,mlp]",
        "per-layer/1-1=mla_up_proj",
        "per-layer/0-1=norm_act+mla_up_proj",
    ],
}
CASES: Final = [(name, plan) for name, plans in PLANS.items() for plan in plans]


@pytest.fixture(scope="module", autouse=True)
def group(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with cpu_layers.on_cpu(tmp_path_factory.mktemp("group")):
        yield


def assert_equal(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> None:
    assert one.keys() == other.keys()
    for name, value in one.items():
        assert torch.equal(value, other[name]), name


@pytest.mark.parametrize("dropout", [False, True])
@pytest.mark.parametrize(("name", "plan"), CASES)
def test_gradients_are_bitwise_those_of_the_unpatched_model(
    name: str, plan: str, *, dropout: bool
) -> None:
    model = cpu_model.build(MODELS[name], **(cpu_model.DROPOUT if dropout else {}))
    before = cpu_model.gradients(model)
    applied = apply(model, plan)
    assert applied.layers
    assert read_back(model)["per_layer"] != []
    assert_equal(before, cpu_model.gradients(model))
    applied.undo()
    assert read_back(model)["per_layer"] == []
    assert_equal(before, cpu_model.gradients(model))


def with_prediction(**more: Any) -> Any:
    """Return a dense model that predicts two tokens beyond the next."""
    fields = {**cpu_layers.BASE, **cpu_model.DENSE, "mtp_num_layers": 2, **more}
    fields["activation_func"] = cpu_layers.FUNCTIONS[fields["activation_func"]]
    torch.manual_seed(11)
    config = TransformerConfig(**fields)
    layer = gpt_layer_specs.get_gpt_layer_local_spec()
    return GPTModel(
        config,
        layer,
        vocab_size=cpu_model.VOCABULARY,
        max_sequence_length=cpu_layers.SEQUENCE,
        share_embeddings_and_output_weights=False,
        position_embedding_type="rope",
        mtp_block_spec=gpt_layer_specs.get_gpt_mtp_block_spec(
            config, layer, use_transformer_engine=False
        ),
    ).train()


@pytest.mark.parametrize("dropout", [False, True])
@pytest.mark.parametrize(
    ("plan", "predicting"),
    [
        ("[core_attn,mlp]", {4: ("core_attn", "mlp"), 5: ("core_attn", "mlp")}),
        ("full/uniform/1", {4: ("full",), 5: ("full",)}),
        ([{"layers": ["mtp.0", "mtp.0"], "modules": ["mlp"]}], {4: ("mlp",)}),
        ("per-layer/0-3=full/4-5=norm_act+mlp_act", dict.fromkeys((4, 5), ("norm_act", "mlp_act"))),
    ],
)
def test_layers_of_multi_token_prediction_are_counted_after_the_decoders(
    plan: Any, predicting: dict[int, tuple[str, ...]], *, dropout: bool
) -> None:
    model = with_prediction(**(cpu_model.DROPOUT if dropout else {}))
    before = cpu_model.gradients(model)
    with apply(model, plan) as applied:
        assert {n: held for n, held in applied.layers.items() if n > 3} == predicting
        assert_equal(before, cpu_model.gradients(model))


def test_a_whole_layer_of_experts_is_refused_with_fused_dropout() -> None:
    model = cpu_model.build(cpu_model.MOE, **cpu_model.DROPOUT)
    config = layers_of(model)[0].config
    config.bias_dropout_fusion = True
    with pytest.raises(InputError) as caught:
        apply(model, "per-layer/1-1=full")
    assert caught.value.data["rule"] == "apply-experts-dropout"
    apply(model, "per-layer/0-0=full").undo()  # no experts
    config.hidden_dropout = 0.0
    apply(model, "per-layer/1-1=full").undo()


def test_dropout_really_drops() -> None:
    model = cpu_model.build(cpu_model.DENSE, **cpu_model.DROPOUT)
    one, other = cpu_model.gradients(model, seed=3), cpu_model.gradients(model, seed=4)
    assert not torch.equal(one["loss"], other["loss"])


def saved_bytes(model: Any) -> int:
    """Bytes that autograd keeps between forward and backward, parameters excluded."""
    boxes: list[weakref.ref[Any]] = []

    class Box:
        __slots__ = ("__weakref__", "tensor")

        def __init__(self, tensor: torch.Tensor) -> None:
            self.tensor = tensor

    def pack(tensor: torch.Tensor) -> Box:
        box = Box(tensor)
        boxes.append(weakref.ref(box))
        return box

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda box: box.tensor):
        loss = cpu_model.loss_of(model)
    gc.collect()
    fixed = {
        p.untyped_storage().data_ptr() for p in itertools.chain(model.parameters(), model.buffers())
    }
    held = {}
    for box in (reference() for reference in boxes):
        if box is not None and box.tensor.untyped_storage().data_ptr() not in fixed:
            storage = box.tensor.untyped_storage()
            held[storage._cdata] = storage.nbytes()
    loss.backward()
    return sum(held.values())


@pytest.mark.parametrize("labels", [("core_attn",), ("mlp",), ("layernorm",), ("layernorm", "mlp")])
def test_an_applied_label_saves_what_a_built_one_saves(labels: tuple[str, ...]) -> None:
    built = cpu_model.build(
        cpu_model.DENSE, recompute_granularity="selective", recompute_modules=list(labels)
    )
    plain = cpu_model.build(cpu_model.DENSE)
    control = saved_bytes(plain)
    with apply(plain, selective(*labels)):
        assert read_back(plain)["per_layer"] == read_back(built)["per_layer"]
        assert saved_bytes(plain) == saved_bytes(built) < control
    assert saved_bytes(plain) == control


def test_a_span_saves_in_its_layers_only() -> None:
    model = cpu_model.build(cpu_model.DENSE)
    control = saved_bytes(model)
    saved = []
    for last in range(4):
        with apply(model, f"per-layer/0-{last}=mlp_act"):
            saved.append(control - saved_bytes(model))
    gate_and_up = cpu_layers.SEQUENCE * cpu_layers.BATCH * cpu_layers.BASE["ffn_hidden_size"] * 4
    assert saved[0] >= gate_and_up
    assert saved == [saved[0] * (index + 1) for index in range(4)]


def test_a_norm_that_one_linear_reads_saves_what_the_stock_label_saves() -> None:
    model = cpu_model.build(cpu_model.DENSE)
    control = saved_bytes(model)
    with apply(model, "per-layer/0-3=layernorm"):
        stock = saved_bytes(model)
    with apply(model, "per-layer/0-3=norm_act"):
        assert saved_bytes(model) == stock < control
    with apply(model, "per-layer/1-1=norm_act"):
        assert control - saved_bytes(model) == (control - stock) // 4


def test_a_norms_output_is_back_only_when_its_linear_needs_it() -> None:
    """Megatron's label brings it back before the backward of the whole MLP, ours before the first linear's."""
    model = cpu_model.build(cpu_model.DENSE)
    layer = model.decoder.layers[0]
    sizes: dict[str, list[int]] = {}

    def watch(name: str) -> list[int]:
        outputs: list[Any] = []
        seen = sizes.setdefault(name, [])
        norm = layer.pre_mlp_layernorm.register_forward_hook(lambda *a: outputs.append(a[2]))
        second = layer.mlp.linear_fc2.register_full_backward_hook(
            lambda *_: seen.append(outputs[0].untyped_storage().nbytes())
        )
        first = layer.mlp.linear_fc1.register_full_backward_hook(
            lambda *_: seen.append(outputs[0].untyped_storage().nbytes())
        )
        cpu_model.loss_of(model).backward()
        for hook in (norm, second, first):
            hook.remove()
        return seen

    with apply(model, "per-layer/0-0=layernorm"):
        stock = watch("stock")
    with apply(model, "per-layer/0-0=norm_act"):
        ours = watch("ours")
    assert stock[0] == stock[1] == ours[1] > 0
    assert ours[0] == 0


def test_applying_twice_is_applying_once_and_handles_nest() -> None:
    model = cpu_model.build(cpu_model.DENSE)
    plan = "per-layer/0-1=full/2-2=mlp_act"
    first = apply(model, plan)
    seen = read_back(model)
    forwards = [layer.forward for layer in model.decoder.layers]
    second = apply(model, plan)
    assert read_back(model) == seen
    assert [layer.forward for layer in model.decoder.layers] == forwards
    third = apply(model, "[core_attn]")
    assert read_back(model)["per_layer"] == [{"layers": [0, 3], "modules": ["core_attn"]}]
    third.undo()
    assert read_back(model) == seen
    second.undo()
    assert read_back(model) == seen
    first.undo()
    first.undo()
    assert read_back(model)["per_layer"] == []
    assert all("forward" not in vars(layer) for layer in model.decoder.layers)


def test_a_handle_that_is_not_the_last_changes_nothing() -> None:
    model = cpu_model.build(cpu_model.DENSE)
    first = apply(model, "[mlp]")
    second = apply(model, "[core_attn,mlp]")
    with pytest.raises(InputError, match="another plan was put on after") as caught:
        first.undo()
    assert caught.value.data["rule"] == "apply-undo-order"
    assert read_back(model)["per_layer"] == [{"layers": [0, 3], "modules": ["core_attn", "mlp"]}]
    second.undo()
    first.undo()
    assert read_back(model)["per_layer"] == []
    assert not any(key.startswith("_recompute") for key in vars(model.decoder.layers[0]))


def test_a_forward_that_somebody_else_replaced_is_not_thrown_away() -> None:
    model = cpu_model.build(cpu_model.DENSE)
    layer = model.decoder.layers[0]
    applied = apply(model, "full/uniform/1")
    ours = layer.forward
    layer.forward = theirs = functools.partial(ours)
    with pytest.raises(InputError, match="forward of TransformerLayer was changed since"):
        applied.undo()
    assert layer.forward is theirs
    layer.forward = ours
    applied.undo()
    assert "forward" not in vars(layer)


FROZEN: Final = {
    "embedding": lambda name: not name.startswith("embedding."),
    "all but the MLP of the first layer": lambda name: "layers.0.mlp." in name,
    "the two lower layers": lambda name: "layers.2" in name or "layers.3" in name,
}
"""What trains, as under adapters: nothing below carries a gradient into the first layer."""


@pytest.mark.parametrize(
    "plan",
    ["full/uniform/1", "[core_attn,layernorm,mlp]", "per-layer/0-3=norm_act+mlp_act+core_attn"],
)
@pytest.mark.parametrize("trains", FROZEN.values(), ids=FROZEN.keys())
def test_what_trains_above_a_frozen_embedding_gets_its_gradients(plan: str, trains: Any) -> None:
    """A checkpoint that is handed no tensor with a gradient gives none to what is inside it."""
    model = cpu_model.build(cpu_model.DENSE)
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(trains(name))
    before = cpu_model.gradients(model)
    with apply(model, plan):
        assert_equal(before, cpu_model.gradients(model))
    assert not model.decoder.layers[0]._forward_pre_hooks


def test_a_copy_of_a_model_replays_its_own_layers() -> None:
    model = cpu_model.build(cpu_model.DENSE)
    plan = "per-layer/0-0=full/1-1=norm_act+mlp_act/2-2=layernorm/3-3=mlp"
    apply(model, plan)
    held = itertools.chain(*(vars(module).values() for module in model.modules()))
    shared = {id(one): one for one in held if type(one).__name__.startswith("ProcessGroup")}
    twin = copy.deepcopy(model, shared)  # groups of processes cannot be copied
    before = cpu_model.gradients(twin)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
    model.zero_grad(set_to_none=True)
    assert_equal(before, cpu_model.gradients(twin))
    assert all(parameter.grad is None for parameter in model.parameters())
    assert read_back(twin)["per_layer"] == read_back(model)["per_layer"]


@pytest.mark.parametrize(
    ("plan", "code"),
    [
        ({"schema": "recompute.plan/1", "status": "infeasible", "choice": None}, "cannot-apply"),
        ({}, "bad-candidate"),
        (None, "bad-candidate"),
        (7, "bad-candidate"),
        (b"[mlp]", "bad-candidate"),
        ({"recompute_modules": "mlp"}, "bad-candidate"),
        ([{"layers": [0, 1], "modules": "mlp"}], "bad-candidate"),
    ],
)
def test_what_is_no_plan_is_refused(plan: Any, code: str) -> None:
    model = cpu_model.build(
        cpu_model.DENSE, recompute_granularity="selective", recompute_modules=["mlp"]
    )
    with pytest.raises(InputError) as caught:
        apply(model, plan)
    assert caught.value.code == code
    assert read_back(model)["per_layer"] == [{"layers": [0, 3], "modules": ["mlp"]}]


def test_a_plan_takes_off_what_the_model_was_built_with() -> None:
    model = cpu_model.build(
        cpu_model.DENSE, recompute_granularity="selective", recompute_modules=["mlp"]
    )
    with apply(model, "[]"):
        assert read_back(model)["per_layer"] == []
    assert read_back(model)["per_layer"] == [{"layers": [0, 3], "modules": ["mlp"]}]


def test_every_form_of_a_plan() -> None:
    model = cpu_model.build(cpu_model.DENSE)
    choice = RecomputeChoice(per_layer=(LayerSpan(first=1, last=2, modules=("mlp",)),))
    forms: list[Any] = [
        choice,
        choice.to_document(),
        {"schema": "recompute.plan/1", "choice": choice.to_document()},
        [{"layers": [1, 2], "modules": ["mlp"]}],
        "per-layer/1-2=mlp",
    ]
    for plan in forms:
        with apply([model], plan) as applied:
            assert applied.layers == {1: ("mlp",), 2: ("mlp",)}


def test_evaluation_replays_nothing_and_gives_the_same_output() -> None:
    model = cpu_model.build(cpu_model.DENSE).eval()
    with torch.no_grad():
        before = cpu_model.loss_of(model)
        with apply(model, "per-layer/0-1=full/2-3=mlp_act"):
            assert torch.equal(before, cpu_model.loss_of(model))


def test_a_span_over_layers_of_two_kinds_acts_where_it_can() -> None:
    model = cpu_model.build(cpu_model.MOE)
    kinds = [bool(layer.module.is_moe_layer) for layer in layers_of(model)]
    assert set(kinds) == {False, True}
    with apply(model, f"per-layer/0-{len(kinds) - 1}=moe+mlp_act"):
        seen = [active_boundaries(layer) for layer in layers_of(model)]
    assert seen == [("moe",) if moe else ("mlp_act",) for moe in kinds]


@pytest.mark.parametrize(
    ("fields", "more", "plan", "rule"),
    [
        (cpu_model.GPT3, {}, "[mlp]", "mlp-label-with-bias"),
        (cpu_model.DENSE, {}, "per-layer/0-4=mlp", "apply-no-such-layer"),
        (cpu_model.DENSE, {}, "per-layer/0-0=moe", "apply-no-effect"),
        (cpu_model.MOE, {}, "per-layer/1-1=mlp_act", "apply-no-effect"),
        (cpu_model.DENSE, {}, "per-layer/1-1=norm_act+layernorm", "apply-overlapping"),
        (cpu_model.DENSE, {}, "per-layer/1-1=mlp+norm_act", "apply-overlapping"),
        (cpu_model.DENSE, {}, "per-layer/1-1=mlp+mlp_act", "apply-overlapping"),
        (cpu_model.DENSE, {}, "[mystery]", "unknown-label"),
        (cpu_model.DENSE, {}, "full/block/2", "apply-full-groups"),
        (
            cpu_model.DENSE,
            {
                "recompute_granularity": "full",
                "recompute_method": "uniform",
                "recompute_num_layers": 1,
            },
            "[mlp]",
            "apply-built-with-full",
        ),
    ],
)
def test_refusals_change_nothing(
    fields: dict[str, Any], more: dict[str, Any], plan: str, rule: str
) -> None:
    model = cpu_model.build(fields, **more)
    before = read_back(model)
    with pytest.raises(InputError) as error:
        apply(model, plan)
    assert error.value.code == "cannot-apply"
    assert error.value.data["rule"] == rule
    assert read_back(model) == before


@pytest.mark.parametrize(
    ("fields", "plan", "rule"),
    [
        ({"cuda_graph_impl": "local"}, "[mlp]", "apply-cuda-graph"),
        ({"cpu_offloading": True}, "[mlp]", "apply-offloading"),
        ({"fine_grained_activation_offloading": True}, "[mlp]", "apply-offloading"),
        ({"fp8": "hybrid", "fp8_recipe": "delayed"}, "[layernorm]", "fp8-delayed-act-norm"),
        ({"fp8": "hybrid", "fp8_recipe": "tensorwise"}, "[layernorm]", "apply-quantized"),
        ({"fp4": "e2m1"}, "per-layer/0-0=mlp_act", "apply-quantized"),
        ({"fused_residual_rmsnorm": True}, "[layernorm]", "apply-fused-residual"),
        ({"fused_residual_rmsnorm": True}, "per-layer/0-0=norm_act", "apply-fused-residual"),
        ({"fp8": "hybrid"}, "per-layer/0-0=norm_act", "apply-quantized"),
    ],
)
def test_settings_that_need_a_gpu_are_refused_by_config(
    fields: dict[str, Any], plan: str, rule: str
) -> None:
    model = cpu_model.build(cpu_model.DENSE)
    for name, value in fields.items():
        setattr(model.config, name, value)
    with pytest.raises(InputError) as error:
        apply(model, plan)
    assert error.value.data["rule"] == rule


def test_a_norm_inside_transformer_engines_linear_is_refused() -> None:
    """The CPU has no Transformer Engine: a linear of its name stands for it."""

    class TELayerNormColumnParallelLinear(torch.nn.Module):
        """Norm and linear in one."""

    model = cpu_model.build(cpu_model.DENSE)
    for layer in model.decoder.layers:
        layer.input_layernorm = layer.pre_mlp_layernorm = None
        layer.self_attention.linear_qkv = TELayerNormColumnParallelLinear()
        layer.mlp.linear_fc1 = TELayerNormColumnParallelLinear()
    with pytest.raises(InputError) as error:
        apply(model, "per-layer/0-3=norm_act")
    assert error.value.data["rule"] == "apply-fused-norm"


def test_what_is_no_model_is_refused() -> None:
    with pytest.raises(InputError) as error:
        apply(torch.nn.Linear(2, 2), "[mlp]")
    assert error.value.data["rule"] == "apply-no-layers"


def test_public_names_are_what_they_are_whatever_was_imported_before() -> None:
    code = (
        "import pkgutil, importlib, recompute.megatron as m\n"
        "for one in pkgutil.iter_modules(m.__path__):\n"
        "    importlib.import_module(f'{m.__name__}.{one.name}')\n"
        "assert all(callable(getattr(m, name)) for name in ('apply', 'read_back', 'MemoryProbe'))\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
