"""``recompute check`` and ``recompute rules`` as a user meets them: whole commands on real files."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from click.testing import CliRunner, Result

from recompute.cli.check import command as check
from recompute.cli.rules import command as rules

JOB = """\
model:
  num_layers: 24
  hidden_size: 1024
  num_attention_heads: 16
  recompute_granularity: full
  recompute_method: uniform
  recompute_num_layers: 7
"""
SARIF_SUBSET: dict[str, Any] = {
    "type": "object",
    "required": ["version", "runs"],
    "properties": {
        "version": {"const": "2.1.0"},
        "$schema": {"type": "string", "format": "uri"},
        "runs": {
            "type": "array",
            "items": {
                "type": "object",
                "required": ["tool", "results"],
                "properties": {
                    "tool": {
                        "type": "object",
                        "required": ["driver"],
                        "properties": {
                            "driver": {
                                "type": "object",
                                "required": ["name"],
                                "properties": {
                                    "rules": {
                                        "type": "array",
                                        "uniqueItems": True,
                                        "items": {
                                            "type": "object",
                                            "required": ["id"],
                                            "properties": {
                                                "defaultConfiguration": {
                                                    "properties": {
                                                        "level": {
                                                            "enum": [
                                                                "none",
                                                                "note",
                                                                "warning",
                                                                "error",
                                                            ]
                                                        }
                                                    }
                                                }
                                            },
                                        },
                                    }
                                },
                            }
                        },
                    },
                    "columnKind": {"enum": ["utf16CodeUnits", "unicodeCodePoints"]},
                    "results": {
                        "type": "array",
                        "items": {
                            "type": "object",
                            "required": ["message"],
                            "properties": {
                                "ruleId": {"type": "string"},
                                "ruleIndex": {"type": "integer", "minimum": 0},
                                "level": {"enum": ["none", "note", "warning", "error"]},
                                "message": {"type": "object", "required": ["text"]},
                                "locations": {
                                    "type": "array",
                                    "items": {
                                        "properties": {
                                            "physicalLocation": {
                                                "required": ["artifactLocation"],
                                                "properties": {
                                                    "region": {
                                                        "properties": {
                                                            "startLine": {
                                                                "type": "integer",
                                                                "minimum": 1,
                                                            }
                                                        }
                                                    }
                                                },
                                            }
                                        }
                                    },
                                },
                            },
                        },
                    },
                },
            },
        },
    },
}
"""The part of SARIF 2.1.0 (OASIS standard) that readers need."""


@pytest.fixture
def job(tmp_path: Path) -> str:
    path = tmp_path / "job.yaml"
    path.write_text(JOB, encoding="utf-8")
    return str(path)


def run(*arguments: str) -> Result:
    return CliRunner().invoke(check, arguments, standalone_mode=False)


def document(*arguments: str) -> dict[str, Any]:
    answer: dict[str, Any] = json.loads(run(*arguments, "--json").output)
    return answer


def test_the_document_has_the_fields_of_the_contract(job: str) -> None:
    answer = document(job, "--mcore", "0.16.1")
    assert answer["schema"] == "recompute.check/1"
    assert answer["ok"] is False
    assert answer["mcore"] == "0.16"
    assert set(answer["job"]) == {"path", "sha256", "format"}
    assert isinstance(answer["changes"], list)
    assert isinstance(answer["assumptions"], list)
    finding = answer["findings"][0]
    assert finding["rule"] == "uniform-nondividing"
    assert finding["severity"] == "error"
    assert finding["fields"] == ["model.recompute_num_layers"]
    assert finding["fix"]["overrides"] == ["model.recompute_num_layers=6"]
    assert set(finding["source"]) == {"repository", "revision", "path", "where"}
    assert finding["source"]["revision"] == "core_v0.16.0"
    assert "7" in finding["message"]


@pytest.mark.parametrize(
    ("mcore", "code"), [("0.16.1", 1), ("0.17", 0), ("bridge-0.2.0", 1), ("bridge-0.5.0", 0)]
)
def test_only_errors_decide_the_exit_code(job: str, mcore: str, code: int) -> None:
    assert run(job, "--mcore", mcore).return_value == code


def test_pasting_the_overrides_makes_it_pass(job: str) -> None:
    overrides = document(job, "--mcore", "0.16")["overrides"]
    assert document(job, *overrides, "--mcore", "0.16")["ok"] is True


def test_without_a_revision_the_assumption_is_listed(job: str) -> None:
    answer = document(job)
    assert "mcore-revision" in {item["id"] for item in answer["assumptions"]}
    stated = document(job, "framework.megatron_core=0.16.1")
    assert stated["mcore"] == "0.16"
    assert "mcore-revision" not in {item["id"] for item in stated["assumptions"]}


def test_text_says_what_to_paste_before_the_notes(job: str) -> None:
    text = run(job, "--mcore", "0.16").output
    assert text.index("error uniform-nondividing") < text.index("note ")
    assert "model.recompute_num_layers=6" in text
    assert "note " not in run(job, "--mcore", "0.16", "--no-notes").output


def test_sarif_is_sarif_and_points_at_the_line(job: str) -> None:
    log = json.loads(run(job, "--mcore", "0.16", "--format", "sarif").output)
    jsonschema.validate(log, SARIF_SUBSET)
    result = log["runs"][0]["results"][0]
    assert result["ruleId"] == "uniform-nondividing"
    assert log["runs"][0]["tool"]["driver"]["rules"][result["ruleIndex"]]["id"] == result["ruleId"]
    location = result["locations"][0]["physicalLocation"]
    assert location["region"]["startLine"] == 7


def test_annotations_are_one_line_each_and_escaped(tmp_path: Path) -> None:
    path = tmp_path / "a,b:100%.yaml"
    path.write_text(JOB, encoding="utf-8")
    lines = run(str(path), "--mcore", "0.16", "--format", "github").output.splitlines()
    assert lines[0].startswith("::error file=")
    properties = lines[0].removeprefix("::error ").partition("::")[0]
    assert "a%2Cb%3A100%25.yaml,line=7,title=recompute uniform-nondividing" in properties
    assert all(line.startswith("::") for line in lines)


def test_several_jobs_are_one_document(job: str, tmp_path: Path) -> None:
    good = tmp_path / "good.yaml"
    good.write_text(JOB.replace("7", "8"), encoding="utf-8")
    answer = document(job, str(good), "--mcore", "0.16")
    assert answer["ok"] is False
    assert [one["ok"] for one in answer["results"]] == [False, True]


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (["--mcore", "0.99"], "unknown-revision"),
        (["--mcore", "0.1"], "unknown-revision"),
        (["--mcore", "bridge-9"], "unknown-revision"),
        (["--mcore", "no/such/folder"], "not-megatron"),
        (["--mcore", ""], "unknown-revision"),
        (["model.no_such_field=1"], "unknown-field"),
    ],
)
def test_what_cannot_be_meant_is_exit_2_with_a_code(
    job: str, arguments: list[str], code: str
) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "recompute", "check", job, *arguments, "--json"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2
    answer = json.loads(done.stdout)
    assert answer["schema"] == "recompute.error/1"
    assert answer["code"] == code
    assert "Traceback" not in done.stderr


def test_a_launch_script_is_judged_as_megatron_lm_would(tmp_path: Path) -> None:
    script = tmp_path / "train.sh"
    script.write_text(
        "torchrun pretrain_gpt.py --num-layers 8 --hidden-size 1024 --num-attention-heads 16 \\\n"
        "  --seq-length 4096 --max-position-embeddings 4096 --micro-batch-size 1 \\\n"
        "  --recompute-granularity full --recompute-activations\n",
        encoding="utf-8",
    )
    answer = document(str(script), "--mcore", "0.19")
    found = {finding["rule"]: finding for finding in answer["findings"]}
    assert found["recompute-activations-overrides"]["severity"] == "error"
    assert "full" in found["recompute-activations-overrides"]["message"]
    repaired = document(str(script), *answer["overrides"], "--mcore", "0.19")
    assert repaired["ok"] is True


def rules_output(*arguments: str) -> str:
    return CliRunner().invoke(rules, arguments, standalone_mode=False).output


def test_rules_lists_the_rows_of_a_revision() -> None:
    answer = json.loads(rules_output("--mcore", "0.13", "--json"))
    ids = {row["rule"] for row in answer["rules"]}
    assert "fp8-act-norm-any" in ids
    assert "fp8-delayed-act-norm" not in ids
    assert answer["labels"] == ["core_attn", "moe_act", "layernorm", "mla_up_proj", "mlp", "moe"]
    assert "uniform-zero" in rules_output("--mcore", "0.19")


def test_the_difference_for_a_job_names_its_own_settings_only(job: str) -> None:
    answer = json.loads(rules_output("--diff", "0.16", "0.19", job, "--json"))
    assert answer["labels"]["added"] == ["gdn_norm_out"]
    assert {(c["kind"], c["rule"]) for c in answer["diff"]} == {
        ("becomes legal", "uniform-nondividing"),
        ("changes meaning", "uniform-nondividing-ok"),
    }
    every = json.loads(rules_output("--diff", "0.16", "0.19", "--json"))
    assert len(every["diff"]) > 10


def test_the_difference_says_what_stops_being_legal(job: str) -> None:
    answer = json.loads(rules_output("--diff", "0.19", "0.16", job, "--json"))
    assert ("stops being legal", "uniform-nondividing") in {
        (c["kind"], c["rule"]) for c in answer["diff"]
    }


@pytest.mark.parametrize(
    "arguments",
    [
        ("check", "absent.yaml", "--format", "json"),
        ("check", "absent.yaml", "--format=json"),
        ("check", "absent.yaml", "--json"),
        ("check", "absent.yaml", "--nope", "--json"),
        ("check", "--json"),
        ("frobnicate", "--json"),
    ],
)
def test_whoever_asks_for_json_gets_errors_as_json(arguments: tuple[str, ...]) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "recompute", *arguments], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (2, "")
    document = json.loads(done.stdout)
    assert list(document) == ["schema", "code", "message", "hint", "data"]
    assert document["schema"] == "recompute.error/1"
    assert document["hint"]


def test_a_usage_error_says_how_the_command_is_called() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "recompute", "plan"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 2
    assert "recompute plan [OPTIONS] JOB [OVERRIDES]..." in done.stderr.splitlines()[1]
