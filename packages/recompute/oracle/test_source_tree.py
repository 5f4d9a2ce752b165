"""The installed package is read as a source tree: labels, fields, and every rule's statements."""

from __future__ import annotations

import dataclasses
import sys
from pathlib import Path

import megatron.core
from megatron.core.transformer.transformer_config import TransformerConfig

sys.path.insert(0, str(Path(__file__).resolve().parent))

import real

from recompute.config.megatron_tree import read_tree
from recompute.report.check_run import changed_rules, known_anchors
from recompute.rules.allowed import LABELS_OF

FOLDER = str(Path(megatron.core.__file__).resolve().parent)


def test_version_labels_and_fields_are_those_of_the_running_package() -> None:
    tree = read_tree(FOLDER)
    assert tree.revision == real.revision()
    assert tree.labels == LABELS_OF[real.revision().name]
    assert tree.fields >= {field.name for field in dataclasses.fields(TransformerConfig)}
    config = TransformerConfig(num_layers=1, hidden_size=8, num_attention_heads=1)
    for name in ("cuda_graph_impl", "attention_dropout", "cpu_offloading_weights"):
        assert tree.defaults[name] == getattr(config, name)


def test_the_published_package_confirms_the_rules_that_were_read_at_its_tag() -> None:
    name = real.revision().name
    rules = [rule for rule, hashes in known_anchors().items() if name in hashes]
    shipped = [rule for rule in rules if "training/" not in _path(rule)]
    assert len(shipped) > 80
    assert changed_rules(read_tree(FOLDER), shipped) == frozenset()


def _path(rule: str) -> str:
    from recompute.rules.table import BY_ID

    return BY_ID[rule].source.path
