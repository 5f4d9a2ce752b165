"""Messages between processes that share one GPU: through host memory, by gloo.

NCCL refuses two ranks on one device, and gloo sends a GPU's tensors in some operations only. Inside
:func:`staged` every operation that Megatron Core and Transformer Engine use copies its tensors to the host,
sends them there and copies the answer back. Slow, and the same numbers.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any


class Done:
    """A message that has arrived; ``wait`` brings it to where it was asked for."""

    def __init__(self, finish: Callable[[], None] = lambda: None) -> None:
        self._finish: Callable[[], None] | None = finish

    def wait(self, *_: Any) -> bool:
        """Finish, once."""
        finish, self._finish = self._finish, None
        if finish is not None:
            finish()
        return True

    def is_completed(self) -> bool:
        """Say whether it was waited for."""
        return self._finish is None


@contextlib.contextmanager
def staged(torch: Any) -> Iterator[None]:
    """Have torch.distributed send tensors of a GPU through the host."""
    distributed = torch.distributed
    names = (
        *("all_reduce", "all_gather_into_tensor", "reduce_scatter_tensor", "all_to_all_single"),
        *("broadcast", "all_gather", "all_to_all", "isend", "irecv", "send", "recv"),
        *("batch_isend_irecv", "_all_gather_base", "_reduce_scatter_base"),
    )
    real = {name: getattr(distributed, name) for name in names}
    calls = _collectives(real) | _messages(real)
    # P2POp looks at which function it was given; it must go on seeing torch's own.
    operation = distributed.P2POp

    def made(op: Any, *args: Any, **kwargs: Any) -> Any:
        own = {calls["isend"]: real["isend"], calls["irecv"]: real["irecv"]}
        return operation(own.get(op, op), *args, **kwargs)

    try:
        for name, call in calls.items():
            setattr(distributed, name, call)
        distributed.P2POp = made
        yield
    finally:
        for name, call in real.items():
            setattr(distributed, name, call)
        distributed.P2POp = operation


def _collectives(real: dict[str, Any]) -> dict[str, Any]:
    """Return the operations that all ranks of a group take part in."""

    def in_place(name: str) -> Any:
        def call(tensor: Any, *args: Any, async_op: bool = False, **kwargs: Any) -> Any:
            host = _host(tensor)
            real[name](host, *args, **kwargs)
            tensor.detach().copy_(host)
            return Done() if async_op else None

        return call

    def from_to(name: str) -> Any:
        def call(output: Any, given: Any, *args: Any, async_op: bool = False, **kwargs: Any) -> Any:
            place, source = _host(output), _host(given)
            real[name](place, source, *args, **kwargs)
            output.detach().copy_(place)
            return Done() if async_op else None

        return call

    def lists(name: str) -> Any:
        def call(output: Any, given: Any, *args: Any, async_op: bool = False, **kwargs: Any) -> Any:
            places = [_host(one) for one in output]
            source = [_host(one) for one in given] if isinstance(given, list) else _host(given)
            real[name](places, source, *args, **kwargs)
            for one, place in zip(output, places, strict=True):
                one.detach().copy_(place)
            return Done() if async_op else None

        return call

    def reduce_scatter(
        output: Any, given: Any, *_: Any, group: Any = None, async_op: bool = False, **__: Any
    ) -> Any:
        """Sum everything and keep a part: gloo has no other way in every release."""
        import torch

        total = _host(given)
        real["all_reduce"](total, group=group)
        parts = total.chunk(torch.distributed.get_world_size(group))
        mine = parts[torch.distributed.get_rank(group)]
        output.detach().copy_(mine.reshape(output.shape))
        return Done() if async_op else None

    into = from_to("all_gather_into_tensor")
    return {
        "all_reduce": in_place("all_reduce"),
        "broadcast": in_place("broadcast"),
        "all_to_all_single": from_to("all_to_all_single"),
        "all_gather_into_tensor": into,
        "_all_gather_base": into,
        "reduce_scatter_tensor": reduce_scatter,
        "_reduce_scatter_base": reduce_scatter,
        "all_gather": lists("all_gather"),
        "all_to_all": lists("all_to_all"),
    }


def _messages(real: dict[str, Any]) -> dict[str, Any]:
    """Return what one rank sends to another."""

    def isend(tensor: Any, *args: Any, **kwargs: Any) -> Done:
        host = _host(tensor)
        work = real["isend"](host, *args, **kwargs)
        return Done(lambda: _await(work, host))

    def irecv(tensor: Any, *args: Any, **kwargs: Any) -> Done:
        host = _host(tensor)
        work = real["irecv"](host, *args, **kwargs)

        def finish() -> None:
            _await(work, host)
            tensor.detach().copy_(host)

        return Done(finish)

    def batch(operations: list[Any]) -> list[Done]:
        calls = {real["isend"]: isend, real["irecv"]: irecv}
        return [
            calls[one.op](one.tensor, one.peer, group=one.group, tag=one.tag) for one in operations
        ]

    return {
        "isend": isend,
        "irecv": irecv,
        "send": lambda *args, **kwargs: isend(*args, **kwargs).wait() and None,
        "recv": lambda *args, **kwargs: irecv(*args, **kwargs).wait() and None,
        "batch_isend_irecv": batch,
    }


def _await(work: Any, host: Any) -> None:
    """Wait for a message whose bytes must stay where they are until then."""
    if work is not None:
        work.wait()
    del host


def _host(tensor: Any) -> Any:
    """Return a copy in host memory; gloo sends no bytes of a format that it does not know."""
    return tensor.detach().to("cpu", copy=True).contiguous()
