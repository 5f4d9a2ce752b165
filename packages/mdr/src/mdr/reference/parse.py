"""Parse and format references (docs/reference/mdr-lock.md says what a lock keeps of them).

Two forms, each with an optional host in front and an optional selector behind::

    [host/]owner/repo/name[@selector]
    [host/]owner/repo:path[@selector]
    selector = latest | git:YYYYMMDD.sha7 | sha256:HEX (12 to 64 digits)

The rules that make odd names unambiguous:

* The selector is what follows the **last** ``@``. A name or path that contains ``@`` therefore needs a
  selector, and :func:`format_reference` writes ``@latest`` for it.
* The first segment is a host when it contains a dot or a port, or is ``local`` or ``localhost`` in a
  reference with more segments than a GitHub one. GitHub owners have no dots.
* Everything between host and name is the repository, so that nested groups of other hosts work.
"""

from __future__ import annotations

import re
from typing import Final

from mdr.errors import BadReference
from mdr.reference.types import DigestPrefix, Label, Latest, Reference, Selector

GITHUB: Final = "github.com"
MIN_DIGITS: Final = 12
"""48 bits: short enough to type, long enough that no registry of this world has a chance collision."""
MAX_LENGTH: Final = 4096
"""Characters; longer input is refused before any pattern sees it."""

_HOST = re.compile(r"[a-z0-9]([a-z0-9.-]*[a-z0-9])?(:[0-9]{1,5})?", re.IGNORECASE | re.ASCII)
_REPOSITORY_SEGMENT = re.compile(r"[A-Za-z0-9_.~+][A-Za-z0-9_.~+-]*", re.ASCII)
_LABEL = re.compile(
    r"git:[0-9]{4}(0[1-9]|1[0-2])(0[1-9]|[12][0-9]|3[01])\.[0-9a-f]{7,64}", re.ASCII
)
_HEX = re.compile(r"[0-9a-f]*", re.ASCII)
_FORMS = "owner/repo/name, owner/repo/name@git:YYYYMMDD.sha7, owner/repo/name@sha256:HEX or owner/repo:path"


def parse(text: str) -> Reference:
    """Turn what a person or a lock wrote into a reference.

    Args:
        text: One reference, exactly as typed.

    Returns:
        The reference; ``format_reference`` is the inverse.

    Raises:
        mdr.errors.BadReference: bad-reference, or digest-too-short for fewer than 12 digits.
    """
    _check_characters(text)
    body, at, tail = text.rpartition("@")
    selector = _selector(tail, text) if at else Latest()
    host, rest = _split_host(body if at else text)
    repository, name, path = _split_body(rest, text, github=host.lower() == GITHUB)
    _check_repository(repository, host, text)
    return Reference(
        host=host.lower(), repository=repository, name=name, path=path, selector=selector
    )


def parse_selector(text: str) -> Selector:
    """Parse ``latest``, ``git:...`` or ``sha256:...``, with or without the ``@`` in front.

    Raises:
        mdr.errors.BadReference: bad-reference or digest-too-short.
    """
    _check_characters(text)
    return _selector(text.removeprefix("@"), text)


def is_label(text: str) -> bool:
    """Say whether ``text`` has the shape ``git:YYYYMMDD.sha7``."""
    return _LABEL.fullmatch(text) is not None


def format_reference(reference: Reference) -> str:
    """Write the shortest text that parses back to ``reference``.

    Args:
        reference: Any reference that :func:`parse` can return.

    Returns:
        Text without ``github.com/`` and ``@latest`` unless they are needed.
    """
    separator, tail = ("/", reference.name) if reference.path is None else (":", reference.path)
    body = f"{reference.repository}{separator}{tail}"
    selector = format_selector(reference.selector)
    hosts = [""] if reference.host == GITHUB else []
    for prefix in (*hosts, f"{reference.host}/"):
        for suffix in ([""] if isinstance(reference.selector, Latest) else []) + [f"@{selector}"]:
            text = prefix + body + suffix
            if _parses_to(text, reference):
                return text
    raise _bad(body, "this value is not one that a reference can name")


def format_selector(selector: Selector) -> str:
    """Write a selector as it stands behind ``@``."""
    match selector:
        case Latest():
            return "latest"
        case Label(label=label):
            return label
        case DigestPrefix(digits=digits):
            return f"sha256:{digits}"


def path_problem(path: str) -> str | None:
    """Say why ``path`` cannot be a path inside a repository, or ``None`` when it can."""
    if not path:
        return "the path is empty"
    if path.startswith("/"):
        return "the path is absolute"
    if any(segment in {"", ".", ".."} for segment in path.split("/")):
        return "the path has an empty, '.' or '..' segment"
    return None


