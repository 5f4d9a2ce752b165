"""Reading logs into one observation. An edge module: it opens files."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from recompute.diagnose.excerpts import Scanner, excerpts
from recompute.diagnose.inputs import Expander, Format, Source, close, open_stream, read_error
from recompute.diagnose.observation import FileObservation, Observation
from recompute.diagnose.reader import PROSE_LIMIT, LogReader

TEXT_FORMATS: Final = frozenset({Format.TEXT, Format.GZIP, Format.ZSTD, Format.XZ, Format.BZIP2})

Progress = Callable[[str, int, int], None]
"""Called with the path, the expanded bytes read so far and the bytes on disk."""


def read_logs(sources: tuple[Source, ...], progress: Progress | None = None) -> Observation:
    """Read every text input, one after the other, in constant memory."""
    seen = Observation()
    for source in sources:
        if source.format in TEXT_FORMATS:
            _read_one(source, seen, progress)
        else:
            seen.files.append(FileObservation(path=source.path, size=source.size, binary=True))
    return seen


def _read_one(source: Source, seen: Observation, progress: Progress | None) -> None:
    prose = source.format is Format.TEXT and source.size <= PROSE_LIMIT
    reader = LogReader(source.path, seen, prose=prose)
    scanner = Scanner()
    stream = open_stream(source)
    try:
        told = None if progress is None else (lambda done: progress(source.path, done, source.size))
        reader.read(excerpts(stream, scanner, told))
    except OSError as error:
        raise read_error(source.path, error) from error
    finally:
        close(stream)
    reader.file.size = scanner.size
    reader.file.cut = isinstance(stream, Expander) and stream.cut


def read_text(text: str, path: str = "text") -> Observation:
    """Read a log that is in memory; for tests and tools."""
    import io

    seen = Observation()
    data = text.encode("utf-8", "surrogateescape")
    reader = LogReader(path, seen, prose=len(data) <= PROSE_LIMIT)
    reader.read(excerpts(io.BytesIO(data), Scanner()))
    return seen
