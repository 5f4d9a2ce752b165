"""A job seen from one revision: what its fields mean there, worked out once for all rules."""

from __future__ import annotations

import functools
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any, Final

from recompute.config.pipeline import layers_per_chunk
from recompute.config.revision import ORDER
from recompute.config.schema import JobConfig, ModelConfig
from recompute.errors import ConfigError
from recompute.rules.allowed import LABELS_OF, has_field
from recompute.rules.types import Entry

Version = tuple[tuple[int, ...], bool]
"""Release numbers, and whether it is a final release."""

_VERSION: Final = re.compile(r"\s*v?(\d{1,6}(?:\.\d{1,6}){0,4})(.*)")
_PRE: Final = re.compile(r"[.\-_]?(a|b|rc|alpha|beta|dev|pre)")
_NO_SCOPES: Final[frozenset[str]] = frozenset()
_IMPL_FIELD: Final = ORDER["0.15"]
_REGIONS: Final = ORDER["0.16"]
_MODULES_FIELD: Final = ORDER["0.18"]

ARCHITECTURE_FIELDS: Final = (
    "_target_",
    "model_type",
    "architectures",
    "model_name",
    "hf_model_id",
    "name",
)
"""Fields in which jobs name the model they build."""

GDN_VARIANTS: Final = frozenset({"gated_delta_net", "gdn", "gdn2"})
"""Values of ``experimental_attention_variant`` that give gated delta net layers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tree:
    """What a user's own Megatron source says, read without importing it."""

    labels: frozenset[str]
    """The set that its assertion on ``recompute_modules`` accepts."""
    fields: frozenset[str]
    """Fields of its ``TransformerConfig`` and ``ModelParallelConfig``."""


@dataclass(frozen=True, slots=True)
class Case:
    """One job on one revision."""

    job: JobConfig
    model: ModelConfig
    name: str
    """Name of the revision."""
    index: int
    """Position of the revision in ``recompute.config.revision.NAMES``."""
    entry: Entry
    declared: str
    """Granularity as given: ``none``, ``selective``, ``full`` or ``other``."""
    effective: str
    """Granularity after Megatron's rewrite of ``moe_layer_recompute``."""
    labels: frozenset[str]
    """Labels that act: empty unless ``effective`` is ``selective``; ``None`` means core_attn."""
    graph: str
    """``none``, ``local``, ``transformer_engine``, ``full_iteration`` or what was given."""
    scopes: frozenset[str]
    """Captured regions of a per-layer graph; empty means the whole layer."""
    bridge_given: str | None = None
    """Megatron Bridge version that the caller named."""
    tree: Tree | None = None
    """What the user's own source says, where ``--mcore`` names a path."""

    @property
    def allowed(self) -> frozenset[str]:
        """Labels that the revision, or the user's own source, accepts."""
        return LABELS_OF[self.name] if self.tree is None else self.tree.labels

    def has_field(self, name: str) -> bool:
        """Say whether the config of the revision, or of the user's own source, has a field."""
        return has_field(self.name, name) if self.tree is None else name in self.tree.fields

    @property
    def chunks(self) -> tuple[tuple[int, ...], ...] | None:
        """Decoder layers per pipeline rank and chunk; ``None`` when they do not split."""
        try:
            return layers_per_chunk(self.job)
        except ConfigError:
            return None

    @property
    def sizes(self) -> tuple[int, ...]:
        """Distinct chunk lengths above zero, ascending."""
        return tuple(sorted({size for row in self.chunks or () for size in row if size > 0}))

    @property
    def count(self) -> int | None:
        """``recompute_num_layers`` when it is an integer."""
        value = self.model.recompute_num_layers
        return value if isinstance(value, int) and not isinstance(value, bool) else None

    @property
    def te(self) -> Version | None:
        """Transformer Engine version, when the job says it."""
        return parse_version(self.job.framework.transformer_engine)

    @property
    def torch(self) -> Version | None:
        """Torch version, when the job says it."""
        return parse_version(self.job.framework.torch)

    @property
    def bridge(self) -> Version | None:
        """Megatron Bridge version, when the caller or the job says it."""
        return parse_version(self.bridge_given or self.job.framework.megatron_bridge)

    @property
    def layers(self) -> Layers:
        """How many layers of each kind the model has."""
        model = self.model
        return _layers(
            _integer(model.num_layers),
            _integer(model.num_moe_experts),
            _frequency(model.moe_layer_freq),
            model.hybrid_override_pattern or "",
            _frequency(model.linear_attention_freq),
            model.experimental_attention_variant or "",
        )

    @property
    def hybrid(self) -> bool:
        """Whether the layer stack is the Mamba or hybrid one."""
        return bool(self.model.hybrid_override_pattern or self.model.is_hybrid_model)

    @property
    def published(self) -> bool:
        """Whether the job is a published recipe, of which only what its source shows is known."""
        return self.job.identity.format == "recipe"

    @property
    def known_model(self) -> bool:
        """Whether the architecture is known: a recipe may leave it to a model hub."""
        return not self.published or self.layers.total > 0

    @property
    def quantized(self) -> bool:
        """Whether fp8 or fp4 is on."""
        return bool(self.model.fp8 or self.model.fp4)

    @property
    def recomputes(self) -> bool:
        """Whether anything is recomputed at all."""
        return self.effective == "full" or bool(self.labels)

    @property
    def architecture(self) -> str:
        """Names that the job gives its model: recipe, class or architecture, lower case."""
        if not self.job.unmodelled and not self.published:
            return ""
        names = [str(self.foreign(name, "")) for name in ARCHITECTURE_FIELDS]
        if self.published:
            names.append(self.job.identity.path)
        return " ".join(names).lower()

    def foreign(self, name: str, default: Any = None) -> Any:
        """Return a field that is known but has no place in our sections, by its last name."""
        unmodelled = self.job.unmodelled
        if not unmodelled:
            return default
        if name in unmodelled:
            return unmodelled[name]
        for key, value in unmodelled.items():
            if key.rpartition(".")[2] == name:
                return value
        return default


