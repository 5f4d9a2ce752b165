"""Pages are one self-contained file that escapes what it is given."""

from __future__ import annotations

from dataclasses import replace
from html import escape
from html.parser import HTMLParser
from pathlib import Path

import pytest

from recompute.config.choice import NO_RECOMPUTE, RecomputeChoice, full
from recompute.config.load import load
from recompute.config.normalize import GPU_COUNT
from recompute.errors import WorldError
from recompute.report.explain_page import explain_page
from recompute.report.page import write_page
from recompute.report.plan_page import plan_page
from recompute.search.explain import explain
from recompute.search.plan import plan
from recompute.timeline.predict import Predictor

from ..search.fakes import small_job
from ..timeline.jobs import job as h200_job


class Tags(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []
        self.fetched: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.names.append(tag)
        for name, value in attrs:
            if name in {"src", "href", "xlink:href"} and value and not value.startswith("#"):
                self.fetched.append(value)


@pytest.fixture(scope="module")
def pages() -> tuple[str, str]:
    identity = replace(h200_job().identity, path="<script>alert(1)</script>.yaml")
    job = replace(h200_job(), identity=identity)
    return plan_page(plan(job, "18GiB")), explain_page(explain(job))


def test_pages_hold_one_picture_and_fetch_nothing(pages: tuple[str, str]) -> None:
    for text in pages:
        tags = Tags()
        tags.feed(text)
        assert tags.names.count("svg") == 1
        assert not tags.fetched
        assert "script" not in tags.names


def test_pages_are_the_same_twice(pages: tuple[str, str]) -> None:
    job = replace(
        h200_job(), identity=replace(h200_job().identity, path="<script>alert(1)</script>.yaml")
    )
    assert plan_page(plan(job, "18GiB")) == pages[0]


@pytest.mark.parametrize("choice", [NO_RECOMPUTE, full("block", 2)], ids=lambda c: c.label())
@pytest.mark.parametrize("stages", [1, 2])
def test_the_highest_moment_of_the_picture_is_the_predicted_peak(
    stages: int, choice: RecomputeChoice
) -> None:
    job = small_job(
        num_layers=8, pipeline_model_parallel_size=stages, **{"hardware.num_gpus": stages}
    )
    predictor = Predictor(job)
    for row in predictor.predict(choice).ranks:
        moments = predictor.moments(choice, dict(row.rank)["pp"])
        highest = max(moment.bytes for moment in moments)
        assert highest == pytest.approx(row.peak.peak_bytes, rel=2e-3)


def test_a_folder_that_is_not_there_is_the_worlds_fault(tmp_path: Path) -> None:
    with pytest.raises(WorldError) as caught:
        write_page(str(tmp_path / "none" / "page.html"), "x")
    assert caught.value.exit_code == 3


def test_pages_name_the_command_list_assumptions_and_can_be_read_aloud() -> None:
    job = load(
        "-",
        "train.micro_batch_size=2",
        stdin=b"model: {num_layers: 4, hidden_size: 512, num_attention_heads: 8, vocab_size: 1024, "
        b"seq_length: 1024}\n",
    )
    planned, explained = plan(job, "18GiB"), explain(job)
    for text, title, assumptions in (
        (
            plan_page(planned),
            "recompute plan - train.micro_batch_size=2 --budget 18GiB",
            planned.assumptions,
        ),
        (
            explain_page(explained),
            "recompute explain - train.micro_batch_size=2",
            explained.assumptions,
        ),
    ):
        assert f"<h1>{title}</h1>" in text
        assert text.count('<svg role="img" aria-label="') == 1
        assert "GiB</text>" in text, "the axis is text, not outlines of glyphs"
        listed = text[text.index("<h2>Assumptions</h2>") :]
        assert all(f"<li>{escape(item.text)}</li>" in listed for item in assumptions)
        assert all(
            text.count(f"{escape(item.text)}<") == 1 for item in assumptions if item.id != GPU_COUNT
        )
