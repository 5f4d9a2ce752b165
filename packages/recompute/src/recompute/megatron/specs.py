"""Which of Megatron Core's layer specs a job's model is built from."""

from __future__ import annotations

from typing import Any


def layer_spec(model: dict[str, Any], config: Any, stage: int | None) -> Any:
    """Return the spec of this rank's decoder layers.

    Args:
        model: The job's model section.
        config: The real config.
        stage: The virtual pipeline's chunk; None without one.
    """
    from megatron.core.models.gpt import gpt_layer_specs as specs

    engine = _has_engine(model)
    more = {} if stage is None else {"vp_stage": stage}
    if model["experimental_attention_variant"]:
        from megatron.core.models.gpt import experimental_attention_variant_module_specs as variants

        return variants.get_transformer_block_with_experimental_attention_variant_spec(
            config, **more
        )
    if config.num_moe_experts:
        return specs.get_gpt_decoder_block_spec(config, use_transformer_engine=engine, **more)
    chosen = {
        "qk_layernorm": config.qk_layernorm,
        "multi_latent_attention": model["multi_latent_attention"],
    }
    if engine:
        return specs.get_gpt_layer_with_transformer_engine_spec(**chosen)
    return specs.get_gpt_layer_local_spec(normalization=config.normalization, **chosen)


def prediction_spec(model: dict[str, Any], config: Any, layers: Any, stage: int | None) -> Any:
    """Return the spec of multi-token prediction, or None on ranks and jobs without it.

    Args:
        model: The job's model section.
        config: The real config.
        layers: What :func:`layer_spec` returned; its last layer is the prediction's.
        stage: The virtual pipeline's chunk.
    """
    if not model["mtp_num_layers"]:
        return None
    from megatron.core.models.gpt.gpt_layer_specs import get_gpt_mtp_block_spec

    more = {} if stage is None else {"vp_stage": stage}
    engine = _has_engine(model)
    return get_gpt_mtp_block_spec(config, layers, use_transformer_engine=engine, **more)


def hybrid_kind() -> tuple[type[Any], Any, str]:
    """Return the class of hybrid models, its spec and the name of its pattern argument.

    Megatron Core 0.18 renamed both class and argument.
    """
    try:
        from megatron.core.models.hybrid.hybrid_layer_specs import hybrid_stack_spec
        from megatron.core.models.hybrid.hybrid_model import HybridModel
    except ImportError:
        from megatron.core.models.mamba.mamba_layer_specs import mamba_stack_spec
        from megatron.core.models.mamba.mamba_model import MambaModel

        return MambaModel, mamba_stack_spec, "hybrid_override_pattern"
    return HybridModel, hybrid_stack_spec, "hybrid_layer_pattern"


def _has_engine(model: dict[str, Any]) -> bool:
    return bool(model["transformer_impl"] != "local")
