"""A launch script, or a bare argument list, -> the training arguments, the environment and the GPU count.

The script is read from top to bottom as data. Assignments, arrays and ``export`` lines are followed; tests of
``if`` are judged where the script's own variables decide them, and otherwise the first branch is taken and
the job says so. The training command is the one with the most Megatron-LM flags.
"""

from __future__ import annotations

import fnmatch
import itertools
import re
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field, replace
from typing import Final

from recompute.config.shell_expand import Variables
from recompute.config.shell_lexer import MAX_SCRIPT, MAX_WORDS, Token, lex, unknown_name
from recompute.errors import ConfigError

_ASSIGN: Final = re.compile(r"([A-Za-z_]\w*)(\+?=)(.*)", re.DOTALL)
_SBATCH: Final = re.compile(r"^#SBATCH\s+(--?[A-Za-z-]+)[\s=]+(\S+)", re.MULTILINE)
_NODES: Final = frozenset(("--nnodes", "--nodes", "-N", "--num-nodes"))
_PER_NODE: Final = frozenset(
    ("--nproc_per_node", "--nproc-per-node", "--ntasks-per-node", "--gpus-per-node")
)
_TASKS: Final = frozenset(("-np", "-n", "--ntasks"))
_FLAG: Final = re.compile(r"(?<![\w-])--[A-Za-z][\w-]*")
MAX_NESTING: Final = 4


@dataclass(slots=True)
class LaunchScript:  # the state of a script while it is read
    """What a script says."""

    arguments: list[Token] = field(default_factory=list)
    """Words after the training program, quotes removed and variables replaced."""
    environment: dict[str, str] = field(default_factory=dict)
    """Variables that the script exports."""
    num_gpus: int | None = None
    notes: list[str] = field(default_factory=list)
    """What was taken for granted: conditions that only the shell can judge, variables it alone knows."""


def read_launch_script(text: str, flags: Collection[str], first_line: int = 1) -> LaunchScript:
    """Read a script or an argument list.

    Args:
        text: Shell text.
        flags: Names of the flags that Megatron-LM knows.
        first_line: Line number of the first line.

    Raises:
        ConfigError: ``too-large``, ``shell-syntax``, ``shell-limit``, or ``no-training-command`` when no command has
            flags of Megatron-LM.
    """
    if len(text) > MAX_SCRIPT:
        raise ConfigError(
            "too-large",
            f"a script of more than {MAX_SCRIPT} characters",
            hint="give the launch script itself, or its arguments",
            data={"limit_bytes": MAX_SCRIPT},
        )
    reader = _Reader(flags)
    reader.run(text, first_line, 0)
    if reader.score == 0:
        reader.take_variable()
    result = reader.result
    result.num_gpus = _num_gpus(reader.launcher, dict(_SBATCH.findall(text)))
    if reader.score == 0:
        raise ConfigError(
            "no-training-command",
            "no command with Megatron-LM arguments such as --num-layers",
            hint="give the launch script that starts training, or its arguments",
            data={},
        )
    return result


