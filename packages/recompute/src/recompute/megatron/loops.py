"""How a probe follows the training loops of Megatron Bridge and of Megatron-LM, without a change to them.

Sources: NVIDIA-NeMo/Megatron-Bridge main src/megatron/bridge/training/callbacks.py ``CallbackManager.add``
(methods are found by their names, subclass or not), train.py (where they are called); NVIDIA/Megatron-LM
core_v0.16.1 and core_r0.19.0 megatron/training/training.py ``pretrain``, ``setup_model_and_optimizer``,
``train``, ``train_step``, ``evaluate``.
"""

from __future__ import annotations

import atexit
import functools
import sys
from collections.abc import Callable
from types import TracebackType
from typing import Any


class TrainingLoops:
    """The loops' side of :class:`recompute.megatron.probe.MemoryProbe`."""

    _opened = False
    _trained = False
    """Whether Megatron-LM's loop has come to its end."""

    # --- as a callback of Megatron Bridge

    def on_train_start(self, context: Any) -> None:
        """Begin, and see to it that the run's end is written however it comes."""
        self.begin_unheld()
        self.watch(context.model, context.optimizer)

    def on_train_step_start(self, context: Any) -> None:
        """Begin a step."""
        self.step_begins()

    def on_train_step_end(self, context: Any) -> None:
        """End a step."""
        self.step_ends(
            _total(getattr(context, "loss_dict", None)),
            skipped=bool(getattr(context, "skipped_iter", False)),
        )

    def on_eval_start(self, context: Any) -> None:
        """Begin an evaluation: what it allocates is no phase of a step."""
        self.enter("evaluation")

    def on_eval_end(self, context: Any) -> None:
        """End an evaluation."""
        self.enter("between_steps")

    def on_train_end(self, context: Any) -> None:
        """End the run as a pass."""
        self.close()

    # --- in Megatron-LM

    def follow(self, training: Any) -> None:
        """Follow Megatron-LM's own loop: one line before ``pretrain``.

        The run passes when ``train`` returns, or leaves with exit status 0 as it does at ``--exit-interval``;
        the process's end writes it down, so that an evaluation or a checkpoint after it may still fail.

        Args:
            training: The module ``megatron.training.training``. Functions that it looks up in itself are
                wrapped; :meth:`close` takes the wrappers off.
        """
        self.begin_unheld()
        wrapped: dict[str, tuple[Any, Any]] = {}

        def wrap(name: str, around: Callable[..., Any]) -> None:
            inner = getattr(training, name, None)
            if inner is not None:
                outer = functools.wraps(inner)(functools.partial(around, inner))
                wrapped[name] = (inner, outer)
                setattr(training, name, outer)

        wrap("setup_model_and_optimizer", self._around_setup)
        wrap("train_step", self._around_train_step)
        wrap("evaluate", self._around_evaluate)
        wrap("train", self._around_train)

        def undo() -> None:
            for name, (inner, outer) in wrapped.items():
                if getattr(training, name) is outer:
                    setattr(training, name, inner)

        self.at_close(undo)

    def _around_setup(self, make: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        self.enter("model_build")
        made = make(*args, **kwargs)
        self.watch(made[0], made[1])
        return made

    def _around_train_step(self, step: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        self.step_begins()
        result = step(*args, **kwargs)
        # A skipped update is counted where the optimizer says so; the loop only repeats it.
        self.step_ends(_total(result[0]))
        return result

    def _around_evaluate(self, evaluate: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        self.enter("evaluation")
        result = evaluate(*args, **kwargs)
        self.enter("between_steps")
        return result

    def _around_train(self, train: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        try:
            result = train(*args, **kwargs)
        except SystemExit as end:
            self._trained = not end.code
            raise
        self._trained = True
        return result

    # --- the end of a run that nothing holds

    def begin_unheld(self) -> None:
        """Begin without a ``with``: an error that ends the process, and its exit, end the run."""
        if self._opened:
            return
        self._opened = True
        self.__enter__()
        before = sys.excepthook

        def hook(
            kind: type[BaseException], error: BaseException, trace: TracebackType | None
        ) -> None:
            self.close(error)
            before(kind, error, trace)

        def leave() -> None:
            early = SystemExit("the process ended before training did")
            self.close(None if self._trained else early)

        sys.excepthook = hook
        atexit.register(leave)

        def undo() -> None:
            atexit.unregister(leave)
            if sys.excepthook is hook:
                sys.excepthook = before

        self.at_close(undo)

    # --- what a probe brings

    def __enter__(self) -> Any:
        raise NotImplementedError

    def watch(self, model: Any, optimizer: Any = None) -> None:
        """Follow a model and its optimizer."""
        raise NotImplementedError

    def enter(self, phase: str) -> None:
        """Say that a phase begins."""
        raise NotImplementedError

    def step_begins(self) -> None:
        """Say that a step begins."""
        raise NotImplementedError

    def step_ends(self, loss: Any = None, *, skipped: bool = False) -> None:
        """Say that a step ends."""
        raise NotImplementedError

    def close(self, error: BaseException | None = None) -> None:
        """End the run."""
        raise NotImplementedError

    def at_close(self, undo: Callable[[], None]) -> None:
        """Have something undone when the run ends."""
        raise NotImplementedError


def _total(losses: Any) -> Any:
    """Return one value that is finite where all losses are, without waiting for the device.

    Megatron also reduces pairs (sum, number of tokens).
    """
    total: Any = None
    for value in (losses or {}).values():
        for part in value if isinstance(value, tuple | list) else (value,):
            number = part.sum() if hasattr(part, "sum") else part
            total = number if total is None else total + number
    return total
