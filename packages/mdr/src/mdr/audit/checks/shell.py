r"""Checks 12 and 13: downloads that run unseen, and deletions that cannot be undone.

Both look twice: at the folded text, and at it without the quotes and backslashes that a shell drops,
so ``c''url x | b\ash`` is ``curl x | bash``.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import TYPE_CHECKING, Final

from mdr.audit.checks.hosts import is_drop
from mdr.audit.checks.row import Check, Hit, hit, span
from mdr.audit.cues import negated
from mdr.audit.rx import Ahead, Rx, any_of
from mdr.audit.types import Severity, Status
from mdr.audit.urls import is_under, links, public_address

if TYPE_CHECKING:
    from collections.abc import Iterator

    from mdr.audit.rx import Match
    from mdr.audit.text import Text
    from mdr.audit.view import View

WS: Final = rb"(?:[ \t]|\$\{?ifs\}?[0-9]?)+"
SHELLS: Final = rb"(?:[^\s|;&\"'`()]*/)?(?:(?:ba|z|k|da|fi|a|c|tc)?sh|python[0-9.]*|perl|ruby|node|deno|bun|php|lua|pwsh|powershell|cmd|iex|invoke-expression|osascript)(?:\.exe)?"
FETCH: Final = rb"(?:[^\s|;&\"'`()]*/)?(?:curl|wget|iwr|irm|invoke-webrequest|invoke-restmethod|aria2c|lynx|httpie)(?:\.exe)?"
RUNNER: Final = (
    rb"(?:&\s*)?(?:(?:/\S*/)?(?:sudo|doas|exec|command|nohup|time|nice|xargs|busybox)"
    + WS
    + rb"(?:-\S+"
    + WS
    + rb")*|(?:/\S*/)?env"
    + WS
    + rb"(?:\S+=\S*"
    + WS
    + rb"|-\S+"
    + WS
    + rb")*|[a-z_]+=\S*"
    + WS
    + rb")*"
)
FILTER: Final = rb"(?:\|\s*(?:tee|tr|sed|base64|gunzip|zcat|cat|xz|gzip|bzip2|openssl|awk|grep|head|tail|rev|xxd|jq)\b[^\n|]*)*"
END: Final = rb"(?:[\s;&|\"'`),]|$)"
OPEN: Final = rb"(?:<\(|\$\(|`|<<<[ \t]*[\"']?\$\()"
DECODE: Final = (
    rb"(?:base64"
    + WS
    + rb"(?:-[a-z]*d[a-z]*|--decode)|openssl"
    + WS
    + rb"(?:enc"
    + WS
    + rb")?(?:-)?base64"
    + WS
    + rb"[^\n|]*-d|xxd"
    + WS
    + rb"-r|base32"
    + WS
    + rb"-d|b64decode)"
)

DOWNLOADS: Final = (
    Rx(
        rb"\b"
        + FETCH
        + rb"\b[^\n|]*"
        + FILTER
        + rb"\|&?\s*"
        + RUNNER
        + rb"("
        + SHELLS
        + rb")"
        + END
    ),
    Rx(
        rb"(?:\b(?:"
        + SHELLS
        + rb"|source|eval)|(?:^|[\s;&|])\.)"
        + WS
        + rb"(?:-\S+"
        + WS
        + rb")*[\"']?()"
        + OPEN
        + rb"\s*(?:sudo\s+)?"
        + FETCH
        + rb"\b[^\n]*"
    ),
    Rx(
        rb"\b(?:iex|invoke-expression)\b[^\n]*?\b(?:iwr|irm|invoke-webrequest|invoke-restmethod|downloadstring|downloaddata)\b()[^\n]*"
    ),
    Rx(
        rb"\bscriptblock\]::create\([^\n]*?\b(?:iwr|irm|invoke-webrequest|invoke-restmethod|downloadstring)\b()[^\n]*"
    ),
    Rx(rb"\b" + FETCH + WS + rb"[^\n]*?>\s*>\(\s*(" + SHELLS + rb")\b"),
    Rx(
        rb"\b(?:exec|eval)\s*\([^\n]*?\b(?:urlopen|requests\.get|httpx\.get|urllib\.request)\b()[^\n]*"
    ),
)
"""A download that a shell or an interpreter runs as it comes."""
DECODED: Final = (
    Rx(
        rb"\b"
        + DECODE
        + rb"\b[^\n|]*"
        + FILTER
        + rb"\|&?\s*"
        + RUNNER
        + rb"(?:"
        + SHELLS
        + rb")"
        + END
    ),
    Rx(
        rb"(?:\b(?:"
        + SHELLS
        + rb"|source|eval)|(?:^|[\s;&|])\.)"
        + WS
        + rb"(?:-\S+"
        + WS
        + rb")*[\"']?"
        + OPEN
        + rb"[^\n]*?"
        + DECODE
        + rb"\b"
    ),
    Rx(rb"\b(?:exec|eval)\s*\([^\n]*?\bb64decode\b"),
    Rx(rb"\b(?:powershell|pwsh)(?:\.exe)?\b[^\n]*?\s-e(?:nc|ncodedcommand|c)?\s+[a-z0-9+/=]{40,}"),
)
"""A payload that is decoded and run: it has no innocent reading."""
DATA_PROGRAM: Final = Rx(
    rb"(?:[^\s]*/)?(?:python[0-9.]*|perl|ruby|node|php|deno|bun|lua)"
    + WS
    + rb"(?:-[a-z]*[cme]\b|-n[e]?\b|-p[e]?\b|-[a-z]*\s*-[cme]\b|(?:[^\s]*/)?[^\s]+\.(?:py|js|rb|pl|mjs|ts|php)\b|run\b|eval\b|-?\s*<<)"
)
"""The interpreter runs a given program and the download is only its input."""
RUNS_INPUT: Final = Rx(rb"\b(?:exec|eval)\s*\(|-m\s+code\b")

DECODES: Final = Rx(
    rb"base64|b64decode|base32|\bxxd\b|\s-e(?:c|nc|ncodedcommand)?\s+[a-z0-9+/=]{40}"
)
FETCHES: Final = Rx(
    rb"curl|wget|\biwr\b|\birm\b|invoke-|downloadstring|downloaddata|urlopen|urllib\.request|requests\.get|httpx\.get|aria2c|lynx|httpie"
)
"""Words without which nothing is decoded or fetched: most files stop here."""

TABLE_CELL: Final = re.compile(rb"[ \t>]*\|")
BARE_CELL: Final = Rx(rb"[a-z-]+[`\s]*\|")

INSTALLERS: Final = (
    ("sh.rustup.rs", ""), ("astral.sh", ""), ("bun.sh", ""), ("deno.land", ""),
    ("get.docker.com", ""), ("get.helm.sh", ""), ("install.python-poetry.org", ""),
    ("get.pnpm.io", ""), ("pyenv.run", ""), ("mise.run", ""), ("mise.jdx.dev", ""),
    ("get.volta.sh", ""), ("nixos.org", ""), ("ollama.com", "install"), ("claude.ai", "install"),
    ("get.k3s.io", ""), ("raw.githubusercontent.com", "nvm-sh/"),
    ("raw.githubusercontent.com", "homebrew/"), ("raw.githubusercontent.com", "helm/"),
    ("raw.githubusercontent.com", "k3d-io/"),
)  # fmt: skip
"""(host, beginning of the path) of well-known installers; only over https, and compared as parsed
hosts, so that ``https://astral.sh.example.net`` is not one."""
HTTPS: Final = b"https://"
SHORT: Final = 256
"""Bytes up to which the answer for a command is kept; long ones seldom come twice."""


