"""What runs again, found without an arena, against what running the tape replays."""

from __future__ import annotations

from collections import Counter
from itertools import chain, combinations

import pytest

from recompute.errors import UnsupportedError
from recompute.model.layer import LAYER_KINDS
from recompute.model.replay import replayed_ops
from recompute.model.run import profile

from .jobs import GRADS
from .test_kinds import LAYOUTS, built

MOST_TOGETHER = 3
"""Labels active at once: nested regions need two, and one more beside them."""


@pytest.mark.parametrize("kind", sorted(LAYER_KINDS))
def test_every_subset_of_labels_replays_what_the_run_replays(kind: str) -> None:
    compared = 0
    for layout in LAYOUTS[::3]:
        try:
            tape, _, _ = built(kind, layout)
        except UnsupportedError:
            continue
        labels = sorted({region.label for region in tape.regions})
        counts = range(MOST_TOGETHER + 1)
        for subset in chain.from_iterable(combinations(labels, count) for count in counts):
            active = frozenset(subset)
            found = Counter(op.name for op in replayed_ops(tape, active))
            assert found == Counter(profile(tape, active, GRADS).replayed), subset
            compared += 1
    assert compared


def test_a_region_inside_a_replay_runs_again_with_it() -> None:
    tape, _, _ = built("attention+mlp", {})
    once = Counter(op.name for op in replayed_ops(tape, frozenset({"mlp"})))
    twice = Counter(op.name for op in replayed_ops(tape, frozenset({"mlp", "mlp_act"})))
    activation = {op.name for op in replayed_ops(tape, frozenset({"mlp_act"}))}
    assert dict((twice - once).items()) == dict.fromkeys(activation, 1)
