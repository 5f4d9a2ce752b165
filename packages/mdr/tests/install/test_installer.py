"""Installing on a real disk: bytes, modes, ownership, links, all or nothing."""

from __future__ import annotations

import stat
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from registry_simulator import skill_text

from mdr.digest import sha256
from mdr.errors import IntegrityError, Refusal, StoreError
from mdr.install import place as placing
from mdr.install.lock import Scope, Target
from mdr.version.types import FileMode

if TYPE_CHECKING:
    from conftest import Bench

ODD = bytes(range(256)) * 3
FILES = {
    "SKILL.md": skill_text("demo").replace(b"\n", b"\r\n"),
    "scripts/run.sh": (b"#!/bin/sh\necho hi\n", FileMode.EXECUTABLE),
    "assets/deep/er/blob.bin": ODD,
    "empty": b"",
    "ünï.md": "\ufeffé\u0301\n".encode(),
}


def test_bytes_and_modes_are_those_of_the_source(bench: Bench) -> None:
    bench.registry.add("demo", FILES)
    bench.install(bench.entry("acme/skills/demo"))
    root = bench.roots.project / ".claude/skills/demo"
    for name, value in FILES.items():
        data, mode = value if isinstance(value, tuple) else (value, FileMode.REGULAR)
        assert (root / name).read_bytes() == data
        executable = bool((root / name).stat().st_mode & stat.S_IXUSR)
        assert executable == (mode is FileMode.EXECUTABLE)
    assert len(bench.tree()) == len(FILES)


def test_a_second_install_writes_nothing(bench: Bench) -> None:
    bench.registry.add("demo", FILES)
    entry = bench.entry(
        "acme/skills/demo", "project:claude", "user:codex", "project:codex", "project:amp"
    )
    first = bench.install(entry)
    before = {p: p.stat().st_ino for p in bench.roots.project.rglob("*")}
    bench.registry.blobs.clear()  # nothing is fetched either
    second = bench.install(entry)
    assert [str(p.target) for p in first.installed] == [str(p.target) for p in second.unchanged]
    assert len(first.installed) == 4
    assert not second.installed
    assert {p: p.stat().st_ino for p in bench.roots.project.rglob("*")} == before


def test_agents_that_share_a_folder_get_one_copy(bench: Bench) -> None:
    bench.registry.add("demo")
    bench.install(bench.entry("acme/skills/demo", "project:codex", "project:amp", "project:gemini"))
    assert list(bench.tree()) == [".agents/skills/demo/SKILL.md"]


def test_the_old_version_is_replaced_whole(bench: Bench) -> None:
    bench.registry.add("demo", {**FILES, "old-only.md": b"old"})
    old = bench.entry("acme/skills/demo")
    bench.install(old)
    bench.registry.add("demo", {"SKILL.md": skill_text("demo", "new")}, day="20260202")
    new = bench.entry("acme/skills/demo")
    report = bench.install(new)  # the receipt of the first install proves that these bytes are ours
    assert len(report.installed) == 1
    assert not report.backups
    assert bench.tree() == {".claude/skills/demo/SKILL.md": skill_text("demo", "new")}


def test_without_a_receipt_the_earlier_lock_entry_proves_it(bench: Bench) -> None:
    bench.registry.add("demo", FILES)
    old = bench.entry("acme/skills/demo")
    bench.install(old)
    bench.registry.add("demo", day="20260202")
    new = bench.entry("acme/skills/demo")
    bench.data = bench.data / "another-machine"
    assert [f.error.code for f in bench.install(new).failed] == ["target-not-ours"]
    assert len(bench.install(new, earlier=(old,)).installed) == 1


