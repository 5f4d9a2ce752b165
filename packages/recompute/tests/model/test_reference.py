"""The reference page speaks of every sublayer and of every label that acts on it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from recompute.model.layer import LAYER_KINDS, SUBLAYERS
from recompute.model.ops.number_formats import FORMATS
from recompute.model.shape import shape_of

from .jobs import job

PAGE = (Path(__file__).parents[4] / "docs/reference/layer-types.md").read_text("utf-8")
TABLE = PAGE[: PAGE.index("\n## ")]


def labels(name: str, **fields: object) -> set[str]:
    one = job(**{"multi_latent_attention": name == "mla", **fields})
    return {region.label for region in LAYER_KINDS[name](one.model, shape_of(one)).regions}


@pytest.mark.parametrize("name", SUBLAYERS)
def test_a_row_names_the_labels_that_act(name: str) -> None:
    row = next(line for line in TABLE.splitlines() if line.startswith("|") and f"`{name}`" in line)
    if "as `attention`" in row:
        name = "attention"
        row = next(line for line in TABLE.splitlines() if line.startswith("| `attention`"))
    acting = labels(name) | (labels(name, transformer_impl="local") if name != "moe" else set())
    assert set(re.findall(r"`([a-z_]+)`", row.split("|")[3])) == acting


@pytest.mark.parametrize("recipe", FORMATS)
def test_every_number_format_is_there(recipe: str) -> None:
    assert f"`{recipe}`" in PAGE