class _Reader:
    def __init__(self, flags: Collection[str]) -> None:
        self.flags = flags
        self.variables = Variables()
        self.result = LaunchScript()
        self.launcher: list[str] = []
        self.score = 0
        self.words = 0
        self.flag_lines: dict[str, int] = {}
        """Flag inside a variable's text -> the line on which it stands there; the last one counts."""
        self.bare: list[Token] = []
        """Arguments that stand alone, without a program before them."""
        self.branches: list[bool | None] = []
        """One entry per open ``if``: whether its current branch runs; ``None`` when it is over."""
        self.cases = _Cases()

    def run(self, text: str, first_line: int, depth: int) -> None:
        tokens = list(itertools.islice(lex(text, first_line), MAX_WORDS + 1))
        self.words += len(tokens)
        if self.words > MAX_WORDS:
            raise ConfigError(
                "shell-limit",
                f"more than {MAX_WORDS} words in the script",
                hint="give the arguments alone",
                data={"limit": MAX_WORDS},
            )
        for command, end in _commands(tokens):
            if not self.cases.follow(command, end, self):
                self._command(command, depth)

    def _command(self, raw: list[Token], depth: int) -> None:
        raw = self._control(raw)
        if not raw or not self.running():
            return
        exported = raw[0].text in {"export", "declare", "local", "readonly"}
        if exported:
            is_export = raw[0].text == "export" or any(token.text == "-x" for token in raw)
            self._exports(raw[1:], is_export=is_export)
            return
        while raw and (match := _ASSIGN.fullmatch(raw[0].text)) is not None:
            array = _array_words(raw)
            if array is not None:
                self._assign_array(match[1], match[2], array)
                return
            self._assign(match[1], match[2], match[3], raw[0].line)
            if len(raw) > 1:
                # NAME=value before a command is part of the command's environment.
                self.result.environment[match[1]] = self.variables.text[match[1]]
            raw = raw[1:]
        words = [word for token in raw for word in self._expand(token)]
        if words:
            self._simple(words, depth)

    def running(self) -> bool:
        """Tell whether the branches around the current command are all taken."""
        return all(self.branches) and self.cases.running()

    def note(self, text: str) -> None:
        """Record once what was taken for granted."""
        if text not in self.result.notes:
            self.result.notes.append(text)

    def _expand(self, token: Token) -> list[Token]:
        words = [self._placed(word, token) for word in self.variables.expand(token)]
        if len(words) == 1 and words[0].text == f"\ue000{unknown_name(words[0].text)}\ue001":
            name = unknown_name(words[0].text) or ""
            if not token.text.startswith(('"', "'")) and name[:1].isalpha():
                self.note(f"${name} is not set in the script; read as empty")
        return words

    def _placed(self, word: Token, token: Token) -> Token:
        """Return a word with the line on which its flag stands in a variable, if it came out of one."""
        flag = word.text.partition("=")[0]
        if word.line != token.line or "$" not in token.text or flag in token.text:
            return word
        line = self.flag_lines.get(flag)
        return word if line is None else replace(word, line=line)

    def _control(self, raw: list[Token]) -> list[Token]:
        """Follow if, elif, else and fi; return what is left of the command."""
        while raw and raw[0].text in {
            "if",
            "elif",
            "else",
            "fi",
            "then",
            "do",
            "{",
            "!",
            "done",
            "}",
        }:
            word = raw[0].text
            if word == "if":
                self.branches.append(self._condition(raw[1:]))
                return []
            if word in {"elif", "else"} and self.branches:
                taken = self.branches[-1]
                was_false = taken is False
                later = self._condition(raw[1:]) if word == "elif" and was_false else True
                self.branches[-1] = later if was_false else None
                if word == "elif":
                    return []
            elif word == "fi" and self.branches:
                self.branches.pop()
            raw = raw[1:]
        return raw if not raw or raw[0].text not in {"for", "while", "function", "case"} else []

    def _condition(self, raw: list[Token]) -> bool:
        words = [self.variables.value(token.text) for token in raw]
        verdict = _judge([word for word in words if word not in {"[", "]", "[[", "]]", "test"}])
        if verdict is None:
            line = raw[0].line if raw else 0
            self.note(f"the condition on line {line} was taken to hold")
        return verdict is not False

    def _exports(self, raw: list[Token], *, is_export: bool) -> None:
        for token in raw:
            match = _ASSIGN.fullmatch(token.text)
            if match is not None:
                self._assign(match[1], match[2], match[3], token.line)
            name = match[1] if match is not None else token.text
            if is_export and name in self.variables.text:
                self.result.environment[name] = self.variables.text[name]

    def _assign(self, name: str, operator: str, raw: str, line: int) -> None:
        for offset, text in enumerate(raw.split("\n")):
            for flag in _FLAG.findall(text):
                self.flag_lines[flag] = line + offset
        value = self.variables.value(raw)
        base = self.variables.text.get(name, "") if operator == "+=" else ""
        self.variables.text[name] = base + value
        self.variables.arrays.pop(name, None)

    def _assign_array(self, name: str, operator: str, raw: list[Token]) -> None:
        words = [word for token in raw for word in self._expand(token)]
        base = self.variables.arrays.get(name, []) if operator == "+=" else []
        self.words += len(base) + len(words)
        if self.words > MAX_WORDS:
            raise ConfigError(
                "shell-limit",
                "the script's arrays grow without end",
                hint="give the arguments alone",
            )
        self.variables.arrays[name] = [*base, *words]

    def take_variable(self) -> None:
        """Without a command, take the variable that holds the most flags: a file of arguments to source."""
        texts = dict(self.variables.text)
        best = max(texts, key=lambda name: _score(_split(texts[name]), self.flags), default=None)
        arrays = self.variables.arrays
        array = max(arrays, key=lambda name: _score(arrays[name], self.flags), default=None)
        if array is not None and _score(arrays[array], self.flags) > 1:
            self._simple(list(arrays[array]), MAX_NESTING)
            self.note(f"the script starts nothing; its ${array} was read")
        elif best is not None and _score(_split(texts[best]), self.flags) > 1:
            if ".py" in texts[best]:
                self.run(texts[best], 1, 1)
            else:
                self._simple(_split(texts[best]), MAX_NESTING)
            self.note(f"the script starts nothing; its ${best} was read")

    def _simple(self, words: list[Token], depth: int) -> None:
        for index, word in enumerate(words[:-1]):
            nested = words[index + 1]
            if word.text == "-c" and " --" in nested.text and depth < MAX_NESTING:
                self.launcher = [token.text for token in words[:index]] or self.launcher
                self.run(nested.text, nested.line, depth + 1)
        if words[0].text.startswith("--"):
            # A bare argument list may have one flag on each line.
            self.bare += words
            words = self.bare
        score = _score(words, self.flags)
        if score <= self.score:
            return
        self.score = score
        start = _program_end(words)
        self.launcher = [*self.launcher, *(word.text for word in words[:start])]
        self.result.arguments = words[start:]


