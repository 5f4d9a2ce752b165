"""``--mcore PATH``: a source tree is read, never run, and what it does not confirm is marked.

The tree is a small one of our own making; the oracle does the same with the real package.
"""

from __future__ import annotations

import ast
import json
from pathlib import Path

import pytest

from recompute.config.megatron_tree import MAX_SOURCE_BYTES, read_tree
from recompute.errors import ConfigError
from recompute.report.check_run import check_job, known_anchors
from recompute.rules.anchors import anchored, changed, fingerprint
from recompute.rules.examples import BASE, job_of
from recompute.rules.table import BY_ID, RULES
from recompute.rules.types import Example

CONFIG = '''
class TransformerConfig(ModelParallelConfig):
    """Nothing below is ever run."""
    recompute_granularity: str = None
    recompute_modules: list = None
    moe_grouped_gemm: bool = False
    mlp_chunks_for_training: int = 4
    raise_if_imported: int = open("/nonexistent")

    def __post_init__(self):
        if self.recompute_granularity == "selective":
            if len(self.recompute_modules) > 0:
                allowed_modules = {"core_attn", "mlp", "moe", "moe_act", "my_own_label"}
                invalid_modules = set(self.recompute_modules) - allowed_modules
                assert not invalid_modules, f"{invalid_modules} {allowed_modules}"
            if "moe_act" in self.recompute_modules and not self.moe_grouped_gemm:
                raise ValueError("moe_act in recompute_modules is only supported with moe_grouped_gemm")

raise SystemExit("imported")
'''
PARALLEL = "class ModelParallelConfig:\n    cpu_offloading: bool = False\n"


def tree(root: Path, *, version: str = "0, 19, 2", config: str = CONFIG) -> Path:
    core = root / "megatron" / "core"
    (core / "transformer").mkdir(parents=True)
    major, minor, patch = version.split(",")
    (core / "package_info.py").write_text(
        f"MAJOR ={major}\nMINOR ={minor}\nPATCH ={patch}\nPRE_RELEASE = ''\n", encoding="utf-8"
    )
    (core / "model_parallel_config.py").write_text(PARALLEL, encoding="utf-8")
    (core / "transformer" / "transformer_config.py").write_text(config, encoding="utf-8")
    return root


def test_labels_fields_and_defaults_come_from_the_source(tmp_path: Path) -> None:
    read = read_tree(str(tree(tmp_path)))
    assert read.labels == {"core_attn", "mlp", "moe", "moe_act", "my_own_label"}
    assert {"cpu_offloading", "recompute_granularity"} <= read.fields
    assert read.defaults["mlp_chunks_for_training"] == 4
    assert "raise_if_imported" not in read.defaults
    assert (read.version, read.revision.name) == ("0.19.2", "0.19")


@pytest.mark.parametrize("below", ["", "megatron", "megatron/core"])
def test_any_folder_on_the_way_will_do(tmp_path: Path, below: str) -> None:
    assert read_tree(str(tree(tmp_path) / below)).version == "0.19.2"


def test_the_users_own_labels_are_the_ones_that_count(tmp_path: Path) -> None:
    path = str(tree(tmp_path))
    own = Example(
        revision="0.19",
        fields={"recompute_granularity": "selective", "recompute_modules": ("my_own_label",)},
    )
    assert check_job(job_of(own), path).ok
    assert not check_job(job_of(own), "0.19").ok
    theirs = Example(
        revision="0.19",
        fields={"recompute_granularity": "selective", "recompute_modules": ("layernorm",)},
    )
    findings = {f.rule: f for f in check_job(job_of(theirs), path).findings}
    assert "my_own_label" in findings["unknown-label"].message


def test_defaults_of_the_source_are_taken_over_and_said(tmp_path: Path) -> None:
    answer = check_job(BASE, str(tree(tmp_path)))
    assert answer.job.model.mlp_chunks_for_training == 4
    assert any("mlp_chunks_for_training=4" in item.text for item in answer.job.assumptions)


