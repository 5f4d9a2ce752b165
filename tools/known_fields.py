"""Write the table of known job fields from clones of Megatron-LM and Megatron Bridge.

    tools/known_fields.py MEGATRON_GIT_DIR BRIDGE_GIT_DIR > packages/recompute/src/recompute/config/known_fields.json

Static reading only: names, types, literal defaults, and the first and last revision that has a field.
"""

from __future__ import annotations

import ast
import io
import json
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from dataclasses import dataclass, field

REVISIONS = {
    "0.12": "core_v0.12.0",
    "0.13": "core_v0.13.0",
    "0.14": "core_v0.14.0",
    "0.15": "core_v0.15.0",
    "0.16": "core_v0.16.1",
    "0.17": "core_v0.17.1",
    "0.18": "core_v0.18.2",
    "0.19": "core_v0.19.0",
    "pin": "2a75ac12",
    "main": "d98e8a64",
    "dev": "d48bd6be",
}
BRIDGE = "067f987df03b8355b03192d88d70f1709fedf51a"
MEGATRON_ROOTS = ("megatron/core", "megatron/training")
SECTIONS = {
    "model": ("TransformerConfig", "MLATransformerConfig", "ModelParallelConfig"),
    "optimizer": ("OptimizerConfig",),
    "ddp": ("DistributedDataParallelConfig",),
    "train": ("TrainingConfig", "TrainConfig"),
    "dataset": ("GPTDatasetConfig", "BlendedMegatronDatasetConfig", "DataloaderConfig"),
    "mixed_precision": ("MixedPrecisionConfig",),
    "comm_overlap": ("CommOverlapConfig",),
    "peft": ("PEFT",),
    "dist": ("DistributedInitConfig",),
    "checkpoint": ("CheckpointConfig",),
    "profiling": ("ProfilingConfig",),
    "scheduler": ("SchedulerConfig",),
    "logger": ("LoggerConfig",),
    "tokenizer": ("TokenizerConfig",),
    "rng": ("RNGConfig",),
    "rerun_state_machine": ("RerunStateMachineConfig",),
    "validation": ("ValidationConfig",),
    "ft": ("FaultToleranceConfig",),
    "straggler": ("StragglerDetectionConfig",),
    "nvrx_straggler": ("NVRxStragglerDetectionConfig",),
    "tensor_inspect": ("TensorInspectConfig",),
    "inprocess_restart": ("InProcessRestartConfig",),
    "optimizer_config_override_provider": ("OptimizerConfigOverrideProvider",),
}
"""Section -> the classes whose fields, and whose subclasses' fields, it may hold."""
EXTRA_BASES = {
    "model": ("ModelProviderMixin", "ModelConfig"),
    "dataset": ("DatasetProvider", "DataloaderConfig"),
    "peft": ("PEFT", "DoRA", "LoRA", "ModuleMatcher"),
}
PREFERRED = {"model": ("GPTModelProvider",), "peft": ("LoRA",)}
"""Where subclasses disagree about a default, these speak; otherwise there is none."""
OURS = {
    "hardware": ("gpu", "num_gpus", "memory_bytes"),
    "framework": ("megatron_core", "megatron_bridge", "torch", "transformer_engine"),
    "env_vars": ("*",),
}


@dataclass
class Klass:
    """One class: the names of its bases, and its annotated fields with type and default."""

    bases: tuple[str, ...]
    fields: dict[str, tuple[str, object]] = field(default_factory=dict)


def archive(git_dir: str, revision: str, *roots: str) -> Iterator[tuple[str, str]]:
    """Yield path and text of every Python file below ``roots`` at a revision."""
    present = subprocess.run(
        ["git", f"--git-dir={git_dir}", "ls-tree", "--name-only", revision, *roots],
        check=True,
        capture_output=True,
        text=True,
    ).stdout.split()
    command = ["git", f"--git-dir={git_dir}", "archive", revision, *present]
    data = subprocess.run(command, check=True, capture_output=True).stdout
    with tarfile.open(fileobj=io.BytesIO(data)) as tar:
        for member in tar:
            if member.isfile() and member.name.endswith(".py"):
                stream = tar.extractfile(member)
                assert stream is not None
                yield member.name, stream.read().decode("utf-8", "replace")


