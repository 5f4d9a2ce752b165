"""The specification of absorbed multi-latent attention with sparse attention, of modules that run on a CPU.

Megatron builds both for Transformer Engine alone; here are the local modules in their places.
"""

from __future__ import annotations

from typing import Any

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
