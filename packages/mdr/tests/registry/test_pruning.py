"""``mdr backup --keep N``: what goes, what stays, and that what stays can be restored."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner
from git_builder import GitRepository, skill

from mdr.cli.main import cli
from mdr.registry.archive import snapshots_of
from mdr.registry.backup import backup
from mdr.registry.indexing import index_source
from mdr.registry.pruning import prune
from mdr.registry.restore import restore
from mdr.settings import Settings
from mdr.store.files import FileBlobStore


def quiet(_stage: str, _done: int, _total: int) -> None:
    pass


@pytest.fixture
def kept(tmp_path: Path) -> tuple[Settings, Path, list[int]]:
    """A folder with three snapshots, each of a registry with one version more."""
    repository = GitRepository(tmp_path / "r.git")
    settings = Settings(data=tmp_path / "data", index_on_demand=False, workers=1)
    sizes = []
    for number in range(3):
        repository.commit({"a/SKILL.md": skill("a", f"Version {number}.\n" * 20)})
        index_source(str(repository.path), settings, name_as="acme/tools")
        sizes.append(backup(settings, tmp_path / "b", quiet).blobs)
    return settings, tmp_path / "b", sizes


def names(root: Path) -> list[str]:
    return [each.name[:6] for each in snapshots_of(root)]


def test_the_newest_stay_and_can_be_restored(
    kept: tuple[Settings, Path, list[int]], tmp_path: Path
) -> None:
    _, root, _ = kept
    assert [each[:6] for each in prune(root, 2)] == ["000001"]
    assert names(root) == ["000002", "000003"]
    assert prune(root, 2) == ()
    done = restore(Settings(data=tmp_path / "again", workers=1), root, quiet)
    assert done.missing == ()


def test_blobs_that_only_a_removed_snapshot_names_go(
    kept: tuple[Settings, Path, list[int]],
) -> None:
    _, root, sizes = kept
    store = FileBlobStore(root)
    stray = store.put([b"what a killed run left"])[0]
    before = len(list(store.digests()))
    assert before == sizes[-1] + 1
    prune(root, 1)
    assert not store.has(stray)
    assert len(list(store.digests())) == sizes[-1]


@pytest.mark.parametrize("harm", ["file", "manifest", "blob", "missing"])
def test_the_newest_complete_one_stays_whatever_is_newer(
    kept: tuple[Settings, Path, list[int]], harm: str
) -> None:
    _, root, _ = kept
    newest = snapshots_of(root)[-1]
    manifest = newest / "manifest.json"
    match harm:
        case "file":
            (newest / "versions.jsonl.gz").write_bytes(b"")
        case "manifest":
            manifest.write_bytes(b"{}")
        case "missing":
            document = json.loads(manifest.read_bytes())
            manifest.write_text(json.dumps({**document, "missing": ["0" * 64]}))
        case _:
            import gzip

            own = set(gzip.decompress((newest / "blobs.gz").read_bytes()).split())
            other = set(gzip.decompress((snapshots_of(root)[-2] / "blobs.gz").read_bytes()).split())
            FileBlobStore(root).remove((own - other).pop().decode())  # type: ignore[arg-type]
    assert [each[:6] for each in prune(root, 1)] == ["000001"]
    assert names(root) == ["000002", "000003"]


def test_fewer_complete_ones_than_asked_for_remove_nothing(
    kept: tuple[Settings, Path, list[int]],
) -> None:
    _, root, _ = kept
    for each in snapshots_of(root):
        (each / "versions.jsonl.gz").write_bytes(b"")
    blobs = sorted(FileBlobStore(root).digests())
    assert prune(root, 1) == ()
    assert len(names(root)) == 3
    assert sorted(FileBlobStore(root).digests()) == blobs


def test_the_command_removes_after_it_has_written(kept: tuple[Settings, Path, list[int]]) -> None:
    settings, root, _ = kept
    words = ["backup", str(root), "--data", str(settings.data), "--keep", "1", "--json"]
    done = CliRunner().invoke(cli, words, standalone_mode=False)
    assert done.exception is None
    document = json.loads(done.stdout)
    assert document["snapshot"].startswith("000004")
    assert [each[:6] for each in document["removed"]] == ["000001", "000002", "000003"]
    assert names(root) == ["000004"]


def test_a_tar_file_has_nothing_to_remove(
    kept: tuple[Settings, Path, list[int]], tmp_path: Path
) -> None:
    settings, _, _ = kept
    words = ["backup", str(tmp_path / "x.tar"), "--data", str(settings.data), "--keep", "1"]
    done = CliRunner().invoke(cli, words, standalone_mode=False)
    assert getattr(done.exception, "code", None) == "usage"
    assert not (tmp_path / "x.tar").exists()
