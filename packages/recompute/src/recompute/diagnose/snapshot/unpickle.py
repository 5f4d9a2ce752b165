"""A pickle reader that knows plain containers and nothing else. Nothing is ever executed.

Python's own unpickler builds whatever a file names. This one is a small machine of its own: the
opcodes for dict, list, tuple, str, bytes, int, float, bool and None are all it has. Any other opcode
(GLOBAL, STACK_GLOBAL, REDUCE, INST, OBJ, NEWOBJ, BUILD, PERSID, EXT1, ...) is an error that names it.
Memory is bounded by the file: the number of containers, the length of integers, the memo's indices.

Opcodes and their arguments: CPython ``Lib/pickletools.py`` (protocols 0 to 5).
"""

from __future__ import annotations

import re
import struct
from collections.abc import Callable
from typing import Any, Final

from recompute.diagnose.snapshot.compact import Compactor
from recompute.errors import InputError

MAX_CONTAINERS: Final = 24_000_000
"""Dictionaries, lists and tuples of one file."""
MAX_INTEGER_BYTES: Final = 16
MAX_STRING: Final = 16 << 20
MAX_OPEN_MARKS: Final = 1000

_MARK: Final = object()
_LONG_GETS: Final = re.compile(rb"(?:j[\s\S]{4}){2,}")
_KEYS: Final = (str, int, float, bool, type(None), bytes)

Progress = Callable[[int], None]


def refuse(path: str, code: str, message: str, **data: Any) -> InputError:
    """Make the error for a snapshot that cannot be read."""
    return InputError(
        code,
        f"{path}: {message}",
        hint="give a file that torch.cuda.memory._dump_snapshot wrote",
        data={"path": path, **data},
    )


