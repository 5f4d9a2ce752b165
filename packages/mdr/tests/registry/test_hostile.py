"""A hostile repository, built object by object: nothing escapes, nothing hangs, everything is named."""

from __future__ import annotations

import zlib
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from git_builder import link, skill

from mdr.errors import SourceError
from mdr.reference.parse import parse
from mdr.registry.indexing import index_source
from mdr.registry.local import LocalRegistry

if TYPE_CHECKING:
    from collections.abc import Callable

    from git_builder import GitRepository

    from mdr.registry.indexing import Indexed
    from mdr.settings import Settings

    IndexIt = Callable[[GitRepository], Indexed]

GIB = 1 << 30


def nest(
    repository: GitRepository, names: list[bytes], mode: str, oid: str
) -> tuple[str, bytes, str]:
    """Put an object below folders with these names, each one a tree of its own."""
    *folders, file = names
    entry = (mode, file, oid)
    for name in reversed(folders):
        entry = ("40000", name, repository.tree([entry]))
    return entry


def reasons(done: Indexed) -> dict[str, str]:
    return {each.path: each.reason for each in done.skipped}


def test_hostile_names(repository: GitRepository, index: IndexIt, settings: Settings) -> None:
    blob = repository.blob(skill("x"))
    good = nest(repository, [b"good", b"SKILL.md"], "100644", blob)
    odd = [
        [b"..", b"SKILL.md"],
        [b"a", b"..", b"..", b"SKILL.md"],
        [b".git", b"SKILL.md"],
        [b"-rf", b"SKILL.md"],
        [b"--upload-pack=touch x", b"SKILL.md"],
        [b"new\nline", b"SKILL.md"],
        [b"esc\x1b[2J", b"SKILL.md"],
        [b"latin\xe9", b"SKILL.md"],
        ["rtl\u202egpj".encode(), b"SKILL.md"],
        ["zero\u200bwidth".encode(), b"SKILL.md"],
        [b"back\\slash", b"SKILL.md"],
        [b"d"] * 80 + [b"SKILL.md"],
        [b"long" * 300, b"SKILL.md"],
    ]
    entries = [good, *(nest(repository, names, "100644", blob) for names in odd)]
    repository.commit_tree(repository.tree(sorted(entries, key=lambda entry: entry[1])))
    done = index(repository)
    assert done.artifacts == 1
    assert len(done.skipped) == len(odd)
    for path, reason in reasons(done).items():
        assert path.isprintable()
        assert reason
    inside = {path.relative_to(settings.data).parts[0] for path in settings.data.rglob("*")}
    assert inside <= {
        "blobs",
        "index.sqlite",
        "index.sqlite-shm",
        "index.sqlite-wal",
        "locks",
        "tmp",
    }


def test_a_full_path_as_one_name(repository: GitRepository, index: IndexIt) -> None:
    blob = repository.blob(skill("x"))
    tree = repository.tree(
        [("100644", b"../../../tmp/SKILL.md", blob), ("100644", b"/etc/SKILL.md", blob)]
    )
    repository.commit_tree(tree)
    done = index(repository)
    assert done.artifacts == 0
    assert len(done.skipped) == 2


def test_device_like_modes_and_submodules(
    repository: GitRepository, index: IndexIt, registry: LocalRegistry
) -> None:
    blob = repository.blob(b"x")
    main = repository.blob(skill("x"))
    folder = repository.tree(
        [
            ("100644", b"SKILL.md", main),
            ("100664", b"group.txt", blob),
            ("120666", b"weird-link", blob),
            ("20666", b"char-device", blob),
            ("60666", b"block-device", blob),
            ("10644", b"fifo", blob),
            ("160000", b"sub", "1" * 40),
        ]
    )
    repository.commit_tree(repository.tree([("40000", b"x", folder)]))
    done = index(repository)
    resolved = registry.resolve(parse("acme/tools/x"))
    assert {f.path: f.mode.value for f in resolved.files} == {
        "SKILL.md": "100644",
        "group.txt": "100644",
    }
    assert set(reasons(done)) == {
        "x/weird-link",
        "x/char-device",
        "x/block-device",
        "x/fifo",
        "x/sub",
    }


