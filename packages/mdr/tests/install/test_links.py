"""Links become regular copies, the same on every system, and nothing else."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st
from registry_simulator import file_entry, skill_text

from mdr.digest import Sha256, sha256
from mdr.errors import Refusal
from mdr.install.links import MAX_FILES, expand_links
from mdr.version.types import FileEntry, FileMode

if TYPE_CHECKING:
    from conftest import Bench

LINK = FileMode.SYMLINK


def tree(**paths: str) -> tuple[tuple[FileEntry, ...], dict[Sha256, bytes]]:
    """Build a manifest: a value that starts with ``->`` is a link to the rest."""
    files, blobs = [], {}
    for name, value in paths.items():
        path = name.replace("__", "/").replace("_DOT_", ".")
        data = value.removeprefix("->").encode()
        blobs[sha256(data)] = data
        files.append(file_entry(path, data, LINK if value.startswith("->") else FileMode.REGULAR))
    return tuple(files), blobs


@pytest.mark.parametrize("with_blobs", [True, False])
@pytest.mark.parametrize(
    ("paths", "written"),
    [
        ({"a": "A", "b": "->a"}, {"a": "A", "b": "A"}),
        ({"a": "A", "b": "->./a"}, {"a": "A", "b": "A"}),
        ({"d__a": "A", "e__b": "->../d/a"}, {"d/a": "A", "e/b": "A"}),
        ({"a": "A", "b": "->a", "c": "->b"}, {"a": "A", "b": "A", "c": "A"}),
        (
            {"d__a": "A", "d__e__b": "B", "x": "->d"},
            {"d/a": "A", "d/e/b": "B", "x/a": "A", "x/e/b": "B"},
        ),
        ({"d__a": "A", "x": "->d/"}, {"d/a": "A", "x/a": "A"}),
        (
            {"d__a": "A", "d__l": "->a", "x": "->d"},
            {"d/a": "A", "d/l": "A", "x/a": "A", "x/l": "A"},
        ),
    ],
)
def test_links_inside_are_copied(
    paths: dict[str, str], written: dict[str, str], *, with_blobs: bool
) -> None:
    files, blobs = tree(**paths)
    expanded = expand_links(files, blobs.get if with_blobs else lambda _: None)
    assert {f.path: f.sha256 for f in expanded} == {
        p: sha256(t.encode()) for p, t in written.items()
    }
    assert LINK not in {f.mode for f in expanded}


@pytest.mark.parametrize(
    ("paths", "code"),
    [
        ({"a": "A", "b": "->../a"}, "link-escapes"),
        ({"a": "A", "b": "->/etc/passwd"}, "link-escapes"),
        ({"d__b": "->../../x"}, "link-escapes"),
        ({"a": "A", "b": "->nothing"}, "link-unresolved"),
        ({"a": "->b", "b": "->a"}, "link-loop"),
        ({"a": "->a"}, "link-loop"),
        ({"d__a": "A", "d__x": "->../d"}, "link-loop"),
        ({"a": "A", "x": "->."}, "link-loop"),
        ({"d__a": "A", "e": "->d", "E__a": "B"}, "unportable-path"),
    ],
)
def test_links_that_lead_nowhere_good_are_refused(paths: dict[str, str], code: str) -> None:
    files, blobs = tree(**paths)
    with pytest.raises(Refusal) as caught:
        expand_links(files, blobs.get)
    assert caught.value.code == code


def test_folders_of_links_do_not_multiply_without_bound() -> None:
    paths = {f"d0__f{n}": "x" for n in range(12)}
    for level in range(1, 8):
        paths |= {f"d{level}__l{n}": f"->../d{level - 1}" for n in range(12)}
    files, blobs = tree(**paths)
    with pytest.raises(Refusal) as caught:
        expand_links(files, blobs.get)
    assert caught.value.code == "link-loop"
    assert str(MAX_FILES) in caught.value.message


@given(st.text(max_size=30))
def test_any_link_text_gives_files_or_a_refusal(text: str) -> None:
    data = text.encode("utf-8", "surrogatepass")
    files = (file_entry("d/a", b"A"), file_entry("d/link", data, LINK))
    try:
        expanded = expand_links(files, {sha256(data): data}.get)
    except Refusal:
        return
    assert all(".." not in file.path.split("/") for file in expanded)


def test_an_installed_skill_has_copies_and_verifies_without_cache(bench: Bench) -> None:
    from mdr.install.lock import Lock
    from mdr.install.verify import verify

    bench.registry.add(
        "demo",
        {
            "SKILL.md": skill_text("demo"),
            "shared/a.md": b"A",
            "docs": (b"shared", LINK),
            "b.md": (b"shared/a.md", LINK),
        },
    )
    entry = bench.entry("acme/skills/demo")
    bench.install(entry)
    assert bench.tree() == {
        ".claude/skills/demo/SKILL.md": skill_text("demo"),
        ".claude/skills/demo/b.md": b"A",
        ".claude/skills/demo/docs/a.md": b"A",
        ".claude/skills/demo/shared/a.md": b"A",
    }
    assert not (bench.roots.project / ".claude/skills/demo/b.md").is_symlink()
    assert bench.install(entry).unchanged
    (bench.roots.project / ".claude/skills/demo/docs/a.md").write_bytes(b"B")
    troubles = verify(Lock(entries=(entry,)), bench.roots, lambda _: None).troubles
    assert [(t.path, t.problem) for t in troubles if t.problem != "grade"] == [
        (".claude/skills/demo/docs/a.md", "changed")
    ]


def test_a_link_text_in_an_unusual_spelling_needs_the_bytes(bench: Bench) -> None:
    bench.registry.add(
        "demo", {"SKILL.md": skill_text("demo"), "x/a": b"A", "l": (b".//x/../x/a", LINK)}
    )
    entry = bench.entry("acme/skills/demo")
    assert bench.install(entry).installed
    assert bench.install(entry).unchanged
