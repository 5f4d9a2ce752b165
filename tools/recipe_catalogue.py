"""Write the catalogue of Megatron Bridge's recipes from a clone of it.

    tools/recipe_catalogue.py BRIDGE_GIT_DIR > packages/recompute/src/recompute/config/recipes.json

Reads the recipe functions as syntax trees and follows them with a small interpreter of its own: assignments,
calls of other recipe functions, literals, ``if`` whose condition is known. Nothing of Bridge is imported or run.
What the interpreter cannot know (an argument without a default, a value made by torch) is left out; a recipe
whose model comes from Hugging Face names the checkpoint, and its sizes stand in ``architectures.json``.
"""

from __future__ import annotations

import ast
import json
import re
import sys
from typing import Any

from bridge_interpreter import CLASSES, Interpreter
from bridge_source import ROOT, External, Object, Repository, Stuck, Unknown
from known_fields import BRIDGE, archive
from recompute.config.mixed_precision import DEFAULTS
from recompute.config.section_types import kinds

PACKAGES = (
    "megatron.bridge.recipes.",
    "megatron.bridge.perf_recipes.",
    "megatron.bridge.training.",
    "megatron.bridge.models.",
    "megatron.bridge.peft.",
)
SECTIONS = (
    "model",
    "train",
    "optimizer",
    "ddp",
    "peft",
    "dataset",
    "dist",
    "rng",
    "mixed_precision",
    "comm_overlap",
)
KNOWN = {
    "model": set(kinds("model")),
    "train": set(kinds("train")),
    "optimizer": set(kinds("optimizer")),
    "ddp": set(kinds("ddp")),
    "peft": set(kinds("peft")),
    "dataset": {"seq_length"},
    "dist": {"use_torch_fsdp2", "use_megatron_fsdp"},
    "rng": {"te_rng_tracker"},
    "mixed_precision": {*DEFAULTS, "fp8_param", "fp4_param"},
}
"""Section -> the fields that a job has; the others do not enter the memory model."""
RENAMED = {"hybrid_layer_pattern": "hybrid_override_pattern"}


def plain(value: Any) -> Any:
    """Return a value of JSON types; raise ``Stuck`` for what is not known."""
    match value:
        case Unknown():
            raise Stuck
        case External():
            parts = value.path.split(".")
            return (
                value.path if parts[0] == "torch" or parts[-2:-1] == ["functional"] else parts[-1]
            )
        case Object():
            return {"_class": value.kind, **plain_fields(value.values)}
        case dict():
            return {str(key): plain(item) for key, item in value.items()}
        case (ast.FunctionDef() as node, _) | (ast.ClassDef() as node, _):
            return node.name
        case list() | tuple() | set():
            if value and value[0] in ("builtin", "method", "module"):
                raise Stuck
            return [plain(item) for item in value]
        case None | bool() | int() | float() | str():
            return value
        case _:
            raise Stuck


def plain_fields(values: dict[str, Any]) -> dict[str, Any]:
    """Return the fields that are known."""
    found = {}
    for name, value in values.items():
        try:
            found[name] = plain(value)
        except Stuck:
            continue
    return found


LAYOUT = {"embedding": "E", "decoder": "t", "mtp": "m", "loss": "L"}
ENVIRONMENT = re.compile(r"PYTORCH_.*|NVTE_.*|CUDA_DEVICE_MAX_CONNECTIONS|NCCL_GRAPH_REGISTER")