def find_downloads(text: Text) -> Iterator[Hit]:
    """Find downloads and decoded payloads that are run unseen."""
    for view in text.readings:
        data = view.lower
        if DECODES.search(data) is not None:
            for pattern in DECODED:
                for match in _matches(pattern, data):
                    softened = negated(data, match.start())
                    why = "decodes a payload and runs it"
                    yield hit(view, match, Status.WARN if softened else Status.CRIT, why)
        if FETCHES.search(data) is not None:
            for pattern in DOWNLOADS:
                yield from _download(view, pattern)


def _download(view: View, pattern: Rx) -> Iterator[Hit]:
    data = view.lower
    runs = Ahead(RUNS_INPUT, data)
    for match in pattern.finditer(data):
        start, end = match.span()
        _, stop = view.line(end - 1)
        if stop - start <= SHORT:
            first = max(0, start - 1)
            stretch = data[first : max(stop, end) + 1]
            judged = _judged(pattern, stretch, start - first, end - first, stop - first)
        else:
            judged = _judge(data, (start, end), match.span(1), stop, runs)
        if judged is None or _is_table_row(view, start):
            continue
        status, why = judged
        if negated(data, start):
            status, why = Status.WARN, "runs a download unseen (the sentence warns of it)"
        yield span(view, start, end, status, why)


