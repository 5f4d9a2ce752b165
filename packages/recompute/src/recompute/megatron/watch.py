"""Hooks that tell a probe which phase a training loop is in, without a change to the loop."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, Final

Tell = Callable[[str], None]
OURS: Final = "_recompute_probe"
"""Attribute of a function that a probe put in place."""


class Hooks:
    """Everything a probe put on model and optimizer; ``remove`` takes it off."""

    def __init__(self) -> None:
        self._undo: list[Callable[[], None]] = []

    def remove(self) -> None:
        """Take the hooks off; a second time does nothing."""
        while self._undo:
            self._undo.pop()()

    def also(self, undo: Callable[[], None]) -> None:
        """Have something else undone with the hooks."""
        self._undo.append(undo)

    def on_model(self, model: Any, tell: Tell) -> None:
        """Tell ``forward`` when a chunk begins, ``loss`` at its output layer, ``backward`` after it.

        Everything between a chunk's forward and what comes next is backward: the loops of Megatron
        alternate the two.
        """
        for chunk in model if isinstance(model, list | tuple) else (model,):
            before = chunk.register_forward_pre_hook(
                lambda module, _: tell("forward") if module.training else None
            )
            after = chunk.register_forward_hook(
                lambda module, _, __: tell("backward") if module.training else None
            )
            self._undo += [before.remove, after.remove]
            for name, module in chunk.named_modules():
                if name.rpartition(".")[2] == "output_layer":
                    head = module.register_forward_pre_hook(
                        lambda module, _: tell("loss") if module.training else None
                    )
                    self._undo.append(head.remove)
        self.on_gradients(model, tell)

    def on_gradients(self, model: Any, tell: Tell) -> None:
        """Tell ``grad_sync`` when a loop finalizes gradients; loops set that function late, or again."""
        for chunk in model if isinstance(model, list | tuple) else (model,):
            config = getattr(chunk, "config", None)
            inner = getattr(config, "finalize_model_grads_func", None)
            if callable(inner) and not hasattr(inner, OURS):
                self._wrap(config, "finalize_model_grads_func", before=lambda: tell("grad_sync"))

    def on_optimizer(
        self, optimizer: Any, before: Callable[[], None], after: Callable[[Any], None]
    ) -> None:
        """Call ``before`` and ``after`` around every step; ``after`` gets what the step returned."""
        if hasattr(optimizer, "register_step_pre_hook"):  # a torch optimizer
            one = optimizer.register_step_pre_hook(lambda *_: before())
            two = optimizer.register_step_post_hook(lambda *_: after(None))
            self._undo += [one.remove, two.remove]
        else:
            self._wrap(optimizer, "step", before=before, after=after)

    def _wrap(
        self,
        owner: Any,
        name: str,
        *,
        before: Callable[[], None],
        after: Callable[[Any], None] | None = None,
    ) -> None:
        inner = getattr(owner, name)
        held = vars(owner).get(name)

        @functools.wraps(inner)
        def outer(*args: Any, **kwargs: Any) -> Any:
            before()
            result = inner(*args, **kwargs)
            if after is not None:
                after(result)
            return result

        setattr(outer, OURS, True)
        setattr(owner, name, outer)

        def undo() -> None:
            if vars(owner).get(name) is outer:
                if held is None:
                    delattr(owner, name)
                else:
                    setattr(owner, name, held)

        self._undo.append(undo)


def has_states(optimizer: Any) -> bool:
    """Say whether an optimizer, or all that it is made of, holds states."""
    chained = getattr(optimizer, "chained_optimizers", None)
    if chained:
        return all(has_states(one) for one in chained)
    inner = getattr(optimizer, "optimizer", None)
    if inner is not None and inner is not optimizer:
        return has_states(inner)
    state = getattr(optimizer, "state", None)
    return state is not None and any(bool(value) for value in state.values())
