"""From lines to observations: one pass, little state, every rank of an interleaved log apart."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

from recompute.diagnose.config_dump import ConfigCollector
from recompute.diagnose.events import EventRow, Kind, read_event
from recompute.diagnose.excerpts import Excerpt
from recompute.diagnose.frames import Frame
from recompute.diagnose.message_shapes import HEADS, OomMessage, read_message
from recompute.diagnose.observation import Crash, Event, FileObservation, Observation, Oom, Place
from recompute.diagnose.phrases import is_prose, read_phrases, stage_in_prose
from recompute.diagnose.prefixes import Line, rank_of_path, read_line
from recompute.diagnose.training_lines import (
    IterationLine,
    is_other_progress,
    read_iteration,
    read_memory,
    read_theory,
)
from recompute.diagnose.types import Stage

MAX_OOMS: Final = 4096
MAX_EVENTS: Final = 2000
MAX_FRAMES: Final = 300
MAX_SERIES: Final = 4000
MAX_LINE: Final = 16 << 10
MAX_PENDING: Final = 12
"""Lines that one message may be wrapped over."""
NEAR: Final = 8
"""Lines between a traceback's last frame and a message that belongs to it."""
PROSE_LIMIT: Final = 128 << 10
"""Bytes; a larger file is a log, not a report."""

_FRAME: Final = re.compile(r'\s{0,40}File "([^"\n]{1,500})", line ([0-9]{1,7}), in ([^\n]{1,200})')
_EXCEPTION: Final = re.compile(
    r"\s{0,8}((?:[A-Za-z_][\w]*\.){0,8}[A-Z]\w*(?:Error|Exception|Exit|Interrupt|Warning)(?:\([A-Za-z]+\))?)\b(?::|$)"
)
_TRACEBACK: Final = re.compile(r"Traceback \(most recent call last\)")
_NO_ERROR: Final = re.compile(
    r"\(no (?:error|crash|exception)[^)]*\)|\(measurement\)|\(hang\)|\(question\)", re.IGNORECASE
)
_TIP: Final = re.compile(
    r"If reserved (?:but unallocated )?memory is (?:>> allocated memory|large)"
)
_EXPANDABLE_ON: Final = re.compile(
    r"(?:export |env:? ?|^|\s|['\"{])PYTORCH_(?:CUDA_|HIP_)?ALLOC_CONF['\"]?\s*[=:]\s*['\"]?[\w:,.\[\]]*expandable_segments:True"
)
_MENTION_ONLY: Final = re.compile(
    r"observer|attach|handler|will (?:be|dump|save)|on OOM|if OOM|upon OOM|retry on|oom_score|\[OOM\] rank [0-9]{1,12} saved|reduce memory|avoid(?:ing)? (?:an? )?(?:OOM|out of memory)|to prevent|risk of|\bno (?:OOM|out[- ]of[- ]memory)|(?:without|not|never) (?:an? )?(?:OOMs?|out[- ]of[- ]memory)",
    re.IGNORECASE,
)
_FRAMEWORKS: Final = tuple(
    (name, re.compile(pattern))
    for name, pattern in (
        ("megatron", r"megatron|Megatron|\biteration +[0-9]{1,12}/ +[0-9]{1,12} \|"),
        ("bridge", r"megatron\.bridge|Megatron Bridge"),
        ("deepspeed", r"deepspeed|DeepSpeed"),
        ("transformers", r"transformers[/.]|'train_runtime'|'loss': "),
        ("torchtitan", r"torchtitan"),
        ("jax", r"\bjax\b|jaxlib|XlaRuntimeError|\bxla/"),
        ("tensorflow", r"tensorflow"),
        ("vllm", r"\bvllm\b"),
    )
)
_HINT: Final = re.compile(
    r"rror|emory|[Oo][Oo][Mm]|NCCL|cuda|CUDA|CUBLAS|EXHAUST|Exception|bad_alloc|SIG|signal|Signal|exitcode|atchdog|imed? ?out"
    r"|hang|retr|flush|Connection|ncclRemote|srun|Allocation on|Warning|grad|[Cc]heckpoint|ecomput|[Bb]us|shm|worker|remote"
)
"""Every row of the event and message tables holds one of these; a test sees to it."""
MAX_FRAMEWORK_LINES: Final = 3000
"""Lines of a file from which its framework is told."""
_NEW_RECORD: Final = re.compile(
    r"Traceback \(most|^\s*File \"|^\s*iteration +[0-9]|\) memory \([MG]B\)"
)


@dataclass(slots=True, kw_only=True)
class _Stream:
    """State of one rank's lines."""

    frames: list[Frame] = field(default_factory=list)
    frame_lines: list[int] = field(default_factory=list)
    pending: list[Line] = field(default_factory=list)
    pending_row: EventRow | None = None
    pending_order: int = 0
    exception: str = ""


