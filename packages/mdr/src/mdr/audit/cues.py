"""Words that turn an instruction into a warning about it, and quotation.

A cue counts only before the match and inside the same sentence; what follows cannot soften what came.
"""

from __future__ import annotations

from typing import Final

from mdr.audit.rx import Rx

CUE: Final = Rx(
    rb"(?:^|[^\w./@\\-])(?:never|do not|don't|dont|does not|doesn't|must not|mustn't|should not|shouldn't|avoid"
    rb"|without|refus\w*|reject\w*|detect\w*|flag|flags|flagged|block|blocks|blocked|prevent\w*"
    rb"|forbid\w*|forbidden|prohibit\w*|no need to|rather than|instead of|not to|cannot|can't"
    rb"|won't|will not|e\.g\.|example|such as|attack\w*|inject\w*|malicious|suspicious|danger\w*"
    rb"|unsafe|disallow\w*|den(?:y|ies|ied))(?:$|[^\w./@\\-]|[.](?:\s|$))"
)
"""Whole words of prose; ``example`` in a host name or ``detect`` in a file name is no cue."""
NOT_A_CUE: Final = Rx(
    rb"\b(?:never mind|without (?:asking|telling|informing|notifying|hesitat\w+|delay|fail)"
    rb"|(?:never|do not|don't|cannot|must not|should not) (?:forget|hesitate|worry|fail|wait|be afraid))\b"
)
"""Phrases that hold a cue and negate nothing."""
SENTENCE_ENDS: Final = (b". ", b"! ", b"? ", b"\n", b";")
REACH: Final = 80
"""Bytes before the match in which a cue counts."""
QUOTES: Final = b"\"'`|"
QUOTE_REACH: Final = 3


def negated(data: bytes, start: int, reach: int = REACH) -> bool:
    """Say whether a cue stands before ``start`` in the same sentence.

    Args:
        data: Folded lower-case text.
        start: Where the match begins.
        reach: Bytes to look back.
    """
    before = data[max(0, start - reach) : start]
    before = before[max(before.rfind(mark) for mark in SENTENCE_ENDS) + 1 :]
    return CUE.search(before) is not None and NOT_A_CUE.search(before) is None


def quoted(data: bytes, start: int) -> bool:
    """Say whether a quotation mark, backtick or table bar stands just before ``start``."""
    line = data.rfind(b"\n", 0, start) + 1
    before = data[max(line, start - QUOTE_REACH) : start + 1]
    return any(byte in QUOTES for byte in before)


def inside_quotation(data: bytes, start: int) -> bool:
    """Say whether ``start`` lies between double quotes that open and close on its line."""
    line = data.rfind(b"\n", 0, start) + 1
    end = data.find(b"\n", start)
    end = len(data) if end < 0 else end
    opened = data.count(b'"', line, start) % 2 == 1
    return opened and data.find(b'"', start, end) >= 0
