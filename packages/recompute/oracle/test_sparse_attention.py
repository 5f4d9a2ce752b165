"""Sparse attention over absorbed latents: what our tapes save is what autograd saves in the real layer.

Core 0.19 is the first that builds it so.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import megatron.core
import pytest
import torch
from packaging.version import Version

from recompute.config.schema import JobConfig, JobIdentity, ModelConfig, TrainConfig
from recompute.model.ops.sparse import CORE, sparse_core
from recompute.model.shape import shape_of

if Version(megatron.core.__version__) < Version("0.19"):
    pytest.skip("sparse attention over absorbed latents is of core 0.19", allow_module_level=True)

sys.path.insert(0, str(Path(__file__).parent))
import cpu_layers
from cpu_sparse import attended
from test_saved_bytes import COMPRESSED, LATENT, compare, ours

SPARSE: Final[dict[str, Any]] = {
    "experimental_attention_variant": "dsa",
    "dsa_indexer_n_heads": 2,
    "dsa_indexer_head_dim": 12,
    "dsa_indexer_topk": 5,
    "dsa_indexer_rotate_activation": False,  # needs bfloat16, and keeps nothing
}
TRAINED: Final[dict[str, Any]] = {**SPARSE, "dsa_indexer_loss_coeff": 0.1}
BOUNDS: Final = 2 * cpu_layers.SEQUENCE * 8
"""First and last key of each row: attributes of the loss's function, not saved tensors."""
CASES: Final[dict[str, tuple[dict[str, Any], tuple[str, ...]]]] = {
    "frozen-indexer": ({**COMPRESSED, **SPARSE}, ()),
    "whole-query": ({**LATENT, **SPARSE}, ()),
    "trained": ({**COMPRESSED, **TRAINED}, ()),
    "trained-whole-query": ({**LATENT, **TRAINED}, ()),
    "no-latent-norms": ({**COMPRESSED, **TRAINED, "qk_layernorm": False}, ()),
    "all-keys": ({**COMPRESSED, **TRAINED, "dsa_indexer_topk": 64}, ()),
    "sparse-loss": ({**COMPRESSED, **TRAINED, "dsa_indexer_use_sparse_loss": True}, ()),
    "wide-value": ({**COMPRESSED, **TRAINED, "v_head_dim": 32}, ()),
    "core_attn": ({**COMPRESSED, **TRAINED}, ("core_attn",)),
    "core_attn-frozen": ({**COMPRESSED, **SPARSE}, ("core_attn",)),
    "mla_up_proj": ({**COMPRESSED, **TRAINED}, ("mla_up_proj",)),
    "mla_up_proj-frozen": ({**COMPRESSED, **SPARSE}, ("mla_up_proj",)),
    "mla_up_proj-whole-query": ({**LATENT, **TRAINED}, ("mla_up_proj",)),
    "layernorm": ({**COMPRESSED, **TRAINED}, ("layernorm",)),
    "core_attn-mla_up_proj": ({**COMPRESSED, **TRAINED}, ("core_attn", "mla_up_proj")),
    "one-head": ({**COMPRESSED, **TRAINED, "num_attention_heads": 1}, ()),
    "all": ({**COMPRESSED, **TRAINED}, ("core_attn", "mla_up_proj", "layernorm", "mlp")),
}


@pytest.fixture(scope="module", autouse=True)
def group(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with cpu_layers.on_cpu(tmp_path_factory.mktemp("group")):
        yield


@pytest.mark.parametrize("name", CASES)
def test_sparse_attention(name: str) -> None:
    fields, labels = CASES[name]
    trains = "dsa_indexer_loss_coeff" in fields and "core_attn" not in labels
    compare(fields, labels, unseen=BOUNDS if trains else 0)


@pytest.mark.parametrize("name", ["frozen-indexer", "trained", "core_attn", "mla_up_proj"])
def test_one_sequence(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The one key of all heads is not written out for each when the batch is one sequence."""
    monkeypatch.setattr(cpu_layers, "BATCH", 1)
    test_sparse_attention(name)


def test_a_storage_of_each_size_is_there() -> None:
    """Not only the sum."""
    fields = {**COMPRESSED, **TRAINED}
    kept, _ = ours(fields, ())
    kept.remove(BOUNDS)
    assert list(cpu_layers.run(fields, ()).saved) == kept


@pytest.mark.parametrize(("batch", "heads"), [(1, 4), (3, 4), (3, 1)])
@pytest.mark.parametrize("dtype", ["bf16", "fp32"])
def test_scores_softmax_and_values(dtype: str, batch: int, heads: int) -> None:
    """The kernels by themselves, in 16 bits too: FP32 copies of query and key, a cast behind the softmax."""
    model = ModelConfig(
        num_layers=1,
        hidden_size=64,
        num_attention_heads=heads,
        seq_length=32,
        kv_lora_rank=24,
        qk_pos_emb_head_dim=8,
        v_head_dim=16,
        params_dtype=dtype,
        bf16=dtype == "bf16",
        dsa_indexer_topk=5,
    )
    job = JobConfig(
        identity=JobIdentity(path="o", sha256="0" * 64, format="bridge-yaml"),
        model=model,
        train=TrainConfig(micro_batch_size=batch, global_batch_size=batch),
    )
    shape = shape_of(job)
    steps = (f"{CORE}.scores", f"{CORE}.softmax", f"{CORE}.values", f"{CORE}.cast")
    ops = [op for op in sparse_core(model, shape, "x", "qr") if op.name.startswith(steps)]
    written = {tensor.name: tensor.size for op in ops for tensor in op.writes}
    unit = shape.tokens * (24 + 8) * shape.act
    written |= {"query": unit * heads, "key": unit}
    kept = {name: written[name] for op in ops for name in op.saves}
    kept |= {tensor.name: tensor.size for op in ops for tensor in op.keeps}
    real = attended(
        torch.bfloat16 if dtype == "bf16" else torch.float32,
        sizes=(32, batch, heads, 24, 8),
        chosen=5,
    )
    assert sorted(kept.values()) == real