class LogReader:
    """Reads the excerpts of one file into an observation that several files share."""

    def __init__(self, path: str, observation: Observation, *, prose: bool) -> None:
        self.seen = observation
        self.file = FileObservation(path=path)
        observation.files.append(self.file)
        self.path = path
        self.prose = prose
        self._rank = rank_of_path(path)
        self._streams: dict[str, _Stream] = {}
        self._config = ConfigCollector()
        self._iteration: int | None = None
        self._order = sum(file.lines for file in observation.files) + len(observation.files) * 10**9
        self._time: str | None = None
        self._latest: _Stream | None = None

    def read(self, excerpts: Iterable[Excerpt]) -> None:
        """Read all excerpts, then finish."""
        for excerpt in excerpts:
            text = excerpt.data.decode("utf-8", "replace")
            for offset, raw in enumerate(text.split("\n")):
                self.line(_shortened(raw), excerpt.first_line + offset)
        self.finish()

    def line(self, raw: str, number: int) -> None:
        """Read one line."""
        if "\r" in raw:  # a progress bar repainted the line
            raw = raw.rstrip("\r").rsplit("\r", 1)[-1]
        if not raw.strip():
            self._config.end_block(self.seen)
            return
        line = read_line(raw, number, self._rank)
        if line.time is not None:
            self._time = line.time
        self._order += 1
        self.file.lines += 1
        stream = self._streams.get(line.key)
        if stream is None:
            if len(self._streams) > 8192:
                self._streams.clear()
            stream = self._streams[line.key] = _Stream()
        if stream.pending and not self._continues(stream, line):
            self._flush(stream)
        if self._traceback(stream, line) or self._training(line):
            return
        self._config.line(line.text, self.seen)
        self._words(line)
        self._failure(stream, line)

    def finish(self) -> None:
        """Read what is still waiting for more lines."""
        for stream in self._streams.values():
            if stream.pending:
                self._flush(stream)
        self._config.end_block(self.seen)

    def _traceback(self, stream: _Stream, line: Line) -> bool:
        """Take traceback headers and frames."""
        frame = _FRAME.match(line.text)
        if frame is not None:
            if len(stream.frames) < MAX_FRAMES:
                stream.frames.append(Frame(frame[1], int(frame[2]), frame[3].strip()))
                stream.frame_lines.append(line.number)
                self._latest = stream
            return True
        if _TRACEBACK.search(line.text) is not None:
            stream.frames, stream.frame_lines = [], []
            return True
        return False

    def _training(self, line: Line) -> bool:
        """Take progress and memory lines."""
        text = line.text
        if " memory (" in text or "after " in text:
            report = read_memory(text)
            if report is not None:
                rank = report.rank if report.rank is not None else line.rank
                series = self.seen.memory.setdefault((self.path, rank), [])
                if len(series) < MAX_SERIES:
                    series.append((report, self._place(line)))
                self.file.frameworks["megatron"] += 1
                return True
        if "iteration" in text:
            step = read_iteration(text)
            if step is not None:
                self._step(step, line)
                return True
        if "Theoretical memory" in text:
            self.seen.theory = read_theory(text) or self.seen.theory
        return False

    def _step(self, step: IterationLine, line: Line) -> None:
        steps = self.file.steps
        self._iteration = step.iteration
        steps.final_iteration, steps.planned = step.iteration, step.total
        steps.nan, steps.skipped = max(steps.nan, step.nan), max(steps.skipped, step.skipped)
        self.file.frameworks["megatron"] += 1
        if step.milliseconds is None:
            return
        entry = (step.iteration, step.milliseconds, self._place(line))
        if len(steps.first) < 64:
            steps.first.append(entry)
        else:
            steps.last.append(entry)
            if len(steps.last) > 128:
                del steps.last[:64]

    def _words(self, line: Line) -> None:
        """Take what the words of a line give away."""
        text = line.text
        if self.file.lines <= MAX_FRAMEWORK_LINES:
            for name, pattern in _FRAMEWORKS:
                if pattern.search(text) is not None:
                    self.file.frameworks[name] += 1
            if is_other_progress(text):
                self.file.progress_lines += 1
        if "memory is" in text and len(self.seen.tips) < 100 and _TIP.search(text) is not None:
            self.seen.tips.append(self._place(line))
        elif (
            "ALLOC_CONF" in text
            and self.seen.expandable_segments is None
            and _EXPANDABLE_ON.search(text)
        ):
            self.seen.expandable_segments = self._place(line)
        if self.prose and not line.prefixed:
            self._sentence(line)

    def _sentence(self, line: Line) -> None:
        text = line.text
        if _NO_ERROR.search(text) is not None:
            self.seen.says_no_error = self._place(line)
        if _TIP.search(text) is not None or not (is_prose(text) or _EXCEPTION.match(text)):
            return
        place = self._place(line)
        self.seen.phrases += [(hit, place) for hit in read_phrases(text, line.number)]
        stage = stage_in_prose(text)
        if stage is not Stage.UNKNOWN:
            self.seen.prose_stages.append((stage, place))

    def _failure(self, stream: _Stream, line: Line) -> None:
        """Take a line that says that something failed."""
        text = line.text
        if not stream.pending and not self.prose and _HINT.search(text) is None:
            return
        exception = _EXCEPTION.match(text)
        if stream.pending:
            stream.pending.append(line)
            return
        row = read_event(text)
        head = (
            HEADS.search(text) is not None
            and _MENTION_ONLY.search(text) is None
            and _TIP.match(text.strip()) is None
        )
        if row is None and not head:
            if exception is not None and not exception[1].endswith("Warning"):
                self._crash(stream, line, exception[1])
            return
        if not stream.pending:
            stream.pending = [line]
            stream.pending_order = self._order
        stream.pending_row = stream.pending_row or row
        stream.exception = exception[1] if exception else stream.exception
        if len(stream.pending) == 1 and _complete(text):
            self._flush(stream)

    def _continues(self, stream: _Stream, line: Line) -> bool:
        """Tell whether a line still belongs to the message that is being collected."""
        if len(stream.pending) >= MAX_PENDING or line.number > stream.pending[-1].number + 64:
            return False
        if _NEW_RECORD.search(line.text) is not None:
            return False
        context = stream.pending_row is not None and stream.pending_row.kind is Kind.NCCL_CONTEXT
        if (HEADS.search(line.text) is not None and not context) or _EXCEPTION.match(
            line.text
        ) is not None:
            return False
        return not _complete(" ".join(item.text.strip() for item in stream.pending))

    def _flush(self, stream: _Stream) -> None:
        lines, stream.pending = stream.pending, []
        row, stream.pending_row = stream.pending_row, None
        exception, stream.exception = stream.exception, ""
        origin = self._origin(stream, lines[0])
        frames, frame_lines = tuple(origin.frames), tuple(origin.frame_lines)
        text = " ".join(item.text.strip() for item in lines)
        message = read_message(text)
        if row is not None and row.kind is Kind.NCCL_CONTEXT:
            row = read_event(text) or row  # the last-error lines decide
        place = self._place(lines[0], stream.pending_order)
        if row is not None and (
            message is None or message.numbers_known == 0 or row.kind is Kind.HOST
        ):
            self._event(row, place, frames)
        elif message is not None and self._counts(message, exception, frames, lines[0]):
            if not frames:
                frames, frame_lines = self._wrapped(place)
            self.seen.oom_count += 1
            if len(self.seen.ooms) < MAX_OOMS:
                self.seen.ooms.append(
                    Oom(
                        message=message,
                        place=place,
                        frames=frames,
                        frame_lines=frame_lines,
                        iteration=self._iteration,
                        exception=exception,
                    )
                )
        origin.frames, origin.frame_lines = [], []

    def _origin(self, stream: _Stream, line: Line) -> _Stream:
        """Return the stream whose traceback a message ends: a wrapper may drop the prefix before it."""
        latest = self._latest
        if stream.frames or line.prefixed or latest is None or not latest.frame_lines:
            return stream
        return latest if 0 < line.number - latest.frame_lines[-1] <= NEAR else stream

    def _wrapped(self, place: Place) -> tuple[tuple[Frame, ...], tuple[int, ...]]:
        """Take over the stack of a wrapper's line that stands right before the message itself."""
        last = self.seen.ooms[-1] if self.seen.ooms else None
        if last is None or last.message.numbers_known or last.place.file != place.file:
            return (), ()
        if not 0 < place.line - last.place.line <= NEAR:
            return (), ()
        self.seen.ooms.pop()
        self.seen.oom_count -= 1
        return last.frames, last.frame_lines

    def _counts(
        self, message: OomMessage, exception: str, frames: tuple[Frame, ...], line: Line
    ) -> bool:
        """Tell whether a message without numbers is one, or only talk of it."""
        if message.shape not in {"bare", "tensorflow", "cuda-malloc-async-short"}:
            return True
        return bool(exception or frames) or self.prose or "CUDA out of memory" in line.text

    def _event(self, row: EventRow, place: Place, frames: tuple[Frame, ...]) -> None:
        self.seen.event_counts[row.id] += 1
        if len(self.seen.events) < MAX_EVENTS:
            self.seen.events.append(
                Event(row=row, place=place, frames=frames, iteration=self._iteration)
            )

    def _crash(self, stream: _Stream, line: Line, exception: str) -> None:
        if len(self.seen.crashes) < MAX_EVENTS:
            self.seen.crashes.append(
                Crash(exception=exception, place=self._place(line), frames=tuple(stream.frames))
            )
        stream.frames, stream.frame_lines = [], []

    def _place(self, line: Line, order: int | None = None) -> Place:
        return Place(
            file=self.path,
            line=line.number,
            text=line.raw.strip(),
            order=self._order if order is None else order,
            time=line.time,
            rank=line.rank,
        )


def _shortened(raw: str) -> str:
    """Cut an endless line around the first thing in it that says something."""
    if len(raw) <= MAX_LINE:
        return raw
    match = HEADS.search(raw)
    start = max(match.start() - 200, 0) if match is not None else 0
    return raw[start : start + MAX_LINE]


def _complete(text: str) -> bool:
    """Tell whether a message has said all it will say."""
    return (
        "reserved by PyTorch but unallocated" in text
        or "in total by PyTorch)" in text
        or "cached)" in text
    )
