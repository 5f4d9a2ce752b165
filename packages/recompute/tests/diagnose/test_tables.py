"""Every row of every table takes its passing example and leaves its failing one."""

from __future__ import annotations

import re

import pytest

from recompute.diagnose import actions, events, message_shapes, phrases, reader, verdicts
from recompute.diagnose.frames import OWNERS, STAGES, Frame, owner_row_matches, stage_row_matches
from recompute.diagnose.logs import read_text
from recompute.diagnose.snapshot.classify import REGIONS, Classifier
from recompute.diagnose.types import Verdict


@pytest.mark.parametrize("row", message_shapes.SHAPES, ids=lambda row: row.id)
def test_shape(row: message_shapes.Shape) -> None:
    assert row.pattern.search(row.passing)
    assert not row.pattern.search(row.failing)
    read = message_shapes.read_message(row.passing)
    assert read is not None
    assert read.shape == row.id


@pytest.mark.parametrize("row", events.EVENTS, ids=lambda row: row.id)
def test_event(row: events.EventRow) -> None:
    assert events.matches(row, row.passing)
    assert not events.matches(row, row.failing)


@pytest.mark.parametrize("row", events.EVENTS, ids=lambda row: row.id)
def test_the_quick_test_of_the_reader_lets_every_event_through(row: events.EventRow) -> None:
    assert reader._HINT.search(row.passing)


@pytest.mark.parametrize("row", phrases.PHRASES, ids=lambda row: row.id)
def test_phrase(row: phrases.PhraseRow) -> None:
    assert row.id in {hit.row.id for hit in phrases.read_phrases(row.passing, 1)}
    assert row.id not in {hit.row.id for hit in phrases.read_phrases(row.failing, 1)}


@pytest.mark.parametrize("index", range(len(STAGES)), ids=lambda index: STAGES[index].id)
def test_stage_row(index: int) -> None:
    row = STAGES[index]
    assert stage_row_matches(index, *row.passing)
    assert not stage_row_matches(index, *row.failing)


@pytest.mark.parametrize("index", range(len(OWNERS)), ids=lambda index: OWNERS[index].id)
def test_owner_row(index: int) -> None:
    row = OWNERS[index]
    assert owner_row_matches(index, *row.passing)
    assert not owner_row_matches(index, *row.failing)


@pytest.mark.parametrize("index", range(len(REGIONS)), ids=lambda index: REGIONS[index].label)
def test_region(index: int) -> None:
    row, bit = REGIONS[index], 1 << index
    inside = tuple(Frame(file, 1, function) for file, function in row.passing)
    outside = tuple(Frame(file, 1, function) for file, function in row.failing)
    assert Classifier().read(inside).regions & bit
    assert not Classifier().read(outside).regions & bit


@pytest.mark.parametrize("row", verdicts.TABLE, ids=lambda row: row.id)
def test_verdict_row(row: verdicts.VerdictRow) -> None:
    assert row.test(read_text(row.passing)) is not None
    assert row.test(read_text(row.failing)) is None


@pytest.mark.parametrize("row", verdicts.TABLE, ids=lambda row: row.id)
def test_verdict_row_decides_its_own_example(row: verdicts.VerdictRow) -> None:
    own = row.test(read_text(row.passing))
    assert own is not None
    assert verdicts.judge(read_text(row.passing))[0].rule == own.rule


def test_every_plan_names_actions_that_exist_and_none_is_idle() -> None:
    used = {key for keys in (*actions.PLANS.values(), *actions.FALLBACK.values()) for key in keys}
    extra = {"segments-are-on"}  # put in the place of another action
    assert used <= set(actions.ACTIONS)
    assert set(actions.ACTIONS) == used | extra


def test_every_verdict_has_actions() -> None:
    assert set(actions.FALLBACK) == set(Verdict)


def test_ids_are_stable_names() -> None:
    for table in (
        message_shapes.SHAPES,
        events.EVENTS,
        phrases.PHRASES,
        STAGES,
        OWNERS,
        verdicts.TABLE,
    ):
        ids = [row.id for row in table]
        assert len(set(ids)) == len(ids)
        assert all(re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)*", name) for name in ids)
