"""What a file can make an agent touch, and what changes between two versions of it.

``--if-no-new-capability`` and the diff pages read this; it is no part of the grade.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from mdr.artifact.types import Kind
from mdr.audit.run import unreadable
from mdr.audit.rx import Rx
from mdr.audit.stores import STORE
from mdr.audit.text import Text
from mdr.audit.types import Change, SemanticDiff, Semantics

if TYPE_CHECKING:
    from collections.abc import Iterator

SHELL_FENCE: Final = Rx(
    rb"(?m)^[ \t>]*(?:`{3,}|~{3,})[ \t]*(?:bash|sh|shell|zsh|fish|console|terminal|shell-session|powershell|pwsh|ps1|bat|cmd|dockerfile)\b[^\n]*\n"
)
FENCE_END: Final = Rx(rb"(?m)^[ \t>]*(?:`{3,}|~{3,})[ \t]*$")
COMMAND: Final = Rx(
    rb"(?m)(?:^|\|\|?|&&|;|\$\(|\bxargs |\bsudo )[ \t>]*(?:\$ |# |PS> |> )?[ \t]*(?:sudo |doas |env |exec |nohup |time |command |if |then |do |else |while |! )*(?:[A-Za-z_][A-Za-z0-9_]*=(?:\"[^\"\n]*\"|'[^'\n]*'|[^\s]*) +)*([A-Za-z_./~][A-Za-z0-9_.+/~-]*)(?:[ \t;|&)]|$)"
)
INLINE_COMMAND: Final = Rx(rb"`(?:\$ )?((?:[a-z][a-z0-9+_.-]*/)*[a-z][a-z0-9+_.-]*)[ \t]+[^`\n]+`")
SHELL_WORDS: Final = frozenset(
    [
        "if",
        "then",
        "else",
        "elif",
        "fi",
        "for",
        "while",
        "until",
        "do",
        "done",
        "case",
        "esac",
        "in",
        "function",
        "return",
        "local",
        "export",
        "set",
        "unset",
        "echo",
        "printf",
        "true",
        "false",
        "test",
        "exit",
        "cd",
        "read",
        "shift",
        "break",
        "continue",
        "trap",
        "wait",
        "eval",
        "source",
        "alias",
        "declare",
        "typeset",
        "let",
    ]
)
"""Words of the shell itself: they start no program."""
PROSE_WORDS: Final = frozenset(
    [
        "a",
        "an",
        "and",
        "as",
        "at",
        "by",
        "the",
        "this",
        "that",
        "to",
        "for",
        "from",
        "in",
        "is",
        "it",
        "of",
        "on",
        "or",
        "with",
        "not",
        "no",
    ]
)
TOKEN_BYTES: Final = 4
MAX_NAME: Final = 80
TOOL_KEYS: Final = ("allowed-tools", "allowed_tools", "tools", "disallowed-tools")


def semantics(data: bytes) -> Semantics:
    """Read what a file names.

    Args:
        data: The bytes of the file. What is not text names nothing.

    Returns:
        Hosts of links, programs of shell blocks and inline commands, tools of the frontmatter, paths of
        credential stores, and an estimate of tokens (four bytes each, rounded up).
    """
    tokens = -(-len(data) // TOKEN_BYTES)
    if unreadable(data) is not None:
        return Semantics(hosts=(), commands=(), tools=(), credential_paths=(), tokens=tokens)
    text = Text(data, Kind.SKILL)
    return Semantics(
        hosts=_sorted(link.host for link in text.links if _is_host(link.host)),
        commands=_sorted(_commands(text)),
        tools=_sorted(_tools(text)),
        credential_paths=_sorted(_stores(text)),
        tokens=tokens,
    )


def semantic_diff(
    a: Semantics, b: Semantics, *, grades: tuple[str | None, str | None] = (None, None)
) -> SemanticDiff:
    """Compare two versions.

    Args:
        a: The older one.
        b: The newer one.
        grades: Their grades, ``None`` where unknown.
    """
    return SemanticDiff(
        hosts=_change(a.hosts, b.hosts),
        commands=_change(a.commands, b.commands),
        tools=_change(a.tools, b.tools),
        credential_paths=_change(a.credential_paths, b.credential_paths),
        tokens=(a.tokens, b.tokens),
        grade=grades,
    )


def _change(before: tuple[str, ...], after: tuple[str, ...]) -> Change:
    return Change(
        added=_sorted(set(after) - set(before)), removed=_sorted(set(before) - set(after))
    )


def _sorted(names: Any) -> tuple[str, ...]:
    return tuple(sorted({name for name in names if name}))


def _is_host(host: str) -> bool:
    plain = host.replace("-", "").replace(".", "").replace(":", "").replace("_", "")
    return (
        bool(plain)
        and plain.isascii()
        and plain.isalnum()
        and ("." in host or ":" in host or host == "localhost")
    )


def _commands(text: Text) -> Iterator[str]:
    data = text.joined.data
    position = 0
    while (fence := SHELL_FENCE.search(data, position)) is not None:
        end = FENCE_END.search(data, fence.end())
        stop = end.start() if end else len(data)
        here = fence.end()
        while (match := COMMAND.search(data, here, stop)) is not None:
            yield from _program(match.group(1) or b"")
            here = match.end(1)
        position = end.end() if end else len(data)
    for match in INLINE_COMMAND.finditer(data):
        yield from _program(match.group(1) or b"")


def _program(word: bytes) -> Iterator[str]:
    name = word.decode("ascii", "ignore").rstrip(".")
    if 1 < len(name) <= MAX_NAME and name not in SHELL_WORDS and name not in PROSE_WORDS:
        yield name.rsplit("/", 1)[-1] if name.startswith(("/usr/", "/bin/", "/sbin/")) else name


def _tools(text: Text) -> Iterator[str]:
    values = text.frontmatter.values or {}
    for key in TOOL_KEYS:
        value = values.get(key)
        if isinstance(value, str):
            yield from _split_tools(value)
        elif isinstance(value, list):
            yield from (str(item).strip()[:MAX_NAME] for item in value)


def _split_tools(value: str) -> Iterator[str]:
    """Split ``Bash(git:*) Read`` or ``Bash, Read`` at spaces and commas outside parentheses."""
    depth, word = 0, ""
    for char in value:
        depth += (char == "(") - (char == ")")
        if depth <= 0 and (char.isspace() or char == ","):
            yield word[:MAX_NAME]
            word = ""
        else:
            word += char
    yield word[:MAX_NAME]


_STORE: Final = Rx(STORE)
_REST: Final = Rx(rb"[a-z0-9_./\\*-]*")


def _stores(text: Text) -> Iterator[str]:
    data = text.folded.lower
    for match in _STORE.finditer(data):
        rest = _REST.match(data, match.end())
        path = data[match.start() : rest.end() if rest else match.end()]
        yield path.strip(b" \t\n\"'`(=@<),;:|&>").rstrip(b".").decode("utf-8", "replace")[:MAX_NAME]
