"""What running a tape found."""

from __future__ import annotations

from dataclasses import dataclass, field

from recompute.model.arena import Owners


@dataclass(frozen=True, slots=True, kw_only=True)
class TapeProfile:
    """What running one tape does to memory. Bytes exclude everything outside the tape."""

    saved: int
    """Alive between the tape's forward and its backward, its input included when it is saved."""
    forward_peak: int
    backward_peak: int
    """Highest point of the backward, gradient of the output included."""
    weight_grads: int
    """Gradients that this tape leaves behind (zero when they were allocated beforehand)."""
    left_behind: int = 0
    """Bytes that stay after the backward until this layer's next forward replaces them: tensors that
    modules hold and, where such a tensor belongs to a replayed graph, the replay's inputs and their
    gradients with it."""
    left_gradient: int = 0
    """Of those, the gradient of the tape's first input: it is also the gradient of the layer before's
    output, one storage while that layer runs backward."""
    left_copies: int = 0
    """Of those, copies of weights that are counted among what the modules hold for good."""
    returning: tuple[int, ...] = ()
    """Bytes that each offloaded group brings back from the host, in forward order."""
    input_left: bool = False
    """The tape's input went to the host, and only its owners outside keep its bytes."""
    replayed: tuple[str, ...] = ()
    """Names of the operations that ran a second time, in order."""
    alive_saved: Owners = field(default=(), repr=False)
    """What :attr:`saved` consists of. Empty unless composition was asked for, as the next two."""
    alive_at_forward_peak: Owners = field(default=(), repr=False)
    alive_at_backward_peak: Owners = field(default=(), repr=False)
