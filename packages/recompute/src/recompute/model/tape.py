"""What a layer computes, as an ordered list of operations over named tensors.

A :class:`Tape` says for every operation which tensors it reads, which it writes, which it keeps for
its backward, and what it costs to run again. Recompute labels are :class:`Region` s of a tape. What
each label saves or costs is never written down: it follows by running the tape
(:mod:`recompute.model.run`).

Shape legend of the operation modules: T tokens of one micro-batch on one rank before sequence
parallelism (``seq_length * micro_batch_size / context_parallel_size``), S tokens after it, H hidden,
F feed-forward width on this rank, Q query width, K key or value width on this rank, V vocabulary on
this rank.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Final

ROUND: Final = 512
"""Every allocation takes a multiple of this many bytes (pytorch c10/cuda/CUDACachingAllocator.cpp,
kMinBlockSize)."""


class OpClass(StrEnum):
    """What bounds an operation's time."""

    GEMM = "gemm"
    NARROW_GEMM = "narrow_gemm"
    """A product of quantized operands; tapes say GEMM, and :attr:`Op.casts` tells."""
    ATTENTION = "attention"
    ELEMENTWISE = "elementwise"
    NORM = "norm"
    ROUTING = "routing"
    COMM = "comm"
    CAST = "cast"
    """Copies into the format of a product that a forward makes."""
    GRADIENT_CAST = "gradient_cast"
    """The same of gradients, which backward alone makes."""


class Link(StrEnum):
    """Which group a communication runs in."""

    TENSOR = "tensor"
    CONTEXT = "context"
    EXPERT = "expert"


@dataclass(frozen=True, slots=True, kw_only=True)
class Tensor:
    """An activation. Tensors with one ``storage`` share their bytes, as views do."""

    name: str
    size: int
    """Bytes of the tensor itself; a view may be smaller than its storage."""
    storage: str = ""
    """Name of the tensor that holds the bytes, when this one is a view of it."""

    @property
    def key(self) -> str:
        """Name of the storage that holds the bytes."""
        return self.storage or self.name


@dataclass(frozen=True, slots=True, kw_only=True)
class Casts:
    """Bytes read and written to bring the operands of a linear's products into their format."""

    source: int
    """Of the input, each time it runs forward."""
    gradient: int
    """Of the output's gradient, in each backward."""
    weight: int
    """Of the weight, once a step: later micro-batches and replays find the copies of the first one
    (NVIDIA/Megatron-LM core_v0.19.0 megatron/core/extensions/transformer_engine.py
    ``is_first_microbatch``)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Op:
    """One operation of the forward pass and what autograd does for it."""

    name: str
    """Megatron's module path inside the layer, such as ``mlp.linear_fc1``."""
    kind: OpClass
    reads: tuple[str, ...] = ()
    """Tensors whose gradient this operation's backward produces."""
    reads_without_grad: tuple[str, ...] = ()
    writes: tuple[Tensor, ...] = ()
    saves: tuple[str, ...] = ()
    """Tensors, read or written, that the backward needs."""
    keeps: tuple[Tensor, ...] = ()
    """Tensors that only the backward sees: masks, statistics, gathered tables."""
    quantized: Tensor | None = None
    """Copy of the first read tensor in a narrow format that backward uses instead of it."""
    passes_grad: bool = False
    """The gradient of the output is handed on without a new allocation (views, additions)."""
    new_grads: tuple[str, ...] = ()
    """Read tensors whose gradient is a new tensor although :attr:`passes_grad` holds for the rest."""
    grad_over: str = ""
    """Name of a saved or kept tensor that the gradient of the read tensor is written over."""
    weight_bytes: int = 0
    """Bytes of the parameters this operation owns, in parameter dtype."""
    weights: int = 1
    """Weight matrices of one shape that :attr:`weight_bytes` covers (experts on this rank)."""
    widths: tuple[int, int] = (0, 0)
    """Input and output width of a linear on this rank, elements."""
    expert: bool = False
    """The parameters are routed experts': sharded and reduced over the expert groups."""
    weight_cache: int = 0
    """Bytes of the parameters' copies in the format of the GEMM, held by the module for good."""
    remade: int = 0
    """Bytes of those copies that a forward without gradients frees and the next backward makes again."""
    norm_inside: bool = False
    """A linear whose module holds the norm in front of it as well: one backward runs both."""
    retains: tuple[str, ...] = ()
    """Written tensors that the module object holds until its next forward replaces them. At the start
    of a step they are part of what is allocated, so the first forward in flight adds nothing for
    them."""
    forward_workspace: int = 0
    backward_workspace: int = 0
    flops: int = 0
    """Floating-point operations of one forward."""
    traffic: int = 0
    """Bytes read and written by one forward."""
    casts: Casts | None = None
    """Of a linear whose products are of quantized operands."""
    comm: tuple[tuple[Link, int], ...] = ()
    """Bytes this rank sends in one forward, per group."""


class Mechanism(StrEnum):
    """How a region is recomputed (megatron/core/tensor_parallel/random.py)."""

    CHECKPOINT = "checkpoint"
    """``checkpoint`` or ``te_checkpoint``: keep the inputs, run the region again in backward."""
    DISCARD = "discard"
    """``CheckpointWithoutOutput``: also free the outputs once their consumer has run."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Region:
    """A stretch of a tape that a label recomputes."""

    label: str
    mechanism: Mechanism
    first: str
    """Name of the first operation."""
    last: str
    """Name of the last operation, included."""
    hook: str = ""
    """DISCARD: the operation whose output carries the hook; outputs are freed after it has run and
    restored before its backward."""
    originals: tuple[str, ...] = ()
    """DISCARD: operations that keep their input itself, not a quantized copy, while this region is
    active, so that discarding it frees something."""
    saved_shards: int = 1
    """CHECKPOINT: the first input is split over this many ranks (distribute_saved_activations)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tape:
    """The operations of one layer (or of the embedding, or of the head), in forward order."""

    name: str
    inputs: tuple[Tensor, ...]
    outputs: tuple[str, ...]
    ops: tuple[Op, ...]
    regions: tuple[Region, ...] = ()

    def position(self, op_name: str) -> int:
        """Return the index of an operation."""
        return next(i for i, op in enumerate(self.ops) if op.name == op_name)

    @property
    def weight_bytes(self) -> int:
        """Bytes of all parameters, in parameter dtype."""
        return sum(op.weight_bytes for op in self.ops)

    @property
    def weight_cache(self) -> int:
        """Bytes of all parameters' copies in the format of their GEMM."""
        return sum(op.weight_cache for op in self.ops)

    @property
    def expert_weight_bytes(self) -> int:
        """Bytes of the routed experts' parameters, in parameter dtype."""
        return sum(op.weight_bytes for op in self.ops if op.expert)
