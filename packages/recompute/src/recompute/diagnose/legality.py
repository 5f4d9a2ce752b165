"""Whether an action's overrides mean something on a job, and whether the rules allow them."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import TYPE_CHECKING, Any, Final

from recompute.config.choice import choice_of
from recompute.errors import RecomputeError

if TYPE_CHECKING:
    from recompute.config.revision import Revision
    from recompute.config.schema import JobConfig

_SECTIONS: Final = ("model", "train", "optimizer", "ddp")


def split(override: str) -> tuple[str, str, str] | None:
    """Split ``section.field=value``; ``None`` for an environment assignment or a flag."""
    name, found, value = override.partition("=")
    section, dot, field = name.partition(".")
    return (section, field, value) if found and dot and section.islower() else None


def value_of(text: str) -> Any:
    """Read the value of an override as our table writes them."""
    if text in {"true", "false"}:
        return text == "true"
    if text.startswith("["):
        return tuple(part for part in text[1:-1].split(",") if part)
    try:
        return int(text)
    except ValueError:
        pass
    try:
        return float(text)
    except ValueError:
        return text


def applied(job: JobConfig, overrides: tuple[str, ...]) -> JobConfig | None:
    """Return the job with the overrides, or ``None`` where one names nothing that the job has."""
    for override in overrides:
        parts = split(override)
        if parts is None or parts[0] not in _SECTIONS:
            continue
        section: Any = getattr(job, parts[0])
        if section is None:
            return None
        if parts[1] not in {field.name for field in fields(section)}:
            return None
        values: dict[str, Any] = {parts[1]: value_of(parts[2])}
        changed: Any = replace(section, **values)
        job = replace(job, **{parts[0]: changed})
    if any(override.startswith("model.recompute_modules=") for override in overrides):
        job = replace(
            job, model=replace(job.model, recompute_method=None, recompute_num_layers=None)
        )
    return job


def already_set(job: JobConfig, overrides: tuple[str, ...]) -> bool:
    """Tell whether every override of the job's own sections is what the job has already."""
    own = [parts for parts in map(split, overrides) if parts is not None and parts[0] in _SECTIONS]
    if not own or len(own) != len(overrides):
        return False
    changed = applied(job, overrides)
    if changed is None:
        return False
    if any(field.startswith("recompute_") for _, field, _ in own):
        return choice_of(changed) == choice_of(job)
    return changed == job


def revision_for(job: JobConfig) -> Revision:
    """Return the revision that a job names, or the newest release."""
    from recompute.config.revision import NEWEST_RELEASE, parse_bridge_version, parse_revision

    framework = job.framework
    try:
        if framework.megatron_core:
            return parse_revision(str(framework.megatron_core))
        if framework.megatron_bridge:
            return parse_bridge_version(str(framework.megatron_bridge))
    except RecomputeError:
        pass
    return NEWEST_RELEASE


def why_illegal(job: JobConfig, overrides: tuple[str, ...], revision: Revision) -> str | None:
    """Return the first rule that the overrides newly break on the job, as text, or ``None``."""
    from recompute.rules.check import check

    changed = applied(job, overrides)
    if changed is None:
        return "the job has no such section or field"
    if changed == job:
        return None
    before = {
        finding.rule for finding in check(job, revision, fixes=False) if finding.severity == "error"
    }
    for finding in check(changed, revision, fixes=False):
        if finding.severity == "error" and finding.rule not in before:
            return f"{finding.rule}: {finding.message}"
    return None
