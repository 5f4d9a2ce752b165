"""What a SOURCE argument means, and what is refused."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mdr.errors import UsageError
from mdr.source.locate import Reach, locate

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize(
    ("text", "host", "repository", "address"),
    [
        (
            "github:NVIDIA/skills",
            "github.com",
            "NVIDIA/skills",
            "https://github.com/NVIDIA/skills.git",
        ),
        (
            "https://GitHub.com/NVIDIA/skills.git",
            "github.com",
            "NVIDIA/skills",
            "https://GitHub.com/NVIDIA/skills.git",
        ),
        (
            "https://git.example.org:8443/a/b/c",
            "git.example.org:8443",
            "a/b/c",
            "https://git.example.org:8443/a/b/c",
        ),
        ("ssh://git@example.org/a/b.git", "example.org", "a/b", "ssh://git@example.org/a/b.git"),
        ("git@example.org:a/b.git", "example.org", "a/b", "ssh://git@example.org/a/b.git"),
    ],
)
def test_remotes(text: str, host: str, repository: str, address: str) -> None:
    found = locate(text)
    assert (found.reach, found.host, found.repository, found.address) == (
        Reach.REMOTE,
        host,
        repository,
        address,
    )


@pytest.mark.parametrize(
    "text",
    [
        "",
        "-oProxyCommand=touch x",
        "--upload-pack=touch x",
        "ext::sh -c 'touch x'",
        "fd::17",
        "github:NVIDIA",
        "github:NVIDIA/skills/extra",
        "github:NVIDIA/..",
        "github:-x/skills",
        "https://example.org/",
        "https://example.org/a/b?x=1",
        "ftp://example.org/a/b",
        "https://exa mple.org/a/b",
        "https://example.org:99999/a/b",
        "ssh://-oProxyCommand=x/a/b",
        "ssh://-x@example.org/a/b",
        "https://[::1/a/b",
        "a\nb",
    ],
)
def test_refused(text: str) -> None:
    with pytest.raises(UsageError) as caught:
        locate(text)
    assert caught.value.code in {"bad-source", "source-not-found"}


@pytest.mark.parametrize(
    "text", ["https://user:secret@example.org/a/b", "https://token@example.org/a/b"]
)
def test_credentials_in_a_url_are_neither_used_nor_shown(text: str) -> None:
    with pytest.raises(UsageError) as caught:
        locate(text)
    assert caught.value.code == "credentials-in-url"
    assert "secret" not in f"{caught.value.message}{caught.value.hint}{caught.value.data}"


def test_a_path_goes_before_a_scp_address(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "host:a").mkdir()
    monkeypatch.chdir(tmp_path)
    assert locate("host:a").reach is Reach.REPOSITORY


def test_as_names_the_identity_and_keeps_the_address(tmp_path: Path) -> None:
    found = locate(str(tmp_path), name_as="NVIDIA/skills")
    assert (found.host, found.repository, found.address) == (
        "github.com",
        "NVIDIA/skills",
        str(tmp_path),
    )
    other = locate(str(tmp_path), name_as="git.example.org/a/b")
    assert (other.host, other.repository) == ("git.example.org", "a/b")


@pytest.mark.parametrize("name", ["x", "-a/b", "a/../b", "a/b/", "a b/c"])
def test_as_is_checked(name: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError):
        locate(str(tmp_path), name_as=name)


def test_a_file_that_is_no_bundle(tmp_path: Path) -> None:
    (tmp_path / "x.bundle").write_bytes(b"not one")
    with pytest.raises(UsageError, match="no git bundle"):
        locate(str(tmp_path / "x.bundle"))


@given(st.text(max_size=60))
def test_any_text_is_located_or_refused_in_words(text: str) -> None:
    try:
        found = locate(text)
    except UsageError:
        return
    assert not found.address.startswith("-")
    assert found.repository.count("/") >= 1