@pytest.mark.parametrize("harm", ["edit", "extra", "edit mode", "foreign", "link", "file"])
def test_bytes_we_did_not_write_are_never_overwritten(bench: Bench, harm: str) -> None:
    bench.registry.add("demo", FILES)
    old = bench.entry("acme/skills/demo")
    place = bench.roots.project / ".claude/skills/demo"
    if harm in {"edit", "extra", "edit mode"}:
        bench.install(old)
        bench.registry.add("demo", day="20260202")
        target = place / ("SKILL.md" if harm.startswith("edit") else "notes.md")
        target.write_bytes(b"mine")
    else:
        place.parent.mkdir(parents=True)
        if harm == "foreign":
            place.mkdir()
            (place / "SKILL.md").write_bytes(b"mine")
        elif harm == "link":
            (bench.roots.project / "mine").mkdir()
            (bench.roots.project / "mine/SKILL.md").write_bytes(b"mine")
            place.symlink_to("../../mine")
        else:
            place.write_bytes(b"mine")
    new = bench.entry("acme/skills/demo")
    before = bench.tree()
    report = bench.install(new)
    assert [f.error.code for f in report.failed] == ["target-not-ours"]
    assert report.failed[0].error.exit_code == 1
    assert "--force" in report.failed[0].error.hint
    assert bench.tree() == before

    forced = bench.install(new, force=True)
    assert forced.backups == (".claude/.mdr-backup/demo.1",)
    assert place.is_dir()
    assert not place.is_symlink()
    assert (place / "SKILL.md").read_bytes() == bench.registry.blobs[new.sha256]
    assert any(data == b"mine" for path, data in bench.tree().items())
    backup = bench.roots.project / ".claude/.mdr-backup/demo.1"
    assert backup.is_symlink() == (harm == "link")


def test_each_forced_run_keeps_its_own_backup(bench: Bench) -> None:
    bench.registry.add("demo")
    entry = bench.entry("acme/skills/demo")
    for number in (1, 2):
        bench.install(entry)
        (bench.roots.project / ".claude/skills/demo/SKILL.md").write_bytes(b"edit %d" % number)
        assert bench.install(entry, force=True).backups == (f".claude/.mdr-backup/demo.{number}",)
    kept = sorted(data for path, data in bench.tree().items() if ".mdr-backup" in path)
    assert kept == [b"edit 1", b"edit 2"]


def test_missing_files_and_modes_are_repaired_without_force(bench: Bench) -> None:
    bench.registry.add("demo", FILES)
    entry = bench.entry("acme/skills/demo")
    bench.install(entry)
    root = bench.roots.project / ".claude/skills/demo"
    (root / "empty").unlink()
    (root / "scripts/run.sh").chmod(0o644)
    report = bench.install(entry)
    assert len(report.installed) == 1
    assert not report.backups
    assert (root / "empty").exists()
    assert (root / "scripts/run.sh").stat().st_mode & stat.S_IXUSR


def test_one_failure_leaves_everything_as_it_was(bench: Bench) -> None:
    for name in ("a", "b", "c"):
        bench.registry.add(name)
    entries = [bench.entry(f"acme/skills/{name}") for name in ("a", "b", "c")]
    del bench.registry.blobs[entries[1].sha256]
    report = bench.install(*entries)
    assert [(f.entry.name, f.error.code, f.error.exit_code) for f in report.failed] == [
        ("b", "bytes-not-found", 3)
    ]
    assert bench.tree() == {}


def test_a_registry_that_lies_is_caught_by_hash(bench: Bench) -> None:
    bench.registry.add("demo")
    entry = bench.entry("acme/skills/demo")
    bench.registry.blobs[entry.sha256] = b"other bytes"
    report = bench.install(entry)
    assert [f.error.code for f in report.failed] == ["hash-mismatch"]
    assert isinstance(report.failed[0].error, IntegrityError)
    assert bench.tree() == {}


def test_a_failing_grade_stops_the_install(bench: Bench) -> None:
    from mdr.install.installer import Request, grade_mismatch, install

    bench.registry.add("demo")
    entry = bench.entry("acme/skills/demo")
    seen = []

    def check(checked: object, data: bytes) -> IntegrityError:
        seen.append(data)
        return grade_mismatch(entry, "F")

    request = Request(entries=(entry,), roots=bench.roots, data=bench.data)
    report = install(request, bench.fetcher(), check)
    assert seen == [bench.registry.blobs[entry.sha256]]
    assert [f.error.code for f in report.failed] == ["grade-mismatch"]
    assert bench.tree() == {}