@lru_cache(maxsize=1024)
def _judged(
    pattern: Rx, stretch: bytes, start: int, end: int, stop: int
) -> tuple[Status, str] | None:
    """Judge a match by its line and one byte around: the same commands come again and again."""
    program = pattern.groups(stretch, start, end)[1]
    return _judge(stretch, (start, end), program, stop, Ahead(RUNS_INPUT, stretch))


def _judge(
    data: bytes, whole: tuple[int, int], program: tuple[int, int], stop: int, runs: Ahead
) -> tuple[Status, str] | None:
    """Weigh a download; ``None`` when it is only the input of a given program.

    Args:
        data: The text.
        whole: Where the command stands.
        program: Where the name of what runs it stands; empty or -1 when the pattern has none.
        stop: Where the line of the program ends.
        runs: Looks for what runs its input in spite of that.
    """
    first, last = program
    if (
        0 <= first < last
        and DATA_PROGRAM.match(data, first, stop) is not None
        and not runs.within(first, stop)
    ):
        return None
    return _weigh(data[whole[0] : whole[1]])


def _is_table_row(view: View, start: int) -> bool:
    """Say whether the program is alone in a cell of a table (``| curl | bash |``)."""
    line, _ = view.line(start)
    data = view.lower
    return TABLE_CELL.match(data, line) is not None and BARE_CELL.match(data, start) is not None


def _weigh(command: bytes) -> tuple[Status, str]:
    found = tuple(links(command))
    if any(is_drop(link) or public_address(link.host) for link in found):
        return Status.CRIT, "runs what a bare address or a paste host serves"
    if (
        found
        and all(_is_installer(link.host, link.path) for link in found)
        and (command.count(HTTPS) == len(found))
    ):
        return Status.WARN, "runs a well-known installer unseen"
    return Status.FAIL, "runs a download unseen"


def _is_installer(host: str, path: str) -> bool:
    return any(
        (host == known or (not prefix and is_under(host, known))) and path.startswith(prefix)
        for known, prefix in INSTALLERS
    )


PARENTS: Final = rb"(?:\.\./+)*\.\.(?:/+\*?|/\.\*)?|(?:\./)+\.\.(?:/+\*?)?|\$\{?pwd\}?/\.\.(?:/+\*?)?|\$\(pwd\)/\.\.(?:/+\*?)?"
SYSTEM: Final = rb"(?:home|users|root|etc|usr|var|bin|sbin|lib|lib64|opt|boot|dev|sys|proc|srv|system|library|applications|mnt|windows)"
TARGET: Final = any_of(
    rb"/+(?:\.{1,2}/*)*(?:\*|\.\*|\{[^\s}]*\})?",
    rb"~\w{0,32}/*(?:\*|\.\*|\.\.?/?\*?|\{[^\s}]*\})?",
    rb"\$\{?home(?:[:?-][^\s}]*)?\}?[\"']?/*(?:\*|\.\*|\.\.?/?)?",
    PARENTS,
    rb"/+" + SYSTEM + rb"/*\*?",
    rb"/+(?:home|users)/+(?:\$\{?user\}?|\$\(whoami\)|`whoami`|\$\{?username\}?)/*\*?",
    rb"[a-z]:[\\/]*\*?(?:\.\*)?",
    rb"[a-z]:[\\/]+(?:users|windows)[\\/]*\*?",
    rb"%(?:userprofile|homepath|systemdrive|systemroot)%[\\/]*\*?",
    rb"\$env:(?:userprofile|home|systemdrive|homepath)[\\/]*\*?",
)
"""Root, home, a parent, or a folder the system lives in; not a folder below them."""
TARGET_END: Final = rb"[\"']?(?:[\s;&|)`\"',]|\.(?:\s|$)|$)"
RM_FLAGS: Final = rb"(?:-[a-z]*r[a-z]*|--recursive)"
FLAG: Final = rb"--?[a-z][a-z-]*(?:=\S+)?"
DELETES: Final = (
    Rx(
        rb"\brm"
        + WS
        + rb"(?:"
        + FLAG
        + WS
        + rb")*"
        + RM_FLAGS
        + WS
        + rb"(?:(?:"
        + FLAG
        + rb"|--)"
        + WS
        + rb")*(?:[^\s;&|`]+"
        + WS
        + rb")*?[\"']?"
        + TARGET
        + TARGET_END
    ),
    Rx(
        rb"\brm"
        + WS
        + rb"(?:[^\s;&|`]+"
        + WS
        + rb")*?[\"']?"
        + TARGET
        + rb"[\"']?"
        + WS
        + rb"(?:"
        + FLAG
        + WS
        + rb")*"
        + RM_FLAGS
        + rb"(?:[\s;&|`]|$)"
    ),
    Rx(rb"\brm\b[^\n]*--no-preserve-root"),
    Rx(
        rb"\bfind"
        + WS
        + rb"(?:-[a-z]+"
        + WS
        + rb")*[\"']?"
        + TARGET
        + rb"[\"']?\s[^\n]*?(?:-delete\b|-exec(?:dir)?\s+(?:sudo\s+)?(?:\S*/)?rm\b|\|\s*(?:sudo\s+)?xargs[^\n]*?\brm\b)"
    ),
    Rx(
        rb"\b(?:remove-item|ri|rd|rmdir|del|erase)\b[^\n]*?\s(?:-recurse|-r|/s)\b[^\n]*?\s[\"']?"
        + TARGET
        + TARGET_END
    ),
    Rx(
        rb"\b(?:remove-item|ri|rd|rmdir|del|erase)\s+(?:-path\s+)?[\"']?"
        + TARGET
        + rb"[\"']?\s[^\n]*?(?:-recurse|/s)\b"
    ),
    Rx(
        rb"\brmtree\(\s*(?:[\"']"
        + TARGET
        + rb"[\"']|(?:pathlib\.)?path\.home\(\)|os\.path\.expanduser\([\"']~/?[\"']\)|os\.environ\[[\"']home[\"']\])"
    ),
    Rx(
        rb"\b(?:rmsync|fs\.rm|rmdirsync|rimraf(?:\.sync|sync)?)\(\s*(?:[\"'`]"
        + TARGET
        + rb"[\"'`]|os\.homedir\(\)|process\.env\.home\b)"
    ),
    Rx(rb"\brimraf" + WS + rb"(?:-\S+" + WS + rb")*[\"']?" + TARGET + TARGET_END),
)
"""Recursive deletion of root, home, a parent or a system folder, by shell or program."""


