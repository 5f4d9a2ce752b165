"""Two runs that both went out of memory: did the second only get further?"""

from __future__ import annotations

from typing import TYPE_CHECKING

from recompute.diagnose.observation import Observation, Oom, first_oom

if TYPE_CHECKING:
    from recompute.config.schema import JobConfig
    from recompute.diagnose.run import Answer


def moved_wall(seen: Observation) -> str | None:
    """Compare two logs that contradict nothing, read together.

    Args:
        seen: What was read in both.
    """
    per_file = {
        file.path: [oom for oom in seen.ooms if oom.place.file == file.path] for file in seen.files
    }
    logs = [(path, first_oom(ooms)) for path, ooms in per_file.items() if ooms]
    if len(logs) != 2 or len(seen.files) != 2:
        return None
    return _moved(*logs)


def moved_between(runs: tuple[Answer, ...]) -> str | None:
    """Compare the two runs of one comparison: the same job, but for its recompute choice.

    Logs that print no configuration are taken for such a pair. The run without recompute is the control;
    where nothing tells, it is the first one.

    Args:
        runs: Each read by itself.
    """
    if len(runs) != 2 or any(run.seen is None for run in runs):
        return None
    control, candidate = runs
    if control.job is not None and candidate.job is not None:
        from recompute.config.choice import NO_RECOMPUTE, choice_of

        if _apart_from_recompute(control.job) != _apart_from_recompute(candidate.job):
            return None
        if choice_of(candidate.job) == NO_RECOMPUTE != choice_of(control.job):
            control, candidate = candidate, control
    ends = [
        (run.sources[0].path, first_oom(run.seen.ooms)) for run in (control, candidate) if run.seen
    ]
    return _moved(*ends)


def _moved(old: tuple[str, Oom | None], new: tuple[str, Oom | None]) -> str | None:
    """Return the sentence, where the same rank failed in another place."""
    (old_path, before), (new_path, after) = old, new
    if before is None or after is None:
        return None
    ranks = {before.place.rank, after.place.rank}
    if len(ranks) > 1 and None not in ranks:
        return None
    here, there = (before.stage, before.iteration or 0), (after.stage, after.iteration or 0)
    if here == there:
        return None
    return f"moved the wall: {old_path} failed in {here[0]} after iteration {here[1]}, {new_path} in {there[0]} after iteration {there[1]}; getting further is not a pass"


def _apart_from_recompute(job: JobConfig) -> tuple[object, ...]:
    from recompute.config.choice import NO_RECOMPUTE, with_choice

    plain = with_choice(job, NO_RECOMPUTE)
    return plain.model, plain.train, plain.optimizer, plain.ddp, plain.peft, plain.hardware
