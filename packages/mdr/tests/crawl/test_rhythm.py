"""Laws of when a source is crawled next."""

from __future__ import annotations

from random import Random

from hypothesis import given
from hypothesis import strategies as st

from mdr.crawl import rhythm

periods = st.integers(rhythm.SHORTEST, rhythm.LONGEST)
chances = st.integers().map(Random)


@given(periods)
def test_change_brings_a_source_back_sooner_and_silence_later(period: int) -> None:
    sooner = rhythm.period_after(period, changed=True)
    later = rhythm.period_after(period, changed=False)
    assert rhythm.SHORTEST <= sooner <= period <= later <= rhythm.LONGEST


@given(st.lists(st.booleans(), max_size=60))
def test_the_period_stays_between_its_bounds_whatever_happens(changes: list[bool]) -> None:
    period = rhythm.FIRST_PERIOD
    for changed in changes:
        period = rhythm.period_after(period, changed=changed)
    assert rhythm.SHORTEST <= period <= rhythm.LONGEST
    if len(changes) >= 12 and not any(changes[-12:]):
        assert period == rhythm.LONGEST
    if len(changes) >= 12 and all(changes[-12:]):
        assert period == rhythm.SHORTEST


@given(periods, chances)
def test_the_wait_is_near_the_period(period: int, chance: Random) -> None:
    assert abs(rhythm.wait_for(period, chance) - period) <= period / 10 + 1


@given(st.integers(1, 10_000), chances)
def test_a_retry_waits_at_least_half_a_minute_and_at_most_a_day(
    attempts: int, chance: Random
) -> None:
    assert 30 <= rhythm.retry_after(attempts, chance) <= rhythm.DAY


@given(st.integers(1, 10), chances, chances)
def test_two_failures_later_the_wait_is_longer_whatever_the_jitter(
    attempts: int, one: Random, two: Random
) -> None:
    assert rhythm.retry_after(attempts, one) <= rhythm.retry_after(attempts + 2, two) or (
        rhythm.retry_after(attempts + 2, two) >= rhythm.LONGEST_RETRY // 2
    )


def test_retries_of_many_sources_spread() -> None:
    waits = {rhythm.retry_after(5, Random(seed)) for seed in range(100)}  # noqa: S311 - tests repeat
    assert len(waits) > 50


def test_a_day_and_more_passes_before_a_source_is_given_up() -> None:
    least = sum(
        (rhythm.FIRST_RETRY << (attempts - 1)) // 2 for attempts in range(1, rhythm.MAX_ATTEMPTS)
    )
    assert least > 16 * rhythm.HOUR


@given(st.integers(0, 1 << 40), st.integers(0, 1 << 40))
def test_a_clock_that_was_set_back_makes_sources_due(ended: int, now: int) -> None:
    due = ended + rhythm.LONGEST
    assert rhythm.is_due(due, ended, now) == (due <= now or ended > now + rhythm.MINUTE)