def classes(files: Iterator[tuple[str, str]]) -> dict[str, list[Klass]]:
    """Return every class by name; a name may have several."""
    found: dict[str, list[Klass]] = {}
    for _, text in files:
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.ClassDef):
                klass = Klass(bases=tuple(filter(None, map(base_name, node.bases))))
                for item in node.body:
                    if isinstance(item, ast.AnnAssign) and isinstance(item.target, ast.Name):
                        name, kind = item.target.id, ast.unparse(item.annotation)
                        if not name.startswith("_") and "ClassVar" not in kind:
                            klass.fields[name] = (kind, literal(item.value))
                found.setdefault(node.name, []).append(klass)
    return found


def base_name(node: ast.expr) -> str:
    """Return the last name of a base class, without the prefixes of an import alias."""
    while isinstance(node, ast.Subscript):
        node = node.value
    name = node.attr if isinstance(node, ast.Attribute) else getattr(node, "id", "")
    # Bridge imports Megatron's classes under a prefix.
    return name.removeprefix("MCore").removeprefix("MTrain")


def literal(node: ast.expr | None) -> object:
    """Return a literal default, or ``...`` where there is none or it is computed."""
    if node is None:
        return ...
    if isinstance(node, ast.Call) and base_name(node.func) == "field":
        for keyword in node.keywords:
            if keyword.arg == "default":
                return literal(keyword.value)
            if keyword.arg == "default_factory" and base_name(keyword.value) in ("list", "tuple"):
                return []
        return ...
    try:
        value = ast.literal_eval(node)
    except ValueError:
        return ...
    return value if isinstance(value, str | int | float | bool | list | None) else ...


def fields_of(
    table: dict[str, list[Klass]], roots: tuple[str, ...], *, below: bool
) -> dict[str, tuple[str, object]]:
    """Return the fields of classes and of what they inherit from, or (below) of what inherits them."""
    names, changed = set(roots), True
    while changed:
        changed = False
        for name, klasses in table.items():
            for klass in klasses:
                if below and name not in names and names & set(klass.bases):
                    names.add(name)
                    changed = True
                if name in roots or name in names:
                    new = {base for base in klass.bases if base in table} - names
                    if new and name in roots:
                        names |= new
                        changed = True
    result: dict[str, tuple[str, object]] = {}
    for name in (*sorted(names - set(roots)), *reversed(roots)):
        for klass in table.get(name, ()):
            result.update(klass.fields)
    return result


def main() -> None:
    """Read both clones and print the table."""
    megatron, bridge = sys.argv[1:3]
    table = {
        section: {name: ["", ..., None, None] for name in names} for section, names in OURS.items()
    }
    for section in SECTIONS:
        table[section] = {}
    core: dict[str, list[Klass]] = {}
    for revision, commit in REVISIONS.items():
        core = classes(archive(megatron, commit, *MEGATRON_ROOTS))
        for section in ("model", "optimizer", "ddp"):
            for name, (kind, default) in fields_of(core, SECTIONS[section], below=False).items():
                row = table[section].setdefault(name, [kind, default, revision, revision])
                row[0], row[1] = (kind, default) if revision in ("0.19", "pin", "main") else row[:2]
                row[3] = revision
    pin = classes(archive(megatron, REVISIONS["pin"], *MEGATRON_ROOTS))
    both = {**pin}
    for name, klasses in classes(archive(bridge, BRIDGE, "src/megatron/bridge")).items():
        both[name] = [*both.get(name, []), *klasses]
    for section, roots in SECTIONS.items():
        extra = EXTRA_BASES.get(section, ())
        preferred = fields_of(both, (*roots, *PREFERRED.get(section, ())), below=False)
        for name, (kind, default) in fields_of(both, (*roots, *extra), below=True).items():
            row = preferred.get(name, (kind, default if section not in PREFERRED else ...))
            table[section].setdefault(name, [*row, None, None])
    write(table)


def write(table: dict[str, dict[str, list[object]]]) -> None:
    """Print ``section -> field -> [type, first, last, default]``, a field per line; no default, no item."""
    print("{")
    for index, (section, rows) in enumerate(sorted(table.items())):
        print(("," if index else "") + f'"{section}": {{')
        for position, (name, row) in enumerate(sorted(rows.items())):
            kind, default, first, last = row
            values = [str(kind)[:60], first, last, *([] if default is ... else [default])]
            print(("," if position else "") + f'"{name}": {json.dumps(values)}')
        print("}")
    print("}")


if __name__ == "__main__":
    main()
