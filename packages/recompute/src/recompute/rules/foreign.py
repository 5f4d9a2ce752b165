"""Settings of other tools that end up in a Megatron job, or beside one.

They are read from fields that the job holds outside our sections: NeMo 1 names, Hugging Face's and
PyTorch's checkpointing switches, ``torch.compile``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from recompute.config.foreign_fields import RENAMED_FIELDS
from recompute.rules.case import Case, names_of
from recompute.rules.types import ALL, Edit, Rule, Source, ex

_OFF_WORDS: Final = frozenset({"none", "off", "false", ""})
_HF: Final = "huggingface/transformers"
_TORCH: Final = "pytorch/pytorch"


def _old_names(case: Case) -> list[str]:
    if not case.job.unmodelled:
        return []
    return [key for key in case.job.unmodelled if key.rpartition(".")[2] in RENAMED_FIELDS]


def _translated(case: Case) -> Edit:
    edit: dict[str, Any] = {}
    for key in _old_names(case):
        edit[f"unmodelled.{key}"] = None
        name = RENAMED_FIELDS[key.rpartition(".")[2]]
        if getattr(case.model, name) is None:
            edit[f"model.{name}"] = case.job.unmodelled[key]
    return edit


def _mapping(case: Case) -> str:
    return ", ".join(
        f"{key.rpartition('.')[2]} is {RENAMED_FIELDS[key.rpartition('.')[2]]}"
        for key in _old_names(case)
    )


def _switch(case: Case, *names: str) -> bool:
    """Say whether one of the switches is on, whatever the word for it."""
    for name in names:
        value = case.foreign(name)
        if value is None or value is False:
            continue
        if isinstance(value, str) and value.strip().lower() in _OFF_WORDS:
            continue
        return True
    return False


def _checkpointing(case: Case) -> bool:
    return _switch(
        case,
        "gradient_checkpointing",
        "activation_checkpointing",
        "activation_checkpoint",
        "activation_checkpoint_mode",
        "dtensor_activation_checkpointing",
    )


def _reentrant(case: Case) -> bool:
    """Say whether the job asks for reentrant checkpoints."""
    kwargs = case.foreign("gradient_checkpointing_kwargs")
    inner = kwargs.get("use_reentrant") if isinstance(kwargs, Mapping) else None
    return True in (inner, case.foreign("use_reentrant"))


def _packets(case: Case) -> list[str]:
    """Return operator names without an overload in a selective policy."""
    given = case.foreign("policy") or case.foreign("ops_to_save") or case.foreign("save_ops")
    words = " ".join(names_of(given)).replace(",", " ").replace("[", " ").replace("]", " ").split()
    return [
        word.strip("'\"")
        for word in words
        if "aten." in word and word.strip("'\"").count(".") == 1 + 2 * word.startswith("torch.")
    ]


def _compiled_outside(case: Case) -> bool:
    order = str(case.foreign("order") or case.foreign("checkpoint_order") or "").lower()
    return "outside" in order and "compile" in order


def _dropout(case: Case) -> bool:
    model = case.model
    given = case.foreign("residual_dropout") or case.foreign("dropout") or 0
    return bool(given) or model.hidden_dropout > 0 or model.attention_dropout > 0


RULES: Final[tuple[Rule, ...]] = (
    Rule(
        id="renamed-fields",
        severity="error",
        raised="cli",
        title="names of NeMo 1 or of Megatron-LM before 2022 for the recompute fields",
        revisions=ALL,
        when=lambda c: bool(_old_names(c)),
        message="old names of recompute fields, which Megatron does not read: {d}",
        detail=_mapping,
        fields=("model.recompute_granularity", "model.recompute_method"),
        fix=_translated,
        source=Source(revision="#237", path="pull request", where="renamed in 2022"),
        basis="report",
        bad=ex("0.19", unmodelled={"model.activations_checkpoint_method": "uniform"}),
        good=ex(
            "0.19",
            recompute_granularity="full",
            recompute_method="uniform",
            recompute_num_layers=1,
        ),
    ),
    Rule(
        id="hf-trainer-kwargs",
        severity="error",
        raised="never",
        title="Hugging Face checkpointing: its kwargs must go through TrainingArguments",
        revisions=ALL,
        when=lambda c: (
            _switch(c, "gradient_checkpointing")
            and (c.job.peft is not None or c.foreign("gradient_checkpointing_kwargs") is not None)
            and not isinstance(c.foreign("gradient_checkpointing_kwargs"), Mapping)
        ),
        message="gradient_checkpointing without a mapping of gradient_checkpointing_kwargs for the "
        "Trainer: it resets use_reentrant, and behind frozen inputs adapters get no gradient",
        fields=("gradient_checkpointing_kwargs",),
        advice="pass gradient_checkpointing_kwargs={'use_reentrant': False} to TrainingArguments, not "
        "to the model",
        source=Source(repository=_HF, revision="#26221", path="issue", where="maintainer's answer"),
        basis="report",
        bad=ex("0.19", peft=True, unmodelled={"train.gradient_checkpointing": True}),
        good=ex(
            "0.19",
            peft=True,
            unmodelled={
                "train.gradient_checkpointing": True,
                "train.gradient_checkpointing_kwargs": {"use_reentrant": False},
            },
        ),
    ),
    Rule(
        id="hf-reentrant-frozen",
        severity="error",
        raised="never",
        title="reentrant checkpointing with adapters on a frozen base: adapters get no gradient",
        revisions=ALL,
        when=lambda c: (
            bool(c.job.unmodelled)
            and c.job.peft is not None
            and (_checkpointing(c) or c.foreign("use_reentrant") is not None)
            and _reentrant(c)
            and not _switch(c, "enable_input_require_grads")
        ),
        message="use_reentrant=True checkpoints run backward only when an input needs a gradient; "
        "behind a frozen embedding none does, so the adapters ({c.job.peft.scheme}) get no gradient "
        "(None of the inputs have requires_grad=True)",
        fields=("use_reentrant", "gradient_checkpointing_kwargs"),
        advice="pass use_reentrant=False, or call enable_input_require_grads before adding adapters",
        source=Source(repository=_HF, revision="#26221", path="issue", where="maintainer's answer"),
        basis="report",
        bad=ex(
            "0.19",
            peft=True,
            unmodelled={
                "train.gradient_checkpointing": True,
                "train.gradient_checkpointing_kwargs": {"use_reentrant": True},
            },
        ),
        good=ex(
            "0.19",
            peft=True,
            unmodelled={
                "train.gradient_checkpointing": True,
                "train.gradient_checkpointing_kwargs": {"use_reentrant": False},
            },
        ),
    ),
    Rule(
        id="hf-use-cache",
        severity="note",
        raised="launch",
        title="Hugging Face checkpointing with use_cache: the model switches the cache off",
        revisions=ALL,
        when=lambda c: _switch(c, "gradient_checkpointing") and _switch(c, "use_cache"),
        message="use_cache=True with gradient_checkpointing: the model switches the cache off and "
        "warns; some versions keep the caches",
        fields=("use_cache",),
        advice="set model.config.use_cache=False in training",
        source=Source(repository=_HF, revision="#23808", path="issue", where="and #28056"),
        basis="report",
        bad=ex("0.19", unmodelled={"model.gradient_checkpointing": True, "model.use_cache": True}),
        good=ex("0.19", unmodelled={"model.gradient_checkpointing": True}),
    ),
    Rule(
        id="gradient-checkpointing-foreign",
        severity="warning",
        raised="never",
        title="gradient_checkpointing in a Megatron job: Megatron does not read it",
        revisions=ALL,
        when=lambda c: (
            _switch(c, "gradient_checkpointing")
            and c.declared == "none"
            and c.job.identity.format != "huggingface"
            and c.job.peft is None
            and not _switch(c, "use_cache")
        ),
        message="gradient_checkpointing is Hugging Face's switch; Megatron reads "
        "recompute_granularity, which is not set: nothing is recomputed",
        fields=("model.recompute_granularity",),
        advice="set model.recompute_granularity=full, method uniform, 1 layer",
        source=Source(terms=("recompute_granularity", "not in", "full")),
        bad=ex("0.19", unmodelled={"model.gradient_checkpointing": True}),
        good=ex(
            "0.19",
            recompute_granularity="full",
            recompute_method="uniform",
            recompute_num_layers=1,
            unmodelled={"model.gradient_checkpointing": True},
        ),
    ),
    Rule(
        id="preserve-rng-off",
        severity="error",
        raised="never",
        title="checkpointing with dropout and preserve_rng_state off: another mask in the replay",
        revisions=ALL,
        when=lambda c: (
            bool(c.job.unmodelled)
            and c.foreign("preserve_rng_state") is False
            and _dropout(c)
            and (_checkpointing(c) or c.recomputes)
        ),
        message="preserve_rng_state=False with dropout: the replay draws another mask than the "
        "forward did, and the gradients are of another network (loss 2.495 against 2.195 at step "
        "150 in the report)",
        fields=("preserve_rng_state", "model.hidden_dropout"),
        advice="preserve random state, or set dropout to 0",
        source=Source(
            repository="allenai/OLMo-core", revision="#828", path="pull request", where="4B VLM"
        ),
        basis="report",
        bad=ex(
            "0.19",
            hidden_dropout=0.1,
            unmodelled={"model.activation_checkpointing": True, "model.preserve_rng_state": False},
        ),
        good=ex(
            "0.19",
            unmodelled={"model.activation_checkpointing": True, "model.preserve_rng_state": False},
        ),
    ),
    Rule(
        id="sac-op-packet",
        severity="warning",
        raised="never",
        title="a PyTorch selective policy that names operators without an overload",
        revisions=ALL,
        when=lambda c: bool(c.job.unmodelled) and bool(_packets(c)),
        message="a selective checkpoint policy compares overloads, and {d} is a packet: it never "
        "matches, so everything is recomputed",
        detail=lambda c: ", ".join(_packets(c)),
        fields=("policy",),
        advice="name the overload, for example torch.ops.aten.mm.default",
        source=Source(repository=_TORCH, revision="#176065", path="issue", where="blog example"),
        basis="report",
        bad=ex("0.19", unmodelled={"model.policy": ("torch.ops.aten.mm",)}),
        good=ex("0.19", unmodelled={"model.policy": ("torch.ops.aten.mm.default",)}),
    ),
    Rule(
        id="checkpoint-outside-compile",
        severity="warning",
        raised="never",
        title="checkpoint wrapped around a compiled region: no saving",
        revisions=ALL,
        when=lambda c: bool(c.job.unmodelled) and _compiled_outside(c),
        message="a checkpoint around torch.compile is expected to save nothing under compiled "
        "autograd",
        fields=("order",),
        advice="put the checkpoint inside the compiled region",
        source=Source(
            repository=_TORCH, revision="#143176", path="issue", where="maintainer's status table"
        ),
        basis="report",
        bad=ex("0.19", unmodelled={"model.order": "checkpoint(fn) outside torch.compile"}),
        good=ex("0.19", unmodelled={"model.order": "checkpoint(fn) inside torch.compile"}),
    ),
    Rule(
        id="checkpoint-with-compile",
        severity="warning",
        raised="never",
        title="activation checkpointing together with torch.compile: order matters",
        revisions=ALL,
        when=lambda c: (
            bool(c.job.unmodelled)
            and _switch(c, "torch_compile", "compile")
            and (_checkpointing(c) or c.recomputes)
        ),
        message="checkpointing and torch.compile together: compiling inside a checkpoint changes "
        "which tensors are saved (metadata mismatch in backward), and one compiled graph can replay "
        "many blocks at once",
        fields=("torch_compile",),
        advice="checkpoint each block, then compile the wrapped block; compare the saved bytes",
        source=Source(
            repository="Modalities/modalities",
            revision="#361",
            path="issue",
            where="and pytorch/pytorch#193193",
        ),
        basis="report",
        bad=ex(
            "0.19",
            unmodelled={"model.activation_checkpointing": "full", "model.torch_compile": True},
        ),
        good=ex("0.19", unmodelled={"model.activation_checkpointing": "full"}),
    ),
)
"""Rows on settings of other tools."""
