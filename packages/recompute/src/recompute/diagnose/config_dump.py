"""The configuration that a run printed, found in its log.

Three dumps are read: Megatron-LM's ``arguments`` block (``megatron/training/arguments.py:_print_args``),
Megatron Bridge's summary of non-default values (``training/config.py:log_non_default_values``) and its
whole YAML (``ConfigContainer.print_yaml``).
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from recompute.diagnose.observation import Observation

MAX_YAML_LINES: Final = 6000
MAX_ARGUMENTS: Final = 4000

_BEGIN: Final = re.compile(r"-{10,} arguments -{10,}")
_END: Final = re.compile(r"-{10,} end of arguments -{10,}")
_ARGUMENT: Final = re.compile(r"\s{0,4}([A-Za-z_]\w{0,80}) \.{2,60} ?(.{0,4000})")
_SECTION: Final = re.compile(r"\s{0,2}\[(\w{1,40})\](?: Non-default values.{0,80})?:")
_VALUE: Final = re.compile(
    r"\s{2,4}([A-Za-z_]\w{0,80}): (.{1,4000}?)(?:  \(Mcore default: .{0,400}\))?\s*$"
)
_YAML: Final = re.compile(r"\s{0,40}(?:- |[A-Za-z_][\w.]{0,100}:(?: |$)|\? |\.\.\.$|---$)")
_CONTAINER: Final = re.compile(r"_target_: megatron\.bridge\.[\w.]{1,100}ConfigContainer")


class ConfigCollector:
    """Collects the dumps of one file."""

    def __init__(self) -> None:
        self._in_arguments = False
        self._section: str | None = None
        self._in_summary = False
        self._bars = 0
        self._yaml: list[str] = []
        self._is_container = False

    def line(self, text: str, seen: Observation) -> None:
        """Look at one line without its prefixes."""
        if self._arguments(text, seen):
            return
        self._summary(text, seen)
        if _YAML.match(text) is not None and len(self._yaml) < MAX_YAML_LINES:
            self._yaml.append(text)
            self._is_container = self._is_container or _CONTAINER.search(text) is not None
        elif self._yaml:
            self.end_yaml(seen)

    def end_block(self, seen: Observation) -> None:
        """A blank line or the end of the file."""
        self.end_yaml(seen)

    def end_yaml(self, seen: Observation) -> None:
        """Keep the block that ends here if it is a whole configuration."""
        if self._is_container and not seen.yaml_text:
            seen.yaml_text = "\n".join(self._yaml) + "\n"
        self._yaml = []
        self._is_container = False

    def _arguments(self, text: str, seen: Observation) -> bool:
        if _BEGIN.search(text) is not None:
            self._in_arguments = True
            return True
        if not self._in_arguments:
            return False
        if _END.search(text) is not None:
            self._in_arguments = False
            return True
        match = _ARGUMENT.match(text)
        if match is not None and len(seen.arguments) < MAX_ARGUMENTS:
            seen.arguments.setdefault(match[1], match[2].strip())
        return match is not None

    def _summary(self, text: str, seen: Observation) -> None:
        if "Configuration Summary (Non-Default Values" in text:
            self._in_summary, self._bars = True, 0
            return
        if not self._in_summary:
            return
        if text.startswith("=" * 40):
            self._bars += 1
            self._in_summary = self._bars < 2
            return
        section = _SECTION.match(text)
        if section is not None:
            self._section = section[1]
            return
        value = _VALUE.match(text)
        if value is not None and self._section is not None:
            seen.summary.setdefault(self._section, {}).setdefault(value[1], value[2].strip())
