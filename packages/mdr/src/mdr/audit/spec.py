"""Strict conformance with the SKILL.md specification of agentskills.io. Never part of the grade.

The rules are those of the specification's text and of its reference validator (repository
agentskills/agentskills at 69ef37e, ``skills-ref``), where the two differ the stricter one. Agents are
more lenient; most published skills with findings here load fine.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final
from unicodedata import ucd_3_2_0

from mdr.artifact.frontmatter import BOM, Frontmatter, read_frontmatter
from mdr.audit.rx import Rx
from mdr.audit.types import SpecFinding

REQUIRED: Final = ("name", "description")
OPTIONAL: Final = ("license", "compatibility", "metadata", "allowed-tools")
MAX_NAME: Final = 64
MAX_DESCRIPTION: Final = 1024
MAX_COMPATIBILITY: Final = 500
"""Code points."""
ADVISED_LINES: Final = 500
ADVISED_TOKENS: Final = 5000
NAME: Final = Rx(rb"^[a-z0-9]+(?:-[a-z0-9]+)*$")
STRICT_YAML: Final = Rx(rb"(?m)^[ ]*(?:-[ ]+)*(?:[^\s#:\"'][^\n:#]*:[ ]+)?(?:[\[{&*]|![^\s])")
"""A flow collection, an anchor, an alias or a tag where a value begins: the reference parser refuses."""
TOP_KEY: Final = Rx(rb"(?m)^([A-Za-z_][\w-]*)[ \t]*:")


@dataclass(frozen=True, slots=True)
class _Skill:
    data: bytes
    folder: str | None
    block: Frontmatter
    values: Mapping[str, Any]


def spec_conformance(data: bytes, folder_name: str | None) -> tuple[SpecFinding, ...]:
    """Compare a SKILL.md with the specification.

    Args:
        data: The bytes of the file.
        folder_name: Name of the folder it lies in; ``None`` when not known.

    Returns:
        Departures in a fixed order; advice (length budgets) last. Empty: conforms.
    """
    try:
        data.decode("utf-8")
    except UnicodeDecodeError:
        return (_finding("not-utf8", None, "the file is not UTF-8"),)
    block = read_frontmatter(data)
    if data.startswith(BOM) and block.present:
        return (
            _finding(
                "byte-order-mark", None, "the file must begin with ---, not with a byte order mark"
            ),
        )
    if block.problem is not None:
        return (_finding(f"frontmatter-{block.problem.code}", None, block.problem.message),)
    skill = _Skill(data, folder_name, block, block.values or {})
    return tuple(finding for rule in RULES for finding in rule(skill))


def _finding(code: str, field: str | None, message: str, *, advice: bool = False) -> SpecFinding:
    return SpecFinding(code=code, field=field, message=message, advice=advice)


def _required(skill: _Skill) -> Iterator[SpecFinding]:
    for key in REQUIRED:
        value = skill.values.get(key)
        if key not in skill.values:
            yield _finding("missing-field", key, f"{key} is required")
        elif not isinstance(value, str) or not value.strip():
            yield _finding("empty-field", key, f"{key} must be text that is not empty")


def _extra(skill: _Skill) -> Iterator[SpecFinding]:
    known = {*REQUIRED, *OPTIONAL}
    for key in sorted(set(skill.values) - known):
        shown = key if key.isascii() and key.isprintable() else ascii(key)
        yield _finding(
            "unknown-field", shown[:80], f"{shown[:80]} is not a field of the specification"
        )


def _name(skill: _Skill) -> Iterator[SpecFinding]:
    name = skill.block.text("name")
    if name is None:
        return
    plain = ucd_3_2_0.normalize("NFKC", name.strip())
    if len(plain) > MAX_NAME:
        yield _finding("name-too-long", "name", f"{len(plain)} characters, at most {MAX_NAME}")
    if NAME.search(plain.encode("utf-8", "replace")) is None:
        yield _finding("name-characters", "name", "a-z, 0-9 and single hyphens between them")
    if skill.folder is not None and plain != ucd_3_2_0.normalize("NFKC", skill.folder):
        yield _finding(
            "name-is-not-folder", "name", f"must equal the folder's name {skill.folder!a}"
        )


def _lengths(skill: _Skill) -> Iterator[SpecFinding]:
    for key, bound in (("description", MAX_DESCRIPTION), ("compatibility", MAX_COMPATIBILITY)):
        value = skill.values.get(key)
        if isinstance(value, str) and len(value) > bound:
            yield _finding("field-too-long", key, f"{len(value)} characters, at most {bound}")


def _types(skill: _Skill) -> Iterator[SpecFinding]:
    for key in ("license", "compatibility", "allowed-tools"):
        value = skill.values.get(key, "x")
        if not isinstance(value, str):
            yield _finding("field-type", key, f"{key} must be one text value")
        elif not value.strip():
            yield _finding("empty-field", key, f"{key} must not be empty")
    metadata = skill.values.get("metadata")
    if "metadata" in skill.values:
        if not isinstance(metadata, dict):
            yield _finding("field-type", "metadata", "metadata must be a mapping")
        elif any(isinstance(value, dict | list) for value in metadata.values()):
            yield _finding("field-type", "metadata", "metadata must map text to text")


def _yaml(skill: _Skill) -> Iterator[SpecFinding]:
    yaml = skill.data[skill.block.start : skill.block.end]
    if STRICT_YAML.search(yaml) is not None:
        yield _finding("yaml-style", None, "no flow style, anchors, aliases or tags")
    keys = [match.group(1) for match in TOP_KEY.finditer(yaml)]
    for key in sorted({key for key in keys if key is not None and keys.count(key) > 1}):
        shown = key.decode("ascii", "replace")
        yield _finding("duplicate-field", shown, f"{shown} appears more than once")


def _budget(skill: _Skill) -> Iterator[SpecFinding]:
    body = skill.data[skill.block.body :]
    lines, tokens = body.count(b"\n"), -(-len(body) // 4)
    if lines > ADVISED_LINES:
        yield _finding(
            "long-body", None, f"{lines} lines, fewer than {ADVISED_LINES} advised", advice=True
        )
    if tokens > ADVISED_TOKENS:
        message = f"about {tokens} tokens, fewer than {ADVISED_TOKENS} advised"
        yield _finding("many-tokens", None, message, advice=True)


RULES: Final[tuple[Callable[[_Skill], Iterator[SpecFinding]], ...]] = (
    _required,
    _name,
    _lengths,
    _types,
    _extra,
    _yaml,
    _budget,
)
"""In the order of the findings."""