class _Cases:
    """The ``case`` statements around the current command."""

    def __init__(self) -> None:
        self.values: list[str] = []
        self.patterns: list[list[str] | None] = []
        """Alternatives collected so far; ``None`` while a body is read."""
        self.taken: list[bool | None] = []
        """Whether the current body runs; ``None`` once one has run."""

    def running(self) -> bool:
        """Tell whether every body around the current command runs."""
        return all(taken is True for taken in self.taken)

    def follow(self, command: list[Token], end: str, reader: _Reader) -> bool:
        """Take in what belongs to a ``case`` itself; return whether the command did."""
        if command and command[0].text == "case" and len(command) > 2:
            self.values.append(reader.variables.value(command[1].text))
            self.patterns.append([])
            self.taken.append(False)
            command = command[3:]
        elif not self.values:
            return end == ";;"
        if command and command[0].text == "esac":
            for stack in (self.values, self.patterns, self.taken):
                stack.pop()
            return True
        patterns = self.patterns[-1]
        if end == ";;" and not command:
            self.patterns[-1] = []
            self.taken[-1] = None if self.taken[-1] is not False else False
            return True
        if patterns is None:
            return False
        patterns += [reader.variables.value(token.text) for token in command]
        if end == ")" and patterns:
            self._enter(patterns, command, reader)
        return True

    def _enter(self, patterns: list[str], command: list[Token], reader: _Reader) -> None:
        """Decide whether the body after the patterns runs."""
        self.patterns[-1] = None
        value = self.values[-1]
        if self.taken[-1] is None:
            return
        if unknown_name(value) is not None:
            line = command[0].line if command else 0
            reader.note(f"the first branch of the case on line {line} was taken")
            self.taken[-1] = True
        else:
            self.taken[-1] = any(fnmatch.fnmatchcase(value, pattern) for pattern in patterns)


