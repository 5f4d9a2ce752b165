"""From public git history to verified bytes in an agent's folder, on this machine alone.

Indexes this repository into a registry in a temporary folder, installs its skill pinned by SHA-256 into
a temporary project, verifies it, shows what one changed byte does, and puts it right again. Everything
is deleted at the end; the person's own home, data folder and configuration are not touched.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SKILL = "skills/activation-recompute/SKILL.md"
REPOSITORY = "demo/megatron-recompute"
"""What the index calls this repository; its real host is not asked."""


@dataclass(frozen=True, slots=True)
class Stage:
    """Temporary places."""

    folder: Path

    @property
    def project(self) -> Path:
        """Where the skill is installed."""
        return self.folder / "project"

    @property
    def repository(self) -> Path:
        """What is indexed."""
        return self.folder / "repository"

    def environment(self) -> dict[str, str]:
        """Return an environment with an empty home and no configuration of git."""
        keep = {
            key: value for key, value in os.environ.items() if not key.startswith(("MDR_", "GIT_"))
        }
        return {
            **keep,
            "HOME": str(self.folder / "home"),
            "MDR_DATA": str(self.folder / "data"),
            "GIT_CONFIG_GLOBAL": os.devnull,
            "GIT_CONFIG_NOSYSTEM": "1",
            "CI": "",
        }

    def git(self, *arguments: str) -> bytes:
        """Run git, quietly."""
        identity = ["-c", "user.name=demo", "-c", "user.email=demo@example.org"]
        done = subprocess.run(
            ["git", *identity, *arguments], env=self.environment(), check=True, capture_output=True
        )
        return done.stdout

    def mdr(self, *arguments: str, expect: int = 0, talk: bool = False) -> None:
        """Show a command and what it answers; leave when the answer is not the expected one."""
        print(f"$ mdr {' '.join(arguments)}", flush=True)
        done = subprocess.run(
            [sys.executable, "-m", "mdr", *arguments],
            cwd=self.project,
            env=self.environment(),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
        )
        for line in (done.stderr * talk + done.stdout).splitlines():
            print(f"  {line.replace(str(self.folder), '...')}")
        print()
        if done.returncode != expect:
            sys.exit(
                f"{done.stderr}mdr {arguments[0]} left with {done.returncode}, expected {expect}"
            )


def make_repository(stage: Stage) -> None:
    """Put this repository's history where it can be indexed, with the skill as it is in the work tree."""
    data = (ROOT / SKILL).read_bytes()
    try:
        stage.git("clone", "-q", "--no-tags", "--", str(ROOT), str(stage.repository))
    except subprocess.CalledProcessError:  # unpacked from an archive: there is no history yet
        stage.git("init", "-q", str(stage.repository))
    copy = stage.repository / SKILL
    if not copy.is_file() or copy.read_bytes() != data:
        shutil.copytree(ROOT / "skills", stage.repository / "skills", dirs_exist_ok=True)
        stage.git("-C", str(stage.repository), "add", "--", "skills")
        stage.git("-C", str(stage.repository), "commit", "-q", "-m", "The skill as it is")


def main() -> None:
    """Walk the chain and print it."""
    with tempfile.TemporaryDirectory() as folder:
        stage = Stage(Path(folder).resolve())
        (stage.folder / "home").mkdir()
        (stage.project / ".claude").mkdir(parents=True)
        make_repository(stage)
        digest = hashlib.sha256((ROOT / SKILL).read_bytes()).hexdigest()
        stage.mdr("index", "../repository", "--as", REPOSITORY)
        reference = f"{REPOSITORY}/activation-recompute@sha256:{digest[:16]}"
        stage.mdr("add", reference, "--yes", "--no-index", talk=True)
        stage.mdr("verify")
        installed = stage.project / ".claude/skills/activation-recompute/SKILL.md"
        if installed.read_bytes() != (ROOT / SKILL).read_bytes():
            sys.exit("the installed bytes are not those of the repository")
        print("one byte is changed on disk\n")
        installed.write_bytes(installed.read_bytes().replace(b"no GPU", b"no CPU"))
        stage.mdr("verify", expect=1)
        stage.mdr("install", "--frozen", "--offline", "--force")
        stage.mdr("verify")


if __name__ == "__main__":
    main()
