"""Check 8: strings that have the shape of a live credential.

Also found: split by string concatenation, by zero-width characters and by HTML entities. Not found:
encrypted, encoded or assembled at run time, and passwords without a recognisable shape. Placeholders
pass.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from functools import cached_property
from typing import TYPE_CHECKING, Final

from mdr.audit.checks.row import Check, Hit, span
from mdr.audit.rx import Rx
from mdr.audit.types import Severity, Status
from mdr.audit.view import View

if TYPE_CHECKING:
    from collections.abc import Iterator

    from mdr.audit.rx import Match
    from mdr.audit.text import Text
    from mdr.audit.view import Anchors

PROVIDERS: Final = (
    ("AWS access key id", rb"\b(?:AKIA|ASIA)[A-Z2-7]{16}\b"),
    ("GitHub token", rb"\bgh[pousr]_[A-Za-z0-9]{36,}\b"),
    ("GitHub fine-grained token", rb"\bgithub_pat_[A-Za-z0-9_]{60,}\b"),
    ("GitLab token", rb"\bgl(?:pat|rt|dt|cbt|ptt)-[A-Za-z0-9_-]{20,}"),
    ("Slack token", rb"\bxox[abeprs]-[A-Za-z0-9-]{20,}"),
    ("Slack app token", rb"\bxapp-[0-9]-[A-Za-z0-9-]{30,}"),
    ("Slack webhook", rb"hooks\.slack\.com/services/T[A-Z0-9]{8,}/B[A-Z0-9]{8,}/[A-Za-z0-9]{20,}"),
    ("Google API key", rb"\bAIza[A-Za-z0-9_-]{35}\b"),
    ("Google OAuth secret", rb"\bGOCSPX-[A-Za-z0-9_-]{28}"),
    ("Google OAuth token", rb"\bya29\.[A-Za-z0-9_-]{50,}"),
    ("Anthropic key", rb"\bsk-ant-[A-Za-z0-9_-]{24,}"),
    ("OpenAI-style key", rb"\bsk-(?:proj-|svcacct-|or-v1-)?[A-Za-z0-9_-]{32,}"),
    ("Groq key", rb"\bgsk_[A-Za-z0-9]{48,}\b"),
    ("xAI key", rb"\bxai-[A-Za-z0-9]{70,}\b"),
    ("Perplexity key", rb"\bpplx-[A-Za-z0-9]{40,}\b"),
    ("Replicate token", rb"\br8_[A-Za-z0-9]{37}\b"),
    ("Stripe key", rb"\b[sr]k_live_[A-Za-z0-9]{20,}"),
    ("Stripe webhook secret", rb"\bwhsec_[A-Za-z0-9+/]{30,}"),
    ("npm token", rb"\bnpm_[A-Za-z0-9]{36}\b"),
    ("PyPI token", rb"\bpypi-AgE[A-Za-z0-9_-]{40,}"),
    ("RubyGems key", rb"\brubygems_[a-f0-9]{48}\b"),
    ("Docker token", rb"\bdckr_pat_[A-Za-z0-9_-]{27,}"),
    ("Hugging Face token", rb"\bhf_[A-Za-z0-9]{30,}\b"),
    ("SendGrid key", rb"\bSG\.[A-Za-z0-9_-]{22}\.[A-Za-z0-9_-]{43}"),
    ("DigitalOcean token", rb"\bdo[opr]_v1_[a-f0-9]{64}\b"),
    ("NVIDIA key", rb"\bnvapi-[A-Za-z0-9_-]{60,}"),
    ("Databricks token", rb"\bdapi[a-f0-9]{32}\b"),
    ("Shopify token", rb"\bshp(?:at|ca|pa|ss)_[a-fA-F0-9]{32}\b"),
    ("Grafana token", rb"\bgl(?:sa|c)_[A-Za-z0-9+/=_]{32,}"),
    ("Vault token", rb"\bhvs\.[A-Za-z0-9_-]{24,}"),
    ("Linear key", rb"\blin_api_[A-Za-z0-9]{40}\b"),
    ("Telegram bot token", rb"\b[0-9]{8,10}:AA[A-Za-z0-9_-]{33}\b"),
    ("Discord bot token", rb"\b[MNO][A-Za-z0-9_-]{23,25}\.[A-Za-z0-9_-]{6}\.[A-Za-z0-9_-]{27,}"),
    ("Azure storage key", rb"AccountKey=[A-Za-z0-9+/]{80,}={0,2}"),
    ("age secret key", rb"\bAGE-SECRET-KEY-1[A-Z0-9]{58}\b"),
    ("JSON web token", rb"\beyJ[A-Za-z0-9_-]{10,}\.eyJ[A-Za-z0-9_-]{10,}\.[A-Za-z0-9_-]{20,}"),
)
"""(name, shape). Sources: the providers' own documentation of their prefixes and lengths."""
PRIVATE_KEY: Final = Rx(
    rb"-----BEGIN (?:[A-Z0-9]+ )*PRIVATE KEY(?: BLOCK)?-----(?:\s|\\n|\\r)+(?:[A-Za-z-]+: [^\n]*\n\s*)*[A-Za-z0-9+/=\s\\]{64}"
)
"""A header alone is documentation; a header with a body is a key."""
DSN: Final = Rx(
    rb"\b(?:postgres(?:ql)?|mysql|mariadb|mssql|sqlserver|mongodb|redis|rediss|amqps?|https?|ftps?|smtps?)(?:\+[a-z0-9]+)?://[^\s:/@\"'<>]*:([^\s:/@$<{}*\[]{8,})@[^\s/\"']+"
)
"""A connection string with a password."""
ASSIGNED: Final = Rx(
    rb"(?i)(?:api[_-]?key|secret(?:[_-]?key)?|client[_-]?secret|private[_-]?key|access[_-]?token|auth[_-]?token|bearer[_-]?token|password|passwd)"
    rb"[\"']?\s*(?:[:=]|=>|:=)\s*[\"'`]([A-Za-z0-9_+/=.-]{24,})[\"'`]"
)
"""A quoted value behind a name that says it is secret."""
EXPORTED: Final = Rx(
    rb"(?m)^[ \t>$]*(?:export |set |setx |\$env:)?[A-Z][A-Z0-9_]*(?:API_?KEY|SECRET|TOKEN|PASSWORD|PASSWD|ACCESS_KEY)[ \t]*=[ \t]*([A-Za-z0-9_+/=.-]{24,})[ \t]*$"
)
"""An unquoted value in an environment file or a shell line."""
MAX_GENERIC: Final = 128
PLACEHOLDER: Final = Rx(
    rb"(?i)example|placeholder|your|dummy|sample|fake|redact|changeme|change-me|replace|insert|test|xxx|\.\.\.|<|\$\{|0123456|1234567|abcdef|user:pass|password@|localhost|secret@"
)
REPEATED: Final = 6
"""So many equal characters in a row make a placeholder."""
MIN_TOKEN_ENTROPY: Final = 3.0
MIN_GENERIC_ENTROPY: Final = 3.7
"""Bits a character; English is near 4.1 but has no digits."""
CONCATENATED: Final = Rx(rb"[\"'][ \t]*(?:\+|\.\.?|&)?[ \t]*\\?\n?[ \t]*(?:\+|\.\.?|&)?[ \t]*[\"']")
"""A string that ends and another that goes on: ``"a" + "b"``, ``"a" "b"``, across a line too."""

