"""The pages in a real browser: Debian's Chromium, headless."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from playwright.sync_api import Page

ROOT = Path(__file__).resolve().parents[4]
CHROMIUM = os.environ.get("CHROMIUM") or shutil.which("chromium")
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="chromium is not installed")
QUIET = ["--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync"]
PAGES = {
    "explain": ("explain", "examples/deepseek-v3.yaml"),
    "plan": ("plan", "examples/llama3-8b-h200.yaml", "--budget", "20GiB"),
    "what-if": ("plan", "examples/llama3-8b-h200.yaml", "--budget", "16GiB,20GiB,26GiB"),
    "compare": ("compare", "examples/ledger"),
    "diagnose": ("diagnose", "examples/logs/megatron-lm-activations.log"),
    "runs": ("diagnose", "examples/logs"),
    "snapshot": (
        "diagnose",
        "packages/recompute/tests/data/h200_snapshots/dense_gqa.pickle.xz",
    ),
}


@pytest.fixture(scope="module")
def browser() -> Iterator[Page]:
    from playwright.sync_api import sync_playwright

    with sync_playwright() as driver:
        started = driver.chromium.launch(executable_path=CHROMIUM, args=list(QUIET))
        yield started.new_page()
        started.close()


@pytest.mark.parametrize("name", PAGES)
def test_a_page_fits_a_phone_and_axe_finds_no_violation(
    browser: Page, name: str, tmp_path: Path
) -> None:
    import axe_playwright_python

    target = tmp_path / "page.html"
    made = subprocess.run(
        [sys.executable, "-m", "recompute", *PAGES[name], "--html", str(target)],
        cwd=ROOT,
        capture_output=True,
        check=False,
    )
    assert made.returncode == 0, made.stderr
    browser.goto(target.as_uri())
    script = Path(axe_playwright_python.__file__).parent / "axe.min.js"
    browser.evaluate(script.read_text("utf-8"))
    for theme, width in (("light", 1200), ("dark", 360)):
        browser.emulate_media(color_scheme=theme)  # type: ignore[arg-type]
        browser.set_viewport_size({"width": width, "height": 800})
        assert browser.evaluate("document.documentElement.scrollWidth") <= width
        found = browser.evaluate("axe.run()")
        assert len(found["passes"]) > 10
        assert [
            (theme, each["id"], [node["html"][:160] for node in each["nodes"][:3]])
            for each in found["violations"]
        ] == []
