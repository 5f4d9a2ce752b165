"""Freezing a folder: what is served, what stays out and why, and the hash of the manifest."""

from __future__ import annotations

import hashlib

from hypothesis import given
from hypothesis import strategies as st

from mdr.artifact.discover import PathLimits
from mdr.digest import sha256
from mdr.version.drafts import DraftFile
from mdr.version.manifest import BlobFact, FolderLimits, freeze, manifest_text, parse_manifest
from mdr.version.types import FileEntry, FileMode, in_path_order, manifest_sha256

LIMITS = FolderLimits(path=PathLimits(), file_bytes=100, folder_bytes=150)


def fact(data: bytes) -> BlobFact:
    return BlobFact(size=len(data), sha256=sha256(data), link=data)


def test_the_manifest_is_the_lines_of_the_contract() -> None:
    frozen = freeze(
        "s",
        [DraftFile("b.sh", "100755", "o2"), DraftFile("SKILL.md", "100644", "o1")],
        {"o1": fact(b"hi"), "o2": fact(b"x")},
        LIMITS,
    )
    text = "".join(
        f"{hashlib.sha256(data).hexdigest()} {mode} {len(data)} {path}\n"
        for data, mode, path in [(b"hi", "100644", "SKILL.md"), (b"x", "100755", "b.sh")]
    )
    assert manifest_text(frozen.files) == text
    assert manifest_sha256(frozen.files) == hashlib.sha256(text.encode()).hexdigest()
    assert frozen.omitted == ()


def test_everything_left_out_has_its_reason() -> None:
    entries = [
        DraftFile("SKILL.md", "100644", "ok"),
        DraftFile("sub", "160000", "gone"),
        DraftFile("huge", "100644", "huge"),
        DraftFile("far", "100644", "absent"),
        DraftFile("out", "120000", "out"),
        DraftFile("via", "120000", "via"),
        DraftFile("in", "120000", "in"),
        DraftFile("skill.MD", "100644", "ok"),
        DraftFile("a\\b", "100644", "ok"),
    ]
    facts = {
        "ok": fact(b"ok"),
        "huge": BlobFact(size=101),
        "absent": BlobFact(size=None),
        "out": fact(b"../../etc/passwd"),
        "via": fact(b"out"),
        "in": fact(b"SKILL.md"),
    }
    frozen = freeze("s", entries, facts, LIMITS)
    assert [(each.path, each.mode) for each in frozen.files] == [
        ("SKILL.md", "100644"),
        ("in", "120000"),
    ]
    told = {each.path: each.reason for each in frozen.omitted}
    assert set(told) == {"s/sub", "s/huge", "s/far", "s/out", "s/via", "s/skill.MD", "s/a\\b"}
    assert "101" in told["s/huge"]
    assert "SKILL.md" in told["s/skill.MD"]
    assert "does not exist" in told["s/via"]


def test_a_link_is_kept_as_the_text_git_stores() -> None:
    frozen = freeze(
        "",
        [DraftFile("a", "100644", "1"), DraftFile("l", "120000", "2")],
        {"1": fact(b"data"), "2": fact(b"a")},
        LIMITS,
    )
    assert frozen.files[1] == FileEntry(
        path="l", mode=FileMode.SYMLINK, size=1, sha256=sha256(b"a")
    )


def test_a_folder_that_is_too_large_is_refused_whole() -> None:
    entries = [DraftFile("a", "100644", "1"), DraftFile("b", "100644", "2")]
    frozen = freeze("", entries, {"1": fact(b"x" * 80), "2": fact(b"y" * 80)}, LIMITS)
    assert frozen.problem is not None
    assert "160" in frozen.problem


names = st.text(
    st.characters(blacklist_categories=["Cs", "Cc"], blacklist_characters="/\\"),
    min_size=1,
    max_size=8,
)


@given(
    st.dictionaries(names, st.tuples(st.sampled_from(FileMode), st.binary(max_size=8)), max_size=8)
)
def test_a_manifest_reads_back(files: dict[str, tuple[FileMode, bytes]]) -> None:
    entries = in_path_order(
        FileEntry(path=path, mode=mode, size=len(data), sha256=sha256(data))
        for path, (mode, data) in files.items()
    )
    assert parse_manifest(manifest_text(entries)) == entries
    assert manifest_sha256(reversed(entries)) == manifest_sha256(entries)
