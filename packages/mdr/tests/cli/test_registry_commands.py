"""index, search, show and fsck as a person runs them: documents, exit codes, and nothing else on stdout."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest
from git_builder import GitRepository, link, skill

from mdr.cli.main import run

if TYPE_CHECKING:
    from pathlib import Path


@dataclass
class Shell:
    """Run commands in this process."""

    monkeypatch: pytest.MonkeyPatch
    capture: pytest.CaptureFixture[str]
    data: Path

    def __call__(self, *words: str, code: int = 0) -> str:
        self.monkeypatch.setattr("sys.argv", ["mdr", *words, "--data", str(self.data)])
        self.capture.readouterr()
        with pytest.raises(SystemExit) as left:
            run()
        out = self.capture.readouterr()
        assert (left.value.code or 0) == code, out
        return out.out

    def json(self, *words: str, code: int = 0) -> Any:
        return json.loads(self(*words, "--json", code=code))


@pytest.fixture
def mdr(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Shell:
    monkeypatch.delenv("MDR_REGISTRY", raising=False)
    return Shell(monkeypatch, capsys, tmp_path / "data")


@pytest.fixture
def source(tmp_path: Path) -> str:
    repository = GitRepository(tmp_path / "r.git")
    repository.commit(
        {"s/greet/SKILL.md": skill("greet", "one " * 60), "AGENTS.md": b"Be kind. " * 40}
    )
    repository.commit(
        {"s/greet/SKILL.md": skill("greet", "two " * 60), "s/greet/out": link("/etc/passwd")}
    )
    return str(repository.path)


def test_index_document(mdr: Shell, source: str) -> None:
    document = mdr.json("index", source, "--as", "Acme/Tools")
    assert list(document) == ["schema", "sources"]
    assert document["schema"] == "mdr.index/1"
    (one,) = document["sources"]
    assert list(one) == [
        "source",
        "repository",
        "head",
        "artifacts",
        "versions",
        "new_versions",
        "skipped",
        "seconds",
    ]
    assert (one["repository"], one["artifacts"], one["versions"], one["new_versions"]) == (
        "Acme/Tools",
        2,
        3,
        3,
    )
    assert one["skipped"] == [
        {"path": "s/greet/out", "reason": "a symbolic link to an absolute path"}
    ]
    assert len(one["head"]) == 40


def test_strict_says_no_when_something_was_skipped(mdr: Shell, source: str) -> None:
    assert "s/greet/out" in mdr("index", source, "--as", "a/b", "--strict", code=1)
    mdr("index", source, "--as", "a/b", code=0)
    mdr("index", source, "--as", "a/b", "--strict", code=1)


def test_show_document(mdr: Shell, source: str) -> None:
    mdr("index", source, "--as", "Acme/Tools")
    document = mdr.json("show", "acme/tools/greet")
    assert list(document) == ["schema", "artifact", "versions", "audit"]
    artifact = document["artifact"]
    assert list(artifact) == [
        "id",
        "ref",
        "host",
        "repository",
        "path",
        "name",
        "kind",
        "description",
        "latest",
        "previously",
        "source",
        "badge_views_30d",
    ]
    assert (artifact["ref"], artifact["repository"], artifact["description"]) == (
        "acme/tools/greet",
        "Acme/Tools",
        "Greets people by name.",
    )
    assert list(artifact["source"]) == ["stars", "license", "pushed", "branch", "indexed_commit"]
    newest, oldest = document["versions"]
    assert list(newest) == [
        "label",
        "latest",
        "committed",
        "commit",
        "size",
        "sha256",
        "manifest_sha256",
        "grade",
        "ruleset",
        "same_bytes",
        "folder_revisions",
        "yanked",
        "signature",
    ]
    assert (newest["latest"], oldest["latest"], newest["grade"], newest["ruleset"]) == (
        True,
        False,
        "A",
        "r1",
    )
    assert newest["committed"] == "2026-01-01T00:02:00Z"
    assert artifact["latest"] == newest["label"]
    assert document["audit"]["sha256"] == newest["sha256"]


def test_show_one_version(mdr: Shell, source: str) -> None:
    mdr("index", source, "--as", "Acme/Tools")
    old = mdr.json("show", "acme/tools/greet")["versions"][1]
    document = mdr.json("show", f"acme/tools/greet@{old['label']}")
    assert document["version"] == old
    assert document["files"] == [
        {"path": "SKILL.md", "mode": "100644", "size": old["size"], "sha256": old["sha256"]}
    ]
    assert document["audit"]["sha256"] == old["sha256"]


def test_show_offers_what_is_not_yanked_and_marks_what_is(mdr: Shell, source: str) -> None:
    mdr("index", source, "--as", "Acme/Tools")
    newest, older = mdr.json("show", "acme/tools/greet")["versions"][:2]
    mdr("yank", f"acme/tools/greet@{newest['label']}", "--reason", "broken on Tuesdays")
    shown = mdr("show", "acme/tools/greet")
    assert f"mdr add acme/tools/greet@{older['label']}" in shown
    assert f"mdr add acme/tools/greet@{newest['label']}" not in shown
    (line,) = [line for line in shown.splitlines() if newest["sha256"][:16] in line]
    assert line.endswith("yanked: broken on Tuesdays")
    named = mdr("show", f"acme/tools/greet@{newest['label']}")
    assert f"mdr add acme/tools/greet@sha256:{newest['sha256'][:16]}" in named


def test_content_is_the_exact_bytes(tmp_path: Path) -> None:
    data = b"\xef\xbb\xbf\r\n\x00\xff" * 50
    repository = GitRepository(tmp_path / "r.git")
    repository.commit({"AGENTS.md": data})
    base = [sys.executable, "-m", "mdr"]
    tail = ["--data", str(tmp_path / "d")]
    subprocess.run(
        [*base, "index", repository.path, "--as", "a/b", *tail], check=True, capture_output=True
    )
    shown = subprocess.run(
        [*base, "show", "a/b/AGENTS", "--content", *tail], check=True, capture_output=True
    )
    assert shown.stdout == data


def test_search_document(mdr: Shell, source: str) -> None:
    mdr("index", source, "--as", "Acme/Tools")
    document = mdr.json("search", "greets")
    assert list(document) == ["schema", "query", "total", "items", "facets", "next_cursor"]
    (item,) = document["items"]
    assert (item["ref"], item["grade"], document["total"]) == ("acme/tools/greet", "A", 1)
    assert list(item)[-3:] == ["grade", "sha256", "score"]
    assert document["facets"]["kind"] == {"skill": 1}
    assert mdr.json("search")["total"] == 2
    assert mdr.json("search", "--kind", "instructions")["items"][0]["name"] == "AGENTS"


def test_search_of_nothing(mdr: Shell) -> None:
    assert mdr.json("search", "anything") == {
        "schema": "mdr.search/1", "query": "anything", "total": 0, "items": [],
        "facets": {"kind": {}, "owner": {}, "grade": {}, "license": {}, "host": {}}, "next_cursor": None,
    }  # fmt: skip


def test_fsck(mdr: Shell, source: str) -> None:
    mdr("index", source, "--as", "Acme/Tools")
    assert mdr.json("fsck") == {
        "schema": "mdr.fsck/1",
        "ok": True,
        "blobs": 4,  # the text of the refused link is held and not served
        "manifests": 3,
        "versions": 3,
        "problems": [],
    }
    digest = mdr.json("show", "acme/tools/greet")["versions"][0]["sha256"]
    (mdr.data / "blobs" / digest[:2] / digest[2:4] / digest[4:]).unlink()
    assert mdr.json("fsck", code=1)["ok"] is False
    assert mdr.json("fsck", "--repair")["ok"] is True


@pytest.mark.parametrize(
    ("words", "code", "name"),
    [
        (["index", "/no/such/place"], 2, "source-not-found"),
        (["index", "ext::sh -c id"], 2, "bad-source"),
        (["index", "a", "b", "--as", "x/y"], 2, "usage"),
        (["index"], 2, "usage"),
        (["index", "x", "--registry", "file:///x"], 2, "registry-read-only"),
        (["show", "nonsense"], 2, "bad-reference"),
        (["show", "acme/tools/greet", "--no-index"], 2, "not-found"),
        (["show", "acme/tools/greet@sha256:abc"], 2, "digest-too-short"),
        (["search", "--cursor", "x"], 2, "bad-cursor"),
    ],
)
def test_errors_have_their_code(mdr: Shell, words: list[str], code: int, name: str) -> None:
    document = mdr.json(*words, code=code)
    assert list(document) == ["schema", "code", "message", "hint", "data"]
    assert (document["schema"], document["code"]) == ("mdr.error/1", name)


def test_text_from_a_repository_cannot_steer_the_terminal(mdr: Shell, tmp_path: Path) -> None:
    repository = GitRepository(tmp_path / "e.git")
    repository.commit(
        {"s/SKILL.md": skill("s").replace(b"Greets people", b'"\\e[2J\\e]0;x\\a Greets"')}
    )
    mdr("index", str(repository.path), "--as", "a/b")
    assert "\x1b" not in mdr("show", "a/b/s") + mdr("search")


def test_help_loads_nothing_heavy() -> None:
    words = "import sys, mdr.cli.index, mdr.cli.show, mdr.cli.search, mdr.cli.fsck; print([m for m in ('sqlalchemy', 'rich', 'urllib3', 'alembic', 're2', 'yaml') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", words], check=True, capture_output=True, text=True)
    assert done.stdout.strip() == "[]"
