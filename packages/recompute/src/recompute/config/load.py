"""A job in any accepted form -> one :class:`~recompute.config.schema.JobConfig`.

``load`` reads, applies overrides, expands the precision recipe and checks the geometry. Filling in what
Megatron would is :mod:`recompute.config.normalize`, a visible step of its own.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any, Final, NoReturn

from recompute.config.build import build
from recompute.config.draft import Draft
from recompute.config.geometry import check_geometry
from recompute.config.mixed_precision import expand_mixed_precision
from recompute.config.overrides import apply_overrides
from recompute.config.require import require_complete
from recompute.config.schema import JobConfig, JobIdentity
from recompute.config.sections import finish_sections, read_sections
from recompute.config.source import JobText, read_job
from recompute.config.yaml_source import MAX_NODES, YamlDocument, parse_yaml
from recompute.errors import ConfigError

RECIPE_PREFIX: Final = "recipe:"
_LOOKS_LIKE_SHELL: Final = re.compile(
    r"^\s*(?:#!|--[a-z]|export\s|torchrun\s|python3?\s|srun\s|[A-Za-z_]\w*\+?=)", re.MULTILINE
)
_LOOKS_LIKE_YAML: Final = re.compile(r"^[A-Za-z_][\w-]*:(?:\s|$)", re.MULTILINE)


def load(
    path: str,
    *overrides: str,
    stdin: bytes | None = None,
    require: Iterable[str] = (),
    mcore: str | None = None,
) -> JobConfig:
    """Read a job.

    Args:
        path: A job file in any accepted form, ``recipe:NAME[@BRIDGE_VERSION]``, or ``-`` for standard
            input, whose form is told by its content.
        overrides: Hydra style: ``model.num_layers=8``, ``+hardware.gpu=h200``, ``ddp=null``.
        stdin: Bytes to take for standard input.
        require: What the caller cannot do without; names of :data:`recompute.config.require.NEEDS`.
        mcore: A Megatron Core version that wins over ``framework.megatron_core``.

    Raises:
        ConfigError: what is wrong, and what to write instead.
        WorldError: the disk failed.
    """
    if path.startswith(RECIPE_PREFIX):
        from recompute.config.recipe import read_recipe

        draft, identity = read_recipe(path)
    else:
        draft, identity = _read(read_job(path, stdin))
    apply_overrides(draft, overrides)
    expand_mixed_precision(draft)
    entry_point = draft.get("framework", "entry_point") or identity.entry_point
    finish_sections(draft, str(entry_point))
    job = build(draft, identity)
    if mcore is not None:
        job = replace(job, framework=replace(job.framework, megatron_core=mcore))
    check_geometry(job)
    return require_complete(job, require)


def _read(source: JobText) -> tuple[Draft, JobIdentity]:
    form, draft = _read_form(source)
    entry_point = "megatron-lm" if form.startswith("megatron") else "bridge"
    identity = JobIdentity(
        path=source.path, sha256=source.sha256, format=form, entry_point=entry_point
    )
    return draft, identity


def _read_form(source: JobText) -> tuple[str, Draft]:
    """Return the name of the format and what the text says."""
    text, path = source.text, source.path
    if text.lstrip().startswith("{"):
        value = _parse_json(text, path)
        if value is not None:
            return _read_object(YamlDocument(value=value, lines={}), path)
    elif _is_shell(text, path):
        from recompute.config.megatron_source import read_script

        return "megatron-args", read_script(text, path)
    return _read_object(parse_yaml(text, path), path)


def _is_shell(text: str, path: str) -> bool:
    if path.endswith((".sh", ".bash", ".slurm", ".sbatch", ".args")):
        return True
    if path.endswith((".yaml", ".yml", ".json")):
        return False
    return _LOOKS_LIKE_SHELL.search(text) is not None and _LOOKS_LIKE_YAML.search(text) is None


def _read_object(document: YamlDocument, path: str) -> tuple[str, Draft]:
    tree = document.value
    if isinstance(tree, Mapping) and "MODEL_ARGS" in tree:
        from recompute.config.megatron_source import read_model_args

        return "megatron-model-args", read_model_args(document, path)
    if isinstance(tree, Mapping) and ("architectures" in tree or "model_type" in tree):
        from recompute.config.huggingface import read_huggingface

        return "huggingface", read_huggingface(tree, path)
    return "bridge-yaml", read_sections(document, path)


def _parse_json(text: str, path: str) -> Any:
    """Return the JSON value with lists as tuples, or ``None`` for a YAML mapping that starts with ``{``."""

    def pairs(items: list[tuple[str, Any]]) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for key, value in items:
            if key in found:
                raise ConfigError(
                    "duplicate-key",
                    f"{path}: {key[:60]!r} is given twice",
                    hint="keep one of the two",
                    data={"path": path, "key": key[:200]},
                )
            found[key] = _frozen(value)
        return found

    def number(digits: str) -> int:
        if len(digits) > 40:
            raise ConfigError(
                "huge-number",
                f"{path}: a number of {len(digits)} digits",
                hint="no field of a job is that large",
                data={"digits": len(digits)},
            )
        return int(digits)

    if text.count(",") + text.count(":") > MAX_NODES:
        raise ConfigError(
            "yaml-limit",
            f"{path}: more than {MAX_NODES} values",
            hint="give the job file itself",
            data={"path": path},
        )
    try:
        return json.loads(text, object_pairs_hook=pairs, parse_int=number)
    except RecursionError:
        _too_deep(path)
    except ValueError:
        return None


def _frozen(value: Any) -> Any:
    return tuple(_frozen(item) for item in value) if isinstance(value, list) else value


def _too_deep(path: str) -> NoReturn:
    raise ConfigError(
        "yaml-limit",
        f"{path}: nested too deeply",
        hint="a job has a few levels",
        data={"path": path},
    ) from None
