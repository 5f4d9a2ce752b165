"""Every template with hostile text in every field that a stranger can write."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from html.parser import HTMLParser
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from web_site import EVIL, GREET, opened
from web_xss import VECTORS

from mdr.answers.service import Service
from mdr.errors import BadReference, Refusal
from mdr.registry.reading import Reading
from mdr.settings import Settings
from mdr.web.artifact_page import Drawn, artifact_page
from mdr.web.diff_page import diff_page
from mdr.web.problems import problem_page
from mdr.web.version_page import file_page, version_page

WRITTEN_BY_STRANGERS = frozenset(
    [
        "name",
        "description",
        "path",
        "license",
        "branch",
        "why",
        "shown",
        "detail",
        "message",
        "reason",
        "advisory",
        "field",
        "rule",
    ]
)


class Shape(HTMLParser):
    """Which tags and attributes a page consists of."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.tags: Counter[str] = Counter()
        self.attributes: set[str] = set()
        self.addresses: set[str] = set()
        self.feed(html)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags[tag] += 1
        self.attributes |= {f"{tag} {name}" for name, _ in attrs}
        self.addresses |= {
            (value or "").split(":")[0].lower()
            for name, value in attrs
            if name in {"href", "src", "action"} and ":" in (value or "").split("/")[0]
        }


class Poisoned(Reading):
    """Answers as the registry does, with one text in every field that strangers write."""

    text = ""

    def artifact(self, artifact_id: str) -> dict[str, Any]:
        return self._poison(super().artifact(artifact_id))

    def version(self, artifact_id: str, label: str) -> dict[str, Any]:
        return self._poison(super().version(artifact_id, label))

    def diff(self, artifact_id: str, before: str, after: str) -> dict[str, Any]:
        document = self._poison(super().diff(artifact_id, before, after))
        line = self.text.replace("\n", " ")
        return document | {"unified": f"--- a\n+++ b\n@@ -1 +1 @@\n-{line}\n+{line}\n"}

    def _poison(self, value: Any, key: str = "") -> Any:
        if isinstance(value, dict):
            return {name: self._poison(each, name) for name, each in value.items()}
        if isinstance(value, list):
            return [self._poison(each, key) for each in value]
        if key == "path":
            return self.path
        return self.text if key in WRITTEN_BY_STRANGERS and value is not None else value

    @property
    def path(self) -> str:
        """The text as a path that git and references can hold."""
        return "a/" + re.sub(r"[\x00-\x1f\x7f-\x9f\ud800-\udfff/@:]", "_", self.text)


@pytest.fixture(scope="module")
def service(indexed: Settings) -> Iterator[Service]:
    with opened(indexed) as (made, _):
        made.reading = Poisoned(made.stores, made.settings)
        yield made


@pytest.fixture(scope="module")
def plain(service: Service) -> list[Shape]:
    """The pages with a plain word everywhere."""
    return [Shape(html) for html in pages(service, "word")]


def pages(service: Service, text: str) -> list[str]:
    """Every page that shows documents, and those of errors."""
    reading = service.reading
    assert isinstance(reading, Poisoned)
    reading.text = text
    made = [
        artifact_page(service, EVIL, Drawn()),
        version_page(service, GREET, "latest"),
        file_page(service, GREET, "latest", reading.path),
        diff_page(service, GREET, f"{_oldest(service)}...latest"),
        problem_page(BadReference("not-found", text, hint=text, data={"candidates": [text]}), ""),
        problem_page(
            Refusal("tombstone", text, data={"reason": text, "advisory": text, "sha256": text}), ""
        ),
    ]
    return [answer.body.decode() for answer in made]


def _oldest(service: Service) -> str:
    return str(service.reading.versions(GREET)["items"][-1]["label"])


@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@example("\"'><script>boom()</script><a href='javascript:boom()' onclick=boom()>")
@example('https://a.example/" onmouseover="boom()')
@given(st.one_of(st.sampled_from(VECTORS), st.text(min_size=1, max_size=30)))
def test_no_text_of_a_stranger_becomes_markup(
    service: Service, plain: list[Shape], text: str
) -> None:
    for one, html in zip(plain, pages(service, text), strict=True):
        two = Shape(html)
        # what cannot be seen is drawn in a span; an advisory may be an address to follow or not
        own = Counter({tag: count for tag, count in two.tags.items() if tag not in {"span", "a"}})
        assert not text.strip() or own == Counter(
            {tag: count for tag, count in one.tags.items() if tag not in {"span", "a"}}
        )
        assert {each for each in two.attributes if " on" in each or " style" in each} == set()
        assert two.addresses <= {"https", "http", "mailto"}
