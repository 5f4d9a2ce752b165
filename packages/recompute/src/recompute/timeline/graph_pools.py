"""What private pools of CUDA graphs reserve beyond the allocated peak: an upper bound, never a prediction.

What a captured region saves, and its working memory, lies in a pool of its own. Freed blocks of a pool
serve its graphs alone, and the pool stays between steps. So next to the eager peak there may also be:
the working set of the largest captured region (its backward beyond what it saved), and in the optimizer
step, which runs outside the graphs, what captured regions saved. Blocks that eager steps cached are given
back before a capture.

Sources: NVIDIA/TransformerEngine v2.18 transformer_engine/pytorch/graph.py ``_make_graphed_callables``
("All captures here share a mempool", in the order of the schedule; static inputs are the saved inputs);
NVIDIA/Megatron-LM core_v0.19.0 megatron/core/transformer/cuda_graphs.py (``TECudaGraphHelper``,
``CudaGraphManager.global_mempool``) and megatron/core/full_cuda_graph.py; pytorch torch/cuda/graphs.py
``graph.__enter__`` (``empty_cache``) and c10/cuda/CUDACachingAllocator.cpp (``PrivatePool``).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from recompute.config.schema import JobConfig
from recompute.model.tape import Tape
from recompute.timeline.layers import LayerBook
from recompute.timeline.schedule import Counts
from recompute.timeline.stages import PlacedLayer, Stage

_WHOLE: Final = frozenset({"full", "full_iteration"})
_ROUTER: Final = frozenset({"moe_router", "moe_preprocess"})
_ROUTED: Final = ("pre_mlp_layernorm", "mlp.router", "mlp.shared_experts")
"""Operations that the graph of the router holds; shared experts where they are not overlapped."""


def has_graphs(job: JobConfig) -> bool:
    """Say whether a job captures anything."""
    model = job.model
    return model.enable_cuda_graph or model.external_cuda_graph or model.cuda_graph_impl != "none"


class GraphPools:
    """Bounds for one job's ranks.

    Args:
        job: A complete, normalised job.
        book: Its tapes.
    """

    def __init__(self, job: JobConfig, book: LayerBook) -> None:
        model = job.model
        self._book = book
        self._on = has_graphs(job)
        named = frozenset(model.cuda_graph_modules or model.cuda_graph_scope or ())
        self._iteration = model.cuda_graph_impl == "full_iteration" or "full_iteration" in named
        self._modules = named - _WHOLE
        self._found: dict[str, tuple[int, int]] = {}

    def beyond(self, stage: Stage, deepest: Sequence[Counts], activations: int, step: int) -> int:
        """Return bytes that the pools may reserve beyond a rank's allocated peak.

        Args:
            stage: The rank.
            deepest: Micro-batches in flight by chunk, where most are.
            activations: Highest allocation of forward, loss and backward.
            step: Highest allocation of the optimizer's phases.
        """
        if not self._on:
            return 0
        layers = [[self._region(x) for x in (*c.layers, *c.mtp)] for c in stage.chunks]
        saved = [sum(size for size, _ in chunk) for chunk in layers]
        held = max(
            (sum(n * size for n, size in zip(counts, saved, strict=True)) for counts in deepest),
            default=0,
        )
        working = 0
        if not self._iteration:
            working = max((size for chunk in layers for _, size in chunk), default=0)
        return max(activations, step + held) - max(activations, step) + working

    def _region(self, layer: PlacedLayer) -> tuple[int, int]:
        """Return what the captured part of a layer saves, and its working set beyond that."""
        if layer.kind not in self._found:
            parts = [self._part(kind) for kind in self._captured(layer.kind)]
            if self._modules & _ROUTER and "moe" in layer.kind and "moe" not in self._modules:
                parts.append(_routing(self._book.raw(layer.kind)))
            self._found[layer.kind] = (
                sum(saved for saved, _ in parts),
                max((working for _, working in parts), default=0),
            )
        return self._found[layer.kind]

    def _captured(self, kind: str) -> tuple[str, ...]:
        """Return the kinds of layer that cover what is captured of one."""
        if not self._modules or self._iteration:
            return (kind,)
        plain = kind.removeprefix("mtp+").partition("@")[0]
        return tuple(part for part in plain.split("+") if _module(part) in self._modules)

    def _part(self, kind: str) -> tuple[int, int]:
        made = self._book.profile(kind, frozenset())
        return made.saved, max(made.forward_peak, made.backward_peak, made.saved) - made.saved


def _module(part: str) -> str:
    """Return Megatron's name for the graph of a sublayer (CudaGraphModule)."""
    return part if part in {"mamba", "mlp", "moe"} else "attn"


def _routing(tape: Tape) -> tuple[int, int]:
    """Bound what the router's graph holds by all that its operations write, and as much in backward."""
    every = sum(
        tensor.size
        for op in tape.ops
        if op.name.startswith(_ROUTED)
        for tensor in (*op.writes, *op.keeps)
        if not tensor.storage
    )
    return every, every
