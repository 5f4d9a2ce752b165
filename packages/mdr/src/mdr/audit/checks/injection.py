"""Check 11: phrases that try to replace the reader's instructions.

Languages other than English, leetspeak and encoded text are not covered (base64 is check 15).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from mdr.audit.checks.row import Check, Hit, hit
from mdr.audit.cues import inside_quotation, negated, quoted
from mdr.audit.rx import Rx
from mdr.audit.types import Severity, Status

if TYPE_CHECKING:
    from collections.abc import Iterator

    from mdr.audit.text import Text

GAP: Final = rb"(?:[\s*_~>\"'`-]|<[^<>\n]*>)+"
"""Between two words: white space, emphasis, quotation prefixes, HTML tags and comments."""


def words(*parts: bytes) -> bytes:
    """Join parts so that markup between the words does not hide them."""
    return GAP.join(parts)


def _filler(count: int) -> bytes:
    return rb"(?:\w+" + GAP + rb"){0," + str(count).encode() + rb"}"


OVERRIDE: Final = rb"(?:ignore|disregard|forget|override|bypass|disobey|neglect)"
EARLIER: Final = rb"(?:previous|prior|earlier|above|preceding|existing|system|safety|security|foregoing|former|initial|original)"
RULES: Final = rb"(?:instruction|prompt|rule|guideline|direction|directive|command|context|message|polic|guardrail|restriction|constraint)"

PATTERNS: Final = (
    (
        Rx(rb"\b" + OVERRIDE + GAP + _filler(3) + EARLIER + GAP + _filler(2) + RULES),
        "tells the reader to drop its instructions",
    ),
    (
        Rx(
            rb"\b"
            + OVERRIDE
            + GAP
            + rb"(?:any"
            + GAP
            + rb"|all"
            + GAP
            + rb")?(?:of"
            + GAP
            + rb")?(?:your|my|these|those)"
            + GAP
            + rb"(?:\w+"
            + GAP
            + rb"){0,2}(?:instruction|guideline|guardrail|programming|training|safety (?:rule|polic))"
        ),
        "tells the reader to drop its instructions",
    ),
    (
        Rx(
            rb"\b(?:ignore|disregard|forget)"
            + GAP
            + words(
                rb"(?:everything|all(?:" + GAP + rb"that)?)",
                rb"(?:you(?:"
                + GAP
                + rb"(?:have|were|'ve))?|above|before|prior|i"
                + GAP
                + rb"said)\b",
            )
        ),
        "tells the reader to drop what came before",
    ),
    (
        Rx(
            rb"\b"
            + words(rb"you", rb"are", rb"now")
            + GAP
            + rb"(?:in"
            + GAP
            + rb")?(?:an?"
            + GAP
            + rb")?(?:unrestricted|jailbr\w+|dan\b|developer"
            + GAP
            + rb"mode|god"
            + GAP
            + rb"mode|unfiltered|uncensored|debug"
            + GAP
            + rb"mode)"
        ),
        "gives the reader an unrestricted persona",
    ),
    (
        Rx(
            rb"\b(?:"
            + words(rb"do", rb"anything", rb"now")
            + rb"|"
            + rb"developer mode enabled"
            + rb"|"
            + words(rb"jailbreak", rb"mode")
            + rb")\b"
        ),
        "jailbreak wording",
    ),
    (
        Rx(
            rb"\b(?:reveal|print|output|repeat|leak|disclose)"
            + GAP
            + rb"(?:your|the)"
            + GAP
            + rb"(?:(?:full|entire|complete)"
            + GAP
            + rb")?(?:system|hidden|initial|developer)"
            + GAP
            + rb"(?:prompt|instruction|message)"
        ),
        "asks for the reader's own instructions",
    ),
    (
        Rx(
            rb"\b(?:do"
            + GAP
            + rb"not|don't|dont|never)"
            + GAP
            + rb"(?:tell|inform|mention(?:"
            + GAP
            + rb"(?:this|it|that))?"
            + GAP
            + rb"to|notify|alert|reveal(?:"
            + GAP
            + rb"(?:this|it|that))?"
            + GAP
            + rb"to|let)"
            + GAP
            + rb"(?:(?:the|your)"
            + GAP
            + rb"(?:users|humans|operators)|(?:(?:the|your)"
            + GAP
            + rb")?(?:user|human|operator))\b"
        ),
        "asks for silence towards the user",
    ),
    (
        Rx(
            rb"\bwithout"
            + GAP
            + rb"(?:telling|informing|notifying|alerting|asking)"
            + GAP
            + rb"(?:(?:the|your)"
            + GAP
            + rb")?(?:user|human|operator)s?\b"
        ),
        "asks for silence towards the user",
    ),
    (
        Rx(
            rb"\byou"
            + GAP
            + rb"(?:have|must"
            + GAP
            + rb"obey|must"
            + GAP
            + rb"ignore|are"
            + GAP
            + rb"bound"
            + GAP
            + rb"by)"
            + GAP
            + rb"no"
            + GAP
            + rb"(?:restrictions|rules|guidelines|limits|limitations)\b"
        ),
        "declares that no rules apply",
    ),
    (
        Rx(
            rb"<\|(?:im_start|im_end|system|endoftext|start_header_id|end_header_id|eot_id|begin_of_text)\|>|\[/?inst\]|<<sys>>|<(?:start|end)_of_turn>"
        ),
        "chat-template token that can end the reader's context",
    ),
)
"""(pattern over folded lower-case text, what it does)."""

ANY: Final = Rx(b"|".join(pattern.pattern for pattern, _ in PATTERNS))
"""One pass over files that say nothing of the kind."""


def find(text: Text) -> Iterator[Hit]:
    """Find injection phrasing; quoted or negated phrasing only warns."""
    view = text.folded
    data = view.lower
    for pattern, why in PATTERNS if ANY.search(data) is not None else ():
        for match in pattern.finditer(data):
            start = match.start()
            softened = quoted(data, start) or inside_quotation(view, start) or negated(data, start)
            status = Status.WARN if softened else Status.FAIL
            yield hit(view, match, status, why + (" (quoted or negated)" if softened else ""))


INJECTION: Final = Check(
    id="injection",
    title="No prompt-injection phrasing",
    severity=Severity.HIGH,
    find=find,
)
