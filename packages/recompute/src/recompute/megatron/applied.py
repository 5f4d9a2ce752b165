"""Put a per-layer plan on a built Megatron Core model, and take it off again.

Stock boundaries are switched by the flags that Megatron itself sets when it builds a layer, and reads
in every forward. Three boundaries have no such flag and are drawn around a forward: the whole layer
(Megatron's own checkpoint), ``mlp_act`` and ``norm_act`` (Megatron's own output-discarding checkpoint).

What cannot be done safely is refused before anything is changed: ``cannot-apply``, with the id of the
rule in the message and in ``data["rule"]``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final, Self

from recompute.config.choice import LayerSpan, RecomputeChoice
from recompute.errors import InputError
from recompute.measure.candidate import bad_candidate, choice_of_document, choice_of_text, text_of
from recompute.megatron.boundaries import (
    BOUNDARIES,
    BY_LABEL,
    LAST,
    MARK,
    MLP_ACT,
    NORM_ACT,
    OVERLAPPING,
    WHOLE_LAYER,
    Layer,
    PutOn,
    has_linears,
    is_moe,
    layers_of,
    mark_of,
    norms_in_linears,
    norms_with_linears,
)
from recompute.megatron.drawn import (
    CheckpointedLayer,
    DiscardedActivation,
    DiscardingLinear,
    KeptNorm,
    NormAndLinear,
    carry_gradient,
)

QUANTIZED: Final = frozenset(("layernorm", "moe_act"))
"""Labels whose outputs a quantized linear keeps in its own form, unless told to keep its input."""

_ABSENT: Final = object()
_INPUTS: Final = "_recompute_inputs"
"""Attribute of a layer whose input we let carry a gradient: the handle of the hook."""
_FIELDS: Final = ("per_layer", "recompute_granularity", "recompute_modules")
Plan = RecomputeChoice | Mapping[str, Any] | Sequence[Any] | str


@dataclass(frozen=True, slots=True, kw_only=True)
class _Change:
    """One attribute of a module: what it was, and what was put there."""

    module: Any
    attribute: str
    before: Any
    put: Any

    @property
    def stands(self) -> bool:
        """Whether what was put there still is."""
        held = vars(self.module).get(self.attribute, _ABSENT)
        return held is self.put

    def undo(self) -> None:
        if self.attribute == _INPUTS:
            self.put.remove()
        if self.before is _ABSENT:
            delattr(self.module, self.attribute)
        else:
            setattr(self.module, self.attribute, self.before)


@dataclass(slots=True, kw_only=True)
class Applied:
    """What :func:`apply` did; ``undo`` takes it off."""

    choice: RecomputeChoice
    layers: dict[int, tuple[str, ...]]
    """Layers of this rank -> boundaries that are now drawn in them."""
    _changes: list[_Change] = field(default_factory=list)

    def undo(self) -> None:
        """Put every flag and forward back as it was before; a second time does nothing.

        Raises:
            InputError: ``cannot-apply`` with the rule ``apply-undo-order``: another plan was put on after this
                one, or somebody else has changed what it put in place; nothing was changed then.
        """
        if lost := next((c for c in reversed(self._changes) if not c.stands), None):
            what = (
                "another plan was put on after this one"
                if lost.attribute == LAST
                else f"{lost.attribute} of {type(lost.module).__name__} was changed since"
            )
            raise _refusal("apply-undo-order", f"{what}: undo that first")
        while self._changes:
            self._changes.pop().undo()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.undo()

    def set(self, module: Any, attribute: str, value: Any) -> None:
        """Set an attribute of a module and remember what it was."""
        before = vars(module).get(attribute, _ABSENT)
        self._changes.append(_Change(module=module, attribute=attribute, before=before, put=value))
        setattr(module, attribute, value)

    def close(self, first: Any) -> None:
        """Name itself on the first layer as the plan that was put on last, where it changed anything."""
        if self._changes:
            self.set(first, LAST, PutOn(text_of(self.choice)))


def apply(model: Any, plan: Plan) -> Applied:
    """Recompute in each layer what a plan says, and nothing else.

    Args:
        model: A built model, or the list of its virtual pipeline chunks; wrappers are looked through.
            Layers that are on other pipeline ranks are left to those.
        plan: The document of ``recompute plan --json``, or its ``choice``, or its ``per_layer`` list, or a
            choice as a value or as text (``[mlp]``, ``full/block/4``, ``per-layer/0-3=mlp``).

    Returns:
        A handle with ``undo()``; as a context manager it undoes at the end. Applying the same plan again
        changes nothing.

    Raises:
        InputError: ``cannot-apply`` with the id of the rule; nothing was changed then.
        InputError: ``bad-candidate``: the plan cannot be read.
    """
    layers = layers_of(model)
    if not layers:
        raise _refusal("apply-no-layers", "no transformer layer of Megatron Core is in the model")
    config = layers[0].config
    count = int(getattr(config, "num_layers", 0) or max(layer.number for layer in layers) + 1)
    choice = _choice_of(plan, count)
    wanted = _modules_by_layer(choice, layers, config)
    _refuse_model(config)
    for layer in layers:
        _refuse_layer(layer, wanted[layer.number])
    applied = Applied(choice=choice, layers={})
    try:
        for layer in layers:
            _set_layer(applied, layer, wanted[layer.number])
        applied.close(layers[0].module)
    except BaseException:
        applied.undo()
        raise
    applied.layers = {number: modules for number, modules in sorted(wanted.items()) if modules}
    return applied


def _choice_of(plan: Plan, num_layers: int) -> RecomputeChoice:
    if isinstance(plan, RecomputeChoice):
        return plan
    if isinstance(plan, str):
        return choice_of_text(plan)
    if isinstance(plan, list | tuple):
        return choice_of_document({"per_layer": list(plan)}, num_layers)
    found = plan.get("choice", plan) if isinstance(plan, Mapping) else plan
    if found is None and plan is not None:
        raise _refusal("apply-no-choice", "the plan chose nothing: no choice fits its budget")
    if not isinstance(found, Mapping) or not any(name in found for name in _FIELDS):
        raise bad_candidate(repr(plan))
    return choice_of_document(found, num_layers)


def _modules_by_layer(
    choice: RecomputeChoice, layers: Sequence[Layer], config: Any
) -> dict[int, tuple[str, ...]]:
    """Return the boundaries of every layer of this rank."""
    if choice.per_layer is not None:
        last = int(getattr(config, "num_layers", 0)) + int(
            getattr(config, "mtp_num_layers", 0) or 0
        )
        for span in choice.per_layer:
            if span.last >= last:
                text = f"the plan names layer {span.last}, the model's last is {last - 1}"
                raise _refusal("apply-no-such-layer", text)
        return {layer.number: _of_spans(choice.per_layer, layer, layers) for layer in layers}
    if choice.recompute_granularity != "full":
        return {layer.number: _acting(layer, choice.recompute_modules) for layer in layers}
    if choice.recompute_method == "uniform" and choice.recompute_num_layers == 1:
        return {layer.number: (WHOLE_LAYER,) for layer in layers}
    raise _refusal(
        "apply-full-groups",
        f"{choice.label()} groups layers when the model is built: set it in the config, or write the "
        "layers as spans of 'full'",
    )


def _of_spans(spans: Sequence[LayerSpan], layer: Layer, layers: Sequence[Layer]) -> tuple[str, ...]:
    """Return what spans say of a layer.

    A span may hold layers of several kinds, so a boundary that acts on another layer of its span, or may
    act on one of another rank, is passed over here; one that acts on none stays, to be refused.
    """
    found: list[str] = []
    for span in spans:
        if not span.first <= layer.number <= span.last:
            continue
        held = [other for other in layers if span.first <= other.number <= span.last]
        whole = len(held) == span.last - span.first + 1
        found += [
            module
            for module in span.modules
            if _acts(layer, module) or (whole and not any(_acts(one, module) for one in held))
        ]
    return (WHOLE_LAYER,) if WHOLE_LAYER in found else tuple(dict.fromkeys(found))


def _acts(layer: Layer, module: str) -> bool:
    """Say whether a boundary does something on a layer; an unknown one counts, to be refused."""
    if module == MLP_ACT:
        return has_linears(layer.module)
    if module == NORM_ACT:
        return any(True for _ in norms_with_linears(layer.module))
    if module not in BY_LABEL:
        return True
    return any(True for _ in BY_LABEL[module].switches(layer.module))


def _acting(layer: Layer, labels: Sequence[str]) -> tuple[str, ...]:
    """Return the labels of a stock list that act on a layer, as Megatron passes over the others."""
    return tuple(label for label in labels if _acts(layer, label))


def _refuse_model(config: Any) -> None:
    """Refuse what would make any change of a built model unsafe."""
    if getattr(config, "recompute_granularity", None) == "full":
        text = "the model was built with full recompute, which its blocks run themselves: build it with selective and []"
        raise _refusal("apply-built-with-full", text)
    implementation = str(getattr(config, "cuda_graph_impl", None) or "none")
    captured = implementation != "none" or getattr(config, "enable_cuda_graph", False)
    if captured or getattr(config, "external_cuda_graph", False):
        text = "CUDA graphs replay what was captured: a boundary that is changed after is not run"
        raise _refusal("apply-cuda-graph", text)
    for name in ("cpu_offloading", "fine_grained_activation_offloading"):
        if getattr(config, name, False):
            raise _refusal("apply-offloading", f"{name} moves tensors that a replay would need")


def _refuse_layer(layer: Layer, modules: Sequence[str]) -> None:
    config = layer.config
    quantized = getattr(config, "fp8", None) or getattr(config, "fp4", None)
    for module in modules:
        where = f"layer {layer.number}: {module}"
        if module in {WHOLE_LAYER, MLP_ACT, NORM_ACT}:
            if quantized:
                raise _refusal("apply-quantized", f"{where} under FP8 or FP4 is not tested")
            _refuse_drawn(layer, module, modules, where)
            continue
        if module not in BY_LABEL:
            raise _refusal("unknown-label", f"{where}: no boundary of that name")
        switches = list(BY_LABEL[module].switches(layer.module))
        if not switches:
            raise _refusal("apply-no-effect", f"{where} does nothing on this layer")
        _refuse_label(
            layer,
            module,
            where,
            built_with=all(getattr(s.module, s.attribute, False) for s in switches),
        )
        if quantized and module in QUANTIZED and not built_with_label(config, module):
            _refuse_quantized(config, where)


def _refuse_drawn(layer: Layer, module: str, modules: Sequence[str], where: str) -> None:
    for other in OVERLAPPING.get(module, ()):
        if other in modules:
            text = f"{where} and {other} would discard or replay the same tensor"
            raise _refusal("apply-overlapping", text)
    if module == WHOLE_LAYER and is_moe(layer.module) and _drops_in_fused(layer.config):
        text = f"{where}: with experts and fused dropout a replay was seen to drop other elements"
        raise _refusal("apply-experts-dropout", text)
    if module == MLP_ACT and not has_linears(layer.module):
        raise _refusal("apply-no-effect", f"{where}: the layer has no plain dense MLP")
    if module != NORM_ACT:
        return
    if getattr(layer.config, "fused_residual_rmsnorm", False):
        text = f"{where}: a fused norm also returns the residual, which must not be discarded"
        raise _refusal("apply-fused-residual", text)
    if any(True for _ in norms_with_linears(layer.module)):
        return
    if norms_in_linears(layer.module):
        text = f"{where}: the norm runs inside Transformer Engine's linear, which keeps its output itself"
        raise _refusal("apply-fused-norm", text)
    text = f"{where}: no norm of this layer feeds one linear of the local spec alone"
    raise _refusal("apply-no-effect", text)


def _drops_in_fused(config: Any) -> bool:
    """Say whether dropout runs in Megatron's compiled function (benchmarks/studies/parallel_gradients.py)."""
    return bool(getattr(config, "bias_dropout_fusion", False)) and config.hidden_dropout > 0