_REPEAT: Final = re.compile(rb"(?s)(.)\1{" + str(REPEATED - 1).encode() + rb"}")

_ANY_PROVIDER: Final = Rx(b"|".join(shape for _, shape in PROVIDERS))
_EACH_PROVIDER: Final = tuple((name, Rx(rb"(?:" + shape + rb")")) for name, shape in PROVIDERS)


def any_provider() -> Rx:
    """Return the pattern that matches any provider's shape."""
    return _ANY_PROVIDER


class Concatenated:
    """The text with adjacent string literals joined."""

    def __init__(self, view: View) -> None:
        self._source = view

    @cached_property
    def view(self) -> View | None:
        """The joined text; ``None`` when nothing is split."""
        data = self._source.data
        pieces, done = [], 0
        for match in CONCATENATED.finditer(data):
            pieces.append(data[done : match.start()])
            done = match.end()
        if not pieces:
            return None
        joined = b"".join((*pieces, data[done:]))
        return View(joined, self._source, lambda: _cut_anchors(data))


def _cut_anchors(data: bytes) -> Anchors:
    pairs, shift = {0: 0}, 0
    for match in CONCATENATED.finditer(data):
        pairs[match.start() - shift] = match.end()
        shift += match.end() - match.start()
    return tuple(pairs.items())


