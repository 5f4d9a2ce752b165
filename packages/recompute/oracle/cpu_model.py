"""A whole GPTModel of the real Megatron Core on the CPU, deterministic, for the tests of apply and probe."""

from __future__ import annotations

from typing import Any, Final

import cpu_layers
import torch
from megatron.core.models.gpt import gpt_layer_specs
from megatron.core.models.gpt.gpt_model import GPTModel
from megatron.core.transformer.transformer_config import MLATransformerConfig, TransformerConfig

VOCABULARY: Final = 96
SWIGLU: Final = {"gated_linear_unit": True, "activation_func": "silu", "add_bias_linear": False}
DENSE: Final[dict[str, Any]] = {**SWIGLU, "num_layers": 4, "num_query_groups": 2}
GPT3: Final[dict[str, Any]] = {"num_layers": 3}
MOE: Final[dict[str, Any]] = {
    **SWIGLU,
    "num_layers": 3,
    "num_moe_experts": 4,
    "moe_router_topk": 2,
    "moe_ffn_hidden_size": 48,
    "moe_layer_freq": [0, 1, 1],
    "moe_router_load_balancing_type": "none",
    "moe_shared_expert_intermediate_size": 40,
    "moe_token_dispatcher_type": "alltoall",
}
LATENT: Final[dict[str, Any]] = {
    **SWIGLU,
    "num_layers": 2,
    "multi_latent_attention": True,
    "q_lora_rank": 24,
    "kv_lora_rank": 32,
    "qk_head_dim": 16,
    "qk_pos_emb_head_dim": 8,
    "v_head_dim": 16,
    "qk_layernorm": True,
}
DROPOUT: Final = {"hidden_dropout": 0.2, "attention_dropout": 0.3}


def build(fields: dict[str, Any], **more: Any) -> GPTModel:
    """Return a model with the same weights for the same fields."""
    torch.manual_seed(11)
    given = {**cpu_layers.BASE, **fields, **more}
    latent = given.pop("multi_latent_attention", False)
    given["activation_func"] = cpu_layers.FUNCTIONS[given.get("activation_func", "gelu")]
    config = (MLATransformerConfig if latent else TransformerConfig)(**given)
    if config.num_moe_experts:
        spec: Any = gpt_layer_specs.get_gpt_decoder_block_spec(config, use_transformer_engine=False)
    else:
        spec = gpt_layer_specs.get_gpt_layer_local_spec(
            qk_layernorm=config.qk_layernorm, multi_latent_attention=latent
        )
        if latent:
            spec.submodules.self_attention.submodules.core_attention = cpu_layers.LatentCore
    rope = {} if latent else {"position_embedding_type": "rope"}
    return GPTModel(
        config,
        spec,
        vocab_size=VOCABULARY,
        max_sequence_length=cpu_layers.SEQUENCE,
        share_embeddings_and_output_weights=False,
        **rope,
    ).train()


def batch() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return tokens, positions, mask and labels."""
    torch.manual_seed(5)
    shape = (cpu_layers.BATCH, cpu_layers.SEQUENCE)
    tokens = torch.randint(0, VOCABULARY, shape)
    positions = torch.arange(cpu_layers.SEQUENCE).expand(shape)
    side = (1, 1, cpu_layers.SEQUENCE, cpu_layers.SEQUENCE)
    mask = torch.triu(torch.ones(side, dtype=torch.bool), 1)
    return tokens, positions, mask, tokens.roll(-1, 1)


def loss_of(model: GPTModel, *, seed: int = 3) -> torch.Tensor:
    """Run a forward with the dropout of ``seed``."""
    tokens, positions, mask, labels = batch()
    torch.manual_seed(seed)
    return model(tokens, positions, mask, labels=labels).float().mean()


def gradients(model: GPTModel, *, seed: int = 3) -> dict[str, torch.Tensor]:
    """Run a step and return every gradient, and the loss as ``loss``."""
    model.zero_grad(set_to_none=True)
    loss = loss_of(model, seed=seed)
    loss.backward()
    found = {n: p.grad.clone() for n, p in model.named_parameters() if p.grad is not None}
    return found | {"loss": loss.detach()}