def _refuse_label(layer: Layer, module: str, where: str, *, built_with: bool) -> None:
    config = layer.config
    if module == "mlp" and getattr(config, "add_bias_linear", False):
        text = f"{where} with add_bias_linear replays itself without end"
        raise _refusal("mlp-label-with-bias", text)
    if module == "shared_experts" and getattr(config, "moe_shared_expert_overlap", False):
        raise _refusal("shared-experts-vs-overlap", f"{where} with moe_shared_expert_overlap")
    if module == "moe" and getattr(config, "overlap_moe_expert_parallel_comm", False):
        raise _refusal("a2a-moe-label", f"{where} with overlap_moe_expert_parallel_comm")
    fused = getattr(config, "use_transformer_engine_op_fuser", False)
    if module == "moe_act" and fused and not built_with:
        text = f"{where} is handed to Transformer Engine's fused operations when the model is built"
        raise _refusal("apply-op-fuser", text)
    if module == "layernorm" and getattr(config, "fused_residual_rmsnorm", False):
        text = f"{where}: a fused norm also returns the residual, which must not be discarded"
        raise _refusal("apply-fused-residual", text)


def built_with_label(config: Any, label: str) -> bool:
    """Say whether the model was built with a label, and so with what quantized linears need for it."""
    selective = getattr(config, "recompute_granularity", None) == "selective"
    return selective and label in (getattr(config, "recompute_modules", None) or ())


