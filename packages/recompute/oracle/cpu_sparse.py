"""The specification of absorbed multi-latent attention with sparse attention, of modules that run on a CPU.

Megatron builds both for Transformer Engine alone; here are the local modules in their places.
"""

from __future__ import annotations

from typing import Any

import torch
from megatron.core.tensor_parallel.layers import ColumnParallelLinear, RowParallelLinear
from megatron.core.transformer.enums import AttnMaskType
from megatron.core.transformer.experimental_attention_variant import absorbed_mla, dsa
from megatron.core.transformer.identity_op import IdentityOp
from megatron.core.transformer.spec_utils import ModuleSpec
from megatron.core.transformer.torch_norm import WrappedTorchNorm


class Duplicated(ColumnParallelLinear):
    """A linear of a group of one: the whole weight is on every rank."""

    def __init__(
        self, *args: Any, parallel_mode: str, skip_weight_param_allocation: bool, **kwargs: Any
    ) -> None:
        assert parallel_mode == "duplicated"
        assert not skip_weight_param_allocation
        super().__init__(*args, gather_output=False, **kwargs)


def sparse_attention(*, qk_layernorm: bool) -> ModuleSpec:
    """Return what get_dsa_module_spec_for_backend returns, of local modules."""
    norm = WrappedTorchNorm if qk_layernorm else IdentityOp
    indexer = ModuleSpec(
        module=dsa.DSAIndexer,
        submodules=dsa.DSAIndexerSubmodules(
            linear_wq_b=Duplicated,
            linear_wk=Duplicated,
            k_norm=WrappedTorchNorm,
            linear_weights_proj=Duplicated,
        ),
    )
    return ModuleSpec(
        module=absorbed_mla.AbsorbedMLASelfAttention,
        params={"attn_mask_type": AttnMaskType.causal},
        submodules=absorbed_mla.AbsorbedMLASelfAttentionSubmodules(
            linear_q_proj=ColumnParallelLinear,
            linear_q_down_proj=ColumnParallelLinear,
            linear_q_up_proj=ColumnParallelLinear,
            linear_kv_down_proj=ColumnParallelLinear,
            linear_kv_up_proj=ColumnParallelLinear,
            core_attention=ModuleSpec(
                module=dsa.DSAttention, submodules=dsa.DSAttentionSubmodules(indexer=indexer)
            ),
            linear_proj=RowParallelLinear,
            q_layernorm=norm,
            kv_layernorm=norm,
        ),
    )


def attended(
    dtype: torch.dtype, *, sizes: tuple[int, int, int, int, int], chosen: int
) -> list[int]:
    """Run sparse attention of plain kernels and return the bytes of each storage that autograd saved.

    Args:
        dtype: Of query and key.
        sizes: Tokens of a sequence, sequences, heads, width of the value, width of the position.
        chosen: Keys of each query.
    """
    seq, batch, heads, latent, position = sizes
    query = torch.randn(seq, batch, heads, latent + position, dtype=dtype, requires_grad=True)
    key = torch.randn(seq, batch, 1, latent + position, dtype=dtype, requires_grad=True)
    topk = torch.randint(seq, (batch, seq, chosen))
    starts, ends = torch.zeros(seq, dtype=torch.int64), torch.arange(1, seq + 1)
    kept: dict[int, torch.Tensor] = {}

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        kept[tensor.untyped_storage().data_ptr()] = tensor
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        output = dsa._unfused_absorbed_dsa_fn(
            query, key, topk, 1.0, latent, varlen_starts=starts, varlen_ends=ends
        )
    output.sum().backward()
    return sorted(tensor.untyped_storage().nbytes() for tensor in kept.values())