class PickleMachine:
    """Runs one pickle over a buffer."""

    def __init__(self, data: Any, path: str, progress: Progress | None = None) -> None:
        """Take the bytes.

        Args:
            data: ``bytes`` or a read-only ``mmap``.
            path: Named in errors.
            progress: Told the position now and then.
        """
        self._data = data
        self._size = len(data)
        self._path = path
        self._progress = progress
        self._at = 0
        self._stack: list[Any] = []
        self._marks: list[int] = []
        self._memo: list[Any] = []
        self._open: dict[int, int] = {}
        """id of a container under construction -> its memo index."""
        self._containers = 0
        self._compact = Compactor()

    def load(self) -> Any:
        """Return the value.

        Raises:
            InputError: ``unsafe-pickle`` names the opcode; ``corrupt-pickle``; ``pickle-limit``.
        """
        try:
            return self._run()
        except (IndexError, struct.error, UnicodeDecodeError, TypeError, ValueError) as error:
            raise refuse(
                self._path,
                "corrupt-pickle",
                f"not a complete pickle (at byte {self._at})",
                position=self._at,
            ) from error
        except MemoryError as error:
            raise refuse(
                self._path, "pickle-limit", "the snapshot does not fit in memory"
            ) from error

    def _run(self) -> Any:
        data, handlers = self._data, _HANDLERS
        told = 0
        while True:
            if self._at >= self._size:
                raise IndexError
            code = data[self._at]
            self._at += 1
            if code == 0x2E:  # STOP
                return self._finished()
            handler = handlers.get(code)
            if handler is None:
                raise self._unknown(code)
            handler(self)
            if self._progress is not None and self._at - told > 1 << 22:
                told = self._at
                self._progress(told)

    def _finished(self) -> Any:
        if len(self._stack) != 1 or self._marks:
            raise refuse(
                self._path,
                "corrupt-pickle",
                "the pickle ends with an unfinished value",
                position=self._at,
            )
        return self._stack[0]

    def _unknown(self, code: int) -> InputError:
        import pickletools

        name = next((op.name for op in pickletools.opcodes if ord(op.code) == code), None)
        if name is None:
            return refuse(
                self._path,
                "corrupt-pickle",
                f"byte {code:#04x} at {self._at - 1} is no pickle opcode",
                position=self._at - 1,
            )
        return InputError(
            "unsafe-pickle",
            f"{self._path}: opcode {name} at byte {self._at - 1} could run code; only plain containers are read",
            hint="a memory snapshot never holds it: do not load this file with pickle or torch either",
            data={"path": self._path, "opcode": name, "position": self._at - 1},
        )

    # --- reading arguments

    def take(self, count: int) -> bytes:
        """Return the next bytes."""
        end = self._at + count
        if count < 0 or end > self._size:
            raise IndexError
        piece = self._data[self._at : end]
        self._at = end
        return bytes(piece)

    def unsigned(self, count: int) -> int:
        """Read a little-endian unsigned integer."""
        return int.from_bytes(self.take(count), "little")

    def text_line(self) -> bytes:
        """Read to the end of a line (protocol 0)."""
        end = self._data.find(b"\n", self._at, min(self._at + 4096, self._size))
        if end < 0:
            raise IndexError
        piece = bytes(self._data[self._at : end])
        self._at = end + 1
        return piece

    def string(self, count: int) -> str:
        """Read UTF-8 text of a known length."""
        if count > MAX_STRING:
            raise refuse(self._path, "pickle-limit", f"a text of {count} bytes", position=self._at)
        return str(self.take(count), "utf-8", "surrogatepass")

    def integer(self, count: int) -> int:
        """Read a little-endian signed integer."""
        if count > MAX_INTEGER_BYTES:
            raise refuse(
                self._path, "pickle-limit", f"an integer of {count} bytes", position=self._at
            )
        return int.from_bytes(self.take(count), "little", signed=True)

    def decimal(self) -> Any:
        """Read a decimal integer or boolean (protocol 0)."""
        text = self.text_line().rstrip(b"L")
        if text in {b"00", b"01"}:
            return text == b"01"
        if len(text) > 40:
            raise refuse(self._path, "pickle-limit", "an integer of many digits", position=self._at)
        return int(text)

    # --- building

    def push(self, value: Any) -> None:
        """Put a value on the stack."""
        self._stack.append(value)

    def memoize(self) -> None:
        """MEMOIZE: remember the top of the stack under the next index."""
        self.put(len(self._memo))

    def new(self, value: Any) -> None:
        """Push a new container, counted."""
        self._containers += 1
        if self._containers > MAX_CONTAINERS:
            raise refuse(
                self._path,
                "pickle-limit",
                f"more than {MAX_CONTAINERS} containers",
                limit=MAX_CONTAINERS,
            )
        self._stack.append(value)

    def mark(self) -> None:
        """Remember where the stack stands."""
        if len(self._marks) >= MAX_OPEN_MARKS:
            raise refuse(self._path, "pickle-limit", "nested too deeply", limit=MAX_OPEN_MARKS)
        self._marks.append(len(self._stack))

    def popped(self) -> list[Any]:
        """Take everything above the last mark."""
        start = self._marks.pop()
        items = self._stack[start:]
        del self._stack[start:]
        return items

    def pop(self) -> Any:
        """Take the top, never below a mark."""
        if self._marks and self._marks[-1] >= len(self._stack):
            raise IndexError
        return self._stack.pop()

    def put(self, index: int) -> None:
        """Remember the top under an index."""
        top = self._stack[-1]
        if index == len(self._memo):
            self._memo.append(top)
        elif 0 <= index < len(self._memo):
            self._memo[index] = top
        else:
            raise refuse(
                self._path, "corrupt-pickle", f"memo index {index} out of order", position=self._at
            )
        if type(top) in {dict, list} and not top:
            self._open[id(top)] = index

    def get(self, index: int) -> None:
        """Push what an index remembers."""
        self._stack.append(self._memo[index])

    def appends(self) -> None:
        """APPENDS: fill a list."""
        items = self.popped()
        target = self._stack[-1]
        if type(target) is not list:
            raise TypeError
        if target:
            target.extend(items)
            return
        self._replace(target, self._compact.sequence(items), items)

    def _replace(self, target: Any, compact: Any, filled: Any) -> None:
        """Fill ``target``, or put its compact form in its place on the stack and in the memo."""
        index = self._open.pop(id(target), None)
        if compact is filled:
            target.extend(filled) if isinstance(target, list) else target.update(filled)
            return
        self._stack[-1] = compact
        if index is not None:
            self._memo[index] = compact

    def setitems(self) -> None:
        """SETITEMS: fill a dictionary."""
        items = self.popped()
        target = self._stack[-1]
        if type(target) is not dict or len(items) % 2:
            raise TypeError
        keys = items[::2]
        if not all(type(key) in _KEYS for key in keys):
            raise TypeError
        filled = dict(zip(keys, items[1::2], strict=True))
        if target:
            target.update(filled)
            return
        self._replace(target, self._compact.mapping(filled), filled)

    def setitem(self) -> None:
        """SETITEM: one pair."""
        value, key = self.pop(), self.pop()
        target = self._stack[-1]
        if type(target) is not dict or type(key) not in _KEYS:
            raise TypeError
        target[key] = value

    def append(self) -> None:
        """APPEND: one item."""
        value = self.pop()
        target = self._stack[-1]
        if type(target) is not list:
            raise TypeError
        target.append(value)

    def dict_of_mark(self) -> None:
        """DICT: a dictionary of everything above the mark."""
        self._dict_from(self.popped())

    def _dict_from(self, items: list[Any]) -> None:
        if len(items) % 2 or not all(type(key) in _KEYS for key in items[::2]):
            raise TypeError
        self.new(dict(zip(items[::2], items[1::2], strict=True)))

    def tuple_of(self, count: int) -> None:
        """TUPLE1 to TUPLE3."""
        items = tuple(self.pop() for _ in range(count))
        self.new(items[::-1])

    def byte_get(self) -> None:
        """BINGET: push what a one-byte index remembers."""
        self._stack.append(self._memo[self._data[self._at]])
        self._at += 1

    def long_get(self) -> None:
        """LONG_BINGET, and a whole run of them at once: most bytes of a snapshot are such runs."""
        run = _LONG_GETS.match(self._data, self._at - 1, min(self._at + (5 << 10), self._size))
        if run is None:
            self.get(self.unsigned(4))
            return
        count = (run.end() - run.start()) // 5
        indices = struct.unpack("<" + "xI" * count, run.group())
        memo = self._memo
        self._stack.extend(map(memo.__getitem__, indices))
        self._at = run.end()