def find(text: Text) -> Iterator[Hit]:
    """Find credential shapes, then those that only string concatenation hides."""
    view = text.folded
    found = tuple(_shapes(view))
    yield from found
    joined = Concatenated(view).view if _may_be_split(view.data) else None
    if joined is not None:
        known = {(hit.start, hit.end) for hit in found}
        for hit in _tokens(joined):
            inside = any(start <= hit.start and hit.end <= end for start, end in known)
            if not inside:
                yield hit


_LOOSE: Final = Rx(_ANY_PROVIDER.pattern.replace(rb"\b", b""))


def _may_be_split(data: bytes) -> bool:
    """Say whether a shape appears once all that can join strings is gone; clears most files."""
    if CONCATENATED.search(data) is None:
        return False
    return any(
        _LOOSE.search(data.translate(None, joints))
        for joints in (b"\"' \t\n\\+&", b"\"' \t\n\\+&.")
    )


def _shapes(view: View) -> Iterator[Hit]:
    data = view.data
    yield from _tokens(view)
    if b"PRIVATE KEY" in data:
        for match in PRIVATE_KEY.finditer(data):
            yield _secret(view, match, "private key with its body")
    if b"://" in data:
        for match in DSN.finditer(data):
            if not is_placeholder(match.group() or b"") and not _is_plain_link(match):
                yield _secret(view, match, "connection string with a password")
    for pattern in (ASSIGNED, EXPORTED):
        for match in pattern.finditer(data):
            if looks_random(match.group(1) or b""):
                yield _secret(
                    view, match, "random-looking value behind a name that says it is secret"
                )


def _tokens(view: View) -> Iterator[Hit]:
    for match in _ANY_PROVIDER.finditer(view.data):
        token = match.group() or b""
        if is_placeholder(token) or is_slug(token) or entropy(token) <= MIN_TOKEN_ENTROPY:
            continue
        name = next((name for name, shape in _EACH_PROVIDER if shape.match(token)), "token")
        yield _secret(view, match, f"shape of a {name}")


def _secret(view: View, match: Match, why: str) -> Hit:
    return span(view, match.start(), match.end(), Status.FAIL, why, secret=True)


def _is_plain_link(match: Match) -> bool:
    """Say whether a web link's password part is too tame to be one (``https://host:8080@x``)."""
    whole = match.group() or b""
    return whole.startswith((b"http", b"ftp", b"smtp")) and not looks_random(match.group(1) or b"")


def is_placeholder(token: bytes) -> bool:
    """Say whether a token is visibly not a real one."""
    return PLACEHOLDER.search(token) is not None or _REPEAT.search(token) is not None


def is_slug(token: bytes) -> bool:
    """Say whether a token is lower-case words behind its prefix (``sk-learn-based-pipeline-...``)."""
    return not any(0x30 <= byte <= 0x39 or 0x41 <= byte <= 0x5A for byte in token[4:])


def looks_random(value: bytes) -> bool:
    """Say whether a value has letters, digits and the entropy of a generated secret."""
    return (
        len(value) <= MAX_GENERIC
        and not is_placeholder(value)
        and any(0x30 <= byte <= 0x39 for byte in value)
        and any(chr(byte).isalpha() for byte in value)
        and entropy(value) >= MIN_GENERIC_ENTROPY
    )


def entropy(token: bytes) -> float:
    """Return Shannon's entropy in bits a byte; the same on every machine (sorted summation)."""
    size = len(token)
    bits = -sum(n / size * math.log2(n / size) for n in sorted(Counter(token).values()))
    return round(bits, 6)


CREDENTIAL: Final = Check(
    id="credential",
    title="No credential-shaped string",
    severity=Severity.CRITICAL,
    find=find,
)
