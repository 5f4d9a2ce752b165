"""The reference page is the table."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

ROOT = Path(__file__).resolve().parents[4]


def writer() -> ModuleType:
    spec = importlib.util.spec_from_file_location(
        "rules_reference", ROOT / "tools" / "rules_reference.py"
    )
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_page_is_what_the_table_says() -> None:
    page = (ROOT / "docs" / "reference" / "rules.md").read_text(encoding="utf-8")
    assert page == writer().render(), "run: python tools/rules_reference.py"