def test_links_that_leave_and_links_that_stay(
    repository: GitRepository, index: IndexIt, registry: LocalRegistry
) -> None:
    repository.commit(
        {
            "s/SKILL.md": skill("s"),
            "s/passwd": link("/etc/passwd"),
            "s/up": link("../../../../etc/passwd"),
            "s/neighbour": link("../other/secret"),
            "s/loop": link("loop"),
            "s/ring-a": link("ring-b"),
            "s/ring-b": link("ring-a"),
            "s/chain": link("passwd"),
            "s/inside": link("data/a.txt"),
            "s/folder": link("data"),
            "s/data/a.txt": b"a",
            "s/data/up": link("../SKILL.md"),
            "s/trick": link("folder/../../outside"),
            "other/secret": b"s",
        }
    )
    done = index(repository)
    kept = {f.path for f in registry.resolve(parse("acme/tools/s")).files}
    assert {"SKILL.md", "data/a.txt", "data/up", "inside", "folder"} <= kept
    assert kept.isdisjoint({"passwd", "up", "neighbour", "loop", "chain", "trick"})
    assert set(reasons(done)) >= {"s/passwd", "s/up", "s/neighbour", "s/loop", "s/chain", "s/trick"}


def test_a_gigabyte_of_zeros_is_never_read(
    repository: GitRepository, index: IndexIt, registry: LocalRegistry
) -> None:
    oid = "7" * 40
    path = repository.path / "objects" / oid[:2] / oid[2:]
    path.parent.mkdir(parents=True, exist_ok=True)
    packer = zlib.compressobj(1)
    with path.open("wb") as file:  # a loose object: its header says how long it is
        file.write(packer.compress(f"blob {GIB}\0".encode()))
        chunk = bytes(1 << 22)
        for _ in range(4):  # the rest may well be missing: nobody may ask for it
            file.write(packer.compress(chunk))
        file.write(packer.flush())
    main = repository.blob(skill("x"))
    folder = repository.tree([("100644", b"SKILL.md", main), ("100644", b"huge.bin", oid)])
    other = repository.tree([("100644", b"SKILL.md", oid)])
    repository.commit_tree(repository.tree([("40000", b"a", folder), ("40000", b"b", other)]))
    done = index(repository)
    told = reasons(done)
    assert "1,073,741,824" in told["a/huge.bin"]
    assert "1,073,741,824" in told["b/SKILL.md"]
    assert [f.path for f in registry.resolve(parse("acme/tools/a")).files] == ["SKILL.md"]


def test_contents_of_every_kind_are_kept_as_they_are(
    repository: GitRepository, index: IndexIt, registry: LocalRegistry
) -> None:
    laughs = (
        "---\na: &a [x,x,x,x,x,x,x,x,x]\n"
        + "".join(
            f"{chr(98 + n)}: &{chr(98 + n)} [{','.join(['*' + chr(97 + n)] * 9)}]\n"
            for n in range(9)
        )
        + "---\n"
    )
    contents = {
        "bom": b"\xef\xbb\xbf" + skill("bom"),
        "crlf": skill("crlf").replace(b"\n", b"\r\n"),
        "nul": skill("nul") + b"\0",
        "latin": skill("latin") + b"\xff\xfe",
        "laughs": laughs.encode() + b"x" * 300,
        "deep": b"---\na: " + b"[" * 5_000 + b"\n---\n" + b"x" * 300,
        "empty": b"",
        "escape": skill("escape", "\x1b]0;title\x07 " * 30),
    }
    repository.commit({f"{name}/SKILL.md": data for name, data in contents.items()})
    assert index(repository).artifacts == len(contents)
    for name, data in contents.items():
        resolved = registry.resolve(parse(f"acme/tools/{name}"))
        assert registry.blob(resolved.version.sha256) == data
    grades = {
        name: registry.resolve(parse(f"acme/tools/{name}")).version.grade for name in contents
    }
    assert grades["nul"] == grades["latin"] == "F"
    assert grades["bom"] == grades["crlf"] == "A"


