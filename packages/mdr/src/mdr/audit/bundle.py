"""The audit of a whole folder. Shown beside the grade and never part of it.

Every file is read by the text checks, recognised as inert, or reported: bytes that nothing here can
read fail closed. A folder with findings is not therefore malicious, and one without is not therefore
safe: programs can do anything, and only their text was searched.
"""

from __future__ import annotations

from dataclasses import dataclass
from posixpath import normpath
from typing import TYPE_CHECKING, Final

from mdr.artifact.types import Kind
from mdr.audit import archives
from mdr.audit.magic import (
    SCRIPT_EXTENSIONS,
    Family,
    ends_as_zip,
    extension_of,
    is_text,
    promised,
    signature,
    trailing,
)
from mdr.audit.rulesets import LATEST, ruleset_of
from mdr.audit.run import distinct, enough, findings
from mdr.audit.text import Text
from mdr.audit.types import BundleFinding, BundleResult, Status
from mdr.version.types import FileMode

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from mdr.audit.magic import Magic


@dataclass(frozen=True, slots=True)
class Rule:
    """One thing that a folder should not hold."""

    id: str
    status: Status
    title: str


RULES: Final = {
    rule.id: rule
    for rule in (
        Rule("symlink", Status.WARN, "Symbolic link inside the folder"),
        Rule("symlink-escape", Status.CRIT, "Symbolic link that leaves the folder"),
        Rule("native-executable", Status.FAIL, "Program in machine code"),
        Rule("bytecode", Status.FAIL, "Compiled bytecode, whose source cannot be read"),
        Rule("magic-mismatch", Status.FAIL, "Content that is not what the name promises"),
        Rule("polyglot", Status.CRIT, "File that is two formats at once"),
        Rule("trailing-bytes", Status.FAIL, "Bytes behind the end of an image"),
        Rule("archive", Status.FAIL, "Archive, whose content is not read"),
        Rule("archive-broken", Status.FAIL, "Archive that cannot be read"),
        Rule("archive-bomb", Status.CRIT, "Archive that unpacks to far more than it is"),
        Rule("archive-traversal", Status.CRIT, "Archive member that leaves its folder"),
        Rule("archive-symlink", Status.FAIL, "Link inside an archive"),
        Rule("archive-encrypted", Status.FAIL, "Encrypted archive member"),
        Rule("archive-executable", Status.FAIL, "Program inside an archive"),
        Rule("archive-nested", Status.FAIL, "Archive inside an archive"),
        Rule("macro", Status.CRIT, "Office document with macros"),
        Rule("unread", Status.FAIL, "Bytes that no check can read"),
        Rule("too-large", Status.FAIL, "Text too large for the text checks"),
    )
}
"""Rule id -> row. The ids of text checks appear beside these."""

READABLE: Final = frozenset({FileMode.REGULAR, FileMode.EXECUTABLE})
MAX_TEXT_BYTES: Final = 2 << 20
NAMED_FILES: Final = frozenset({"SKILL.md", "skill.md"})
"""Graded on their own; here only what a grade does not look at would be repeated."""
CODE_CHECKS: Final = frozenset(
    [
        "invisible",
        "exfil-host",
        "credential",
        "send-credentials",
        "pipe-shell",
        "rm-rf",
        "read-credentials",
        "base64",
        "raw-ip",
    ]
)
"""Text checks that mean something in a script or a data file."""
MARKDOWN_CHECKS: Final = CODE_CHECKS | {"html-comment", "hidden-style", "injection", "script"}
MARKDOWN: Final = frozenset({"md", "mdx", "mdc", "markdown", "txt"})
SIGNED: Final = frozenset(
    ["sig", "sigstore", "pem", "crt", "cer", "asc", "pub", "lock", "svg", "ipynb"]
)
"""Formats that are base64 by nature: check 15 says nothing about them."""


def bundle_audit(files: Iterable[tuple[str, str, bytes]], *, ruleset: str = LATEST) -> BundleResult:
    """Look at every file of a folder.

    Args:
        files: (path in the folder, git mode ``100644``, ``100755`` or ``120000``, bytes; the target for
            a symbolic link). Another mode is a file that could not be read.
        ruleset: Whose text checks to run over text files.

    Returns:
        The findings in path order, and what nothing could read.
    """
    found: list[BundleFinding] = []
    unread: list[str] = []
    scripts: list[str] = []
    count = total = read = 0
    for path, mode, data in sorted(
        files, key=lambda item: item[0].encode("utf-8", "surrogateescape")
    ):
        count += 1
        total += len(data)
        one = tuple(_file(path, mode, data, ruleset))
        found += one
        if mode != FileMode.SYMLINK and is_script(path, mode, data):
            scripts.append(path)
        if any(finding.rule in UNREAD for finding in one):
            unread.append(path)
        read += mode in READABLE and len(data) <= MAX_TEXT_BYTES and is_text(data)
    status = max((item.status for item in found), key=lambda item: item.rank, default=Status.PASS)
    return BundleResult(
        status=status,
        files=count,
        bytes=total,
        read=read,
        scripts=tuple(scripts),
        unread=tuple(unread),
        findings=tuple(found),
    )


