"""A job written out: as a job file, as a Bridge configuration, as Megatron-LM arguments.

The job file reads back to the same job; the arguments read back to the same model, and what Megatron-LM
has no flag for is named in comments.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any, Final

from recompute.config.draft import Draft
from recompute.config.schema import FrozenValue, JobConfig
from recompute.config.section_types import SCHEMAS, default_of, kinds
from recompute.config.yaml_text import yaml_text, yaml_value

ALWAYS: Final = frozenset(
    (
        "model.num_layers",
        "model.hidden_size",
        "model.num_attention_heads",
        "model.normalization",
        "model.cpu_offloading_weights",
    )
)
"""Written even at their default: what fills them in depends on who reads."""
BRIDGE_SECTIONS: Final = ("model", "train", "optimizer", "ddp", "peft")
_TARGETS: Final[Mapping[str, str]] = {
    "gelu": "torch.nn.functional.gelu",
    "silu": "torch.nn.functional.silu",
    "relu": "torch.nn.functional.relu",
    "squared_relu": "megatron.core.activations.squared_relu",
    "quick_gelu": "megatron.core.fusions.fused_bias_geglu.quick_gelu",
    "bf16": "torch.bfloat16",
    "fp16": "torch.float16",
    "fp32": "torch.float32",
    "fp8": "torch.uint8",
}


def same_job(one: JobConfig, other: JobConfig) -> bool:
    """Tell whether two jobs say the same, wherever they were read from."""
    return _bare(one) == _bare(other)


def _bare(job: JobConfig) -> JobConfig:
    plain = replace(job.identity, path="", sha256="", format="")
    framework = replace(job.framework, entry_point=None)
    return replace(job, identity=plain, framework=framework, given={}, changes=(), assumptions=())


def origin(job: JobConfig, name: str) -> str:
    """Return where a field's value comes from: a place in the input, ``filled in`` or ``default``."""
    changed = any(change.field == name for change in job.changes)
    if name in job.given and job.given[name] != "derived" and not changed:
        return job.given[name]
    return "filled in" if changed or name in job.given else "default"


def _short_origin(job: JobConfig, name: str) -> str:
    """Return the origin, the job's own path left out."""
    text = origin(job, name)
    line = text.removeprefix(f"{job.identity.path}:")
    if line == text:
        return text
    return f"line {line}" if line.isdigit() else line.strip()


def job_yaml(job: JobConfig, *, every: bool = False, comments: bool = True) -> str:
    """Return the job as a job file.

    Args:
        job: As loaded or normalized.
        every: Write also the fields at their default.
        comments: Write where each value comes from, the changes and the assumptions.
    """
    lines = list(_header(job)) if comments else []
    for section in SCHEMAS:
        lines += _section_lines(job, section, every=every, comments=comments)
    if job.mixed_precision is not None:
        lines.append(f"mixed_precision: {yaml_value(job.mixed_precision)}")
    if job.comm_overlap is not None:
        lines.append(f"comm_overlap: {yaml_value(job.comm_overlap)}")
    lines += _other_sections(job)
    if job.environment:
        lines.append("env_vars:")
        lines += [f"  {yaml_text(k)}: {_quoted(v)}" for k, v in job.environment.items()]
    return "\n".join(lines) + "\n"


def _quoted(value: str) -> str:
    """Return an environment value: always text, so that ``1`` stays ``"1"``."""
    text = yaml_text(value)
    return text if text.startswith('"') else f'"{text}"'


def _comment(text: str) -> str:
    return " ".join(text.split()).replace("\ufeff", "")


def _header(job: JobConfig) -> Iterator[str]:
    yield f"# {_comment(job.identity.path)} ({job.identity.format})"
    if job.changes:
        yield "# Changes: what is filled in or rewritten, as Megatron would"
    for change in job.changes:
        before, after = yaml_value(change.before), yaml_value(change.after)
        yield _comment(f"#   {change.field}: {before} -> {after}: {change.why}")
    if job.assumptions:
        yield "# Assumptions"
    for item in job.assumptions:
        yield _comment(f"#   {item.text}")


def shown_fields(job: JobConfig, section: str, *, every: bool) -> dict[str, FrozenValue]:
    """Return the fields of a section that are worth writing: given, filled in, or not the default."""
    value = getattr(job, section)
    if value is None:
        return {}
    found: dict[str, FrozenValue] = {}
    for name in kinds(section):
        field, current = f"{section}.{name}", getattr(value, name)
        differs = current != default_of(section, name)
        wanted = field in ALWAYS or field in job.given
        if field == "model.recompute_granularity" and job.model.recompute_modules:
            wanted = True  # beside a list that does nothing, the null says so
        if every or differs or wanted:
            found[name] = current
    return found


def _section_lines(job: JobConfig, section: str, *, every: bool, comments: bool) -> list[str]:
    if getattr(job, section) is None:
        needed = section in ("optimizer", "ddp")
        return [f"{section}: null"] if needed else []
    fields = dict(shown_fields(job, section, every=every))
    if section == "framework" and job.identity.entry_point != "bridge":
        fields["entry_point"] = job.identity.entry_point
    fields |= {
        name.partition(".")[2]: value
        for name, value in job.unmodelled.items()
        if name.startswith(f"{section}.")
    }
    if not fields:
        return []
    lines = [f"{section}:"]
    for name, value in fields.items():
        line = f"  {yaml_text(name)}: {yaml_value(value)}"
        where = _comment(_short_origin(job, f"{section}.{name}"))
        if name == "recompute_granularity" and value is None:
            where = f"{where}: no recompute"
        lines.append(f"{line}  # {where}" if comments else line)
    return lines


def _other_sections(job: JobConfig) -> list[str]:
    lines: list[str] = []
    rest: dict[str, dict[str, Any]] = {}
    for name, value in job.unmodelled.items():
        section, dot, field = name.partition(".")
        if not dot:
            lines.append(f"{yaml_text(section)}: {yaml_value(value)}")
        elif section not in SCHEMAS:
            rest.setdefault(section, {})[field] = value
    for section, fields in rest.items():
        lines.append(f"{yaml_text(section)}:")
        lines += [f"  {yaml_text(name)}: {yaml_value(value)}" for name, value in fields.items()]
    return lines


def bridge_yaml(job: JobConfig) -> str:
    """Return the sections that Bridge's ConfigContainer has, callables and dtypes as ``_target_``.

    Ours (``hardware``, ``framework``) are left out; the precision recipe is already in the fields.
    """
    lines: list[str] = []
    for section in BRIDGE_SECTIONS:
        if getattr(job, section) is None:
            lines += [f"{section}: null"] if section == "peft" else []
            continue
        fields = shown_fields(job, section, every=False)
        lines += [f"{section}:"] if fields else []
        lines += [f"  {name}: {_bridge_value(name, value)}" for name, value in fields.items()]
    if job.mixed_precision is not None:
        lines.append(f"mixed_precision: {yaml_value(job.mixed_precision)}")
    return "\n".join(lines) + "\n"


def _bridge_value(name: str, value: FrozenValue) -> str:
    if isinstance(value, str) and (name == "activation_func" or name.endswith("_dtype")):
        return yaml_value({"_target_": _TARGETS.get(value, value), "_call_": False})
    return yaml_value(value)


def draft_of(job: JobConfig) -> Draft:
    """Return a draft with every field of the job, as if all had been given."""
    draft = Draft()
    for section in SCHEMAS:
        value = getattr(job, section)
        if value is None:
            draft.set_absent(section, "job")
            continue
        for name in kinds(section):
            draft.set(section, name, getattr(value, name), "job")
    return draft
