"""Real Megatron Core layers with the local spec, built and run on the CPU in one gloo process.

Calls that need a GPU (its random states, streams and Transformer Engine's helpers) are redirected for
the time of a test. Three differences between a CPU and a GPU are kept out of the comparison by the
choice of configurations: LayerNorm statistics follow the parameters' dtype on a CPU, RMSNorm is a
composite there, and dropout keeps a multiplier instead of a mask. So configurations are FP32, with
LayerNorm and without dropout.
"""

from __future__ import annotations

import contextlib
import gc
import weakref
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final
from unittest import mock

import megatron.core.tensor_parallel.random as rng
import torch
from megatron.core import parallel_state
from megatron.core.models.common.embeddings import RotaryEmbedding
from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec
from megatron.core.transformer import multi_latent_attention as latent
from megatron.core.transformer.dot_product_attention import DotProductAttention
from megatron.core.transformer.moe import moe_utils, token_dispatcher
from megatron.core.transformer.spec_utils import build_module
from megatron.core.transformer.transformer_config import (
    MLATransformerConfig,
    TransformerConfig,
)
from torch.nn import functional

SEQUENCE: Final = 32
BATCH: Final = 2
FUNCTIONS: Final = {"gelu": functional.gelu, "silu": functional.silu}
BASE: Final[dict[str, Any]] = {
    "num_layers": 1,
    "hidden_size": 64,
    "num_attention_heads": 4,
    "ffn_hidden_size": 128,
    "hidden_dropout": 0.0,
    "attention_dropout": 0.0,
    "normalization": "LayerNorm",
    "params_dtype": torch.float32,
    "use_cpu_initialization": True,
    "masked_softmax_fusion": False,
    "gradient_accumulation_fusion": False,
    "bias_dropout_fusion": False,
    "persist_layer_norm": False,
}


class _Tracker:
    """Stands for the tracker of CUDA random states."""

    @contextlib.contextmanager
    def fork(self, name: str | None = None) -> Iterator[None]:
        yield

    def is_initialized(self) -> bool:
        return True

    def get_states(self) -> dict[str, Any]:
        return {}

    def set_states(self, states: dict[str, Any]) -> None:
        assert states == {}


class _Stream:
    """Stands for a CUDA stream and for an event on it."""

    def wait_stream(self, other: object) -> None:
        assert other is not None

    def record_event(self) -> _Stream:
        return self

    def synchronize(self) -> None:
        return None


class _NoFp8:
    @staticmethod
    def is_fp8_enabled() -> bool:
        return False


class _Absent:
    """A class that Transformer Engine would bring."""


