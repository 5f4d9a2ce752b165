"""Values as YAML text that our own reader, PyYAML and OmegaConf read back to the same value."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from typing import Any, Final

from recompute.config.yaml_source import scalar

_PLAIN: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]{0,100}")
_ESCAPED: Final = re.compile("[\x7f-\x9f\u2028\u2029\ufeff\ud800-\udfff\ue000-\ue001]")


def yaml_value(value: Any) -> str:
    """Return a value in flow style, on one line."""
    if isinstance(value, Mapping):
        return (
            "{" + ", ".join(f"{yaml_text(str(k))}: {yaml_value(v)}" for k, v in value.items()) + "}"
        )
    if isinstance(value, list | tuple):
        return "[" + ", ".join(yaml_value(item) for item in value) + "]"
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float):
        return _float(value)
    return str(value) if isinstance(value, int) else yaml_text(str(value))


def yaml_text(text: str) -> str:
    """Return text plain where it cannot be taken for anything else, otherwise in double quotes."""
    if _PLAIN.fullmatch(text) and scalar(text) == text:
        return text
    quoted = json.dumps(text, ensure_ascii=False)
    return _ESCAPED.sub(lambda match: f"\\u{ord(match[0]):04x}", quoted)


def _float(value: float) -> str:
    if math.isnan(value):
        return ".nan"
    if math.isinf(value):
        return ".inf" if value > 0 else "-.inf"
    text = repr(value)
    if "e" in text and "." not in text:
        return text.replace("e", ".0e")
    return text
