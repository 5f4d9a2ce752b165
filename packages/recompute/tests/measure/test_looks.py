"""Which steps a probe looks at phase by phase."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from recompute.megatron.looks import LOOK_EVERY, STEADY_LOOKS, Looks
from recompute.megatron.meters import Peaks

sizes = st.integers(0, 6)
peaks = st.builds(Peaks, allocated=sizes, reserved=sizes, current=sizes)


def phase_steps(looks: Looks, steps: int, states_from: int = 0) -> list[int]:
    """Take steps that show nothing new."""
    for step in range(steps):
        if looks.begins(step, awaits_states=step < states_from):
            looks.showed(Peaks(allocated=9, reserved=9, current=9), standing=True)
        else:
            looks.saw_whole(Peaks(allocated=9, reserved=9, current=9))
    return looks.phase_steps


def test_the_first_steps_and_every_nth_are_looked_at_by_phase() -> None:
    first = [*range(2 + STEADY_LOOKS)]
    steady = [step for step in range(len(first), 80) if step % LOOK_EVERY == 0]
    assert phase_steps(Looks(warmup_steps=2, every_phase=False), 80) == first + steady
    assert len(steady) == 4


def test_steps_are_looked_at_until_the_optimizer_has_states() -> None:
    looks = Looks(warmup_steps=1, every_phase=False)
    assert phase_steps(looks, 17, states_from=7) == [*range(7 + STEADY_LOOKS)]


def test_every_phase_can_be_asked_for() -> None:
    assert phase_steps(Looks(warmup_steps=0, every_phase=True), 40) == [*range(40)]


@pytest.mark.parametrize(
    "above",
    [
        Peaks(allocated=10, reserved=9, current=9),
        Peaks(allocated=9, reserved=10, current=9),
        Peaks(allocated=9, reserved=9, current=10),
    ],
)
def test_each_figure_above_what_was_shown_has_the_next_step_looked_at(above: Peaks) -> None:
    looks = Looks(warmup_steps=0, every_phase=False)
    phase_steps(looks, 5)
    looks.saw_whole(above)
    assert looks.begins(5, awaits_states=False)
    assert not looks.begins(6, awaits_states=False)


def test_what_lives_only_inside_a_phase_does_not_hide_what_a_step_leaves_behind() -> None:
    looks = Looks(warmup_steps=0, every_phase=False)
    phase_steps(looks, 4)
    looks.showed(Peaks(allocated=50, reserved=50, current=50), standing=False)
    looks.saw_whole(Peaks(allocated=50, reserved=50, current=10))
    assert looks.begins(5, awaits_states=False)


def test_another_device_begins_anew() -> None:
    looks = Looks(warmup_steps=0, every_phase=False)
    phase_steps(looks, 4)
    looks.forget()
    looks.saw_whole(Peaks(allocated=1, reserved=1))
    assert looks.begins(5, awaits_states=False)


@given(st.lists(peaks, min_size=1, max_size=60), st.integers(0, 4))
def test_only_a_step_that_showed_nothing_new_is_followed_by_one_not_looked_at(
    runs: list[Peaks], warmup: int
) -> None:
    looks = Looks(warmup_steps=warmup, every_phase=False)
    shown = [-1, -1, -1]
    new = False
    for step, seen in enumerate(runs):
        figures = [seen.allocated or 0, seen.reserved or 0, seen.current or 0]
        by_phase = looks.begins(step, awaits_states=False)
        due = step < warmup + STEADY_LOOKS or step % LOOK_EVERY == 0
        assert by_phase == (new or due)
        if by_phase:
            looks.showed(seen, standing=True)
            shown = [max(pair) for pair in zip(shown, figures, strict=True)]
            new = False
        else:
            looks.saw_whole(seen)
            new = any(now > held for now, held in zip(figures, shown, strict=True))