@pytest.mark.parametrize("at", [".claude", ".claude/skills"])
def test_links_out_of_the_root_are_not_followed(bench: Bench, at: str) -> None:
    outside = bench.roots.project.parent / "outside"
    outside.mkdir()
    link = bench.roots.project / at
    link.parent.mkdir(parents=True, exist_ok=True)
    link.symlink_to(outside)
    bench.registry.add("demo")
    report = bench.install(bench.entry("acme/skills/demo"))
    assert [f.error.code for f in report.failed] == ["outside-root"]
    assert list(outside.iterdir()) == []


def test_links_inside_the_root_are_fine(bench: Bench) -> None:
    (bench.roots.project / ".agents/skills").mkdir(parents=True)
    (bench.roots.project / ".claude").mkdir()
    (bench.roots.project / ".claude/skills").symlink_to("../.agents/skills")
    bench.registry.add("demo")
    entry = bench.entry("acme/skills/demo")
    bench.install(entry)
    assert ".agents/skills/demo/SKILL.md" in bench.tree()
    assert bench.install(entry).unchanged


def test_a_file_where_a_folder_must_be(bench: Bench) -> None:
    (bench.roots.project / ".claude").write_bytes(b"a file")
    bench.registry.add("demo")
    report = bench.install(bench.entry("acme/skills/demo"))
    assert [f.error.code for f in report.failed] == ["not-a-folder"]