UNREAD: Final = frozenset(
    [
        "unread",
        "too-large",
        "archive",
        "archive-broken",
        "archive-bomb",
        "native-executable",
        "bytecode",
    ]
)


def is_script(path: str, mode: str, data: bytes) -> bool:
    """Say whether an agent is likely to run the file."""
    return (
        mode == FileMode.EXECUTABLE
        or data.startswith(b"#!")
        or extension_of(path) in SCRIPT_EXTENSIONS
    )


def _file(path: str, mode: str, data: bytes, ruleset: str) -> Iterator[BundleFinding]:
    if mode == FileMode.SYMLINK:
        yield _link(path, data)
        return
    if mode not in set(FileMode):
        yield _row(path, "unread", f"neither a file nor a symbolic link (mode {mode})")
        return
    magic = None if is_text(data) else signature(data)
    if magic is None and is_text(data):
        yield from _text(path, data, ruleset)
        if promised(path) not in {None, Family.TEXT} and data:
            yield _row(
                path, "magic-mismatch", f"the name promises {promised(path)}, the content is text"
            )
        return
    yield from _binary(path, data, magic)


def _link(path: str, target: bytes) -> BundleFinding:
    goal = target.decode("utf-8", "replace")
    folder = path.rpartition("/")[0]
    resolved = normpath(f"{folder}/{goal}" if folder else goal)
    escapes = (
        goal.startswith(("/", "\\", "~")) or goal[1:2] == ":" or resolved.split("/")[0] == ".."
    )
    return _row(path, "symlink-escape" if escapes else "symlink", f"points to {goal[:80]!r}")


def _text(path: str, data: bytes, ruleset: str) -> Iterator[BundleFinding]:
    if path in NAMED_FILES:
        return
    if len(data) > MAX_TEXT_BYTES:
        yield _row(path, "too-large", f"{len(data)} bytes, at most {MAX_TEXT_BYTES} are read")
        return
    extension = extension_of(path)
    wanted = MARKDOWN_CHECKS if extension in MARKDOWN else CODE_CHECKS
    text = Text(data, Kind.INSTRUCTIONS)
    for check in ruleset_of(ruleset):
        if check.id not in wanted or (check.id == "base64" and extension in SIGNED):
            continue
        for finding in findings(check.id, text, distinct(enough(check.find(text), check.worst))):
            yield BundleFinding(
                path=path,
                rule=check.id,
                status=finding.status,
                why=finding.why,
                line=finding.line,
                column=finding.column,
                shown=finding.shown,
            )


def _binary(path: str, data: bytes, magic: Magic | None) -> Iterator[BundleFinding]:
    family = magic.family if magic else Family.UNKNOWN
    name = magic.name if magic else "unknown binary content"
    promise = promised(path)
    if promise not in {None, family}:
        yield _row(path, "magic-mismatch", f"the name promises {promise}, the content is {name}")
    if family is not Family.ARCHIVE and ends_as_zip(data):
        yield _row(path, "polyglot", f"{name} that a ZIP reader opens too")
        yield from (_row(path, trouble.rule, trouble.why) for trouble in archives.inspect(data))
    elif magic and trailing(data, magic):
        yield _row(
            path, "trailing-bytes", f"{trailing(data, magic)} bytes behind the end of a {name}"
        )
    match family:
        case Family.EXECUTABLE:
            yield _row(path, "native-executable", name)
        case Family.BYTECODE:
            yield _row(path, "bytecode", name)
        case Family.ARCHIVE:
            yield from (_row(path, trouble.rule, trouble.why) for trouble in archives.inspect(data))
        case Family.IMAGE | Family.FONT | Family.MEDIA:
            pass
        case _:
            yield _row(path, "unread", f"{len(data)} bytes of {name}")


def _row(path: str, rule: str, why: str) -> BundleFinding:
    return BundleFinding(path=path, rule=rule, status=RULES[rule].status, why=why)
