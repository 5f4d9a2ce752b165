"""How many statements the database is asked: the count that grows where something is asked one by one."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from sqlalchemy import Engine, event


@contextlib.contextmanager
def counted(engine: Engine) -> Iterator[list[str]]:
    """Collect what is asked inside the block, in order, each statement with its parameters."""
    asked: list[str] = []

    def told(_c: object, _cursor: object, statement: str, parameters: object, *_: object) -> None:
        asked.append(f"{statement} {parameters or ''}".strip())

    event.listen(engine, "before_cursor_execute", told)
    try:
        yield asked
    finally:
        event.remove(engine, "before_cursor_execute", told)
