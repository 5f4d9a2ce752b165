"""Forwards that draw boundaries which Megatron has no flag for, by Megatron's own checkpoints.

Source: NVIDIA/Megatron-LM core_v0.16.1 and core_v0.19.0 megatron/core/tensor_parallel/random.py
``checkpoint`` and ``CheckpointWithoutOutput``. Gradients are bitwise those of the plain forwards
(packages/recompute/oracle/test_apply.py).
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any


def checkpointed_layer(layer: Any) -> Callable[..., Any]:
    """Return a forward that replays the whole layer in backward, as ``full/block`` does."""
    from megatron.core import tensor_parallel

    forward = layer.forward

    @functools.wraps(forward)
    def replayed(hidden_states: Any, *args: Any, **kwargs: Any) -> Any:
        if not layer.training or kwargs.get("inference_context") is not None:
            return forward(hidden_states, *args, **kwargs)
        context = kwargs.pop("context", None)

        def run(hidden: Any, outer: Any) -> Any:
            return forward(hidden, *args, context=outer, **kwargs)

        distribute = bool(getattr(layer.config, "distribute_saved_activations", False))
        return tensor_parallel.checkpoint(run, distribute, hidden_states, context)

    return replayed


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


def discarded_activation(mlp: Any) -> Callable[..., Any]:
    """Return a forward that discards the activation's output after the second linear took it.

    The activation is run again when that linear's gradient is there, by Megatron's own
    ``CheckpointWithoutOutput``: what ``moe_act`` does for experts.
    """
    import torch
    from megatron.core.tensor_parallel.random import CheckpointWithoutOutput

    class Returns(torch.nn.Module):  # type: ignore[misc]
        """A linear that returns what it was made with; without it, its input and no bias."""

        def __init__(self, pair: tuple[Any, Any] | None = None) -> None:
            super().__init__()
            self.pair = pair

        def forward(self, given: Any, *_: Any, **__: Any) -> tuple[Any, Any]:
            return (given, None) if self.pair is None else self.pair

    forward = mlp.forward
    between = type(mlp).forward

    @functools.wraps(forward)
    def discarding(hidden_states: Any, *args: Any, **kwargs: Any) -> Any:
        if not mlp.training:
            return forward(hidden_states, *args, **kwargs)

        def activate(first: Any, bias: Any) -> Any:
            stand_in = _Between(mlp, Returns((first, bias)), Returns())
            return between(stand_in, hidden_states.detach(), *args, **kwargs)[0]

        first, bias = mlp.linear_fc1(hidden_states)
        checkpoint = CheckpointWithoutOutput()
        activation = checkpoint.checkpoint(activate, first, bias)
        output, output_bias = mlp.linear_fc2(activation)
        checkpoint.discard_output_and_register_recompute(output)
        return output, output_bias

    return discarding


class NormAndLinear:
    """A norm and the only linear that reads its output: the linear keeps what the norm can give again.

    The output is discarded once the linear has run and is there again when the linear's gradient
    arrives, right before its backward. Megatron's ``layernorm`` restores it before the backward of the
    whole attention or MLP.

    Args:
        norm: Module whose output is discarded.
        linear: Module that reads it.
    """

    def __init__(self, norm: Any, linear: Any) -> None:
        self.norm, self.linear = norm, linear
        self._out: Any = None
        """Checkpoint of the norm that ran last, until the linear has run."""

    def norm_forward(self, norm: Any) -> Callable[..., Any]:
        """Return a forward of the norm that can be run again."""
        import torch
        from megatron.core.tensor_parallel.random import CheckpointWithoutOutput

        forward = norm.forward

        @functools.wraps(forward)
        def kept(hidden_states: Any, *args: Any, **kwargs: Any) -> Any:
            self._out = None
            if not norm.training or not torch.is_grad_enabled():
                return forward(hidden_states, *args, **kwargs)
            self._out = CheckpointWithoutOutput()
            return self._out.checkpoint(functools.partial(forward, *args, **kwargs), hidden_states)

        return kept

    def linear_forward(self, linear: Any) -> Callable[..., Any]:
        """Return a forward of the linear after which the norm's output is gone."""
        forward = linear.forward

        @functools.wraps(forward)
        def discarding(*args: Any, **kwargs: Any) -> Any:
            output = forward(*args, **kwargs)
            out, self._out = self._out, None
            if out is not None:
                out.discard_output_and_register_recompute(output[0])
            return output

        return discarding
