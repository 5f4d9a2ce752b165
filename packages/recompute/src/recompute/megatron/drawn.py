"""Forwards that draw boundaries which Megatron has no flag for, by Megatron's own checkpoints.

They are objects and not closures, so that a copy of a model replays its own layers and not those of the
model that it was copied from.

Source: NVIDIA/Megatron-LM core_v0.16.1 and core_v0.19.0 megatron/core/tensor_parallel/random.py
``checkpoint`` and ``CheckpointWithoutOutput``. Gradients are bitwise those of the plain forwards
(packages/recompute/oracle/test_apply.py).
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any


class Drawn:
    """A forward in place of a module's own, which it keeps as ``__wrapped__``.

    Args:
        module: Whose forward it is.
    """

    def __init__(self, module: Any) -> None:
        self.module = module
        self.__wrapped__: Callable[..., Any] = module.forward


class CheckpointedLayer(Drawn):
    """A forward that replays the whole layer in backward, as ``full/block`` does."""

    def __call__(self, hidden_states: Any, *args: Any, **kwargs: Any) -> Any:
        """Run the layer, keeping its inputs alone."""
        from megatron.core import tensor_parallel

        layer, forward = self.module, self.__wrapped__
        if not layer.training or kwargs.get("inference_context") is not None:
            return forward(hidden_states, *args, **kwargs)
        context = kwargs.pop("context", None)

        def run(hidden: Any, outer: Any) -> Any:
            return forward(hidden, *args, context=outer, **kwargs)

        distribute = bool(getattr(layer.config, "distribute_saved_activations", False))
        return tensor_parallel.checkpoint(run, distribute, hidden_states, context)


class _Between:
    """Stands for an MLP with other linears: its forward is what lies between them.

    Args:
        mlp: The real one; everything else is asked of it.
        first: In place of its first linear.
        second: In place of its second linear.
    """

    def __init__(self, mlp: Any, first: Any, second: Any) -> None:
        self._mlp = mlp
        self.linear_fc1 = first
        self.linear_fc2 = second

    def __getattr__(self, name: str) -> Any:
        return getattr(self._mlp, name)


@functools.cache
def _linear_that_returns() -> type[Any]:
    """Return a class of linears that do nothing, made where torch is there."""
    import torch

    class Returns(torch.nn.Module):  # type: ignore[misc]
        """A linear that returns what it was made with; without it, its input and no bias."""

        def __init__(self, pair: tuple[Any, Any] | None = None) -> None:
            super().__init__()
            self.pair = pair

        def forward(self, given: Any, *_: Any, **__: Any) -> tuple[Any, Any]:
            return (given, None) if self.pair is None else self.pair

    return Returns


class DiscardedActivation(Drawn):
    """A forward that discards the activation's output after the second linear took it.

    The activation is run again when that linear's gradient is there, by Megatron's own
    ``CheckpointWithoutOutput``: what ``moe_act`` does for experts.
    """

    def __call__(self, hidden_states: Any, *args: Any, **kwargs: Any) -> Any:
        """Run the MLP, keeping the activation's inputs alone."""
        from megatron.core.tensor_parallel.random import CheckpointWithoutOutput

        mlp = self.module
        if not mlp.training:
            return self.__wrapped__(hidden_states, *args, **kwargs)
        returns = _linear_that_returns()

        def activate(first: Any, bias: Any) -> Any:
            stand_in = _Between(mlp, returns((first, bias)), returns())
            return type(mlp).forward(stand_in, hidden_states.detach(), *args, **kwargs)[0]

        first, bias = mlp.linear_fc1(hidden_states)
        checkpoint = CheckpointWithoutOutput()
        activation = checkpoint.checkpoint(activate, first, bias)
        output, output_bias = mlp.linear_fc2(activation)
        checkpoint.discard_output_and_register_recompute(output)
        return output, output_bias


class NormAndLinear:
    """A norm and the only linear that reads its output: the linear keeps what the norm can give again.

    The output is discarded once the linear has run and is there again when the linear's gradient
    arrives, right before its backward. Megatron's ``layernorm`` restores it before the backward of the
    whole attention or MLP.
    """

    def __init__(self) -> None:
        self.out: Any = None
        """Checkpoint of the norm that ran last, until the linear has run."""


class KeptNorm(Drawn):
    """A forward of the norm that can be run again.

    Args:
        module: The norm.
        pair: What it shares with the linear.
    """

    def __init__(self, module: Any, pair: NormAndLinear) -> None:
        super().__init__(module)
        self.pair = pair

    def __call__(self, hidden_states: Any, *args: Any, **kwargs: Any) -> Any:
        """Run the norm."""
        import torch
        from megatron.core.tensor_parallel.random import CheckpointWithoutOutput

        forward, self.pair.out = self.__wrapped__, None
        if not self.module.training or not torch.is_grad_enabled():
            return forward(hidden_states, *args, **kwargs)
        self.pair.out = CheckpointWithoutOutput()
        run = functools.partial(forward, *args, **kwargs)
        return self.pair.out.checkpoint(run, hidden_states)


class DiscardingLinear(Drawn):
    """A forward of the linear after which the norm's output is gone.

    Args:
        module: The linear.
        pair: What it shares with the norm.
    """

    def __init__(self, module: Any, pair: NormAndLinear) -> None:
        super().__init__(module)
        self.pair = pair

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run the linear."""
        output = self.__wrapped__(*args, **kwargs)
        out, self.pair.out = self.pair.out, None
        if out is not None:
            out.discard_output_and_register_recompute(output[0])
        return output


def carry_gradient(layer: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Let a layer's input carry a gradient where something in the layer trains: a hook before its forward.

    Under a frozen embedding the input carries none, and a checkpoint that is handed no tensor with a gradient
    gives none to the parameters inside it either.

    Args:
        layer: The layer.
        args: Of its forward.
        kwargs: Of its forward.

    Returns:
        Both as they are to be, or None where they stay.
    """
    import torch

    hidden = args[0] if args else kwargs.get("hidden_states")
    if not torch.is_grad_enabled() or not layer.training or not isinstance(hidden, torch.Tensor):
        return None
    if hidden.requires_grad or not any(one.requires_grad for one in layer.parameters()):
        return None
    hidden = hidden.detach().requires_grad_()
    return ((hidden, *args[1:]), kwargs) if args else (args, {**kwargs, "hidden_states": hidden})