def entry(run: Interpreter, config: Object) -> dict[str, Any]:
    """Return the catalogue's entry of one configuration: the fields that a job has, and the checkpoint."""
    result: dict[str, Any] = {}
    for section in SECTIONS:
        value = config.values.get(section)
        if isinstance(value, str):
            result[section] = value
        if not isinstance(value, Object):
            continue
        fields = {**inherited_fields(run, section, value), **plain_fields(value.values)}
        if section == "model":
            result["provider"] = value.kind
            result["hf_model"] = fields.pop("hf_model", None)
            fields = {RENAMED.get(k, k): v for k, v in fields.items()}
            fields["pipeline_model_parallel_layout"] = layout(
                fields.get("pipeline_model_parallel_layout")
            )
        if section == "peft":
            result["peft_class"] = value.kind
        known = KNOWN.get(section, set(fields))
        result[section] = {
            k: v for k, v in sorted(fields.items()) if k in known and not callable_text(k, v)
        }
    variables = config.values.get("env_vars")
    if isinstance(variables, dict):
        known_variables = plain_fields(variables)
        result["env_vars"] = {
            k: str(v) for k, v in known_variables.items() if ENVIRONMENT.fullmatch(k)
        }
    return result


def inherited_fields(run: Interpreter, section: str, value: Object) -> dict[str, Any]:
    """Return the class defaults of a provider that the recipe builds itself."""
    kind = CLASSES.get(value.kind)
    if section != "model" or kind is None or value.kind == "Model":
        return {}
    found = {name: run.default(value, name) for name in run.repository.defaults(kind)}
    return plain_fields(found)


def callable_text(name: str, value: Any) -> bool:
    """Tell whether a value is a function's name where the job has a number or a list."""
    return name == "pipeline_model_parallel_layout" and value is None


def layout(cells: Any) -> str | None:
    """Return an explicit pipeline layout as one string."""
    if isinstance(cells, list) and all(isinstance(cell, list) for cell in cells):
        return "|".join("".join(LAYOUT[part] for part in cell) for cell in cells)
    return cells if isinstance(cells, str) else None


def main() -> None:
    """Interpret every ``*_config`` function of the recipe packages and print the entries."""
    files = dict(archive(sys.argv[1], BRIDGE, "src/megatron/bridge"))
    repository = Repository({p: t for p, t in files.items() if p.startswith(ROOT)})
    result: dict[str, Any] = {}
    for module in sorted(repository.trees):
        if not module.startswith(PACKAGES[:2]) or ".utils" in module:
            continue
        for name, found in sorted(repository.names(module).items()):
            is_recipe = (
                isinstance(found, tuple)
                and isinstance(found[0], ast.FunctionDef)
                and found[1] == module
            )
            if not is_recipe or not name.endswith("_config") or name.startswith("_"):
                continue
            run = Interpreter(repository)
            provider = repository.resolve("megatron.bridge.models.gpt_provider", "GPTModelProvider")
            CLASSES["Model"] = provider
            config = run.call(found, [], {})
            if not isinstance(config, Object) or config.kind != "ConfigContainer":
                print(f"{module}.{name}: {type(config).__name__}", file=sys.stderr)
                continue
            made = entry(run, config)
            made["kind"] = "perf" if "perf_recipes" in module else "lib"
            made["source"] = module.replace(".", "/").removeprefix("megatron/bridge/")
            gpus = re.search(r"_(\d+)gpu_([a-z0-9]+)_", name)
            if gpus:
                made["num_gpus"], made["gpu"] = int(gpus[1]), gpus[2]
            if name in result:
                # The benchmark recipe of that name, read first, keeps its own key beside the library's.
                result[f"perf/{name}"] = result[name]
            result[name] = made
    for alias, name in aliases(repository, result):
        result[alias] = {"same_as": name}
    print("{")
    for position, name in enumerate(sorted(result)):
        text = json.dumps(result[name], separators=(",", ":"), sort_keys=True)
        print(("," if position else "") + f'"{name}": {text}')
    print("}")


def aliases(repository: Repository, found: dict[str, Any]) -> list[tuple[str, str]]:
    """Return the other names under which Bridge exports a recipe."""
    pairs = []
    for module in repository.trees:
        if not module.startswith(PACKAGES[:2]):
            continue
        for alias, target in repository.names(module).items():
            imported = isinstance(target, tuple) and target[0] == "import" and target[2] in found
            if imported and alias not in found and alias.endswith("_config"):
                pairs.append((alias, target[2]))
    return sorted(set(pairs))


if __name__ == "__main__":
    main()