def _refuse_quantized(config: Any, where: str) -> None:
    if getattr(config, "fp8", None) and str(getattr(config, "fp8_recipe", "")).endswith("delayed"):
        raise _refusal("fp8-delayed-act-norm", f"{where} with FP8 delayed scaling")
    text = f"{where} under FP8 or FP4 needs linears that keep their input: build the model with the label"
    raise _refusal("apply-quantized", text)


def _set_layer(applied: Applied, layer: Layer, modules: Sequence[str]) -> None:
    for boundary in BOUNDARIES:
        for switch in boundary.switches(layer.module):
            if bool(getattr(switch.module, switch.attribute, False)) != (boundary.label in modules):
                applied.set(switch.module, switch.attribute, boundary.label in modules)
    _draw(applied, layer.module, WHOLE_LAYER, CheckpointedLayer, drawn=WHOLE_LAYER in modules)
    if has_linears(layer.module):
        _draw(applied, layer.module.mlp, MLP_ACT, DiscardedActivation, drawn=MLP_ACT in modules)
    for norm, linear in norms_with_linears(layer.module):
        pair, drawn = NormAndLinear(), NORM_ACT in modules
        _draw(applied, norm, NORM_ACT, partial(KeptNorm, pair=pair), drawn=drawn)
        _draw(applied, linear, NORM_ACT, partial(DiscardingLinear, pair=pair), drawn=drawn)
    if modules and _INPUTS not in vars(layer.module):
        hook = layer.module.register_forward_pre_hook(carry_gradient, with_kwargs=True)
        applied.set(layer.module, _INPUTS, hook)


def _draw(
    applied: Applied,
    module: Any,
    name: str,
    make: Callable[[Any], Callable[..., Any]],
    *,
    drawn: bool,
) -> None:
    """Put a boundary around a module's forward, or take ours off."""
    is_drawn = mark_of(module) == name
    if drawn and not is_drawn:
        forward = make(module)
        setattr(forward, MARK, name)
        applied.set(module, "forward", forward)
    elif is_drawn and not drawn:
        ours = module.forward
        applied.set(module, "forward", ours.__wrapped__)


def _refusal(rule: str, message: str) -> InputError:
    return InputError(
        "cannot-apply",
        f"{message} ({rule})",
        hint="docs/reference/apply.md says what each rule means; the model was left as it is",
        data={"rule": rule},
    )
