"""All overrides of one report, pasted together, give a job without errors and change nothing else."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from recompute.config.load import load
from recompute.config.revision import REVISIONS, Revision
from recompute.config.schema import JobConfig
from recompute.errors import ConfigError
from recompute.report.check_document import all_overrides
from recompute.rules.check import check, has_error, legal
from recompute.rules.examples import BASE

VALUES: dict[str, tuple[Any, ...]] = {
    "recompute_granularity": (None, "full", "selective", "none"),
    "recompute_method": (None, "uniform", "block", "other"),
    "recompute_num_layers": (None, None, 1, 3, 0, -2, 9),
    "recompute_modules": (
        None,
        [],
        ["core_attn"],
        ["mlp", "moe_layer"],
        ["moe_act", "layernorm"],
        ["mla_up_proj", "shared_experts", "moe"],
        ["gdn_norm_out", "nonsense"],
    ),
    "distribute_saved_activations": (False, True),
    "moe_layer_recompute": (False, False, True),
    "num_moe_experts": (None, 8),
    "moe_grouped_gemm": (False, True),
    "moe_token_dispatcher_type": ("alltoall", "allgather"),
    "overlap_moe_expert_parallel_comm": (False, True),
    "delay_wgrad_compute": (False, True),
    "fp8": (None, "hybrid"),
    "fp8_recipe": ("delayed", "mxfp8"),
    "cpu_offloading": (False, True),
    "cpu_offloading_num_layers": (0, 2, 8),
    "fine_grained_activation_offloading": (False, True),
    "offload_modules": ([], ["attn_proj"], ["moe_act", "unknown"], ["core_attn"]),
    "cuda_graph_impl": ("none", "local", "transformer_engine", "full_iteration"),
    "cuda_graph_scope": (None, ["attn"], ["moe_router"], ["full_iteration"], ["mlp", "attn"]),
    "attention_dropout": (0.0, 0.1),
    "hidden_dropout": (0.0, 0.1),
    "mtp_num_layers": (None, 1),
    "mlp_chunks_for_training": (1, 2),
}
FIXED = {
    "num_layers": 8,
    "hidden_size": 1024,
    "num_attention_heads": 16,
    "bf16": True,
    "tensor_model_parallel_size": 2,
}

jobs = st.fixed_dictionaries({name: st.sampled_from(values) for name, values in VALUES.items()})


def flat(job: JobConfig) -> dict[str, Any]:
    return {
        f"{section}.{field.name}": getattr(getattr(job, section), field.name)
        for section in ("model", "train", "optimizer", "ddp", "framework")
        for field in dataclasses.fields(getattr(job, section))
    }


@settings(
    max_examples=120, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(fields=jobs, kept=st.sets(st.sampled_from(sorted(VALUES))), name=st.sampled_from(REVISIONS))
def test_pasting_every_override_ends_every_error(
    tmp_path: Path, fields: dict[str, Any], kept: set[str], name: Revision
) -> None:
    path = tmp_path / "job.yaml"
    model = {**FIXED, **{key: fields[key] for key in kept}}
    path.write_text(yaml.safe_dump({"model": model}), encoding="utf-8")
    try:
        job = load(str(path))
    except ConfigError:
        return
    findings = check(job, name)
    overrides = all_overrides(findings)
    repaired = load(str(path), *overrides)
    left = [f for f in check(repaired, name) if f.severity == "error"]
    assert left == []
    touched = {line.partition("=")[0] for line in overrides}
    before, after = flat(job), flat(repaired)
    assert {key for key in before if before[key] != after[key]} <= touched
    assert touched <= set(before)


@given(fields=jobs, name=st.sampled_from(REVISIONS))
@settings(max_examples=80, deadline=None)
def test_the_fast_paths_agree_with_the_report(fields: dict[str, Any], name: Revision) -> None:
    from recompute.config.choice import NO_RECOMPUTE, full, selective, with_choice

    frozen = {key: tuple(v) if isinstance(v, list) else v for key, v in fields.items()}
    job = dataclasses.replace(BASE, model=dataclasses.replace(BASE.model, **frozen))
    errors = [f for f in check(job, name) if f.severity == "error"]
    assert has_error(job, name) == bool(errors)
    for choice in (NO_RECOMPUTE, selective("mlp"), full("uniform", 1), selective("moe", "mlp")):
        chosen = [f for f in check(with_choice(job, choice), name) if f.severity == "error"]
        assert legal(job, choice, name) == (not chosen)


@pytest.mark.parametrize(
    "value",
    [3, 1.5, True, ("full",), {"a": 1}, "", "FULL", (1, 2), ("mlp", ("x",)), frozenset(), b"mlp"],
)
@pytest.mark.parametrize(
    "field",
    [
        "recompute_granularity",
        "recompute_method",
        "recompute_num_layers",
        "recompute_modules",
        "cuda_graph_scope",
        "cuda_graph_modules",
        "cuda_graph_impl",
        "offload_modules",
        "mhc_recompute_layer_num",
        "mtp_num_layers",
        "moe_layer_freq",
        "fp8",
    ],
)
def test_values_of_any_type_get_an_answer(field: str, value: object) -> None:
    for base in (
        {},
        {
            "recompute_granularity": "full",
            "recompute_method": "uniform",
            "recompute_num_layers": 1,
        },
        {"recompute_granularity": "selective", "num_moe_experts": 8},
    ):
        job = dataclasses.replace(
            BASE, model=dataclasses.replace(BASE.model, **{**base, field: value})
        )
        for name in ("0.8", "0.13", "0.15", "0.17", "0.19", "main", "dev"):
            for finding in check(job, Revision(name)):
                assert finding.message
