"""``recompute show`` as a program: what it prints, and its exit codes."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

EXAMPLES = Path(__file__).parents[4] / "examples"
JOB = str(EXAMPLES / "llama3-70b.yaml")


def run(*arguments: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "recompute", *arguments]
    return subprocess.run(command, input=stdin, capture_output=True, text=True, check=False)


def test_yaml_goes_through_standard_input_again() -> None:
    first = run("show", JOB)
    assert first.returncode == 0
    assert "num_layers: 80  # line 4" in first.stdout
    assert "vocab_size: 128512  # filled in" in first.stdout
    assert "padded to a multiple of 128 x TP" in first.stdout
    second = run("show", "-", stdin=first.stdout)
    assert second.returncode == 0
    plain = [
        line.partition("  #")[0] for line in first.stdout.splitlines() if not line.startswith("#")
    ]
    again = [
        line.partition("  #")[0] for line in second.stdout.splitlines() if not line.startswith("#")
    ]
    assert again == plain


def test_json_has_the_shared_fields_and_every_field() -> None:
    result = run("show", JOB, "model.recompute_modules=[mlp]", "--json")
    document = json.loads(result.stdout)
    assert next(iter(document)) == "schema"
    assert document["schema"] == "recompute.show/1"
    assert document["job"]["format"] == "bridge-yaml"
    assert len(document["job"]["sha256"]) == 64
    fields = {field["field"]: field for field in document["fields"]}
    assert fields["model.recompute_modules"] == {
        "field": "model.recompute_modules",
        "value": ["mlp"],
        "origin": "override",
    }
    assert fields["model.moe_router_topk"]["origin"] == "default"
    assert {"field", "before", "after", "why", "source"} == set(document["changes"][0])
    assert {"id", "text"} == set(document["assumptions"][0])


@pytest.mark.parametrize(
    ("form", "line"),
    [
        ("mlm", "--num-layers 80"),
        ("bridge", "  activation_func: {_target_: torch.nn.functional.silu, _call_: false}"),
    ],
)
def test_other_forms(form: Any, line: Any) -> None:
    result = run("show", JOB, "--format", form)
    assert result.returncode == 0
    assert line in result.stdout.splitlines()


def test_all_prints_defaults_too() -> None:
    assert "moe_router_topk: 2  # default" in run("show", JOB, "--all").stdout


def test_the_revision_decides_what_is_filled_in() -> None:
    arguments = [
        "show",
        JOB,
        "model.cuda_graph_scope=[attn]",
        "model.cuda_graph_impl=transformer_engine",
    ]
    assert "cuda_graph_modules: [attn]" in run(*arguments, "--mcore", "0.19").stdout
    assert "cuda_graph_modules" not in run(*arguments, "--mcore", "0.17").stdout


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (["show", "nowhere.yaml"], "not-found"),
        (["show", JOB, "model.num_layer=3"], "unknown-field"),
        (["show", JOB, "--mcore", "9.9"], "unknown-revision"),
        (["show", "recipe:nothing-like-it"], "unknown-recipe"),
    ],
)
def test_errors_are_exit_2_and_one_document(arguments: Any, code: Any) -> None:
    text = run(*arguments)
    assert text.returncode == 2
    assert text.stdout == ""
    assert f"[{code}]" in text.stderr
    assert "Traceback" not in text.stderr
    document = json.loads(run(*arguments, "--json").stdout)
    assert document["schema"] == "recompute.error/1"
    assert document["code"] == code


def test_reading_a_job_imports_nothing_heavy() -> None:
    script = (
        "import sys; from recompute.config.load import load; "
        f"load({JOB!r}); print(sorted(m for m in ('rich', 'matplotlib', 'sqlalchemy', 'asyncio', 'numpy', 'mcp') if m in sys.modules))"
    )
    result = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    assert result.stdout.strip() == "[]"


def test_the_public_function() -> None:
    import recompute

    job = recompute.load(JOB, "model.num_layers=160")
    assert job.model.num_layers == 160
    with pytest.raises(AttributeError):
        _ = recompute.no_such_name
