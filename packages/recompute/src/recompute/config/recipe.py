"""``recipe:NAME[@BRIDGE_VERSION]``: a recipe of Megatron Bridge as a job.

``recipes.json`` holds what each recipe function sets, one line per recipe, read from Bridge's source by
``tools/recipe_catalogue.py``; ``architectures.json`` holds the sizes of the checkpoints that recipes start from.
A recipe whose checkpoint is not in that table still has its parallelism, precision and recompute: it can be
checked, and what needs the sizes says which are missing.
"""

from __future__ import annotations

import difflib
import functools
import hashlib
import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from recompute.config.draft import Draft
from recompute.config.huggingface import read_huggingface
from recompute.config.schema import FrozenValue, JobIdentity
from recompute.config.sections import PEFT_SCHEMES
from recompute.errors import ConfigError

BRIDGE_REVISION: Final = "067f987d"
"""The commit of Megatron Bridge's main branch that the catalogue was read from (2026-08-22)."""
VERSIONS: Final = frozenset(("main", "head", "latest", BRIDGE_REVISION))
GPUS: Final[Mapping[str, str]] = {
    "h100": "h100-80gb",
    "h200": "h200",
    "a100": "a100-80gb",
    "b200": "b200",
    "b300": "b300",
    "gb200": "gb200",
    "gb300": "gb300",
}
"""GPU in a recipe's name -> ours; what is not here has no memory size that we know."""
PLAIN: Final = ("train", "optimizer", "ddp", "dist", "rng")


def read_recipe(path: str) -> tuple[Draft, JobIdentity]:
    """Return the job of a recipe.

    Args:
        path: ``recipe:NAME`` or ``recipe:NAME@VERSION``; ``_config`` at the end may be left out.

    Raises:
        ConfigError: ``unknown-recipe`` with the nearest name, or ``unknown-recipe-version``.
    """
    name, at, version = path.removeprefix("recipe:").partition("@")
    if at and version.lower().removeprefix("v") not in VERSIONS:
        raise ConfigError(
            "unknown-recipe-version",
            f"the recipes of Megatron Bridge {version[:40]} are not in the catalogue",
            hint=f"recipe:{name} is the one of main at {BRIDGE_REVISION}; for another version give the "
            "run_config.yaml that Bridge writes",
            data={"version": version[:200], "known": sorted(VERSIONS)},
        )
    name, text = _find(name)
    entry = json.loads(text)
    draft = Draft()
    _model(draft, entry, f"recipe:{name}")
    _sections(draft, entry, f"recipe:{name}")
    if f"perf/{name}" in _catalogue():
        draft.assume(
            "recipe-name",
            f"two recipes have this name; this is the library's, recipe:perf/{name} is the benchmark's",
        )
    identity = JobIdentity(
        path=path, sha256=hashlib.sha256(text.encode()).hexdigest(), format="recipe"
    )
    return draft, identity


@functools.cache
def _catalogue() -> Mapping[str, str]:
    """Return ``name -> JSON text``; each entry is parsed when it is asked for."""
    text = Path(__file__).with_name("recipes.json").read_text(encoding="utf-8")
    found: dict[str, str] = {}
    for line in text.splitlines()[1:-1]:
        key, _, entry = line.removeprefix(",").partition(": ")
        found[key.strip('"')] = entry
    return found


def recipe_names() -> tuple[str, ...]:
    """Return the names of the catalogue, other names of the same recipe included."""
    return tuple(_catalogue())


def recipe_named(name: str) -> str | None:
    """Return the recipe that a bare name is, with or without ``_config`` and a version behind ``@``."""
    bare, _, _ = name.partition("@")
    known = _catalogue()
    return name if bare in known or f"{bare}_config" in known else None


def _find(name: str) -> tuple[str, str]:
    """Return the full name of a recipe and its entry."""
    catalogue = _catalogue()
    for candidate in (name, f"{name}_config"):
        if candidate in catalogue:
            text = catalogue[candidate]
            if text.startswith('{"same_as"'):
                return _find(json.loads(text)["same_as"])
            return candidate, text
    near = nearest_recipes(name)
    raise ConfigError(
        "unknown-recipe",
        f"Megatron Bridge has no recipe {name[:80]!r}",
        hint="did you mean " + ", ".join(f"recipe:{item}" for item in near) + "?"
        if near
        else "names are those of the recipe functions, such as llama3_8b_pretrain_8gpu_h100_bf16_config",
        data={"recipe": name[:200], "nearest": near},
    )


