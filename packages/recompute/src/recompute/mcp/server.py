"""The server that agents speak to: every command is one tool that returns the command's document.

Tools read job files, logs and ledgers that they are named and nothing else; they write nothing and start nothing. An error
is the document ``recompute.error/1``, so that an agent sees code and hint instead of a traceback.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final

from recompute import __version__
from recompute.errors import ConfigError, RecomputeError

if TYPE_CHECKING:
    from mcp.server import MCPServer

    from recompute.config.schema import JobConfig

INSTRUCTIONS: Final = (
    "Activation recompute for Megatron Core and Megatron Bridge. Check a job before you change or "
    "launch it: check names what fails or does nothing on the exact revision, and the overrides to "
    "paste. explain says where the peak is, plan which choice is the cheapest that fits, compare what "
    "measured runs of the candidates say, diagnose why a run went out of memory. Always write recompute_modules out: null means core_attn, [] means no recompute."
)

Document = dict[str, Any]
Tool = Callable[..., Document]


def check(job: str, overrides: list[str] | None = None, mcore: str | None = None) -> Document:
    """Check a job's settings against one Megatron Core revision.

    Args:
        job: Path of a job file in any accepted form, or recipe:NAME.
        overrides: Hydra style, such as model.recompute_granularity=selective.
        mcore: A version (0.8 to 0.19, main, dev, pin), bridge-VERSION, or the path of a source tree.

    Returns:
        The document recompute.check/1: ok, findings with the fix of each, and where each was read.
    """
    from recompute.config.load import load
    from recompute.report.check_document import check_document
    from recompute.report.check_run import check_job

    return check_document(check_job(load(_named(job), *(overrides or ())), mcore))


def rules(mcore: str | None = None, rule: str | None = None) -> Document:
    """List the rules, all of them or those of one Megatron Core revision.

    Args:
        mcore: A version, bridge-VERSION, or the path of a source tree.
        rule: Only the rule with this id.

    Returns:
        The document recompute.rules/1.
    """
    from recompute.report.check_run import target_of
    from recompute.report.rules_document import rules_document
    from recompute.rules.diff import rules_of
    from recompute.rules.table import BY_ID, RULES

    if rule is not None and rule not in BY_ID:
        raise ConfigError("unknown-rule", f"no rule {rule[:60]!r}", hint="rules lists them")
    revision = None if mcore is None else target_of(mcore).revision.name
    chosen = RULES if revision is None else rules_of(revision)
    return rules_document([row for row in chosen if rule in (None, row.id)], revision)


def rules_diff(
    before: str, after: str, job: str | None = None, overrides: list[str] | None = None
) -> Document:
    """Say what changes from one Megatron Core revision to another, for every job or for one.

    Args:
        before: The revision that is left.
        after: The revision that is gone to.
        job: Path of a job file or recipe:NAME; its settings only.
        overrides: Hydra style.

    Returns:
        The document recompute.rules/1 with labels, fields and rules that differ.
    """
    from recompute.report.check_run import target_of
    from recompute.report.document import envelope
    from recompute.report.rules_document import diff_document
    from recompute.rules.diff import diff

    first, second = target_of(before).revision, target_of(after).revision
    if job is None:
        return diff_document(diff(first, second), first.name, second.name, None)
    from recompute.config.load import load

    loaded = load(_named(job), *(overrides or ()))
    identity = envelope("rules", loaded)["job"]
    return diff_document(diff(first, second, loaded), first.name, second.name, identity)


def show(job: str, overrides: list[str] | None = None, mcore: str | None = None) -> Document:
    """Say how a job is understood: every field, where it came from, what is filled in or assumed.

    Args:
        job: Path of a job file in any accepted form, or recipe:NAME.
        overrides: Hydra style.
        mcore: Fill in as this Megatron Core revision would.

    Returns:
        The document recompute.show/1; its yaml reads back to the same job.
    """
    from recompute.config.normalize import normalize
    from recompute.report.show_document import show_document

    return show_document(normalize(_read(job, overrides, mcore)))


def explain(
    job: str,
    overrides: list[str] | None = None,
    rank: int | None = None,
    mcore: str | None = None,
) -> Document:
    """Say where a job's memory peak is, what is alive there, and what each label would save and cost.

    Args:
        job: Path of a job file in any accepted form, or recipe:NAME.
        overrides: Hydra style, such as train.micro_batch_size=1.
        rank: Only the row of this global rank.
        mcore: Megatron Core revision that decides what is legal.

    Returns:
        The document recompute.explain/1: hot_rank, ranks with phases, labels. Sizes are bytes.
    """
    from recompute.report.explain_document import explain_document
    from recompute.search.explain import explain as explained

    return explain_document(explained(_read(job, overrides, mcore), rank=rank))


def plan(  # noqa: PLR0917 - agents name the arguments
    job: str,
    overrides: list[str] | None = None,
    budget: str | None = None,
    gpu: str | None = None,
    margin: str | None = None,
    per_layer: bool = False,
    top: int | None = 10,
    mcore: str | None = None,
) -> Document:
    """Choose the cheapest recompute that fits every rank, with the overrides to paste.

    Args:
        job: Path of a job file in any accepted form, or recipe:NAME.
        overrides: Hydra style.
        budget: Allocated bytes that every rank may reach, such as 76GiB (2^30) or 80GB (10^9).
        gpu: In place of a budget: a100-40gb a100-80gb h100-80gb h200 b200 b300 gb200 gb300 mi300x.
        margin: Kept free: 2GiB, 0.05 or 5%.
        per_layer: Also mix boundaries over layers and stages.
        top: How many alternatives to list; null lists all.
        mcore: Megatron Core revision that decides what is legal.

    Returns:
        The document recompute.plan/1: status, choice, predicted, alternatives, cheaper_first, why, overrides.
    """
    from recompute.report.plan_document import plan_document
    from recompute.search.plan import plan as planned

    if top is not None and top < 1:
        raise ConfigError("bad-value", f"top={top} is less than 1", hint="top=10, or null for all")
    loaded = _read(job, overrides, mcore)
    answer = planned(loaded, budget, gpu=gpu, margin=margin, per_layer=per_layer)
    return plan_document(answer, top=top)


def diagnose(files: list[str], job: str | None = None, mcore: str | None = None) -> Document:
    """Find why a run went out of memory, from its logs, memory snapshots or ledgers.

    Args:
        files: Paths of logs, folders of per-rank logs, memory snapshots, ledgers.
        job: The job that ran; else it is recovered from the log.
        mcore: Megatron Core revision that decides which actions are legal.

    Returns:
        The document recompute.diagnose/1: verdict, stage, numbers, evidence, next_actions.
    """
    from recompute.config.revision import parse_revision
    from recompute.diagnose.run import diagnose as diagnosed
    from recompute.report.diagnose_document import diagnose_document

    given = None if job is None else _read(job, None, mcore)
    revision = None if mcore is None else parse_revision(mcore)
    return diagnose_document(
        diagnosed(tuple(_named(path) for path in files), job=given, revision=revision)
    )


def compare(ledger: str, allow_differences: bool = False) -> Document:
    """Hold the measured candidates of a ledger against their control.

    Args:
        ledger: Path of a folder that recompute measure or MemoryProbe wrote.
        allow_differences: Compare runs that differ in more than the recompute choice; differences are named.

    Returns:
        The document recompute.compare/1: control, noise_floor, candidates with verdict, peak_delta_bytes,
        step_time_overhead with its interval, prediction_error; passes says whether any candidate does.
    """
    from recompute.report.compare_document import compare_document
    from recompute.report.compare_run import compare_ledger

    return compare_document(compare_ledger(_named(ledger), allow_differences=allow_differences))


TOOLS: Final[Mapping[str, Tool]] = {
    "show": show,
    "check": check,
    "explain": explain,
    "plan": plan,
    "compare": compare,
    "diagnose": diagnose,
    "rules": rules,
    "rules_diff": rules_diff,
}
"""Tool name -> function; its docstring is what the agent reads."""


def answered(tool: Tool) -> Tool:
    """Return the tool with errors as documents, keeping its signature and docstring."""
    import functools

    from recompute.report.document import json_value

    @functools.wraps(tool)
    def call(*args: Any, **kwargs: Any) -> Document:
        try:
            document: Document = json_value(tool(*args, **kwargs))
        except RecomputeError as error:
            return {
                "schema": "recompute.error/1",
                "code": error.code,
                "message": error.message,
                "hint": error.hint,
                "data": json_value(error.data),
            }
        return document

    return call


def build(tools: Mapping[str, Tool] = TOOLS) -> MCPServer:
    """Return a server with the given tools.

    Raises:
        ConfigError: ``mcp-missing`` when the mcp package is not installed.
    """
    try:
        from mcp.server import MCPServer
    except ImportError:
        raise ConfigError(
            "mcp-missing",
            "the mcp package is not installed",
            hint="pip install 'megatron-recompute[mcp]'",
        ) from None
    server = MCPServer(
        "recompute", instructions=INSTRUCTIONS, version=__version__, log_level="WARNING"
    )
    for name, tool in tools.items():
        server.add_tool(answered(tool), name=name)
    return server


def _read(job: str, overrides: list[str] | None, mcore: str | None) -> JobConfig:
    """Return the job that a tool was named, with the revision it was asked for."""
    from recompute.config.load import load

    return load(_named(job), *(overrides or ()), mcore=mcore)


def _named(job: str) -> str:
    """Refuse standard input, which belongs to the protocol here."""
    if job.strip() in ("", "-"):
        raise ConfigError(
            "no-stdin",
            "standard input carries the protocol here, not a job",
            hint="name a job file or recipe:NAME",
        )
    return job