def _parses_to(text: str, reference: Reference) -> bool:
    try:
        return parse(text) == reference
    except BadReference:
        return False


def _check_characters(text: str) -> None:
    if not text:
        raise _bad(text, "the reference is empty")
    if len(text) > MAX_LENGTH:
        raise _bad(text[:60] + "...", f"the reference is longer than {MAX_LENGTH} characters")
    if any(ord(char) < 0x20 or 0x7F <= ord(char) < 0xA0 for char in text):
        raise _bad(text, "the reference has a control character")
    if "://" in text.partition("@")[0][:12]:
        raise _bad(text, "a reference is not a URL")
    if any(0xD800 <= ord(char) <= 0xDFFF for char in text):
        raise _bad(text, "the reference is not valid UTF-8")


def _selector(tail: str, text: str) -> Selector:
    if tail == "latest":
        return Latest()
    if tail.startswith("git:"):
        if not is_label(tail):
            raise _bad(
                text,
                f"{tail!r} is not a label",
                "a label is git:YYYYMMDD.sha7, such as git:20260817.d36ff70",
            )
        return Label(label=tail)
    if tail.startswith("sha256:"):
        return _digest(tail.removeprefix("sha256:").lower(), text)
    hint = "after @ comes git:YYYYMMDD.sha7, sha256:HEX or latest"
    raise _bad(
        text,
        f"{tail!r} is no selector",
        f"{hint}; a name that contains @ needs one, as in {text}@latest",
    )


def _digest(digits: str, text: str) -> DigestPrefix:
    if _HEX.fullmatch(digits) is None:
        raise _bad(text, "the SHA-256 has a character that is not hexadecimal")
    if len(digits) > 64:
        raise _bad(text, f"a SHA-256 has 64 digits, this one has {len(digits)}")
    if len(digits) < MIN_DIGITS:
        raise BadReference(
            "digest-too-short",
            f"the SHA-256 prefix has {len(digits)} digits, at least {MIN_DIGITS} are needed",
            hint="copy more digits from the version table; all 64 are best",
            data={"reference": _printable(text), "digits": len(digits), "minimum": MIN_DIGITS},
        )
    return DigestPrefix(digits=digits)


def _split_host(body: str) -> tuple[str, str]:
    """Return (host, rest)."""
    first, slash, rest = body.partition("/")
    if not slash:
        return GITHUB, body
    dotted = "." in first or re.fullmatch(r"[^:]+:[0-9]{1,5}", first) is not None
    if dotted and _HOST.fullmatch(first):
        return first, rest
    # "local" and "localhost" could be GitHub owners: they are hosts when a repository still follows.
    if first.lower() in {"local", "localhost"} and "/" in rest.partition(":")[0].partition("/")[2]:
        return first, rest
    if first.lower() in {"local", "localhost"} and re.match(r"[^/:]+/[^/:]+:", rest):
        return first, rest
    return GITHUB, body


def _split_body(rest: str, text: str, *, github: bool) -> tuple[str, str | None, str | None]:
    """Return (repository, name, path); one of the last two is ``None``.

    On GitHub a colon after a third segment belongs to the name; elsewhere it always starts the path.
    """
    before, colon, path = rest.partition(":")
    depth = before.count("/")
    if colon and (depth == 1 or (depth > 1 and not github)) and _is_repository(before):
        problem = path_problem(path)
        if problem:
            raise _bad(text, problem, "write owner/repo:path/to/SKILL.md")
        return before, None, path
    repository, _, name = rest.rpartition("/")
    if not name or "/" not in repository:
        raise _bad(text, "a reference names an owner, a repository and an artifact")
    if name in {".", ".."}:
        raise _bad(text, f"{name!r} is not a name")
    return repository, name, None


def _is_repository(text: str) -> bool:
    return all(_REPOSITORY_SEGMENT.fullmatch(segment) for segment in text.split("/"))


def _check_repository(repository: str, host: str, text: str) -> None:
    segments = repository.split("/")
    if host.lower() == GITHUB and len(segments) != 2:
        hint = f"for a file inside a repository write {'/'.join(segments[:2])}:path/to/SKILL.md"
        raise _bad(text, "a GitHub repository is owner/repo", hint)
    for segment in segments:
        if not _REPOSITORY_SEGMENT.fullmatch(segment) or segment in {".", ".."}:
            raise _bad(text, f"{segment!r} is not an owner or repository name")


def _bad(text: str, message: str, hint: str = f"references look like {_FORMS}") -> BadReference:
    return BadReference(
        "bad-reference",
        f"cannot read the reference {_printable(text)!r}: {message}",
        hint=_printable(hint),
        data={"reference": _printable(text)},
    )


def _printable(text: str) -> str:
    return text.encode("utf-8", "backslashreplace").decode("utf-8")
