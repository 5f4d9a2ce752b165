"""Job and revision in, findings out. Pure, and fast enough for the planner's inner loop."""

from __future__ import annotations

import functools
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from recompute.config.choice import with_choice
from recompute.config.revision import Revision
from recompute.rules.case import Case, Tree, case_of
from recompute.rules.edits import apply, overrides_of, value_of
from recompute.rules.table import RULES
from recompute.rules.types import SEVERITIES, Edit, Finding, Rule

if TYPE_CHECKING:
    from recompute.config.choice import RecomputeChoice
    from recompute.config.schema import JobConfig, ModelConfig

MAX_REPAIRS: Final = 40
"""Fixes applied in a row at most; each rule's own tests show that its fix ends it."""

RANK: Final = {severity: position for position, severity in enumerate(SEVERITIES)}


def check(
    job: JobConfig,
    revision: Revision,
    *,
    bridge: str | None = None,
    tree: Tree | None = None,
    fixes: bool = True,
) -> tuple[Finding, ...]:
    """Return what the rules say about ``job`` on ``revision``, most urgent first.

    Args:
        job: The job. Illegal recompute values are what the rules are for; they may be of any type.
        revision: The Megatron Core revision to check against.
        bridge: The Megatron Bridge version, where it is known.
        tree: Labels and fields of the user's own source; they replace the revision's.
        fixes: Work out overrides. All overrides of one report together give a job without errors.

    Returns:
        One finding for each rule that concerns the job.
    """
    case = case_of(job, revision.name, bridge, tree)
    hits = matching(case)
    if not hits:
        return ()
    hits.sort(key=lambda rule: RANK[rule.severity])
    edits = _edits(hits, job, revision, bridge=bridge, tree=tree) if fixes else {}
    return tuple(_finding(rule, case, edits.get(rule.id, {})) for rule in hits)


def legal(job: JobConfig, choice: RecomputeChoice, revision: Revision) -> bool:
    """Say whether ``job`` with ``choice`` has no error on ``revision``."""
    return not has_error(with_choice(job, choice), revision)


def has_error(job: JobConfig, revision: Revision, *, bridge: str | None = None) -> bool:
    """Say whether any rule of severity ``error`` concerns the job."""
    case = case_of(job, revision.name, bridge)
    return any(
        rule.severity == "error" and rule.when(case) for rule in rules_for(*_key(case), errors=True)
    )


def matching(case: Case) -> list[Rule]:
    """Return the rules that concern a case, in table order."""
    return [rule for rule in rules_for(*_key(case)) if rule.when(case)]


@functools.lru_cache(maxsize=512)
def rules_for(
    revision: str, entry: str, declared: str, effective: str, *, errors: bool = False
) -> tuple[Rule, ...]:
    """Return the rules that can concern such a job, in table order."""
    gates = {"any"}
    if declared == "selective":
        gates.add("declared-selective")
    if effective in {"selective", "full"}:
        gates.add(effective)
    return tuple(
        rule
        for rule in RULES
        if revision in rule.revisions
        and entry in rule.entries
        and rule.gate in gates
        and (not errors or rule.severity == "error")
    )


def repair(
    job: JobConfig, revision: Revision, *, bridge: str | None = None, tree: Tree | None = None
) -> JobConfig:
    """Return the job with the fix of every finding applied, errors first, until none is left."""
    return _repaired(job, revision, bridge, tree)[0]


def _repaired(
    job: JobConfig, revision: Revision, bridge: str | None, tree: Tree | None
) -> tuple[JobConfig, frozenset[str]]:
    """Return the repaired job and the fields that were edited on the way."""
    done: set[tuple[str, tuple[str, ...]]] = set()
    edited: set[str] = set()
    for _ in range(MAX_REPAIRS):
        case = case_of(job, revision.name, bridge, tree)
        step = _next_step(case, done)
        if step is None:
            break
        edited |= set(step)
        job = apply(job, step)
    return job, frozenset(edited)


def _next_step(case: Case, done: set[tuple[str, tuple[str, ...]]]) -> Edit | None:
    for rule in sorted(matching(case), key=lambda rule: RANK[rule.severity]):
        if rule.fix is None:
            continue
        edit = rule.fix(case)
        key = (rule.id, overrides_of(edit))
        same = all(value_of(case.job, name) == value for name, value in edit.items())
        if key not in done and not same:
            done.add(key)
            return edit
    return None


def _edits(
    hits: list[Rule],
    job: JobConfig,
    revision: Revision,
    *,
    bridge: str | None,
    tree: Tree | None,
) -> dict[str, Edit]:
    """Return what each finding asks to change, so that all of it together leaves no error.

    A fix can bring up another finding; what that one changes goes with the first fix of the report.
    """
    case = case_of(job, revision.name, bridge, tree)
    own = {rule.id: set(rule.fix(case)) for rule in hits if rule.fix is not None}
    if not own:
        return {}
    final, edited = _repaired(job, revision, bridge, tree)
    claimed = {name for names in own.values() for name in names}
    next(iter(own.values())).update(edited - claimed)
    return {
        rule: {
            name: value
            for name in sorted(names)
            if (value := value_of(final, name)) != value_of(job, name)
        }
        for rule, names in own.items()
    }


class Shown:
    """The model section with its values as a job file writes them, for messages."""

    __slots__ = ("_model",)

    def __init__(self, model: ModelConfig) -> None:
        self._model = model

    def __getattr__(self, name: str) -> object:
        """Return a list, null or truth value as YAML writes it, any other value as it is."""
        return shown(getattr(self._model, name))


def shown(value: object) -> object:
    """Return a value as YAML writes it, where Python writes it otherwise."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, tuple):
        return "[" + ", ".join(_entry(item) for item in value) + "]"
    return value


def _entry(item: object) -> str:
    text = str(shown(item))
    return repr(text) if set(text) & set(", ") and not isinstance(item, tuple) else text


def _key(case: Case) -> tuple[str, str, str, str]:
    return case.name, case.entry, case.declared, case.effective


def _finding(rule: Rule, case: Case, edit: Edit) -> Finding:
    return Finding(
        rule=rule.id,
        severity=rule.severity,
        message=rule.message.format(
            m=Shown(case.model), c=case, d=None if rule.detail is None else rule.detail(case)
        ),
        fields=rule.fields,
        overrides=overrides_of(edit, case.job),
        source=rule.source.at(case.name),
        raised=rule.raised,
        advice=rule.advice,
    )


def unconfirmed(findings: tuple[Finding, ...], changed: frozenset[str]) -> tuple[Finding, ...]:
    """Mark the findings of the rules whose source differs from what was read."""
    return tuple(
        replace(finding, confirmed=False) if finding.rule in changed else finding
        for finding in findings
    )
