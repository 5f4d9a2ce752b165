"""What the readers saw, before anybody judges it."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from recompute.diagnose.events import EventRow, Kind
from recompute.diagnose.frames import Frame, Owner, owner_of, stage_of
from recompute.diagnose.message_shapes import OomMessage
from recompute.diagnose.phrases import PhraseHit
from recompute.diagnose.training_lines import MemoryReport, TheoreticalLine
from recompute.diagnose.types import Evidence, Stage

MAX_TEXT: int = 400
"""Characters of a line that are kept as evidence."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where a line stands, and in which order it came."""

    file: str
    line: int
    text: str
    order: int
    """Over all inputs, in reading order."""
    time: str | None = None
    rank: int | None = None

    def evidence(self) -> Evidence:
        """Quote the line."""
        return Evidence(file=self.file, line=self.line, text=self.text[:MAX_TEXT])


@dataclass(frozen=True, slots=True, kw_only=True)
class Oom:
    """One out-of-memory message with its surroundings."""

    message: OomMessage
    place: Place
    frames: tuple[Frame, ...] = ()
    """Innermost last, as Python prints them."""
    frame_lines: tuple[int, ...] = ()
    """Line in the log of each frame."""
    iteration: int | None = None
    """Last iteration that had been reported."""
    exception: str = ""

    @property
    def stage(self) -> Stage:
        """Stage by its stack."""
        return stage_of(self.frames)[0]

    def owner_evidence(self) -> Evidence | None:
        """Quote the frame that shows the owner."""
        frame = self.owner[1]
        if frame is None or len(self.frame_lines) != len(self.frames):
            return None
        at = max(index for index, other in enumerate(self.frames) if other == frame)
        text = f'File "{frame.file}", line {frame.line}, in {frame.function}'
        return Evidence(file=self.place.file, line=self.frame_lines[at], text=text[:MAX_TEXT])

    @property
    def owner(self) -> tuple[Owner, Frame | None]:
        """Owner by its stack, and the frame that shows it."""
        return owner_of(reversed(self.frames))


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """One event line with its surroundings."""

    row: EventRow
    place: Place
    frames: tuple[Frame, ...] = ()
    iteration: int | None = None

    @property
    def stage(self) -> Stage:
        """Stage by its row, else by its stack."""
        return self.row.stage if self.row.stage is not Stage.UNKNOWN else stage_of(self.frames)[0]


@dataclass(frozen=True, slots=True, kw_only=True)
class Crash:
    """A traceback that is none of the above."""

    exception: str
    place: Place
    frames: tuple[Frame, ...] = ()

    @property
    def stage(self) -> Stage:
        """Stage by its stack."""
        return stage_of(self.frames)[0]


@dataclass(slots=True, kw_only=True)
class StepSeries:
    """Iteration times of one log: the first, the last, and how many lie between."""

    first: list[tuple[int, float, Place]] = field(default_factory=list)
    last: list[tuple[int, float, Place]] = field(default_factory=list)
    nan: int = 0
    skipped: int = 0
    final_iteration: int | None = None
    planned: int | None = None


@dataclass(slots=True, kw_only=True)
class FileObservation:
    """What one input held."""

    path: str
    size: int = 0
    lines: int = 0
    binary: bool = False
    cut: bool = False
    """It ends in the middle of its compressed data."""
    steps: StepSeries = field(default_factory=StepSeries)
    progress_lines: int = 0
    frameworks: Counter[str] = field(default_factory=Counter)


@dataclass(slots=True, kw_only=True)
class Observation:
    """Everything that was read."""

    files: list[FileObservation] = field(default_factory=list)
    ooms: list[Oom] = field(default_factory=list)
    oom_count: int = 0
    """Messages seen, those beyond the kept ones included."""
    events: list[Event] = field(default_factory=list)
    event_counts: Counter[str] = field(default_factory=Counter)
    crashes: list[Crash] = field(default_factory=list)
    memory: dict[tuple[str, int | None], list[tuple[MemoryReport, Place]]] = field(
        default_factory=dict
    )
    """By file and rank, in order of iteration."""
    theory: TheoreticalLine | None = None
    phrases: list[tuple[PhraseHit, Place]] = field(default_factory=list)
    prose_stages: list[tuple[Stage, Place]] = field(default_factory=list)
    says_no_error: Place | None = None
    tips: list[Place] = field(default_factory=list)
    """Allocator tips: fixed text that proves nothing."""
    expandable_segments: Place | None = None
    """A line that shows expandable segments are already on."""
    arguments: dict[str, str] = field(default_factory=dict)
    """Megatron-LM's dump: argument -> printed value."""
    summary: dict[str, dict[str, str]] = field(default_factory=dict)
    """Bridge's summary of non-default values: section -> field -> printed value."""
    yaml_text: str = ""
    """Bridge's whole configuration."""

    def of_kind(self, *kinds: Kind) -> list[Event]:
        """Return the events of some kinds, earliest first."""
        return sorted((event for event in self.events if event.row.kind in kinds), key=when)

    @property
    def speaks_of_oom(self) -> bool:
        """Whether anything says that memory ran out."""
        return bool(self.ooms) or bool(
            self.of_kind(Kind.NON_TORCH, Kind.DRIVER, Kind.HOST, Kind.SLEEPING_ENGINE)
        )


def when(item: Oom | Event | Crash) -> tuple[str, int]:
    """Sort key: time where the line has one, else reading order."""
    return (item.place.time or "", item.place.order)


def first_oom(ooms: list[Oom]) -> Oom | None:
    """Return the message of the rank that failed first; numbers and a stack break a tie."""
    if not ooms:
        return None
    with_time = [oom for oom in ooms if oom.place.time is not None]
    if with_time and len(with_time) == len(ooms):
        return min(
            ooms,
            key=lambda oom: (oom.place.time or "", -oom.message.numbers_known, oom.place.order),
        )
    if len({oom.place.file for oom in ooms}) > 1:
        return max(
            ooms,
            key=lambda oom: (
                oom.message.numbers_known,
                len(oom.frames) > 0,
                oom.message.allocated or 0,
                -oom.place.order,
            ),
        )
    complete = [oom for oom in ooms if oom.message.numbers_known >= 3 or oom.frames]
    some = [oom for oom in ooms if oom.message.numbers_known]
    return min(complete or some or ooms, key=lambda oom: oom.place.order)