REMOVES: Final = Rx(
    rb"\b(?:rm(?:[ \t$]+[-\"'/~.${*a-z]|sync)|find[ \t$]+[-\"'/~.$a-z%]|remove-item|ri[ \t]|rd[ \t]|rmdir|del[ \t]|erase[ \t]|rmtree|rimraf|fs\.rm)"
)


IDLE: Final = {
    DECODED[1].pattern: (b"openssl", re.compile(rb"-d"), re.compile(rb"([\n|])")),
    DELETES[3].pattern: (b"xargs", re.compile(rb"\brm\b"), re.compile(rb"(\n)")),
}
"""Patterns in which a word waits for another: (the word, what it waits for, where it gives up)."""


def _matches(pattern: Rx, data: bytes) -> Iterator[Match]:
    """Return the matches, without words that wait in vain: for each match RE2 would wait with them."""
    word, awaited, ends = IDLE.get(pattern.pattern, (b"", None, None))
    if awaited is not None and ends is not None and word in data:
        pieces = [
            _without(piece, word, awaited) if word in piece else piece for piece in ends.split(data)
        ]
        data = b"".join(pieces)
    return pattern.finditer(data)


def _without(piece: bytes, word: bytes, awaited: re.Pattern[bytes]) -> bytes:
    """Misspell the words behind the last place of what they wait for; offsets stay."""
    last = 0
    for found in awaited.finditer(piece):
        last = found.start()
    return piece[:last] + piece[last:].replace(word, word[:-1] + b"_")


def find_deletions(text: Text) -> Iterator[Hit]:
    """Find recursive deletions of root, home or a parent; negated ones only warn."""
    for view in text.readings:
        data = view.lower
        for pattern in DELETES if REMOVES.search(data) is not None else ():
            for match in _matches(pattern, data):
                softened = negated(data, match.start())
                why = "deletes root, home or a parent folder" + (
                    " (the sentence warns of it)" if softened else ""
                )
                yield hit(view, match, Status.WARN if softened else Status.FAIL, why)


PIPE_SHELL: Final = Check(
    id="pipe-shell",
    title="No curl or wget piped into a shell",
    severity=Severity.HIGH,
    worst=Status.CRIT,
    find=find_downloads,
)
RM_RF: Final = Check(
    id="rm-rf",
    title="No recursive delete of root, home or parent",
    severity=Severity.HIGH,
    find=find_deletions,
)