def _commands(tokens: list[Token]) -> Iterator[tuple[list[Token], str]]:
    """Yield simple commands with the operator that ends each; an array's words stay with it."""
    command: list[Token] = []
    rest = iter(tokens)
    before = ""
    for token in rest:
        if not token.operator:
            command.append(token)
            before = ""
        elif token.text == "(" and command and command[-1].text.endswith("="):
            command += [token, *_until_closed(rest)]
        elif token.text in "<>":
            _drop_redirection(command, rest)
        else:
            if command:
                yield command, token.text
            elif token.text == ";" == before:
                yield [], ";;"
            command, before = [], token.text
    if command:
        yield command, ""


def _until_closed(rest: Iterator[Token]) -> Iterator[Token]:
    """Yield the words of an array."""
    for token in rest:
        if token.operator and token.text == ")":
            return
        if not token.operator:
            yield token


def _drop_redirection(command: list[Token], rest: Iterator[Token]) -> None:
    """Forget ``2>&1`` and ``> file``: the descriptor before and the file after."""
    if command and command[-1].text.isdigit() and len(command[-1].text) == 1:
        command.pop()
    for token in rest:
        if not token.operator or token.text == "\n":
            return


def _array_words(raw: list[Token]) -> list[Token] | None:
    """Return the words of ``NAME=( ... )``, or ``None`` for anything else."""
    if len(raw) < 2 or not (raw[1].operator and raw[1].text == "("):
        return None
    return [token for token in raw[2:] if not token.operator]


def _split(text: str) -> list[Token]:
    return [Token(text=word, line=1) for word in text.split()]


def _score(words: list[Token], flags: Collection[str]) -> int:
    return sum(1 for word in words if word.text.partition("=")[0] in flags)


def _program_end(words: list[Token]) -> int:
    """Return where the program's own arguments begin."""
    for index, word in enumerate(words):
        if word.text.endswith(".py") and not word.text.startswith("--"):
            return index + 1
        if word.text == "-m" and index + 1 < len(words) and "torch" not in words[index + 1].text:
            return index + 2
    return 0


def _judge(words: list[str]) -> bool | None:
    """Return what a test says, or ``None`` when only the shell knows."""
    if any(unknown_name(word) is not None for word in words):
        unset = len(words) == 2 and unknown_name(words[1]) is not None
        return {"-z": True, "-n": False}.get(words[0]) if unset else None
    if words and words[0] in {"-z", "-n"} and len(words) <= 2:
        empty = not "".join(words[1:])
        return empty if words[0] == "-z" else not empty
    if len(words) != 3:
        return None
    left, operator, right = words
    texts = {"=": left == right, "==": left == right, "!=": left != right}
    return texts[operator] if operator in texts else _compare(left, operator, right)


def _compare(left: str, operator: str, right: str) -> bool | None:
    if not (re.fullmatch(r"-?\d{1,15}", left) and re.fullmatch(r"-?\d{1,15}", right)):
        return None
    one, other = int(left), int(right)
    results = {
        "-eq": one == other,
        "-ne": one != other,
        "-gt": one > other,
        "-ge": one >= other,
        "-lt": one < other,
        "-le": one <= other,
    }
    return results.get(operator)


def _num_gpus(launcher: list[str], sbatch: dict[str, str]) -> int | None:
    """Return nodes times processes per node, from the launcher's words and ``#SBATCH`` lines."""
    words = " ".join(launcher).replace("=", " ").split()
    given: dict[str, str] = {**sbatch}
    given.update(itertools.pairwise(words))
    nodes = _number(given, _NODES)
    per_node = _number(given, _PER_NODE)
    tasks = _number(given, _TASKS)
    if per_node is not None:
        return (nodes or 1) * per_node
    return tasks


def _number(given: dict[str, str], names: frozenset[str]) -> int | None:
    for name in names:
        if re.fullmatch(r"\d{1,6}", given.get(name, "")):
            return int(given[name])
    return None
