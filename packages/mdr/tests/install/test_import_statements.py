"""What ``mdr import`` asks of a local registry: as much for many things as for one."""

from __future__ import annotations

import json
from pathlib import Path

from git_builder import GitRepository, skill
from sqlalchemy import Engine
from statements import counted

from mdr.digest import sha256
from mdr.install.destination import Roots
from mdr.install.import_lock import Imported, import_lock
from mdr.install.workspace import Workspace
from mdr.registry.indexing import index_source
from mdr.registry.local import LocalRegistry
from mdr.registry.stores import open_stores
from mdr.registry.withdrawals import tombstone
from mdr.settings import Settings


def project_of(folder: Path, settings: Settings, names: list[str]) -> tuple[Workspace, Path]:
    """Lay out a project into which another tool has put skills, each with a lock of that tool."""
    for name in names:
        path = folder / ".claude" / "skills" / name / "SKILL.md"
        path.parent.mkdir(parents=True)
        path.write_bytes(skill(name))
    lock = folder / "skills-lock.json"
    told = {"source": "Acme/Tools", "sourceType": "github", "computedHash": "0" * 64}
    lock.write_text(json.dumps({"version": 1, "skills": dict.fromkeys(names, told)}))
    roots = Roots(project=folder, home=folder / "home")
    return Workspace(settings=settings, roots=roots), lock


def test_the_statements_do_not_grow_with_what_is_imported(tmp_path: Path) -> None:
    names = [f"skill-{number:02}" for number in range(40)]
    repository = GitRepository(tmp_path / "r.git")
    repository.commit({f"skills/{name}/SKILL.md": skill(name) for name in names})
    repository.commit({f"skills/{names[0]}/more.md": b"more"})
    settings = Settings(data=tmp_path / "data", index_on_demand=False)
    index_source(str(repository.path), settings, name_as="github.com/Acme/Tools")
    asked: list[int] = []
    for count in (2, 40):
        workspace, lock = project_of(tmp_path / str(count), settings, names[:count])
        with counted(Engine) as statements:  # type: ignore[arg-type]  # of every engine
            done = import_lock(workspace, lock, ())
        assert [match.name for match in done.matched] == names[:count]
        assert done.unmatched == ()
        asked.append(len([each for each in statements if each.startswith("SELECT")]))
    assert asked[0] == asked[1] <= 20, asked


def imported(tmp_path: Path, settings: Settings, names: list[str]) -> Imported:
    workspace, lock = project_of(tmp_path / "p", settings, names)
    return import_lock(workspace, lock, ())


def test_a_thing_with_withdrawn_or_lost_bytes_does_not_hold_up_the_others(tmp_path: Path) -> None:
    names = ["buried", "fine", "lost", "well"]
    repository = GitRepository(tmp_path / "r.git")
    repository.commit({f"skills/{name}/SKILL.md": skill(name) for name in names})
    settings = Settings(data=tmp_path / "data", index_on_demand=False)
    index_source(str(repository.path), settings, name_as="github.com/Acme/Tools")
    stores = open_stores(settings, create=False)
    assert stores is not None
    tombstone(stores, sha256(skill("buried")), reason="steals keys", by="bob")
    stores.blobs.remove(sha256(skill("lost")))
    done = imported(tmp_path, settings, names)
    assert [match.name for match in done.matched] == ["fine", "well"]
    why = {each.name: each.why for each in done.unmatched}
    assert set(why) == {"buried", "lost"}
    assert "is withdrawn: steals keys" in why["buried"]
    assert "does not hold" in why["lost"]


def test_each_blob_says_of_each_what_blob_says(tmp_path: Path) -> None:
    registry = LocalRegistry(Settings(data=tmp_path / "none", index_on_demand=False))
    assert list(registry.each_blob([sha256(b"a"), sha256(b"b")])) == [None, None]
