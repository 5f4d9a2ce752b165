"""Write the defaults of Megatron Bridge's model providers from a clone of it.

    tools/provider_catalogue.py BRIDGE_GIT_DIR > packages/recompute/src/recompute/config/providers.json

A job's ``model._target_`` names a provider, and the fields that the job leaves out are that class's. The
classes are read as syntax trees at the releases below, the newest that has a class deciding; only fields
that a job has, and only where the class differs from our own defaults. Nothing of Bridge is imported or run.
"""

from __future__ import annotations

import ast
import dataclasses
import json
import sys
from typing import Any

from bridge_interpreter import CLASSES, Interpreter
from bridge_source import ROOT, Object, Repository, Stuck
from known_fields import BRIDGE, archive
from recipe_catalogue import KNOWN, plain
from recompute.config.coerce import coerce
from recompute.config.schema import ModelConfig
from recompute.config.section_types import kinds
from recompute.errors import RecomputeError

REVISIONS = {
    "fd27b3b3": "fd27b3b38293b8a3da5efcd14eeda0042494e586",  # a branch: the Mixtral provider
    "v0.2.2": "v0.2.2",
    "v0.3.1": "v0.3.1",
    "v0.4.2": "v0.4.2",
    "v0.5.1": "v0.5.1",
    "v0.6.0": "v0.6.0",
    "067f987d": BRIDGE,
}
"""Oldest first: a later one replaces the class of the same name."""
CORE_BASES = {"MLATransformerConfig": {"multi_latent_attention": True}}
"""Base outside Bridge -> what it sets that our own defaults do not have."""


class Providers(Repository):
    """Classes with their bases in the order in which Python looks names up."""

    def defaults(self, kind: tuple[ast.ClassDef, str]) -> dict[str, Any]:
        """Return the defaults of a class and its bases, the first base winning over the second."""
        node, module = kind
        values: dict[str, Any] = {}
        for base in reversed(node.bases):
            if isinstance(base, ast.Name):
                parent = self.resolve(module, base.id)
                if isinstance(parent, tuple) and isinstance(parent[0], ast.ClassDef):
                    values.update(self.defaults(parent))
                for name, value in CORE_BASES.get(base.id, {}).items():
                    values[name] = (ast.Constant(value), module)
        own = ast.ClassDef(name=node.name, bases=[], keywords=[], body=node.body, decorator_list=[])
        return {**values, **super().defaults((own, module))}


def fields_of(run: Interpreter, kind: tuple[ast.ClassDef, str]) -> dict[str, Any]:
    """Return the known fields of a class that differ from our own defaults."""
    CLASSES[kind[0].name] = kind
    ours = {item.name: item.default for item in dataclasses.fields(ModelConfig)}
    found: dict[str, Any] = {}
    for name in sorted(set(run.repository.defaults(kind)) & KNOWN["model"]):
        try:
            value = plain(run.default(Object(kind[0].name, {}), name))
            given = tuple(value) if isinstance(value, list) else value
            typed = coerce("model", name, kinds("model")[name], given)
        except (Stuck, RecomputeError, KeyError, TypeError):
            continue
        if value is not None and typed != ours[name]:
            found[name] = value
    return found


def main() -> None:
    """Print one line for each provider: where it was read and its fields."""
    result: dict[str, dict[str, Any]] = {}
    for label, revision in REVISIONS.items():
        CLASSES.clear()
        files = dict(archive(sys.argv[1], revision, "src/megatron/bridge/models"))
        repository = Providers({p: t for p, t in files.items() if p.startswith(ROOT)})
        run = Interpreter(repository)
        for module in sorted(repository.trees):
            for name, found in sorted(repository.names(module).items()):
                if not isinstance(found, tuple) or not isinstance(found[0], ast.ClassDef):
                    continue
                if found[1] == module and ("Provider" in name or name.endswith("ModelConfig")):
                    path = ROOT + module.replace(".", "/") + ".py"
                    result[name] = {"source": f"{label} {path}", "fields": fields_of(run, found)}
    print("{")
    for position, name in enumerate(sorted(result)):
        text = json.dumps(result[name], separators=(",", ":"), sort_keys=True)
        print(("," if position else "") + f'"{name}": {text}')
    print("}")


if __name__ == "__main__":
    main()
