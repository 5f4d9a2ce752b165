"""Labels that Megatron accepts and whose backward pass then does not end."""

from __future__ import annotations

from typing import Final

from recompute.rules.case import Case
from recompute.rules.edits import drop
from recompute.rules.types import Rule, Source, ex, since

_MLP: Final = {"recompute_granularity": "selective", "recompute_modules": ("mlp",)}


def _bias_is_known(case: Case) -> bool:
    """Whether the linears have biases for sure: a recipe may leave it to a model hub."""
    known = not case.published or "model.add_bias_linear" in case.job.given
    return case.model.add_bias_linear is True and known


RULES: Final[tuple[Rule, ...]] = (
    Rule(
        id="mlp-label-with-bias",
        severity="error",
        raised="never",
        title="mlp on dense layers with linear biases: backward recurses without end",
        revisions=since("0.12"),
        gate="selective",
        when=lambda c: "mlp" in c.labels and c.layers.dense_mlp > 0 and _bias_is_known(c),
        message="mlp with add_bias_linear=true (Megatron's default): the checkpoint of each of the "
        "{c.layers.dense_mlp} dense MLPs returns its bias, a parameter, as an output, so its "
        "backward calls itself without end: out of memory within a step, or a hang",
        fields=("model.recompute_modules", "model.add_bias_linear"),
        fix=drop("mlp"),
        advice="drop mlp, or use full/uniform/1 (a whole layer returns no bias); where the model has "
        "no linear biases, say so: model.add_bias_linear=false (--disable-bias-linear)",
        source=Source(
            path="megatron/core/transformer/mlp.py",
            where="MLP.forward",
            terms=("output_bias", "linear_fc2"),
        ),
        basis="run",
        bad=ex("0.19", **_MLP, add_bias_linear=True),
        good=ex("0.19", **_MLP, add_bias_linear=False),
    ),
)
