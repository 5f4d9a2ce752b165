"""Fail when a locked dependency has a known advisory; say plainly when nobody could be asked.

pip-audit asks the OSV database about every requirement of both locks. Without a network it cannot, and the
gate must not fail for that: then only what this machine knows is checked, that every requirement is pinned,
hashed and licensed, which is no check of advisories, and the last line says so.

Exit status: 0 nothing known or nobody asked, 1 an advisory, a loose requirement, or a broken audit.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

ROOT = Path(__file__).resolve().parents[1]
LOCKS = (ROOT / "requirements.lock", ROOT / "requirements-dev.lock")
PROGRAM = (sys.executable, "-m", "pip_audit")
SECONDS = 180
UNREACHABLE = ("ConnectionError", "ConnectTimeout", "ReadTimeout", "ProxyError", "SSLError", "Max retries", "Name or service not known")  # fmt: skip
PIN = re.compile(r"^([A-Za-z0-9][A-Za-z0-9._-]*)(?:\[[^\]]*\])?==([^\s;\\]+)")
NAME = re.compile(r"[A-Za-z0-9]")


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What became of asking about one lock."""

    asked: bool
    advisories: tuple[str, ...] = ()
    failure: str = ""
    checked: int = 0


@dataclass(slots=True)
class Lock:
    """What a lock says, read without a network."""

    pins: dict[str, str] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)


def ask(lock: Path, program: Sequence[str] = PROGRAM) -> Answer:
    """Ask the advisory database about a lock."""
    words = [*program, "-r", str(lock), "--require-hashes", "--disable-pip", "--vulnerability-service", "osv", "--format", "json", "--progress-spinner", "off", "--timeout", "10"]  # fmt: skip
    try:
        done = subprocess.run(words, check=False, capture_output=True, text=True, timeout=SECONDS)
    except subprocess.TimeoutExpired:
        return Answer(asked=False)
    try:
        dependencies = json.loads(done.stdout)["dependencies"]
    except (ValueError, KeyError, TypeError):
        if any(word in done.stderr for word in UNREACHABLE):
            return Answer(asked=False)
        last = (done.stderr.strip().splitlines() or [f"exit status {done.returncode}"])[-1]
        return Answer(asked=True, failure=last)
    found = [
        f"{each['name']} {each.get('version', '?')}: {flaw['id']}, fixed in {', '.join(flaw['fix_versions']) or 'no version yet'}"
        for each in dependencies
        for flaw in each.get("vulns", ())
    ]
    unread = [
        f"{each['name']}: {each['skip_reason']}" for each in dependencies if "skip_reason" in each
    ]
    return Answer(
        asked=True,
        advisories=tuple(found),
        failure="; ".join(unread),
        checked=len(dependencies),
    )


def read_lock(text: str) -> Lock:
    """Read a lock and name what is loose in it."""
    lock = Lock()
    entries = re.split(r"\n(?=\S)", "\n" + text)
    for entry in entries:
        stripped = entry.strip()
        if not NAME.match(stripped):
            continue  # a comment or an option
        pin = PIN.match(stripped)
        if pin is None:
            lock.problems.append(f"not pinned: {stripped.splitlines()[0]}")
            continue
        lock.pins[pin[1].lower()] = pin[2]
        if "--hash=sha256:" not in entry:
            lock.problems.append(f"no hash: {pin[1]}")
    return lock


def unlicensed(names: Sequence[str]) -> list[str]:
    """Return those of the installed distributions that state no license at all."""
    found = []
    for name in names:
        try:
            told = metadata.metadata(name)
        except metadata.PackageNotFoundError:
            continue  # for another system or version of Python
        classifiers = told.get_all("Classifier") or []
        files = told.get_all("License-File") or []
        stated = told.get("License-Expression") or told.get("License") or files
        if not stated and not any(each.startswith("License ::") for each in classifiers):
            found.append(name)
    return found


def main(locks: Sequence[Path] = LOCKS, program: Sequence[str] = PROGRAM) -> int:
    """Audit the locks and return the exit status."""
    problems: list[str] = []
    unasked = False
    for path in locks:
        lock = read_lock(path.read_text(encoding="utf-8"))
        problems += [f"{path.name}: {each}" for each in lock.problems]
        problems += [f"{path.name}: no license: {each}" for each in unlicensed(sorted(lock.pins))]
        answer = Answer(asked=False) if unasked else ask(path, program)
        unasked = unasked or not answer.asked
        problems += [f"{path.name}: advisory: {each}" for each in answer.advisories]
        if answer.failure:
            problems.append(f"{path.name}: the audit itself failed: {answer.failure}")
        state = f"{answer.checked} asked about" if answer.asked else "advisories NOT checked"
        print(f"{path.name}: {len(lock.pins)} pinned and hashed, {state}")
    for problem in problems:
        print(problem)
    if unasked:
        print("The advisory database cannot be reached: pins, hashes and licenses were checked, advisories were not.")  # fmt: skip
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
