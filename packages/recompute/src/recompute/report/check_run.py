"""``check`` from end to end: which Megatron is meant, what it says, which rules it confirms."""

from __future__ import annotations

import ast
import dataclasses
import json
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from recompute.config.normalize import revision_of
from recompute.config.revision import Revision, parse_bridge_version, parse_revision
from recompute.config.schema import JobConfig
from recompute.report.check_document import Checked, with_assumptions
from recompute.rules.check import check as findings_of
from recompute.rules.check import unconfirmed
from recompute.rules.types import Rule

BRIDGE_PREFIXES = ("bridge-", "bridge:", "bridge@")


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """What ``--mcore`` means."""

    revision: Revision
    version: str | None = None
    bridge: str | None = None
    tree: Any = None
    """A :class:`~recompute.config.megatron_tree.MegatronTree`, when a path was given."""


def target_of(text: str) -> Target:
    """Read ``--mcore``: a version, ``bridge-VERSION``, or a path to a source tree.

    Raises:
        ConfigError: ``unknown-revision`` or ``not-megatron``.
    """
    from recompute.config.megatron_tree import looks_like_path, read_tree

    if looks_like_path(text):
        tree = read_tree(text)
        return Target(revision=tree.revision, version=tree.version, tree=tree)
    name = text.strip().lower()
    for prefix in BRIDGE_PREFIXES:
        if name.startswith(prefix):
            bridge = name.removeprefix(prefix)
            return Target(revision=parse_bridge_version(bridge), version=text, bridge=bridge)
    return Target(revision=parse_revision(text), version=text)


def check_job(job: JobConfig, mcore: str | None = None) -> Checked:
    """Check a job as loaded.

    Args:
        job: Not normalized: rules look at the job as given.
        mcore: Version, ``bridge-VERSION`` or path; the job's own revision when left out.

    Raises:
        ConfigError: ``unknown-revision`` or ``not-megatron``.
    """
    if mcore is None:
        revision, assumption = revision_of(job)
        extra = () if assumption is None else ((assumption.id, assumption.text),)
        return _answer(job, Target(revision=revision), *extra)
    target = target_of(mcore)
    if target.tree is not None:
        return _against_tree(job, target)
    extra = ()
    if target.bridge is not None:
        text = f"Megatron Core {target.revision.name}, which Megatron Bridge {target.bridge} pins"
        extra = (("mcore-revision", text),)
    return _answer(job, target, *extra)


def _answer(job: JobConfig, target: Target, *extra: tuple[str, str]) -> Checked:
    job = dataclasses.replace(job, assumptions=with_assumptions(job, *extra))
    return Checked(
        job=job,
        mcore=target.revision.name,
        version=target.version,
        findings=findings_of(job, target.revision, bridge=target.bridge),
    )


def _against_tree(job: JobConfig, target: Target) -> Checked:
    from recompute.rules.case import Tree

    tree = target.tree
    job, texts = _with_defaults(job, tree)
    if not tree.exact:
        text = (
            f"version {tree.version} is newer than every revision that was read: the rules of "
            f"{target.revision.name} are the base, and those that it does not confirm are marked"
        )
        texts = (*texts, ("mcore-newer", text))
    facts = Tree(labels=tree.labels, fields=tree.fields)
    findings = findings_of(job, target.revision, tree=facts)
    changed = changed_rules(tree, [finding.rule for finding in findings])
    job = dataclasses.replace(job, assumptions=with_assumptions(job, *texts))
    return Checked(
        job=job,
        mcore=target.revision.name,
        version=tree.version,
        source=tree.path,
        findings=unconfirmed(findings, changed),
    )


def _with_defaults(job: JobConfig, tree: Any) -> tuple[JobConfig, tuple[tuple[str, str], ...]]:
    """Take over the literal defaults of the source for fields that the job does not give."""
    ours = type(job.model)()
    edits: dict[str, Any] = {
        name: value
        for name, value in tree.defaults.items()
        if f"model.{name}" not in job.given
        and hasattr(ours, name)
        and isinstance(value, bool | int | float | str)
        and type(value) is type(getattr(ours, name))
        and value != getattr(ours, name)
        and getattr(job.model, name) == getattr(ours, name)
    }
    if not edits:
        return job, ()
    job = dataclasses.replace(job, model=dataclasses.replace(job.model, **edits))
    names = ", ".join(f"{name}={value}" for name, value in sorted(edits.items()))
    return job, (("source-defaults", f"defaults of the source that differ from 0.19: {names}"),)


def changed_rules(tree: Any, names: list[str]) -> frozenset[str]:
    """Return those of the rules whose source in ``tree`` differs from what was read."""
    from recompute.rules.anchors import anchored, changed
    from recompute.rules.table import BY_ID

    rules: tuple[Rule, ...] = tuple(BY_ID[name] for name in names if anchored(BY_ID[name]))
    modules: dict[str, ast.Module | None] = {}
    for rule in rules:
        path = rule.source.path
        if path not in modules:
            modules[path] = _parsed(tree.read(path))
    return changed(rules, known_anchors(), tree.revision.name, modules)


def known_anchors() -> Mapping[str, Mapping[str, str]]:
    """Return the fingerprints that ``tools/rule_anchors.py`` wrote: rule id -> revision -> hash."""
    from recompute import rules

    assert rules.__file__ is not None
    text = Path(rules.__file__).with_name("anchors.json").read_text(encoding="utf-8")
    table: Mapping[str, Mapping[str, str]] = json.loads(text)
    return table


def _parsed(text: str | None) -> ast.Module | None:
    if text is None:
        return None
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None