@dataclass(frozen=True, slots=True, kw_only=True)
class Layers:
    """Layers of a model by kind; one pattern symbol is one layer in a hybrid stack."""

    total: int
    moe: int
    dense_mlp: int
    attention: int
    gdn: int
    mamba: int


def case_of(
    job: JobConfig, revision: str, bridge: str | None = None, tree: Tree | None = None
) -> Case:
    """Return the job as the revision named ``revision`` sees it."""
    model = job.model
    granularity: object = model.recompute_granularity
    declared = (
        "none"
        if granularity is None
        else str(granularity)
        if granularity in ("selective", "full")
        else "other"
    )
    index = ORDER[revision]
    alias = bool(model.moe_layer_recompute) and index >= ORDER["0.12"] and declared != "full"
    effective = "selective" if alias else declared
    labels = _labels(model, alias=alias) if effective == "selective" else _NO_SCOPES
    graph, scopes = _graph(model, index)
    given = job.identity.entry_point
    return Case(
        job,
        model,
        revision,
        index,
        given if given in {"megatron-lm", "bridge"} else "core",  # type: ignore[arg-type]
        declared,
        effective,
        labels,
        graph,
        scopes,
        bridge,
        tree,
    )


def names_of(value: Any) -> tuple[str, ...]:
    """Return the entries of a list field as text, whatever was given."""
    if value is None:
        return ()
    if isinstance(value, str):
        return (value,)
    if isinstance(value, Collection) and not isinstance(value, Mapping):
        return tuple(item if isinstance(item, str) else repr(item) for item in value)
    return (repr(value),)


@functools.lru_cache(maxsize=512)
def parse_version(text: str | None) -> Version | None:
    """Read a version such as ``2.6.0.dev0+abc``; ``None`` when there is none to read."""
    match = _VERSION.match(text) if isinstance(text, str) else None
    if match is None:
        return None
    release = [int(part) for part in match[1].split(".")]
    while release and release[-1] == 0:
        release.pop()
    return tuple(release), _PRE.match(match[2]) is None


