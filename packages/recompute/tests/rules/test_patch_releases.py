"""Rules that a patch release brought."""

from __future__ import annotations

from pathlib import Path

import pytest

from recompute.config.load import load
from recompute.config.normalize import normalize
from recompute.config.revision import parse_revision
from recompute.rules.check import check

ARGUMENTS = (
    "--num-layers 4 --hidden-size 1024 --num-attention-heads 8 --seq-length 1024 --vocab-size 32000 "
    "--micro-batch-size 1 --bf16 --cross-entropy-loss-fusion --cross-entropy-fusion-impl te"
)


@pytest.mark.parametrize(
    ("core", "refused"),
    [("0.17.1", False), ("0.18.0", False), ("0.18.2", True), ("0.19.0", True), ("0.19.2", True)],
)
def test_megatron_lm_refuses_the_engines_cross_entropy_from_0_18_2_on(
    tmp_path: Path, core: str, refused: bool
) -> None:
    path = tmp_path / "job.args"
    path.write_text(ARGUMENTS, encoding="utf-8")
    job = normalize(load(str(path), f"framework.megatron_core={core}"))
    found = {item.rule for item in check(job, parse_revision(core))}
    assert ("te-cross-entropy-refused" in found) is refused
