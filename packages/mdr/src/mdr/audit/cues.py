"""Words that turn an instruction into a warning about it, and quotation.

A cue counts only before the match and inside the same sentence; what follows cannot soften what came.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Final

from mdr.audit.rx import Rx

if TYPE_CHECKING:
    from mdr.audit.view import View

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
    return _warned(data[max(0, start - reach) : start])


@lru_cache(maxsize=4096)
def _warned(before: bytes) -> bool:
    stop = max(
        before.rfind(b". "),
        before.rfind(b"! "),
        before.rfind(b"? "),
        before.rfind(b"\n"),
        before.rfind(b";"),
    )
    return _warns(before[stop + 1 :])


@lru_cache(maxsize=4096)
def _warns(sentence: bytes) -> bool:
    """Say whether the beginning of a sentence negates what follows."""
    return CUE.search(sentence) is not None and NOT_A_CUE.search(sentence) is None


def quoted(data: bytes, start: int) -> bool:
    """Say whether a quotation mark, backtick or table bar stands just before ``start``."""
    before = data[max(0, start - QUOTE_REACH) : start]
    before = before[before.rfind(b"\n") + 1 :] + data[start : start + 1]
    return any(byte in QUOTES for byte in before)


def inside_quotation(view: View, start: int) -> bool:
    """Say whether ``start`` lies between double quotes that open and close on its line."""
    line, end = view.line(start)
    data = view.data
    opened = (view.quotes.before(start) - view.quotes.before(line)) % 2 == 1
    return opened and data.find(b'"', start, end) >= 0