def below(version: Version | None, *release: int) -> bool:
    """Say whether ``version`` is known and older than ``release`` (its own pre-releases are not)."""
    return version is not None and version[0] < release


def _labels(model: ModelConfig, *, alias: bool) -> frozenset[str]:
    modules = model.recompute_modules
    names = ("core_attn",) if modules is None else names_of(modules)
    return frozenset((*names, "moe") if alias else names)


def _graph(model: ModelConfig, index: int) -> tuple[str, frozenset[str]]:
    """Return implementation and captured regions, old names and switches translated."""
    impl = model.cuda_graph_impl
    given = model.cuda_graph_scope
    if index >= _MODULES_FIELD and given is None:
        given = model.cuda_graph_modules
    if (
        impl == "none"
        and not given
        and not model.enable_cuda_graph
        and not model.external_cuda_graph
    ):
        return "none", _NO_SCOPES
    if index < _IMPL_FIELD:
        impl = "local" if model.enable_cuda_graph else "none"
    elif model.enable_cuda_graph:
        impl = "local"
    elif model.external_cuda_graph:
        impl = "transformer_engine"
    scopes = frozenset(
        part for name in names_of(given) for part in name.split(",") if part and part != "full"
    )
    return _migrated(str(impl), scopes, index)


def _migrated(impl: str, scopes: frozenset[str], index: int) -> tuple[str, frozenset[str]]:
    """Turn the region ``full_iteration`` of 0.16 and 0.17 into the implementation of 0.18."""
    if "full_iteration" not in scopes or index < _REGIONS:
        return impl, scopes
    if index >= _MODULES_FIELD and impl in ("none", "local", "full_iteration"):
        return "full_iteration", scopes - {"full_iteration"}
    if impl == "local" and scopes == {"full_iteration"}:
        return "full_iteration", _NO_SCOPES
    return impl, scopes


def _integer(value: Any) -> int:
    return value if isinstance(value, int) and not isinstance(value, bool) else 0


def _frequency(value: Any) -> int | tuple[bool, ...] | None:
    """Return a layer frequency as a count or as one flag per layer, ``None`` for anything else."""
    if isinstance(value, int):
        return value
    if isinstance(value, list | tuple):
        return tuple(bool(flag) for flag in value)
    return None


@functools.lru_cache(maxsize=2048)
def _layers(  # noqa: PLR0917 - positional for the cache
    total: int,
    experts: int,
    moe_freq: int | tuple[bool, ...] | None,
    pattern: str,
    linear_freq: int | tuple[bool, ...] | None,
    variant: str,
) -> Layers:
    if pattern:
        main = re.sub(r"[^A-Za-z*\-]", "", pattern.partition("/")[0])
        return Layers(
            total=len(main),
            moe=main.count("E"),
            dense_mlp=main.count("-"),
            attention=main.count("*"),
            gdn=main.count("G"),
            mamba=main.count("M"),
        )
    moe = _count(moe_freq, total, every=True) if experts > 0 else 0
    linear = variant in GDN_VARIANTS
    gdn = _count(linear_freq, total, every=False) if linear else 0
    return Layers(
        total=total, moe=moe, dense_mlp=total - moe, attention=total - gdn, gdn=gdn, mamba=0
    )


def _count(given: int | tuple[bool, ...] | None, total: int, *, every: bool) -> int:
    """Count the layers that a frequency marks: each n-th from the first, or all but each n-th."""
    if isinstance(given, tuple):
        return sum(bool(flag) for flag in given[:total])
    if isinstance(given, int) and given > 0:
        return -(-total // given) if every else total - total // given
    return 0


def replays_fused_attention(case: Case) -> bool:
    """Tell whether core attention is recomputed although a fused kernel keeps no score matrix."""
    return (
        "core_attn" in case.labels
        and case.layers.attention > 0
        and case.model.transformer_impl == "transformer_engine"
        and case.model.attention_backend not in {"unfused", "local"}
    )