def test_a_failing_swap_undoes_those_before_it(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("a", "b", "c"):
        bench.registry.add(name, day="20260101")
    bench.install(bench.entry("acme/skills/a"), bench.entry("acme/skills/b"))
    for name in ("a", "b", "c"):
        bench.registry.add(name, {"SKILL.md": skill_text(name, "new")}, day="20260202")
    before = bench.tree()
    swap, count = placing._swap, []

    def failing(item: object) -> None:
        count.append(item)
        if len(count) == 3:
            raise OSError(28, "No space left on device", "c")
        swap(item)  # type: ignore[arg-type]

    monkeypatch.setattr(placing, "_swap", failing)
    with pytest.raises(StoreError) as caught:
        bench.install(*(bench.entry(f"acme/skills/{n}") for n in ("a", "b", "c")))
    assert caught.value.code == "place-not-written"
    assert bench.tree() == before


@pytest.mark.parametrize("with_exchange", [True, False])
def test_replacing_works_with_and_without_the_exchange_call(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, *, with_exchange: bool
) -> None:
    if not with_exchange:
        monkeypatch.setattr(placing, "exchange", lambda left, right: False)
    bench.registry.add("demo")
    bench.install(bench.entry("acme/skills/demo"))
    bench.registry.add("demo", {"SKILL.md": skill_text("demo", "new")}, day="20260202")
    bench.install(bench.entry("acme/skills/demo"))
    assert bench.tree() == {".claude/skills/demo/SKILL.md": skill_text("demo", "new")}


def test_a_run_killed_between_two_renames_is_repaired_by_the_next(bench: Bench) -> None:
    """Without the exchange call there is one moment at which the place is empty."""
    bench.registry.add("demo", FILES)
    entry = bench.entry("acme/skills/demo")
    bench.install(entry)
    parent = bench.roots.project / ".claude/skills"
    stage = parent / ".mdr-stage-0123456789ab"
    for part in ("new/demo", "old", "keep"):
        (stage / part).mkdir(parents=True)
    (stage / "new/demo/SKILL.md").write_bytes(b"half")
    (parent / "demo").rename(stage / "old/demo")
    placing.recover(parent)
    assert bench.install(entry).unchanged
    assert [item.name for item in parent.iterdir()] == ["demo"]


def test_recovery_never_drops_bytes_that_were_not_ours(bench: Bench) -> None:
    bench.registry.add("demo")
    entry = bench.entry("acme/skills/demo")
    parent = bench.roots.project / ".claude/skills"
    stage = parent / ".mdr-stage-0123456789ab"
    for part in ("new/demo", "old", "keep"):
        (stage / part).mkdir(parents=True)
    (stage / "new/demo/notes.md").write_bytes(b"mine, exchanged out a moment before the kill")
    (stage / "keep/demo").touch()
    bench.install(entry)
    assert (bench.roots.project / ".claude/.mdr-backup/demo.1/notes.md").exists()
    assert not stage.exists()


def test_a_staging_name_that_is_a_link_is_left_alone(bench: Bench) -> None:
    bench.registry.add("demo")
    parent = bench.roots.project / ".claude/skills"
    parent.mkdir(parents=True)
    precious = bench.roots.project / "precious"
    precious.mkdir()
    (precious / "file").touch()
    (parent / ".mdr-stage-evil").symlink_to(precious)
    bench.install(bench.entry("acme/skills/demo"))
    assert (precious / "file").exists()


def test_a_damaged_receipt_only_makes_it_careful(bench: Bench) -> None:
    bench.registry.add("demo")
    bench.install(bench.entry("acme/skills/demo"))
    (receipt,) = (bench.data / "receipts").iterdir()
    for junk in (b"", b"[]", b'{"a": 1}', b"\xff" * 9, b"[" * 100_000):
        receipt.write_bytes(junk)
        bench.registry.add("demo", {"SKILL.md": skill_text("demo", "x")}, day="20260303")
        report = bench.install(bench.entry("acme/skills/demo"))
        assert [f.error.code for f in report.failed] == ["target-not-ours"]


def test_a_data_folder_that_is_a_file_costs_only_the_receipt(bench: Bench) -> None:
    bench.data.write_bytes(b"")
    bench.registry.add("demo")
    assert bench.install(bench.entry("acme/skills/demo")).installed


def test_an_agent_that_cannot_take_the_file_is_refused(bench: Bench) -> None:
    from mdr.artifact.types import Kind
    from mdr.install.destination import destinations

    bench.registry.add("style", {"style.md": b"x"}, path="rules/style.md", kind=Kind.RULE)
    entry = bench.entry("acme/skills:rules/style.md")
    for agent, code in (("cursor", "format-mismatch"), ("codex", "no-place")):
        aimed = replace(entry, targets=(Target(scope=Scope.PROJECT, agent=agent),))
        with pytest.raises(Refusal) as caught:
            destinations(aimed, bench.roots)
        assert caught.value.code == code
        assert "claude" in str(caught.value.data) or agent in str(caught.value.data)


def test_identical_blobs_are_written_to_every_path(bench: Bench) -> None:
    same = b"same bytes\n"
    bench.registry.add("demo", {"SKILL.md": same, "a": same, "b": (same, FileMode.EXECUTABLE)})
    entry = bench.entry("acme/skills/demo")
    assert {file.sha256 for file in entry.files} == {sha256(same)}
    bench.install(entry)
    assert list(bench.tree().values()) == [same] * 3


def test_two_entries_that_meet_in_one_place_through_a_link(bench: Bench) -> None:
    (bench.roots.project / ".agents/skills").mkdir(parents=True)
    (bench.roots.project / ".claude").mkdir()
    (bench.roots.project / ".claude/skills").symlink_to("../.agents/skills")
    bench.registry.add("demo")
    bench.registry.add("demo", {"SKILL.md": skill_text("demo", "x")}, repository="other/repo")
    one = bench.entry("acme/skills/demo", "project:claude")
    two = bench.entry("other/repo/demo", "project:codex")
    report = bench.install(one, two)
    assert [f.error.code for f in report.failed] == ["target-taken"]
    assert bench.tree() == {}


def test_a_project_that_is_the_home_folder(bench: Bench) -> None:
    bench.roots = replace(bench.roots, home=bench.roots.project)
    bench.registry.add("demo")
    entry = bench.entry("acme/skills/demo", "project:claude", "user:claude")
    bench.install(entry)
    assert list(bench.tree()) == [".claude/skills/demo/SKILL.md"]
    assert len(bench.install(entry).unchanged) == 2
