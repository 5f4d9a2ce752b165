"""Measure the glyphs of badges in a real browser and write ``mdr/web/glyphs.py``.

Needs Chromium (``CHROMIUM`` or ``chromium`` on the path) and DejaVu Sans, whose advances are Verdana's.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path

PATH = Path(__file__).resolve().parent.parent / "packages/mdr/src/mdr/web/glyphs.py"
ASKED = "".join(map(chr, range(0x20, 0x7F))) + "\u2026"
SCRIPT = """(chars) => {
  const pen = document.createElement("canvas").getContext("2d");
  pen.font = "11px 'DejaVu Sans'";
  return Array.from(chars).map((each) => pen.measureText(each).width);
}"""


def main() -> None:
    """Measure and write."""
    from playwright.sync_api import sync_playwright

    chromium = os.environ.get("CHROMIUM") or shutil.which("chromium") or "chromium"
    with sync_playwright() as driver:
        browser = driver.chromium.launch(
            executable_path=chromium, args=["--no-sandbox", "--disable-gpu"]
        )
        page = browser.new_page()
        widths = page.evaluate(SCRIPT, ASKED)
        wide, other = page.evaluate(SCRIPT, "\u4e00\u00e9")
        browser.close()
    rows = [
        f"    {char!r}: {round(width * 100)}," for char, width in zip(ASKED, widths, strict=True)
    ]
    text = "\n".join(
        [
            '"""Advances of glyphs at 11 px, in hundredths of a pixel. Written by tools/badge_glyphs.py."""',
            "",
            "from __future__ import annotations",
            "",
            "from typing import Final",
            "",
            "ADVANCES: Final = {",
            *rows,
            "}",
            f"WIDE: Final = {round(max(wide, 11) * 100)}",
            '"""Han, Hangul, kana, emoji and whatever else may be as wide."""',
            f"OTHER: Final = {round(max(other, 8) * 100)}",
            '"""Letters with accents, Greek, Cyrillic."""',
            "",
        ]
    )
    PATH.write_text(text, "utf-8")
    print(f"{len(ASKED)} glyphs in {PATH.name}")


if __name__ == "__main__":
    main()