def test_case_collisions_in_one_folder(
    repository: GitRepository, index: IndexIt, registry: LocalRegistry
) -> None:
    repository.commit(
        {
            "s/SKILL.md": skill("s"),
            "s/A.txt": b"1",
            "s/a.txt": b"2",
            "s/é.txt": b"3",
            "s/e\u0301.txt": b"4",
        }
    )
    done = index(repository)
    assert {f.path for f in registry.resolve(parse("acme/tools/s")).files} == {
        "SKILL.md",
        "A.txt",
        "e\u0301.txt",
    }
    assert set(reasons(done)) == {"s/a.txt", "s/é.txt"}


def test_commit_messages_and_names_cannot_pose_as_changes(
    repository: GitRepository, index: IndexIt
) -> None:
    fake = ":000000 100644 " + "0" * 40 + " " + "1" * 40 + " A"
    blob = repository.blob(skill("x"))
    repository.commit_tree(
        repository.tree([nest(repository, [fake.encode(), b"SKILL.md"], "100644", blob)])
    )
    done = index(repository)
    assert done.artifacts == 1


@pytest.mark.parametrize("time", [1 << 40, 253_402_300_800])
def test_committer_times_beyond_the_calendar(
    repository: GitRepository, index: IndexIt, time: int
) -> None:
    good = repository.commit({"s/SKILL.md": skill("s")})
    tree = repository.git("rev-parse", f"{good}^{{tree}}")
    person = f"n <e@x> {time} +0000"
    raw = f"tree {tree}\nauthor {person}\ncommitter {person}\n\nm\n".encode()
    bad = repository.git("hash-object", "-w", "--literally", "-t", "commit", "--stdin", stdin=raw)
    repository.git("update-ref", "refs/heads/main", bad)
    done = index(repository)
    assert done.artifacts == 0
    assert "committer time" in reasons(done)["s/SKILL.md"]


def test_a_missing_tree_is_an_error_in_words(repository: GitRepository, index: IndexIt) -> None:
    tree = repository.tree([("40000", b"gone", "3" * 40)])
    repository.commit_tree(tree)
    with pytest.raises(SourceError):
        index(repository)


@pytest.mark.slow
def test_two_hundred_thousand_files(repository: GitRepository, settings: Settings) -> None:
    blob = repository.blob(b"x")
    names = [
        (
            f"{n:03}".encode(),
            repository.tree([("100644", f"{n}-{m:03}".encode(), blob) for m in range(1_000)]),
        )
        for n in range(200)
    ]
    main = repository.blob(skill("x"))
    folder = repository.tree([("100644", b"SKILL.md", main)])
    repository.commit_tree(
        repository.tree([*(("40000", name, tree) for name, tree in names), ("40000", b"s", folder)])
    )
    done = index_source(str(repository.path), settings, name_as="acme/tools")
    assert (done.artifacts, done.skipped) == (1, ())


@pytest.mark.slow
def test_a_skill_around_two_hundred_thousand_files_is_refused(
    repository: GitRepository, settings: Settings
) -> None:
    blob = repository.blob(b"x")
    trees = [
        (
            f"{n:03}".encode(),
            repository.tree([("100644", f"{m:03}".encode(), blob) for m in range(1_000)]),
        )
        for n in range(200)
    ]
    main = repository.blob(skill("x"))
    repository.commit_tree(
        repository.tree(
            [*(("40000", name, tree) for name, tree in trees), ("100644", b"SKILL.md", main)]
        )
    )
    done = index_source(str(repository.path), settings, name_as="acme/tools")
    assert "200,001 files" in reasons(done)["SKILL.md"]


def test_nothing_outside_the_data_folder_is_written(
    repository: GitRepository, index: IndexIt, tmp_path: Path
) -> None:
    before = {path for path in tmp_path.rglob("*") if "data" not in path.parts}
    repository.commit({"s/SKILL.md": skill("s"), "s/out": link("../../x")})
    after_commit = set(tmp_path.rglob("*"))
    index(repository)
    after = {path for path in tmp_path.rglob("*") if tmp_path / "data" not in {path, *path.parents}}
    assert after == after_commit
    assert before <= after