def test_a_rule_whose_statements_differ_is_unconfirmed(tmp_path: Path) -> None:
    job = job_of(BY_ID["moe-act-needs-grouped-gemm"].bad)
    answer = check_job(job, str(tree(tmp_path)))
    finding = next(f for f in answer.findings if f.rule == "moe-act-needs-grouped-gemm")
    assert finding.confirmed == (
        fingerprint(BY_ID[finding.rule], ast.parse(CONFIG)) == known_anchors()[finding.rule]["0.19"]
    )
    renamed = CONFIG.replace("and not self.moe_grouped_gemm", "and not self.moe_grouped_gemm_v2")
    other = check_job(job, str(tree(tmp_path / "other", config=renamed)))
    marked = next(f for f in other.findings if f.rule == "moe-act-needs-grouped-gemm")
    assert marked.confirmed is False


def test_wording_and_comments_do_not_change_a_fingerprint() -> None:
    rule = BY_ID["moe-act-needs-grouped-gemm"]
    before = fingerprint(rule, ast.parse(CONFIG))
    reworded = CONFIG.replace("is only supported with", "# not\n is only for").replace(
        "# not\n is", "is"
    )
    assert before is not None
    assert fingerprint(rule, ast.parse(reworded)) == before
    altered = CONFIG.replace('"moe_act" in self', '"moe_act" not in self')
    assert fingerprint(rule, ast.parse(altered)) != before


def test_a_missing_file_counts_as_changed() -> None:
    rules = (BY_ID["uniform-zero"],)
    assert changed(rules, known_anchors(), "0.19", {}) == {"uniform-zero"}
    assert changed(rules, {}, "0.19", {}) == frozenset()


def test_every_anchored_rule_has_a_fingerprint() -> None:
    table = known_anchors()
    assert {rule.id for rule in RULES if anchored(rule)} == set(table)
    assert json.loads(json.dumps(table)) == table


@pytest.mark.parametrize(
    ("version", "name"), [("0, 20, 0", "pin"), ("0, 16, 3", "0.16"), ("0, 8, 0", "0.8")]
)
def test_the_version_is_the_one_in_package_info(tmp_path: Path, version: str, name: str) -> None:
    assert read_tree(str(tree(tmp_path, version=version))).revision.name == name


def test_main_and_dev_are_told_apart_by_their_fields(tmp_path: Path) -> None:
    for field, name in (("enable_mhc_connections", "main"), ("enable_hyper_connections", "dev")):
        config = CONFIG.replace("moe_grouped_gemm: bool", f"{field}: bool = False\n    x: bool")
        path = tree(tmp_path / name, version="0, 20, 0", config=config)
        assert read_tree(str(path)).revision.name == name


def test_a_newer_version_is_based_on_main_and_says_so(tmp_path: Path) -> None:
    path = str(tree(tmp_path, version="0, 31, 0"))
    answer = check_job(job_of(BY_ID["granularity-value"].bad), path)
    assert answer.mcore == "main"
    assert any(item.id == "mcore-newer" for item in answer.job.assumptions)
    finding = next(f for f in answer.findings if f.rule == "granularity-value")
    assert finding.confirmed is False


@pytest.mark.parametrize(
    "damage",
    [
        lambda core: (core / "package_info.py").unlink(),
        lambda core: (core / "package_info.py").write_text("MAJOR = 'x'\n"),
        lambda core: (core / "package_info.py").write_text("MAJOR = (\n"),
        lambda core: (core / "transformer/transformer_config.py").unlink(),
        lambda core: (core / "transformer/transformer_config.py").write_text("def (:\n"),
        lambda core: (core / "transformer/transformer_config.py").write_text("x = 1\n"),
        lambda core: (core / "transformer/transformer_config.py").write_bytes(b"\xff\xfe\x00"),
        lambda core: (core / "transformer/transformer_config.py").write_text("(" * 5000),
        lambda core: (core / "transformer/transformer_config.py").write_text(
            "#" * (MAX_SOURCE_BYTES + 1)
        ),
        lambda core: (core / "transformer/transformer_config.py").write_text(
            CONFIG.replace("allowed_modules = {", "allowed_modules = make_set(").replace(
                '"my_own_label"}', '"my_own_label")'
            )
        ),
    ],
)
def test_what_is_not_megatron_is_said_clearly(tmp_path: Path, damage: object) -> None:
    root = tree(tmp_path)
    damage(root / "megatron" / "core")  # type: ignore[operator]
    with pytest.raises(ConfigError) as caught:
        read_tree(str(root))
    assert caught.value.code == "not-megatron"
    assert caught.value.hint
