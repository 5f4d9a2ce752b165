"""Verdicts from what people write, and what is left when nothing failed."""

from __future__ import annotations

import re
from typing import Final

from recompute.diagnose.events import Kind
from recompute.diagnose.finding import Finding, judged
from recompute.diagnose.observation import Observation
from recompute.diagnose.phrases import PHRASES, PhraseHit
from recompute.diagnose.types import Stage, Verdict

_LOGGED_TWICE: Final = re.compile(
    r"(?:aux|balanc|router|z[_-]?loss).{0,80}(?:doubl|twice|2x)", re.IGNORECASE
)


def phrase(seen: Observation) -> Finding | None:
    """What the sentence says, where nothing stronger speaks."""
    oomlike = seen.speaks_of_oom
    ranked = sorted(seen.phrases, key=lambda item: (_row_index(item[0]), item[1].order))
    for hit, place in ranked:
        if (hit.row.needs == "oom" and not oomlike) or (hit.row.needs == "no_oom" and oomlike):
            continue
        if hit.row.verdict is Verdict.NOT_OOM and seen.of_kind(Kind.RECOMPUTE_FAULT):
            continue
        rule = hit.row.id
        if rule == "says-numerics" and _LOGGED_TWICE.search(place.text) is not None:
            rule = "logged-loss-doubled"
        oom = judged(seen)
        return Finding(
            rule=rule,
            verdict=hit.row.verdict,
            stage=_phrase_stage(seen, hit),
            places=(place, *((oom.place,) if oom else ())),
            oom=oom,
            rank=oom.place.rank if oom else None,
            summary="by what the report says",
        )
    return None


def tip_only(seen: Observation) -> Finding | None:
    """The allocator's tip without its message."""
    if not seen.tips or seen.ooms:
        return None
    return Finding(
        rule="tip-only",
        verdict=Verdict.UNKNOWN,
        places=(seen.tips[0],),
        rank=seen.tips[0].rank,
        summary="only the fixed tip is quoted; it says nothing about this run",
    )


def no_error_stated(seen: Observation) -> Finding | None:
    """The report itself says that nothing failed."""
    if seen.says_no_error is None or seen.speaks_of_oom:
        return None
    return Finding(
        rule="no-error-stated",
        verdict=Verdict.NOT_OOM,
        places=(seen.says_no_error,),
        summary="the report says that nothing failed",
    )


def failure_in_prose(seen: Observation) -> Finding | None:
    """A sentence says where it failed and nothing says why."""
    if not seen.prose_stages:
        return None
    stage, place = seen.prose_stages[-1]
    rule = "failure-before-model" if stage is Stage.DATA else "failure-unexplained"
    return Finding(
        rule=rule,
        verdict=Verdict.UNKNOWN,
        stage=stage,
        places=(place,),
        summary="it failed there; nothing shows why",
    )


def healthy(seen: Observation) -> Finding | None:
    """Training progressed and nothing failed."""
    progressed = [file for file in seen.files if file.steps.final_iteration is not None]
    if progressed:
        file = progressed[-1]
        places = tuple(entry[2] for entry in (file.steps.last or file.steps.first)[-1:])
        done = f"iteration {file.steps.final_iteration} of {file.steps.planned}"
        return Finding(
            rule="healthy",
            verdict=Verdict.NOT_OOM,
            places=places,
            summary=f"no failure is shown; the log ends at {done}",
        )
    read = sum(file.lines for file in seen.files)
    words = sum(file.progress_lines + sum(file.frameworks.values()) for file in seen.files)
    if words or (read > 20 and not all(file.binary for file in seen.files)):
        return Finding(
            rule="no-failure-seen",
            verdict=Verdict.NOT_OOM,
            summary="no failure is shown in what was read",
        )
    return None


def _row_index(hit: PhraseHit) -> int:
    return PHRASES.index(hit.row)


def _phrase_stage(seen: Observation, hit: PhraseHit) -> Stage:
    oom = judged(seen)
    if oom is not None and oom.stage is not Stage.UNKNOWN:
        return oom.stage
    said = [(stage, where) for stage, where in seen.prose_stages if stage is not Stage.UNKNOWN]
    if hit.row.id in {"says-warm-up", "says-container"}:
        return hit.row.stage
    if hit.row.verdict is Verdict.OPTIMIZER_STATE and hit.row.id != "says-second-step":
        said = [
            item
            for item in said
            if item[0]
            in {Stage.OPTIMIZER_INIT, Stage.OPTIMIZER_STEP, Stage.FORWARD, Stage.BACKWARD}
        ]
    return said[-1][0] if said else hit.row.stage
