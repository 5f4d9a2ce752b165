"""Take the pictures of the documentation: real pages of a real service in a real browser.

    python tools/screenshots.py NVIDIA/skills=PATH [owner/repo=PATH ...]

indexes the repositories into a folder that is removed at the end, serves them on loopback, and writes
``docs/images/*.png``. Needs Chromium (``CHROMIUM``, or ``chromium`` on the path).
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).resolve().parent.parent
TARGET = ROOT / "docs/images"
MDR = str(Path(sys.executable).parent / "mdr")
QUIET = ["--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync"]
COLORS = 160
"""A page has few colours; a palette halves the file."""


class Shot(NamedTuple):
    """One picture."""

    name: str
    path: str
    """``{id}``, ``{one}`` and ``{two}`` stand for an artifact and two of its labels."""
    width: int = 1100
    height: int = 900
    scheme: str = "light"
    at: str | None = None
    """A place on the page that is scrolled to."""


SHOTS = (
    Shot("home", "/", height=760),
    Shot("search", "/search?q=recompute", height=760),
    Shot("artifact", "/a/{id}", height=1000),
    Shot("artifact-versions", "/a/{id}", height=860, at="#versions"),
    Shot("version", "/a/{id}/v/{two}", height=1000, scheme="dark"),
    Shot("diff", "/a/{id}/diff/{one}...{two}", height=860),
    Shot("phone", "/a/{id}", width=390, height=844, scheme="dark"),
)
ARTIFACT = "skills/nemo-mbridge-perf-activation-recompute/SKILL.md"


@contextmanager
def served(sources: list[tuple[str, str]]) -> Iterator[str]:
    """Index the sources and serve them; the address is what ``mdr serve`` prints."""
    with TemporaryDirectory() as folder:
        for name, place in sources:
            subprocess.run([MDR, "index", place, "--as", name, "--data", folder], check=True)
        command = [MDR, "serve", "--port", "0", "--data", folder]
        with subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        ) as server:
            assert server.stdout is not None
            yield server.stdout.readline().strip()
            server.terminate()


def values_of(page: Any, base: str) -> dict[str, str]:
    """Ask the service for the artifact that the pictures show, and two labels of it."""
    from mdr.artifact.types import artifact_id

    name = artifact_id("github.com", "NVIDIA/skills", ARTIFACT)
    document = page.request.get(f"{base}/api/v1/artifacts/{name}/versions").json()
    labels = [each["label"] for each in document["items"]]
    return {"id": name, "one": labels[1], "two": labels[0]}


def shrink(path: Path) -> None:
    """Write the picture again with a palette."""
    from PIL import Image

    with Image.open(path) as picture:
        small = picture.convert("RGB").quantize(COLORS, dither=Image.Dither.NONE)
    small.save(path, optimize=True)


def main(arguments: list[str]) -> None:
    """Take every picture."""
    from playwright.sync_api import sync_playwright

    sources = [(name, place) for name, _, place in (each.partition("=") for each in arguments)]
    chromium = os.environ.get("CHROMIUM") or shutil.which("chromium")
    TARGET.mkdir(exist_ok=True)
    with served(sources) as base, sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=chromium, args=QUIET)
        values: dict[str, str] | None = None
        for shot in SHOTS:
            page = browser.new_page(
                viewport={"width": shot.width, "height": shot.height},
                color_scheme=shot.scheme,
                reduced_motion="reduce",
            )
            values = values or values_of(page, base)
            page.goto(base + shot.path.format(**values))
            if shot.at is not None:
                page.evaluate("at => document.querySelector(at).scrollIntoView()", shot.at)
            target = TARGET / f"mdr-{shot.name}.png"
            page.screenshot(path=target, animations="disabled")
            page.close()
            shrink(target)
            print(f"{target.name}: {target.stat().st_size:,} bytes")
        browser.close()


if __name__ == "__main__":
    main(sys.argv[1:])