def nearest_recipes(name: str, count: int = 5) -> list[str]:
    """Return the recipes whose names hold most of the words of ``name``, the shortest names first.

    Words are what letters and digits make: ``llama3.1 8B`` has ``llama``, ``3``, ``1``, ``8b``. Without any
    that is shared, the nearest spelling counts.
    """
    words = frozenset(_WORDS.findall(name.lower()))
    scored = [(len(words & set(_WORDS.findall(key.lower()))), key) for key in _catalogue()]
    most = max((score for score, _ in scored), default=0)
    if 2 * most <= len(words):
        return difflib.get_close_matches(name, _catalogue(), count, 0.5)
    best = [key for score, key in scored if score == most and "/" not in key]
    close = difflib.SequenceMatcher(b=name)

    def order(key: str) -> tuple[int, float, str]:
        close.set_seq1(key)
        return len(_WORDS.findall(key)), -close.ratio(), key

    return sorted(best, key=order)[:count]


_WORDS: Final = re.compile(r"[0-9]+[bmk]\b|[0-9]+[bmk](?=[_./@-])|[a-z]+|[0-9]+")
"""Sizes such as ``8b``, runs of letters, runs of digits."""


def _architecture(hf_model: str) -> Mapping[str, FrozenValue]:
    """Return the fields of ``model`` that a checkpoint has; nothing when it is not in the table."""
    text = Path(__file__).with_name("architectures.json").read_text(encoding="utf-8")
    config = json.loads(text).get(hf_model)
    if config is None:
        return {}
    if "model" in config:
        return {key: _frozen(value) for key, value in config["model"].items()}
    draft = read_huggingface({key: _frozen(value) for key, value in config.items()}, hf_model)
    return draft.sections["model"]


def _model(draft: Draft, entry: Mapping[str, Any], where: str) -> None:
    hf_model = entry.get("hf_model")
    if hf_model is not None:
        for name, value in _architecture(hf_model).items():
            draft.set("model", name, value, hf_model)
    for name, value in entry.get("model", {}).items():
        draft.set("model", name, _frozen(value), where)
    if not draft.get("model", "num_layers") and not draft.get("model", "hybrid_override_pattern"):
        source = f"the checkpoint {hf_model}" if hf_model else f"its {entry.get('provider')}"
        draft.assume(
            "architecture-unknown",
            f"the recipe takes the model's sizes from {source}, which is not in our table; give "
            "model.num_layers, model.hidden_size, model.num_attention_heads and the rest",
        )


def _sections(draft: Draft, entry: Mapping[str, Any], where: str) -> None:
    for section in PLAIN:
        for name, value in entry.get(section, {}).items():
            draft.set(section, name, _frozen(value), where)
    if not draft.has("model", "seq_length") and "seq_length" in entry.get("dataset", {}):
        draft.set("model", "seq_length", entry["dataset"]["seq_length"], where)
    for section in ("mixed_precision", "comm_overlap"):
        value = entry.get(section)
        if isinstance(value, str):
            draft.whole[section] = value
            draft.where[section] = where
        elif isinstance(value, Mapping):
            for name, item in value.items():
                draft.set(section, name, _frozen(item), where)
    _peft(draft, entry, where)
    draft.environment.update(entry.get("env_vars", {}))
    _gpu_count(draft, entry, where)
    if entry.get("gpu") in GPUS:
        draft.set("hardware", "gpu", GPUS[entry["gpu"]], where)
    draft.set("framework", "megatron_bridge", "main", where)


def _gpu_count(draft: Draft, entry: Mapping[str, Any], where: str) -> None:
    """Take the GPU count from the recipe's name, unless the recipe itself does not factor on it."""
    count = entry.get("num_gpus")
    if count is None:
        return

    def size(section: str, name: str) -> int:
        value = draft.get(section, name)
        return value if isinstance(value, int) and value > 0 else 1

    stages = size("model", "pipeline_model_parallel_size")
    tensor = size("model", "tensor_model_parallel_size")
    whole = tensor * stages * size("model", "context_parallel_size")
    expert_tensor = draft.get("model", "expert_tensor_parallel_size") or 1
    experts = size("model", "expert_model_parallel_size")
    fits = count % whole == 0
    fits &= experts == 1 or count % (expert_tensor * experts * stages) == 0
    step = size("train", "micro_batch_size") * max(1, count // whole)
    batch = draft.get("train", "global_batch_size")
    fits &= not isinstance(batch, int) or batch % step == 0
    if fits:
        draft.set("hardware", "num_gpus", count, where)
    else:
        draft.assume(
            "recipe-gpu-count",
            f"the recipe is named for {count} GPUs, on which its parallel sizes do not factor; "
            "hardware.num_gpus is left open",
        )


def _peft(draft: Draft, entry: Mapping[str, Any], where: str) -> None:
    scheme = PEFT_SCHEMES.get(str(entry.get("peft_class", "")).lower())
    if scheme is None:
        return
    draft.set("peft", "scheme", scheme, where)
    for name, value in entry.get("peft", {}).items():
        draft.set("peft", name, _frozen(value), where)


def _frozen(value: Any) -> FrozenValue:
    if isinstance(value, list):
        return tuple(_frozen(item) for item in value)
    return {key: _frozen(item) for key, item in value.items()} if isinstance(value, dict) else value
