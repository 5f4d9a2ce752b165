"""What our tapes say a layer saves is, byte for byte, what autograd saves in the real layer.

Data-dependent routing has no place in an equality: token dropping without padding is left out.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import megatron.core
import pytest

from recompute.config.schema import (
    FrameworkConfig,
    JobConfig,
    JobIdentity,
    ModelConfig,
    TrainConfig,
)
from recompute.model.layer import LAYER_KINDS, layer_kinds
from recompute.model.run import GradPolicy, TapeRun
from recompute.model.shape import shape_of

sys.path.insert(0, str(Path(__file__).parent))
import cpu_layers

SWIGLU: Final = {
    "gated_linear_unit": True,
    "activation_func": "silu",
    "add_bias_linear": False,
}
LATENT: Final = {
    **SWIGLU,
    "multi_latent_attention": True,
    "q_lora_rank": None,
    "kv_lora_rank": 32,
    "qk_head_dim": 16,
    "qk_pos_emb_head_dim": 8,
    "v_head_dim": 16,
}
COMPRESSED: Final = {**LATENT, "q_lora_rank": 24, "qk_layernorm": True}
EXPERTS: Final = {
    **SWIGLU,
    "num_moe_experts": 4,
    "moe_router_topk": 2,
    "moe_ffn_hidden_size": 48,
    "moe_router_load_balancing_type": "none",
}
SHARED: Final = {**EXPERTS, "moe_shared_expert_intermediate_size": 40}
DENSE_CASES: Final[dict[str, tuple[dict[str, Any], tuple[str, ...]]]] = {
    "gelu-bias": ({}, ()),
    "swiglu": (SWIGLU, ()),
    "grouped-query": ({**SWIGLU, "num_query_groups": 2}, ()),
    "qk-norm": ({**SWIGLU, "qk_layernorm": True}, ()),
    "grouped-query-qk-norm-bias": ({"num_query_groups": 2, "qk_layernorm": True}, ()),
    "core_attn": (SWIGLU, ("core_attn",)),
    "mlp": (SWIGLU, ("mlp",)),
    "layernorm": (SWIGLU, ("layernorm",)),
    "layernorm-mlp": (SWIGLU, ("layernorm", "mlp")),
    "core_attn-layernorm-mlp": (SWIGLU, ("core_attn", "layernorm", "mlp")),
}
LATENT_CASES: Final[dict[str, tuple[dict[str, Any], tuple[str, ...]]]] = {
    "mla": (LATENT, ()),
    "mla-wide-value": ({**LATENT, "v_head_dim": 32}, ()),
    "mla-compressed-query": ({**LATENT, "q_lora_rank": 24}, ()),
    "mla-latent-norms": (COMPRESSED, ()),
    "mla-core_attn": (COMPRESSED, ("core_attn",)),
    "mla-mlp": (COMPRESSED, ("mlp",)),
    "mla-layernorm": (COMPRESSED, ("layernorm",)),
    "mla-up_proj": (COMPRESSED, ("mla_up_proj",)),
    "mla-up_proj-whole-query": (LATENT, ("mla_up_proj",)),
    "mla-up_proj-core_attn": (COMPRESSED, ("mla_up_proj", "core_attn")),
    "mla-all": (COMPRESSED, ("layernorm", "mlp", "mla_up_proj")),
}
ROUTERS: Final[dict[str, dict[str, Any]]] = {
    "softmax": {},
    "sigmoid": {"moe_router_score_function": "sigmoid"},
    "pre-softmax": {"moe_router_pre_softmax": True},
    "one-expert": {"moe_router_pre_softmax": True, "moe_router_topk": 1},
    "groups": {"moe_router_num_groups": 2, "moe_router_group_topk": 1},
    "expert-bias": {
        "moe_router_score_function": "sigmoid",
        "moe_router_enable_expert_bias": True,
    },
    "aux-loss": {"moe_router_load_balancing_type": "aux_loss", "moe_aux_loss_coeff": 0.01},
    "z-loss": {"moe_z_loss_coeff": 0.01},
    "padded-capacity": {
        "moe_expert_capacity_factor": 1.0,
        "moe_pad_expert_input_to_capacity": True,
    },
    "not-gated": {"gated_linear_unit": False, "activation_func": "gelu"},
    "shared": {"moe_shared_expert_intermediate_size": 40},
    "shared-gate": {
        "moe_shared_expert_intermediate_size": 40,
        "moe_shared_expert_gate": True,
    },
    "fp64-router": {"moe_router_dtype": "fp64"},
    "grouped-query": {"num_query_groups": 2},
}
MOE_LABELS: Final = (
    ("moe",),
    ("layernorm",),
    ("shared_experts",),
    ("core_attn",),
    ("moe", "layernorm"),
    ("moe", "shared_experts"),
)


@pytest.fixture(scope="module", autouse=True)
def group(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with cpu_layers.on_cpu(tmp_path_factory.mktemp("group")):
        yield


def ours(fields: dict[str, Any], labels: Sequence[str]) -> tuple[list[int], int]:
    """Bytes of every storage that our tape saves, and the parameters of the layer."""
    known = set(ModelConfig.__dataclass_fields__)
    base = {k: v for k, v in cpu_layers.BASE.items() if k in known and k != "params_dtype"}
    model = ModelConfig(
        **{**base, **{k: v for k, v in fields.items() if k in known}},
        params_dtype="fp32",
        transformer_impl="local",
        position_embedding_type="rope",
        seq_length=cpu_layers.SEQUENCE,
        vocab_size=128,
    )
    job = JobConfig(
        identity=JobIdentity(path="o", sha256="0" * 64, format="bridge-yaml"),
        model=model,
        train=TrainConfig(micro_batch_size=cpu_layers.BATCH, global_batch_size=cpu_layers.BATCH),
        framework=FrameworkConfig(megatron_core=megatron.core.__version__),
    )
    shape = shape_of(job)
    tape = LAYER_KINDS[layer_kinds(model)[0]](model, shape)
    once = TapeRun(tape, frozenset(labels), GradPolicy(appear_in_backward=True, fused=False))
    once.forward()
    held = {
        storage
        for group in (once.saved_by_op, once.saved_by_region)
        for storages in group.values()
        for storage in storages
    }
    sizes = {t.name: t.size for op in tape.ops for t in (*op.writes, *op.keeps)}
    sizes.update({t.name: t.size for t in tape.inputs})
    kept = [sizes[name] for name in held if name not in once.arena.discarded]
    return sorted(kept), tape.weight_bytes // shape.act


def compare(fields: dict[str, Any], labels: Sequence[str], unseen: int = 0) -> None:
    """Compare the sums; ``unseen`` bytes of ours hang on a function where no hook sees them."""
    real = cpu_layers.run(fields, labels)
    kept, parameters = ours(fields, labels)
    assert parameters == real.parameters
    assert sum(kept) == sum(real.saved) + unseen, (kept, real.saved)
    real.output.sum().backward()  # the replay of every label runs


@pytest.mark.parametrize("name", DENSE_CASES)
def test_dense(name: str) -> None:
    compare(*DENSE_CASES[name])


@pytest.mark.parametrize("name", LATENT_CASES)
def test_multi_latent_attention(name: str) -> None:
    compare(*LATENT_CASES[name])


@pytest.mark.parametrize("dispatcher", ["allgather", "alltoall"])
@pytest.mark.parametrize("name", ROUTERS)
def test_mixture_of_experts(name: str, dispatcher: str) -> None:
    compare({**EXPERTS, **ROUTERS[name], "moe_token_dispatcher_type": dispatcher}, ())


@pytest.mark.parametrize("dispatcher", ["allgather", "alltoall"])
@pytest.mark.parametrize("labels", MOE_LABELS, ids="+".join)
def test_labels_of_a_mixture_of_experts(labels: tuple[str, ...], dispatcher: str) -> None:
    compare({**SHARED, "moe_token_dispatcher_type": dispatcher}, labels)


def test_a_storage_of_each_size_is_there() -> None:
    """Not only the sum: each single storage of a dense layer has its counterpart."""
    real = cpu_layers.run(SWIGLU, ())
    kept, _ = ours(SWIGLU, ())
    assert list(real.saved) == kept
