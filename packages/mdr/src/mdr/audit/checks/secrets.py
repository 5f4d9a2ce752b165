"""Checks 9 and 14: instructions to send local credentials away, and to read or print them."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Final

from mdr.audit.checks.row import Check, Hit, hit, span
from mdr.audit.cues import inside_quotation, negated, quoted
from mdr.audit.pairs import Pair, Pairs
from mdr.audit.rx import Either, Rx
from mdr.audit.stores import DOTENV, LOCAL_SECRETS, OWNED_SECRETS, PUBLIC, STORE, STRONG
from mdr.audit.types import Severity, Status

if TYPE_CHECKING:
    from collections.abc import Iterator

    from mdr.audit.text import Text
    from mdr.audit.view import View

NETWORK: Final = rb"(?:curl|wget|nc|ncat|netcat|socat|ssh|telnet|iwr|irm|invoke-webrequest|invoke-restmethod|httpie|openssl s_client)"
UPLOADS: Final = (
    rb"curl|wget|nc|ncat|netcat|socat|scp|rsync|iwr|irm|invoke-webrequest|invoke-restmethod|httpie"
)
READERS: Final = rb"(?:cat|tac|less|more|head|tail|bat|type|gc|get-content|strings|xxd|od|hexdump|base64|base32|nl|tar|zip|gzip|dd|gpg|openssl|jq)"

SENDS: Final = Pairs(
    rb"\b(?:send|upload|post|exfiltrate|transmit|forward|e-?mail|leak|submit|deliver|share|copy|push|ship|report)s?\b",
    LOCAL_SECRETS,
    reach=80,
)
DESTINATION: Final = Rx(
    rb"\b(?:to|into|at|via|with|through)\b\s+(?:(?:an?|the|our|this|my|that|your)\s+)?(?:https?://"
    rb"|[^\s]*(?:webhook|endpoint|server|\burl\b|channel|\bbot\b|attacker|external|remote|collector|e-?mail|\bus\b|\bme\b|support|third part))"
)
DESTINATION_REACH: Final = 100
ADDRESS_REACH: Final = 40
"""Bytes behind the destination in which an address counts."""
COPYING: Final = Rx(rb"\b(?:copy|push|ship|report)s?\b")
"""Verbs with everyday meanings: they need an address, not just a server."""
ADDRESS: Final = Rx(rb"https?://|webhook|attacker|external|collector")

SHELL_SENDS: Final = (
    Rx(
        rb"\b(?:"
        + UPLOADS
        + rb")\b[^\n]*?(?:@|<|=@|\$\((?:cat|<) ?|`cat |\((?:get-content|gc) (?:-path )?(?:-raw )?)\s*[\"']?("
        + STORE
        + rb")"
    ),
    Rx(
        rb"\b(?:curl|wget)\b[^\n]*?(?:-t|--upload-file|--post-file|--body-file)[ =]\s*[\"']?("
        + STORE
        + rb")"
    ),
    Rx(rb"\b" + READERS + rb"\b[^\n|]*?(" + STORE + rb")[^\n]*?\|[^\n]*?\b" + NETWORK + rb"\b"),
    Rx(rb"(?:^|[\s;&|`(])(?:env|printenv|export -p|set)\s*\|[^\n]*?\b" + NETWORK + rb"\b()"),
    Rx(rb"\b" + NETWORK + rb"\b[^\n]*?\$\((?:env|printenv|export -p)\b()"),
    Rx(rb"(" + STORE + rb")[^\n]*?>\s*/dev/(?:tcp|udp)/"),
    Rx(
        rb"\b(?:requests\.(?:post|put|get)|httpx\.(?:post|put)|fetch|axios(?:\.post)?|urlopen|http\.post|sendbeacon)\([^\n]*?("
        + STORE
        + rb")"
    ),
    Rx(
        rb"\b(?:requests\.(?:post|put)|httpx\.(?:post|put)|fetch|axios(?:\.post)?|urlopen|http\.post)\([^\n]*?\b(?:dict\(os\.environ\)|os\.environ\s*[,)}]|process\.env\s*[,)}])()"
    ),
    Rx(rb"\b(?:scp|rsync)\s+(?:-[a-hj-z]+\s+)*[\"']?(" + STRONG + rb")[^\n]*?\s[^\s]*[a-z0-9]:"),
    Rx(
        rb"\b(?:security\s+find-(?:generic|internet)-password|gpg\s+--export-secret-keys?)\b[^\n]*?\|[^\n]*?\b"
        + NETWORK
        + rb"\b()"
    ),
)
"""Commands whose input is a credential store; group 1 is the store."""

READS_FILE: Final = Either(
    Rx(
        rb"\b(?:cat|tac|less|more|head|tail|bat|type|gc|get-content|strings|xxd|od|hexdump|base64|nano|vim|nl)\b[^\n|;&>]*?[\s\"'](?:[^\s\"'|;&>]*/)?("
        + STRONG
        + rb")"
    ),
    Rx(
        rb"\b(?:cat|tac|less|more|head|tail|bat|type|gc|get-content|strings|nl)\b[^\n|;&>]*?("
        + DOTENV
        + rb")"
    ),
)
SEARCHES_FILE: Final = Rx(rb"\b(?:grep|rg|awk|sed|cut|sort|jq|dd)\s[^\n|;&>]*?(" + STRONG + rb")")
OPENS_FILE: Final = Rx(
    rb"\b(?:open|read_text|readfile|readfilesync|read_bytes)\s*\((?:os\.path\.expanduser\(|path\()?\s*[\"'][^\n\"']*?("
    + STRONG
    + rb")"
)
READS: Final = Pairs(
    rb"\b(?:read|print|show|display|dump|reveal|list|extract|collect|harvest|grab|gather|steal|expose)\b|\boutput[\s`\"']+(?:(?:the|your|all|any|every|contents?)\b|[~/$.])",
    rb"(?:" + STORE + rb"|" + OWNED_SECRETS + rb")",
    gap=rb"[^.\n()]",
    reach=40,
)
WRITING: Final = Rx(
    rb"(?:\b(?:to|into|as|via|using|with|without|from your own)|:)\s*[\"'`(]*[^\s]*$"
)
"""Right before the store these make it a place to write to, or the verb a label (``output: x/.env``)."""
ENVIRONMENT: Final = (
    Rx(
        rb"(?:^|[\s;&|`(])(?:printenv|env|set|export(?: -p)?)\s*\|\s*(?:grep|rg|findstr|select-string|awk)\s+(?:-\S+\s+)*[\"']?[^\s]*(?:key|token|secret|pass|cred)"
    ),
    Rx(rb"(?:^|[\s;&|`(])printenv\s+[^\s]*(?:key|token|secret|passw)"),
    Rx(
        rb"(?:^|[\s;&|`(])security\s+(?:find-(?:generic|internet)-password\b[^\n]*?\s-[a-z]*[wg]|dump-keychain)"
    ),
    Rx(rb"(?:^|[\s;&|`(])(?:gci|get-childitem|dir|ls)\s+env:[^\n]*(?:key|token|secret|pass)"),
    Rx(
        rb"(?:^|[\s;&|`(])(?:secret-tool\s+lookup|aws\s+configure\s+get\s+aws_secret_access_key|gpg\s+--export-secret-keys?|cmdkey\s+/list)"
    ),
)
NAME: Final = (
    rb"(?:[A-Za-z0-9_]*(?:API_?KEY|SECRET|TOKEN|PASSWORD|PASSWD|PRIVATE_KEY|ACCESS_KEY)(?:_ID)?)"
)
PRINTS_VARIABLE: Final = Rx(
    rb"\b(?:echo|printf|print|[Ww]rite-[Hh]ost|[Ww]rite-[Oo]utput)\b[^\n|;&(`]*?(?:\$\{?(?:env:)?"
    + NAME
    + rb"\}?|%"
    + NAME
    + rb"%)(?:[^A-Za-z0-9_:+?%-][^\n]*|$|\n)"
)
PRINTS_LOOKUP: Final = Rx(
    rb"\b(?:print|console\.log|puts|println!?|logger?\.\w+)\s*\(?\s*(?:f?[\"'][^\"'\n]*[{])?\s*(?:os\.environ(?:\.get\()?\[?[\"'(]*|os\.getenv\([\"']|process\.env\.|process\.env\[[\"']|ENV\[[\"'])"
    + NAME
    + rb"[\"')\]}]*\s*[,)\n]"
)
EXCLUDED: Final = Rx(rb"[\s,](?:not|never|without|instead of|but no)[\s]")
"""Between verb and store: the store is what is left out."""
LOADING: Final = (b"export $(", b"source <(", b"eval $(")
"""Right before the command: its output becomes variables and is not shown."""
WORD_END: Final = Rx(rb"[\s\"'`),;|]")
MAX_PATH: Final = 80
SHORT: Final = 256
"""Bytes up to which the answer for a piece of text is kept; long ones seldom come twice."""
CAPTURES: Final = (b"$(", b"$( ", b"<(")
"""Right before a command: its output goes to another command."""
HARMLESS_ECHO: Final = Rx(
    rb"--password-stdin|\$\{[A-Za-z_]+:[+-]|>>?\s*\S|wc -[a-z]|\|\s*(?:docker|podman|helm|gh auth|sha|md5|head -c|cut -c|tail -c|sed)|\$\{#|:0:[0-9]|\\\$|gh auth login|--with-token"
)
"""The value goes to a program or is only counted, tested or shortened."""


def find_sending(text: Text) -> Iterator[Hit]:
    """Find instructions and commands that send a credential store somewhere."""
    if LOCAL.search(text.folded.lower) is not None:
        flow = text.flowing
        for pair in SENDS.find(flow.data):
            yield from _sentence(flow, pair)
    for view in text.readings:
        if KEPT.search(view.lower) is None and DUMPS.search(view.lower) is None:
            continue
        yield from _commands(view, SHELL_SENDS, "a command hands a credential store to the network")


LOCAL: Final = Rx(LOCAL_SECRETS)
KEPT: Final = Rx(STORE)
MENTIONED: Final = Rx(STORE + rb"|" + OWNED_SECRETS)
DUMPS: Final = Rx(
    rb"\b(?:env|printenv|export -p|set)\s*\||\$\((?:env|printenv|export -p)\b|os\.environ\s*[,)}]|process\.env\s*[,)}]"
    rb"|find-(?:generic|internet)-password|export-secret-key"
)
"""One pass each over files that name no store, no secret, and dump no environment."""


def _sentence(flow: View, pair: Pair) -> Iterator[Hit]:
    data = flow.data
    after = data[pair.end : pair.end + DESTINATION_REACH * 2 + ADDRESS_REACH].split(b"\n", 1)[0]
    goal = DESTINATION.search(after[: DESTINATION_REACH * 2])
    if goal is None or goal.start() > DESTINATION_REACH:
        return
    everyday = COPYING.match(data, pair.verb) is not None
    if everyday and ADDRESS.search(after[: goal.end() + ADDRESS_REACH]) is None:
        return
    if negated(data, pair.verb) or names_public_file(data, pair.object, pair.end):
        return
    told = quoted(data, pair.verb) or inside_quotation(flow, pair.verb)
    why = "tells the reader to send local credentials away"
    status = Status.WARN if told else Status.FAIL
    yield span(flow, pair.verb, pair.end + goal.end(), status, why + (" (quoted)" if told else ""))


def _commands(view: View, patterns: tuple[Rx, ...], why: str) -> Iterator[Hit]:
    data = view.lower
    for pattern in patterns:
        for match in pattern.finditer(data):
            if negated(data, match.start()) or names_public_file(
                data, match.start(1), match.end(1)
            ):
                continue
            yield hit(view, match, Status.FAIL, why)


def find_reading(text: Text) -> Iterator[Hit]:
    """Find instructions and commands that read or print a credential store."""
    view = text.folded
    for source in text.readings:
        for pattern in (
            () if KEPT.search(source.lower) is None else (READS_FILE, SEARCHES_FILE, OPENS_FILE)
        ):
            yield from _reads(source, pattern)
    mentioned = MENTIONED.search(view.lower) is not None
    for pair in READS.find(data := text.flowing.data) if mentioned else ():
        if _is_spared(data, pair.verb, pair.object, pair.end):
            continue
        if WRITING.search(data[max(pair.verb, pair.object - 40) : pair.object + 1]) is None:
            yield span(
                text.flowing,
                pair.verb,
                pair.end,
                Status.FAIL,
                "tells the reader to read or print local credentials",
            )
    for pattern in ENVIRONMENT:
        for match in pattern.finditer(view.lower):
            if not negated(view.lower, match.start()):
                yield hit(
                    view, match, Status.FAIL, "prints secrets of the environment or the keychain"
                )
    for pattern in (PRINTS_VARIABLE, PRINTS_LOOKUP):
        for match in pattern.finditer(view.data):
            captured = view.data.endswith(CAPTURES, 0, match.start())
            command = match.group() or b""
            look = _is_harmless_echo if len(command) <= SHORT else _is_harmless_echo.__wrapped__
            if not captured and not look(command):
                yield hit(view, match, Status.FAIL, "prints a variable that holds a secret")


def _reads(view: View, pattern: Rx | Either) -> Iterator[Hit]:
    data = view.lower
    for match in pattern.finditer(data):
        if not _is_spared(data, match.start(), match.start(1), match.end(1)):
            yield hit(view, match, Status.FAIL, "reads a credential store")


def _is_spared(data: bytes, verb: int, store: int, end: int) -> bool:
    """Say whether the words around a store say that no secret is read."""
    return (
        negated(data, verb, 60)
        or names_public_file(data, store, end)
        or EXCLUDED.search(data, verb, store) is not None
        or data.endswith(LOADING, 0, verb)
    )


def names_public_file(data: bytes, store: int, end: int) -> bool:
    """Say whether the path that begins at ``store`` goes on to a public key or a template."""
    first = max(0, store - 1)
    path = data[first : end + MAX_PATH + 1]
    look = _is_public if len(path) <= SHORT else _is_public.__wrapped__
    return look(path, store - first, end - first)


@lru_cache(maxsize=1024)
def _is_public(path: bytes, store: int, end: int) -> bool:
    """Answer for a path with one byte before and behind it, for word boundaries."""
    stop = min(end + MAX_PATH, len(path))
    rest = WORD_END.search(path, end, stop)
    return PUBLIC.search(path, store, rest.start() if rest else stop) is not None


@lru_cache(maxsize=1024)
def _is_harmless_echo(command: bytes) -> bool:
    """Say whether a command that prints a variable hands it to a program, or only counts it."""
    return HARMLESS_ECHO.search(command) is not None


SEND_CREDENTIALS: Final = Check(
    id="send-credentials",
    title="No instruction to send local credentials anywhere",
    severity=Severity.CRITICAL,
    find=find_sending,
)
READ_CREDENTIALS: Final = Check(
    id="read-credentials",
    title="No instruction to read or print local credentials",
    severity=Severity.HIGH,
    find=find_reading,
)
