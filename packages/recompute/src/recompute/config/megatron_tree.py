"""A user's own Megatron Core, read without importing or running it.

Accepted paths: a checkout of Megatron-LM, a checkout of Megatron Bridge (its submodule is read), a
``site-packages`` folder, or the ``megatron`` or ``megatron/core`` folder itself.
"""

from __future__ import annotations

import ast
import itertools
import os
import stat
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from recompute.config.revision import Revision, parse_revision
from recompute.errors import ConfigError

MAX_SOURCE_BYTES: Final = 4 << 20
"""The longest file of Megatron has 0.4 MB. Bytes."""

_PLACES: Final = (
    "megatron/core",
    "3rdparty/Megatron-LM/megatron/core",
    "core",
    ".",
)
"""Where ``package_info.py`` may lie below the path that was given."""

_CONFIG: Final = "megatron/core/transformer/transformer_config.py"
_PARALLEL: Final = "megatron/core/model_parallel_config.py"


@dataclass(frozen=True, slots=True, kw_only=True)
class MegatronTree:
    """What a source tree says."""

    path: str
    """As the user wrote it."""
    version: str
    revision: Revision
    """The revision whose rules are taken as a base."""
    exact: bool
    """False when the version is newer than every revision that was read."""
    labels: frozenset[str]
    fields: frozenset[str]
    defaults: Mapping[str, Any] = field(default_factory=dict)
    """Literal defaults of ``TransformerConfig`` and ``ModelParallelConfig``."""
    core: Path = Path()
    """Folder ``megatron/core``."""

    def read(self, name: str) -> str | None:
        """Return the text of ``megatron/...`` in this tree, ``None`` when it is not there."""
        return _read(self.core, name)


def read_tree(path: str) -> MegatronTree:
    """Read version, labels, fields and defaults of a source tree.

    Raises:
        ConfigError: ``not-megatron`` when the path holds no Megatron Core that can be read;
            ``unknown-revision`` when its version is older than every revision that was read.
    """
    core = _find_core(path)
    version = _version(core, path)
    config, parallel = _parse(core, _CONFIG, path), _parse(core, _PARALLEL, path)
    own = _fields(config, "TransformerConfig")
    if not own:
        raise _not_megatron(path, "its TransformerConfig has no fields")
    fields = {**_fields(parallel, "ModelParallelConfig"), **own}
    labels = _labels(config)
    if labels is None and "recompute_modules" in fields:
        raise _not_megatron(path, "the labels that it accepts cannot be read from its source")
    revision, exact = _revision(version, frozenset(fields))
    return MegatronTree(
        path=path,
        version=version,
        revision=revision,
        exact=exact,
        labels=frozenset({"core_attn"}) if labels is None else labels,
        fields=frozenset(fields),
        defaults={name: value for name, value in fields.items() if value is not _UNKNOWN},
        core=core,
    )


def looks_like_path(text: str) -> bool:
    """Say whether the value of ``--mcore`` names a path and not a version."""
    return bool(text.strip()) and (os.sep in text or Path(text).is_dir())


def _find_core(path: str) -> Path:
    base = Path(path).expanduser()
    for place in _PLACES:
        if (base / place / "package_info.py").is_file() and (base / place / "transformer").is_dir():
            return base / place
    reason = "no such folder" if not base.is_dir() else "no megatron/core/package_info.py below it"
    raise _not_megatron(path, reason)


def _not_megatron(path: str, reason: str) -> ConfigError:
    return ConfigError(
        "not-megatron",
        f"{path[:200]} holds no Megatron Core: {reason}",
        hint="give a Megatron-LM checkout, a site-packages folder, or a version such as 0.19",
        data={"path": path[:1000], "reason": reason},
    )


def _read(core: Path, name: str) -> str | None:
    place = core / name.removeprefix("megatron/core/")
    if name.startswith("megatron/training/"):
        place = core.parent / name.removeprefix("megatron/")
    try:
        status = place.stat()
        if not stat.S_ISREG(status.st_mode) or status.st_size > MAX_SOURCE_BYTES:
            return None
        return place.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError, ValueError):
        return None


def _parse(core: Path, name: str, path: str) -> ast.Module:
    text = _read(core, name)
    if text is None:
        raise _not_megatron(path, f"{name} is missing, too large or not text")
    try:
        return ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        raise _not_megatron(path, f"{name} is not Python that can be parsed") from None


def _version(core: Path, path: str) -> str:
    module = _parse(core, "megatron/core/package_info.py", path)
    values = {
        target.id: node.value.value
        for node in module.body
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Constant)
        for target in node.targets
        if isinstance(target, ast.Name)
    }
    parts = [values.get(name) for name in ("MAJOR", "MINOR", "PATCH")]
    if not all(isinstance(part, int) and 0 <= part < 1000 for part in parts):
        raise _not_megatron(path, "package_info.py states no version")
    release = ".".join(map(str, parts))
    before = values.get("PRE_RELEASE")
    return release + (before if isinstance(before, str) and before.isalnum() else "")


def _revision(version: str, fields: frozenset[str]) -> tuple[Revision, bool]:
    """Tell main, dev and the pinned commit apart by their fields; newer than all is based on main."""
    if "enable_hyper_connections" in fields:
        return Revision("dev"), True
    if "enable_mhc_connections" in fields:
        return Revision("main"), version.startswith("0.20.")
    try:
        return parse_revision(version), True
    except ConfigError:
        numbers = [int(part) for part in version.split(".")[:2]]
        if numbers > [0, 20]:
            return Revision("main"), False
        raise


_UNKNOWN: Final = object()


def _fields(module: ast.Module, name: str) -> dict[str, Any]:
    return {
        node.target.id: _literal(node.value)
        for owner in module.body
        if isinstance(owner, ast.ClassDef) and owner.name == name
        for node in owner.body
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name)
    }


def _literal(node: ast.expr | None) -> Any:
    if node is None:
        return _UNKNOWN
    try:
        return ast.literal_eval(node)
    except (ValueError, TypeError, SyntaxError, RecursionError, MemoryError):
        return _UNKNOWN


def _labels(module: ast.Module) -> frozenset[str] | None:
    """Return the set that the assertion on ``recompute_modules`` compares with.

    Before 0.12 there is none: selective means core attention.
    """
    for owner in _validators(module):
        for block in ast.walk(owner):
            for body in _bodies(block):
                found = _allowed_before_use(body)
                if found is not None:
                    return found
    return None


def _validators(module: ast.Module) -> Iterator[ast.AST]:
    for owner in module.body:
        if isinstance(owner, ast.ClassDef) and owner.name == "TransformerConfig":
            for node in owner.body:
                if isinstance(node, ast.FunctionDef) and node.name == "__post_init__":
                    yield node


def _bodies(node: ast.AST) -> Iterator[list[ast.stmt]]:
    for name in ("body", "orelse"):
        body = getattr(node, name, None)
        if isinstance(body, list):
            yield body


def _allowed_before_use(body: list[ast.stmt]) -> frozenset[str] | None:
    for first, second in itertools.pairwise(body):
        if (
            isinstance(first, ast.Assign)
            and isinstance(first.value, ast.Set)
            and "recompute_modules" in ast.unparse(second)
        ):
            value = _literal(first.value)
            if isinstance(value, set) and all(isinstance(label, str) for label in value):
                return frozenset(value)
    return None