def _binfloat(machine: PickleMachine) -> float:
    value: float = struct.unpack(">d", machine.take(8))[0]
    return value


def _skip(machine: PickleMachine, count: int) -> None:
    machine.take(count)


def _push(read: Callable[[PickleMachine], Any]) -> Callable[[PickleMachine], None]:
    def handler(machine: PickleMachine) -> None:
        machine.push(read(machine))

    return handler


def _constant(*, value: Any) -> Callable[[PickleMachine], None]:
    return lambda machine: machine.push(value)


_M = PickleMachine
_HANDLERS: Final[dict[int, Callable[[PickleMachine], Any]]] = {
    0x80: lambda m: _skip(m, 1),  # PROTO
    0x95: lambda m: _skip(m, 8),  # FRAME
    ord("("): _M.mark,
    ord("0"): _M.pop,
    ord("1"): _M.popped,
    ord("N"): _constant(value=None),
    0x88: _constant(value=True),
    0x89: _constant(value=False),
    ord("I"): _push(_M.decimal),
    ord("L"): _push(_M.decimal),
    ord("J"): _push(lambda m: m.integer(4)),
    ord("K"): _push(lambda m: m.unsigned(1)),
    ord("M"): _push(lambda m: m.unsigned(2)),
    0x8A: _push(lambda m: m.integer(m.unsigned(1))),
    0x8B: _push(lambda m: m.integer(m.unsigned(4))),
    ord("F"): _push(lambda m: float(m.text_line())),
    ord("G"): _push(_binfloat),
    ord("V"): _push(lambda m: str(m.text_line(), "raw-unicode-escape")),
    ord("X"): _push(lambda m: m.string(m.unsigned(4))),
    0x8C: _push(lambda m: m.string(m.unsigned(1))),
    0x8D: _push(lambda m: m.string(m.unsigned(8))),
    ord("U"): _push(lambda m: m.string(m.unsigned(1))),
    ord("T"): _push(lambda m: m.string(m.unsigned(4))),
    ord("C"): _push(lambda m: m.take(m.unsigned(1))),
    ord("B"): _push(lambda m: m.take(m.unsigned(4))),
    0x8E: _push(lambda m: m.take(m.unsigned(8))),
    ord("]"): lambda m: m.new([]),
    ord("}"): lambda m: m.new({}),
    ord(")"): lambda m: m.new(()),
    ord("l"): lambda m: m.new(m.popped()),
    ord("t"): lambda m: m.new(tuple(m.popped())),
    ord("d"): _M.dict_of_mark,
    0x85: lambda m: m.tuple_of(1),
    0x86: lambda m: m.tuple_of(2),
    0x87: lambda m: m.tuple_of(3),
    ord("a"): _M.append,
    ord("e"): _M.appends,
    ord("s"): _M.setitem,
    ord("u"): _M.setitems,
    ord("h"): _M.byte_get,
    ord("j"): _M.long_get,
    ord("g"): lambda m: m.get(int(m.text_line())),
    ord("q"): lambda m: m.put(m.unsigned(1)),
    ord("r"): lambda m: m.put(m.unsigned(4)),
    ord("p"): lambda m: m.put(int(m.text_line())),
    0x94: _M.memoize,
}
"""Opcode -> what it does. What is not here is refused."""
