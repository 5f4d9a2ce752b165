"""References become exact versions, or errors that say what to write instead."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from git_builder import skill

from mdr.errors import BadReference, UsageError
from mdr.reference.parse import parse
from mdr.registry import open_registry
from mdr.settings import Settings

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from git_builder import GitRepository

    from mdr.registry.indexing import Indexed
    from mdr.registry.local import LocalRegistry

    IndexIt = Callable[[GitRepository], Indexed]


@pytest.fixture(autouse=True)
def _indexed(repository: GitRepository, index: IndexIt) -> None:
    repository.commit(
        {
            "a/greet/SKILL.md": skill("greet", "one " * 70),
            "b/twin/SKILL.md": skill("twin"),
            "c/twin/SKILL.md": skill("twin", "other " * 60),
            "Case/SKILL.md": skill("Case"),
            "case/SKILL.md": skill("case"),
        }
    )
    repository.commit({"a/greet/SKILL.md": skill("greet", "two " * 70)})
    index(repository)


def code(registry: LocalRegistry, ref: str) -> BadReference:
    with pytest.raises(BadReference) as caught:
        registry.resolve(parse(ref))
    return caught.value


def test_every_selector_leads_to_the_same_bytes(registry: LocalRegistry) -> None:
    latest = registry.resolve(parse("acme/tools/greet"))
    for tail in (
        "@latest",
        f"@{latest.version.label}",
        f"@sha256:{latest.version.sha256}",
        f"@sha256:{latest.version.sha256[:12]}",
    ):
        found = registry.resolve(parse("ACME/tools/GREET" + tail))
        assert (found.version, found.files) == (latest.version, latest.files)
    assert latest.artifact.repository == "Acme/Tools"
    assert latest.artifact.ref == "acme/tools/greet"


def test_an_older_version_by_hash(registry: LocalRegistry) -> None:
    _, (_, old) = registry.versions(parse("acme/tools/greet"))
    assert registry.resolve(parse(f"acme/tools/greet@sha256:{old.sha256}")).version == old
    assert registry.files(parse(f"acme/tools/greet@{old.label}"))[0].sha256 == old.sha256


def test_an_ambiguous_name_lists_what_to_write(registry: LocalRegistry) -> None:
    error = code(registry, "acme/tools/twin")
    assert error.code == "ambiguous-reference"
    assert error.data["candidates"] == ["acme/tools:b/twin/SKILL.md", "acme/tools:c/twin/SKILL.md"]
    for candidate in error.data["candidates"]:
        assert registry.resolve(parse(candidate)).artifact.path in candidate


def test_a_hash_tells_twins_apart(registry: LocalRegistry) -> None:
    one = registry.resolve(parse("acme/tools:c/twin/SKILL.md"))
    assert (
        registry.resolve(parse(f"acme/tools/twin@sha256:{one.version.sha256}")).artifact
        == one.artifact
    )


def test_the_exact_case_goes_first(registry: LocalRegistry) -> None:
    assert registry.resolve(parse("acme/tools/Case")).artifact.path == "Case/SKILL.md"
    assert registry.resolve(parse("acme/tools/case")).artifact.path == "case/SKILL.md"
    assert code(registry, "acme/tools/CASE").code == "ambiguous-reference"


@pytest.mark.parametrize(
    "ref",
    [
        "acme/tools/nope",
        "acme/tools:nope.md",
        "acme/nope/greet",
        "acme/tools/greet@git:20250101.0000000",
        "acme/tools/greet@sha256:000000000000",
    ],
)
def test_what_is_not_there(registry: LocalRegistry, ref: str) -> None:
    assert code(registry, ref).code == "not-found"


def test_a_near_name_is_suggested(registry: LocalRegistry) -> None:
    assert "greet" in code(registry, "acme/tools/gret").hint


def test_find_by_content(registry: LocalRegistry) -> None:
    _, (new, old) = registry.versions(parse("acme/tools/greet"))
    found = registry.find_by_content([new.sha256, old.sha256, parse_hash("0")])
    assert {digest: [each.version.label for each in all_] for digest, all_ in found.items()} == {
        new.sha256: [new.label],
        old.sha256: [old.label],
    }


def test_blobs_that_are_not_held(registry: LocalRegistry) -> None:
    assert registry.blob(parse_hash("0")) is None


def test_another_data_folder_is_a_registry(
    registry: LocalRegistry, settings: Settings, tmp_path: Path
) -> None:
    other = open_registry(Settings(data=tmp_path / "mine", registry=settings.data.as_uri()))
    assert other.resolve(parse("acme/tools/greet")) == registry.resolve(parse("acme/tools/greet"))
    assert not (tmp_path / "mine").exists()


def test_a_registry_of_another_scheme(tmp_path: Path) -> None:
    with pytest.raises(UsageError) as caught:
        open_registry(Settings(data=tmp_path, registry="ftp://example.org"))
    assert caught.value.code == "registry-unsupported"


def test_an_empty_folder_holds_nothing_and_stays_empty(tmp_path: Path) -> None:
    registry = open_registry(Settings(data=tmp_path / "none", index_on_demand=False))
    with pytest.raises(BadReference) as caught:
        registry.resolve(parse("acme/tools/greet"))
    assert "mdr index github:acme/tools" in caught.value.hint
    assert registry.blob(parse_hash("0")) is None
    assert registry.find_by_content([parse_hash("0")]) == {}
    assert not (tmp_path / "none").exists()


def test_on_demand_asks_the_host_once(
    settings: Settings, tmp_path: Path, repository: GitRepository, monkeypatch: pytest.MonkeyPatch
) -> None:
    from mdr.registry import indexing

    real, asked = indexing.index_source, []

    def instead(text: str, settings: Settings) -> Indexed:
        asked.append(text)
        return real(str(repository.path), settings, name_as=text.removeprefix("github:"))

    monkeypatch.setattr(indexing, "index_source", instead)
    registry = open_registry(Settings(data=tmp_path / "fresh"))
    assert registry.resolve(parse("acme/tools/greet")).version.latest
    assert registry.resolve(parse("acme/tools/Case")).version.latest
    assert asked == ["github:acme/tools"]


def parse_hash(digit: str) -> str:
    return digit * 64