class LatentCore(DotProductAttention):
    """Core attention that takes the widths MLA hands it; Megatron's own local one refuses them."""

    def __init__(
        self,
        *args: Any,
        k_channels: int | None = None,
        v_channels: int | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(*args, **kwargs)
        if v_channels is not None:
            self.hidden_size_per_partition = v_channels * self.num_attention_heads_per_partition


def _on_cpu(tensor: Any, *, as_numpy: bool = False, record_stream: bool = False) -> Any:
    assert record_stream in (True, False)
    return tensor.numpy() if as_numpy and torch.is_tensor(tensor) else tensor


@contextlib.contextmanager
def redirected() -> Iterator[None]:
    """Redirect everything that needs a GPU."""
    stream = _Stream()
    cuda = {
        "current_device": lambda: torch.device("cpu"),
        "get_rng_state": lambda *_: torch.get_rng_state(),
        "Stream": lambda *_: stream,
        "current_stream": lambda *_: stream,
        "stream": lambda *_: contextlib.nullcontext(),
        "Event": lambda *_, **__: stream,
        "synchronize": lambda *_: None,
    }
    randomness = {
        "_CUDA_RNG_STATE_TRACKER": _Tracker(),
        "_CUDA_RNG_STATE_TRACKER_INITIALIZED": True,
        "_get_all_rng_states": lambda: (torch.get_rng_state(),),
        "_set_all_rng_states": torch.set_rng_state,
        "_set_cuda_rng_state": lambda *_, **__: None,
        "_get_cuda_rng_state": lambda *_, **__: torch.get_rng_state(),
        "FP8GlobalStateManager": _NoFp8,
        "activation_recompute_forward": lambda **_: contextlib.nullcontext(),
        "fp8_autocast": lambda **_: contextlib.nullcontext(),
    }
    absent = dict.fromkeys(
        ("TELinear", "TEColumnParallelLinear", "TELayerNormColumnParallelLinear", "Linear"), _Absent
    )
    with contextlib.ExitStack() as stack:
        stack.enter_context(mock.patch.multiple(torch.cuda, **cuda))
        stack.enter_context(mock.patch.multiple(rng, create=True, **randomness))
        stack.enter_context(mock.patch.multiple(latent, create=True, **absent))
        stack.enter_context(mock.patch.object(moe_utils, "te_general_gemm", None, create=True))
        stack.enter_context(
            mock.patch.object(token_dispatcher, "maybe_move_tensor_to_cpu", _on_cpu)
        )
        yield


@contextlib.contextmanager
def on_cpu(folder: Path) -> Iterator[None]:
    """Make the process a group of one, with everything that needs a GPU redirected.

    Args:
        folder: Where the group's store goes.
    """
    with redirected():
        torch.distributed.init_process_group(
            "gloo", init_method=f"file://{folder}/store", rank=0, world_size=1
        )
        parallel_state.initialize_model_parallel()
        try:
            yield
        finally:
            parallel_state.destroy_model_parallel()
            torch.distributed.destroy_process_group()


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One forward of a real layer."""

    saved: tuple[int, ...]
    """Bytes of every storage that autograd keeps, parameters and constants excluded, sorted."""
    parameters: int
    output: torch.Tensor


class _Box:
    """What a saved tensor is packed into: gone when autograd lets go of it."""

    __slots__ = ("__weakref__", "tensor")

    def __init__(self, tensor: torch.Tensor) -> None:
        self.tensor = tensor


def run(fields: dict[str, Any], labels: Sequence[str]) -> Run:
    """Build a layer, run it forward and look at what autograd saved.

    Args:
        fields: Fields of the config, activation function by name.
        labels: Selective recompute labels; none means no recompute.
    """
    layer, arguments, constants = _layer(fields, labels)
    boxes: list[weakref.ref[_Box]] = []

    def pack(tensor: torch.Tensor) -> _Box:
        box = _Box(tensor)
        boxes.append(weakref.ref(box))
        return box

    hidden = torch.randn(SEQUENCE, BATCH, BASE["hidden_size"], requires_grad=True)
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda box: box.tensor):
        output = layer(hidden, **arguments)[0]
    gc.collect()
    known = {t.untyped_storage().data_ptr() for t in (*layer.parameters(), *layer.buffers())}
    known.update(t.untyped_storage().data_ptr() for t in constants)
    kept: dict[int, int] = {}
    for box in (reference() for reference in boxes):
        if box is None or box.tensor.shape == (1,):  # the mask type that a checkpoint takes along
            continue
        storage = box.tensor.untyped_storage()
        if storage.data_ptr() not in known:
            kept[storage._cdata] = storage.nbytes()
    parameters = sum(p.numel() for p in layer.parameters())
    saved = tuple(sorted(size for size in kept.values() if size))
    return Run(saved=saved, parameters=parameters, output=output)


def _layer(
    fields: dict[str, Any], labels: Sequence[str]
) -> tuple[torch.nn.Module, dict[str, Any], list[torch.Tensor]]:
    given = {**BASE, **fields}
    is_latent = given.pop("multi_latent_attention", False)
    given["activation_func"] = FUNCTIONS[given.get("activation_func", "gelu")]
    if labels:
        given |= {"recompute_granularity": "selective", "recompute_modules": list(labels)}
    config = (MLATransformerConfig if is_latent else TransformerConfig)(**given)
    spec = get_gpt_layer_local_spec(
        num_experts=config.num_moe_experts,
        moe_grouped_gemm=config.moe_grouped_gemm,
        qk_layernorm=config.qk_layernorm,
        multi_latent_attention=is_latent,
        normalization=config.normalization,
    )
    if given.get("experimental_attention_variant") == "dsa":
        import cpu_sparse

        spec.submodules.self_attention = cpu_sparse.sparse_attention(
            qk_layernorm=config.qk_layernorm
        )
    elif is_latent:
        spec.submodules.self_attention.submodules.core_attention = LatentCore
    layer = build_module(spec, config=config, layer_number=1).train()
    mask = torch.triu(torch.ones(1, 1, SEQUENCE, SEQUENCE, dtype=torch.bool), 1)
    arguments: dict[str, Any] = {"attention_mask": mask}
    if is_latent:
        angles = layer.self_attention.rotary_pos_emb(SEQUENCE, packed_seq=False)
        return layer, arguments, [mask, angles[0] if isinstance(angles, tuple) else angles]
    rope = RotaryEmbedding(
        config.kv_channels,
        1.0,
        use_cpu_initialization=True,
        cp_group=parallel_state.get_context_parallel_group(),
    )
    arguments["rotary_pos_emb"] = rope(SEQUENCE)
    return layer, arguments, [mask, arguments["rotary_pos_emb"]]
