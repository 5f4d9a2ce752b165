"""Read for one answer: everything from one state, on one connection, and nothing twice.

An answer is made of several questions, each of which may be asked alone. Inside :func:`together` those of one
thread share a transaction, so that a page fits itself, and what was asked is remembered until the block ends.
"""

from __future__ import annotations

import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING, TypeVar

from mdr.store.engine import one_state, unreadable

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from sqlalchemy import Connection, Engine

Value = TypeVar("Value")
_LOCAL = threading.local()


class _Held:
    """What one thread holds inside a block."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.known: dict[tuple[object, ...], object] = {}
        self._connection: Connection | None = None

    def connection(self) -> Connection:
        if self._connection is None:
            self._connection = one_state(self.engine.connect())
        return self._connection

    def close(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()


@contextmanager
def together(engine: Engine) -> Iterator[None]:
    """Let what this thread reads inside the block come from one state; blocks may be nested.

    A connection is opened by the first question, and kept until the end. Nothing may be written inside.
    """
    if _held(engine) is not None:
        yield
        return
    before = getattr(_LOCAL, "held", None)
    held = _LOCAL.held = _Held(engine)
    try:
        yield
    finally:
        _LOCAL.held = before
        held.close()


@contextmanager
def reading(engine: Engine) -> Iterator[Connection]:
    """Open a connection that sees one committed state, or take that of the block around.

    Raises:
        mdr.errors.StoreError: index-unreadable, database-unreachable, database-busy.
    """
    from sqlalchemy.exc import SQLAlchemyError

    held = _held(engine)
    try:
        if held is not None:
            yield held.connection()
            return
        with engine.connect() as connection:
            yield one_state(connection)
    except SQLAlchemyError as error:
        if held is not None:
            held.close()  # its transaction is of no use any more; the next question opens another
        raise unreadable(error) from error


def once(engine: Engine, key: tuple[object, ...], ask: Callable[[], Value]) -> Value:
    """Ask, or return what was answered to the same inside the block around."""
    held = _held(engine)
    if held is None:
        return ask()
    if key not in held.known:
        held.known[key] = ask()
    found: Value = held.known[key]  # type: ignore[assignment]  # the key names the question
    return found


def told(engine: Engine, answers: Iterable[tuple[tuple[object, ...], object]]) -> None:
    """Remember answers that came with another, for :func:`once` inside the block around."""
    held = _held(engine)
    if held is not None:
        held.known.update(answers)


def each_once(
    engine: Engine,
    name: str,
    keys: Sequence[str],
    ask: Callable[[list[str]], dict[str, Value]],
) -> dict[str, Value]:
    """Ask about several things, but for those that were asked about inside the block around.

    Args:
        engine: What is asked.
        name: Of the question.
        keys: What is asked about.
        ask: Asks about some of it; what it leaves out has no answer.
    """
    held = _held(engine)
    if held is None:
        return ask(list(dict.fromkeys(keys)))
    known = held.known
    wanted = [key for key in dict.fromkeys(keys) if (name, key) not in known]
    if wanted:
        found = ask(wanted)
        known |= {(name, key): found.get(key) for key in wanted}
    answers = {key: known[name, key] for key in dict.fromkeys(keys)}
    return {key: each for key, each in answers.items() if each is not None}  # type: ignore[misc]


def _held(engine: Engine) -> _Held | None:
    held: _Held | None = getattr(_LOCAL, "held", None)
    return held if held is not None and held.engine is engine else None
