"""The sections of a job file -> :class:`~recompute.config.draft.Draft`.

Reads plain YAML and what Bridge writes into checkpoints (``run_config.yaml``), where objects stand as
mappings with ``_target_``. They are data here: nothing is imported, called or looked up.

- ``{_target_: torch.nn.functional.silu, _call_: false}`` is the text ``torch.nn.functional.silu``;
- ``{_target_: ...AttnBackend, _args_: [5], _name_: auto}`` is the text ``auto``;
- any other ``_target_`` names a class, and the fields beside it are the value.

Source: NVIDIA/Megatron-LM d98e8a64 megatron/training/config/yaml_utils.py ``safe_yaml_representers``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from recompute.config.draft import Draft
from recompute.config.provider import apply_provider
from recompute.config.schema import FrozenValue
from recompute.config.yaml_source import YamlDocument
from recompute.errors import ConfigError

ALIASES: Final[Mapping[str, str]] = {
    "dataset.seq_length": "model.seq_length",
    "dataset.sequence_length": "model.seq_length",
    "dist.use_torch_fsdp2": "ddp.use_torch_fsdp2",
    "dist.use_megatron_fsdp": "ddp.use_megatron_fsdp",
    "rng.te_rng_tracker": "model.use_te_rng_tracker",
    "model.hybrid_layer_pattern": "model.hybrid_override_pattern",
    "model.mamba_hybrid_override_pattern": "model.hybrid_override_pattern",
}
"""Fields that another section may give, as Bridge keeps them equal or renames them."""
_BRIDGE: Final = "NVIDIA-NeMo/Megatron-Bridge 067f987d src/megatron/bridge/"
LOCAL_SPECS: Final = ("local_layer_spec", "get_gpt_layer_local_spec")
PEFT_SCHEMES: Final[Mapping[str, str]] = {
    "lora": "lora",
    "dora": "dora",
    "canonicallora": "canonical_lora",
    "canonical_lora": "canonical_lora",
    "vlmlora": "lora",
}
_CONTROL: Final = frozenset(("_target_", "_call_", "_partial_", "_args_", "_name_"))


def read_sections(document: YamlDocument, path: str, format_hint: str = "a job file") -> Draft:
    """Read the top-level mapping of a job file.

    Args:
        document: The parsed file.
        path: As the user wrote it; given fields are recorded as ``path:line``.
        format_hint: What was expected, for messages.

    Raises:
        ConfigError: ``not-a-job`` when it is not a mapping of sections.
    """
    tree = document.value
    if not isinstance(tree, Mapping):
        raise ConfigError(
            "not-a-job",
            f"{path}: {format_hint} is a mapping of sections such as model and train",
            hint="start with a line 'model:' and fields below it",
            data={"path": path},
        )
    draft = Draft()
    for key, value in tree.items():
        if key == "_target_":
            continue
        _read_section(draft, document.lines, path, str(key), value)
    return draft


def _read_section(
    draft: Draft, lines: Mapping[tuple[str, ...], int], path: str, section: str, value: FrozenValue
) -> None:
    where = f"{path}:{lines.get((section,), 1)}"
    plain = plain_value(value)
    if section == "env_vars" and isinstance(plain, Mapping):
        draft.environment.update({str(name): str(item) for name, item in plain.items()})
    elif plain is None:
        draft.set_absent(section, where)
    elif isinstance(plain, Mapping):
        if section == "peft":
            _read_peft_scheme(draft, value, where)
        if section == "model" and isinstance(value, Mapping) and "_target_" in value:
            draft.provider = str(value["_target_"])
        draft.sections.setdefault(section, {})
        inner = plain.get("transformer") if section == "model" else None
        if isinstance(inner, Mapping):
            # Bridge's builders keep TransformerConfig inside the model; its fields are the model's.
            plain = {name: item for name, item in plain.items() if name != "transformer"}
            _read_fields(draft, lines, path, ("model", "transformer"), inner)
        _read_fields(draft, lines, path, (section,), plain)
    elif section == "peft" and isinstance(plain, str):
        draft.set("peft", "scheme", peft_scheme(plain), where)
    else:
        draft.whole[section] = plain
        draft.where[section] = where


def _read_fields(
    draft: Draft,
    lines: Mapping[tuple[str, ...], int],
    path: str,
    place: tuple[str, ...],
    fields: Mapping[str, FrozenValue],
) -> None:
    """Give every field of a mapping that stands at ``place``."""
    for name, item in fields.items():
        line = lines.get((*place, str(name)), lines.get(place, 1))
        draft.set(place[0], str(name), item, f"{path}:{line}")


def _read_peft_scheme(draft: Draft, value: FrozenValue, where: str) -> None:
    if isinstance(value, Mapping) and "_target_" in value:
        draft.set("peft", "scheme", peft_scheme(str(value["_target_"])), where)


def peft_scheme(text: str) -> str:
    """Return the adapter scheme that a class path or a name means.

    Raises:
        ConfigError: ``bad-value`` for a scheme that is not known.
    """
    name = text.rpartition(".")[2].lower()
    if name in PEFT_SCHEMES:
        return PEFT_SCHEMES[name]
    raise ConfigError(
        "bad-value",
        f"peft: unknown scheme {text[:60]!r}",
        hint="one of lora, dora, canonical_lora, or peft=null for full training",
        data={"field": "peft.scheme", "value": text[:200]},
    )


def plain_value(value: FrozenValue) -> FrozenValue:
    """Return a value with every ``_target_`` object read as data."""
    if isinstance(value, tuple):
        return tuple(plain_value(item) for item in value)
    if not isinstance(value, Mapping):
        return value
    if "_target_" not in value:
        return {str(key): plain_value(item) for key, item in value.items()}
    return _object(value)


def _object(value: Mapping[str, FrozenValue]) -> FrozenValue:
    if "_name_" in value:
        return str(value["_name_"])
    rest = {str(k): plain_value(v) for k, v in value.items() if str(k) not in _CONTROL}
    args = value.get("_args_")
    if not rest and isinstance(args, tuple) and len(args) == 1 and not isinstance(args[0], Mapping):
        return args[0]
    if not rest and value.get("_call_") is False:
        return str(value["_target_"])
    return rest or ({} if value.get("_call_", True) else str(value["_target_"]))


def finish_sections(draft: Draft, entry_point: str) -> None:
    """Bring fields that two sections share, or that have two names, to where the job has them.

    Args:
        draft: Changed in place, after overrides.
        entry_point: ``bridge`` or ``megatron-lm``.

    Raises:
        ConfigError: ``conflicting-values`` when two places disagree.
    """
    for name, target in ALIASES.items():
        _move(draft, name, target)
    apply_provider(draft)
    _layers_of_pattern(draft, entry_point)
    if entry_point == "bridge":
        _bridge_parallel(draft)
        _bridge_optimizer(draft)
    spec = draft.get("model", "transformer_layer_spec")
    if isinstance(spec, str) and spec.rpartition(".")[2] in LOCAL_SPECS:
        draft.change(
            "model.transformer_impl",
            "local",
            "model.transformer_layer_spec is the local spec",
            f"{_BRIDGE}models/gpt_provider.py",
        )


def _layers_of_pattern(draft: Draft, entry_point: str) -> None:
    """Take the number of layers from a hybrid pattern; Megatron-LM lets it win over a given number."""
    pattern = draft.get("model", "hybrid_override_pattern")
    unset = draft.get("model", "num_layers") is None
    if isinstance(pattern, str) and (unset or entry_point == "megatron-lm"):
        draft.change(
            "model.num_layers",
            len(pattern.partition("/")[0].replace("|", "")),
            "one layer per symbol of the pattern",
            "NVIDIA/Megatron-LM core_v0.19.0 megatron/training/arguments.py validate_args",
        )


def _bridge_parallel(draft: Draft) -> None:
    """Set the two parallel sizes that Bridge decides before Megatron Core sees them."""
    source = f"{_BRIDGE}models/transformer_config.py TransformerConfig.finalize"
    without_tensor = draft.get("model", "tensor_model_parallel_size", 1) == 1
    if draft.get("model", "sequence_parallel") is True and without_tensor:
        why = "Bridge turns it off without tensor parallelism"
        draft.change("model.sequence_parallel", after=False, why=why, source=source)
    experts = draft.get("model", "expert_model_parallel_size", 1)
    unset = draft.get("model", "expert_tensor_parallel_size") is None
    if unset and isinstance(experts, int) and experts > 1 and not _old_bridge(draft):
        why = "with expert parallelism Bridge defaults it to 1; Megatron-LM to the tensor parallel size"
        draft.change("model.expert_tensor_parallel_size", 1, why, source)


def _bridge_optimizer(draft: Draft) -> None:
    """Keep the two switches equal that ``ddp`` and ``optimizer`` share: Bridge turns on both."""
    if {"ddp", "optimizer"} & set(draft.absent):
        return
    source = f"{_BRIDGE}training/config.py _validate_and_sync_distributed_optimizer_settings"
    for name in ("use_distributed_optimizer", "overlap_param_gather"):
        given = [draft.get(section, name, default=False) for section in ("ddp", "optimizer")]
        if True in given and given != [True, True]:
            for section in ("ddp", "optimizer"):
                why = f"ddp and optimizer share {name}"
                draft.change(f"{section}.{name}", after=True, why=why, source=source)


def _old_bridge(draft: Draft) -> bool:
    """Tell whether the job is for a Bridge before 0.6, which leaves the expert size to Megatron Core."""
    version = str(draft.get("framework", "megatron_bridge", "")).lower().removeprefix("v")
    return version.startswith(("0.1", "0.2", "0.3", "0.4", "0.5"))


def _move(draft: Draft, name: str, target: str) -> None:
    section, _, field = name.partition(".")
    to_section, _, to_field = target.partition(".")
    if not draft.has(section, field) or to_section in draft.absent:
        return
    value, where = draft.get(section, field), draft.where.get(name, "derived")
    if value is None or value is False:
        draft.drop(section, field)
        return
    if draft.has(to_section, to_field) and draft.get(to_section, to_field) not in (value, None):
        if where == "override" or isinstance(value, bool):
            draft.set(to_section, to_field, value, where)
        elif draft.where.get(target) != "override":
            raise ConfigError(
                "conflicting-values",
                f"{name}={value} and {target}={draft.get(to_section, to_field)} disagree",
                hint="give one of them, or the same value to both: Bridge wants them equal",
                data={"fields": [name, target]},
            )
    else:
        draft.set(to_section, to_field, value, where)
    draft.drop(section, field)
