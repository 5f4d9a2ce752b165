"""``mdr import``: other tools' locks, matched by content."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest
from registry_simulator import skill_text

if TYPE_CHECKING:
    from pathlib import Path

    from conftest import Person

SKILLS_LOCK = {
    "version": 1,
    "skills": {
        "demo": {"source": "Acme/Skills", "sourceType": "github", "computedHash": "0" * 64},
        "edited": {"source": "Acme/Skills", "sourceType": "github", "computedHash": "0" * 64},
        "gone": {"source": "Acme/Skills", "sourceType": "github", "computedHash": "0" * 64},
    },
}
APM_LOCK = """\
lockfile_version: '1'
generated_at: '2026-01-01T00:00:00Z'
dependencies:
- repo_url: https://github.com/Acme/Skills
  resolved_commit: 0123456789abcdef0123456789abcdef01234567
  resolved_ref: main
  virtual_path: skills/demo
  deployed_files:
  - .claude/skills/demo
  - .github/prompts/absent.prompt.md
  deployed_file_hashes:
    .claude/skills/demo/SKILL.md: sha256:00
- repo_url: other/empty
  deployed_files: []
"""


def put(folder: Path, place: str, data: bytes) -> None:
    path = folder / place
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)


def test_a_project_skills_lock(mdr: Person) -> None:
    old = mdr.registry.add("demo", {"SKILL.md": skill_text("demo"), "a.md": b"a"})
    mdr.registry.add("demo", {"SKILL.md": skill_text("demo", "newer\n")}, day="20260202")
    mdr.registry.add("edited")
    put(mdr.project, ".claude/skills/demo/SKILL.md", skill_text("demo"))
    put(mdr.project, ".claude/skills/demo/a.md", b"a")
    put(mdr.project, ".agents/skills/demo/SKILL.md", skill_text("demo"))
    put(mdr.project, ".agents/skills/edited/SKILL.md", b"edited")
    (mdr.project / "skills-lock.json").write_text(json.dumps(SKILLS_LOCK))
    before = mdr.tree()
    document = mdr.json("import", "skills-lock.json", code=1)
    assert document["matched"] == [
        {"name": "demo", "ref": "acme/skills/demo", "sha256": old.sha256}
    ]
    reasons = {item["name"]: item["why"] for item in document["unmatched"]}
    assert "no version in the registry has these bytes" in reasons["edited"]
    assert "not on disk" in reasons["gone"]
    after = mdr.tree()
    lock = after.pop("mdr.lock").decode()
    assert after == before
    assert 'targets = ["project:agents", "project:claude"]' in lock
    assert f'label = "{old.label}"' in lock
    assert 'pin = "label"' in lock
    problems = mdr.json("verify", code=1)["problems"]
    assert [(p["path"], p["problem"]) for p in problems] == [
        (".agents/skills/demo/a.md", "missing")
    ]


def test_a_user_s_skill_lock(mdr: Person) -> None:
    mdr.registry.add("demo")
    put(mdr.home, ".codex/skills/demo/SKILL.md", skill_text("demo"))
    entry = {
        "source": "acme/skills",
        "sourceUrl": "https://github.com/acme/skills.git",
        "skillPath": "skills/demo/SKILL.md",
        "skillFolderHash": "0" * 40,
        "installedAt": "2026",
    }
    put(
        mdr.home,
        ".agents/.skill-lock.json",
        json.dumps({"version": 3, "skills": {"demo": entry}}).encode(),
    )
    mdr("import", str(mdr.home / ".agents/.skill-lock.json"))
    assert 'targets = ["user:codex"]' in mdr.lock.read_text()
    mdr("verify")


def test_a_link_to_a_copy_is_not_a_second_place(mdr: Person) -> None:
    mdr.registry.add("demo")
    put(mdr.home, ".agents/skills/demo/SKILL.md", skill_text("demo"))
    (mdr.home / ".claude/skills").mkdir(parents=True)
    (mdr.home / ".claude/skills/demo").symlink_to("../../.agents/skills/demo")
    lock = {"version": 3, "skills": {"demo": {"source": "acme/skills"}}}
    put(mdr.home, ".agents/.skill-lock.json", json.dumps(lock).encode())
    mdr("import", str(mdr.home / ".agents/.skill-lock.json"))
    assert 'targets = ["user:agents"]' in mdr.lock.read_text()
    mdr("install")
    mdr("verify")


def test_an_apm_lock(mdr: Person) -> None:
    mdr.registry.add("demo")
    put(mdr.project, ".claude/skills/demo/SKILL.md", skill_text("demo"))
    (mdr.project / "apm.lock.yaml").write_text(APM_LOCK)
    document = mdr.json("import", "apm.lock.yaml", code=1)
    assert [m["name"] for m in document["matched"]] == ["demo"]
    assert {u["name"] for u in document["unmatched"]} == {"absent", "other/empty"}
    mdr("verify")


def test_an_apm_lock_s_own_hashes_match_what_is_not_on_disk(mdr: Person) -> None:
    version = mdr.registry.add("demo")
    text = APM_LOCK.replace("sha256:00", f"sha256:{version.sha256}")
    (mdr.project / "apm.lock.yaml").write_text(text)
    document = mdr.json("import", "apm.lock.yaml", code=1)
    assert [m["sha256"] for m in document["matched"]] == [version.sha256]
    mdr("install")
    assert mdr.tree()[".claude/skills/demo/SKILL.md"] == skill_text("demo")


def test_a_clawhub_lock(mdr: Person) -> None:
    mdr.registry.add("demo", repository="openclaw/skills", path="skills/someone/demo/SKILL.md")
    put(mdr.project, "skills/demo/SKILL.md", skill_text("demo"))
    lock = {"version": 1, "skills": {"demo": {"version": "1.0.0", "installedAt": 1}}}
    put(mdr.project, ".clawhub/lock.json", json.dumps(lock).encode())
    mdr("import", ".clawhub/lock.json")
    assert 'targets = ["project:openclaw"]' in mdr.lock.read_text()
    assert 'ref = "openclaw/skills/demo"' in mdr.lock.read_text()
    mdr("verify")


def test_the_repository_that_the_lock_names_wins(mdr: Person) -> None:
    mdr.registry.add("demo", repository="copy/cat")
    mdr.registry.add("demo")
    put(mdr.project, ".claude/skills/demo/SKILL.md", skill_text("demo"))
    lock = {"version": 1, "skills": {"demo": SKILLS_LOCK["skills"]["demo"]}}  # type: ignore[index]
    (mdr.project / "skills-lock.json").write_text(json.dumps(lock))
    assert mdr.json("import", "skills-lock.json")["matched"][0]["ref"] == "acme/skills/demo"


def test_names_that_are_paths_read_nothing(mdr: Person, tmp_path: Path) -> None:
    mdr.registry.add("demo")
    put(tmp_path, "outside/SKILL.md", skill_text("demo"))
    hostile = {
        name: {"source": "acme/skills"} for name in ("../../../outside", "/etc", "a/../../b", "..")
    }
    (mdr.project / "skills-lock.json").write_text(json.dumps({"skills": hostile}))
    document = mdr.json("import", "skills-lock.json", code=1)
    assert document["matched"] == []
    assert len(document["unmatched"]) == len(hostile)
    assert not mdr.lock.exists()


@pytest.mark.parametrize(
    ("name", "content", "code"),
    [
        ("package-lock.json", "{}", "import-unknown"),
        ("skills-lock.json", "{", "import-unreadable"),
        ("skills-lock.json", "[]", "import-unreadable"),
        ("skills-lock.json", '{"skills": []}', "import-unreadable"),
        ("skills-lock.json", '{"skills": {"a": 1}}', "import-unreadable"),
        ("skills-lock.json", "[" * 100_000, "import-unreadable"),
        ("apm.lock.yaml", "dependencies: 1", "import-unreadable"),
        ("apm.lock.yaml", "dependencies: [1]", "import-unreadable"),
        ("apm.lock.yaml", "a: &a [x]\ndependencies: [*a, *a]", "import-unreadable"),
        ("apm.lock.yaml", "dependencies: !!python/object:os.system []", "import-unreadable"),
        ("apm.lock.yaml", "dependencies: [{deployed_files: 7}]", "import-unreadable"),
        ("apm.lock.yaml", ":\n  - [", "import-unreadable"),
    ],
)
def test_broken_foreign_locks_are_exit_2(mdr: Person, name: str, content: str, code: str) -> None:
    (mdr.project / name).write_text(content)
    assert mdr.json("import", name, code=2)["code"] == code
    assert not mdr.lock.exists()


def test_a_missing_file_is_exit_2(mdr: Person) -> None:
    assert mdr.json("import", "skills-lock.json", code=2)["code"] == "import-unreadable"
