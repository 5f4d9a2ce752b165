"""The pages in a real browser: Debian's Chromium, headless."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import pytest
from web_site import EVIL, GREET, SECOND, id_of

from mdr.digest import sha256

if TYPE_CHECKING:
    from playwright.sync_api import Browser, BrowserContext, Page

CHROMIUM = os.environ.get("CHROMIUM") or shutil.which("chromium")
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="chromium is not installed")
QUIET = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-features=LocalNetworkAccessChecks",
]
PAGES = (
    "/",
    "/search",
    "/search?q=greet&kind=skill",
    f"/a/{GREET}",
    f"/a/{EVIL}",
    f"/a/{GREET}/v/latest",
    f"/a/{EVIL}/v/latest",
    f"/a/{id_of('AGENTS.md')}/v/latest",
    f"/a/{GREET}/v/latest/f/run.sh",
    f"/a/{GREET}/diff/DIFF",
    "/o/acme",
    "/r/acme/tools",
    f"/hash/{sha256(SECOND)}",
    "/about/audit",
    "/no/such/page",
)


@pytest.fixture(scope="module")  # it holds a running event loop, which other files must not find
def browser() -> Iterator[Browser]:
    from playwright.sync_api import sync_playwright

    with sync_playwright() as driver:
        started = driver.chromium.launch(executable_path=CHROMIUM, args=list(QUIET))
        yield started
        started.close()


class Reader:
    """A browser window that notes what should not happen."""

    def __init__(self, context: BrowserContext, base: str) -> None:
        self.base = base
        self.page: Page = context.new_page()
        self.asked: list[str] = []
        self.said: list[str] = []
        self.page.on("request", lambda request: self.asked.append(request.url))
        self.page.on("console", lambda message: self.said.append(message.text))
        self.page.on("pageerror", lambda error: self.said.append(str(error)))
        self.page.on("dialog", lambda dialog: (self.said.append("dialog"), dialog.dismiss()))

    def go(self, path: str) -> Page:
        if "DIFF" in path:
            self.page.goto(f"{self.base}/a/{GREET}")
            path = str(self.page.get_attribute("a[href*='/diff/']", "href"))
        self.page.goto(self.base + path)
        return self.page

    def stayed_home(self) -> bool:
        return {urlsplit(url).netloc for url in self.asked} == {urlsplit(self.base).netloc}


@pytest.fixture
def window(browser: Browser, served: str, request: pytest.FixtureRequest) -> Iterator[Reader]:
    options: dict[str, Any] = getattr(request, "param", {})
    context = browser.new_context(**options)
    yield Reader(context, served)
    context.close()


def wide(**options: Any) -> dict[str, Any]:
    return {"viewport": {"width": 1200, "height": 900}, **options}


def phone(**options: Any) -> dict[str, Any]:
    return {"viewport": {"width": 360, "height": 740}, **options}


def test_search_open_view_and_diff_as_a_reader_would(window: Reader) -> None:
    page = window.go("/")
    page.fill("#q", "greets")
    page.press("#q", "Enter")
    assert "Results for" in page.inner_text("h1")
    page.click(f"a[href='/a/{GREET}'] >> nth=-1")
    assert page.inner_text("h1") == "greet"
    page.click("text=Read the whole file at its exact version.")
    assert "Rendered" in page.inner_text("main")
    page.click("#lines ~ ol a[href='#L24']")
    assert page.url.endswith("#L24")
    assert "No zero-width" in page.inner_text("#L24 .note")
    page.click("text=with the version before")
    assert page.locator("tr.added ins").count() > 0
    assert window.said == []
    assert window.stayed_home()


@pytest.mark.parametrize(
    "window", [wide(permissions=["clipboard-read", "clipboard-write"])], indirect=True
)
def test_copy_puts_the_exact_line_on_the_clipboard(window: Reader) -> None:
    page = window.go(f"/a/{GREET}")
    row = page.locator("[data-copy='the install line by hash']").first
    row.get_by_role("button").click()
    page.wait_for_function("document.querySelector('#live').textContent !== ''")
    copied = page.evaluate("navigator.clipboard.readText()")
    assert copied == row.locator("code").inner_text()
    assert copied.startswith("mdr add acme/tools/greet@sha256:")


def test_the_hash_is_recomputed_in_the_browser(window: Reader) -> None:
    page = window.go(f"/a/{GREET}/v/latest")
    page.get_by_role("button", name="Recompute the hash in this browser").click()
    page.wait_for_selector("output.same")
    assert sha256(SECOND) in page.inner_text("output")
    assert "Recomputed here: same" in page.inner_text("output")


def test_other_bytes_are_called_different(window: Reader) -> None:
    page = window.page
    page.route("**/api/v1/blob/*", lambda route: route.fulfill(body="other bytes"))
    window.go(f"/a/{GREET}/v/latest")
    page.get_by_role("button", name="Recompute the hash in this browser").click()
    page.wait_for_selector("output.different")
    assert "DIFFERENT" in page.inner_text("output")


@pytest.mark.parametrize("window", [wide(color_scheme="light")], indirect=True)
def test_the_theme_follows_the_system_until_it_is_chosen_and_is_kept(window: Reader) -> None:
    paper = "getComputedStyle(document.body).backgroundColor"
    page = window.go("/")
    light = page.evaluate(paper)
    page.emulate_media(color_scheme="dark")
    dark = page.evaluate(paper)
    assert light != dark
    page.click("#theme")  # system -> light
    assert page.evaluate(paper) == light
    page.click("#theme")  # light -> dark
    page.emulate_media(color_scheme="light")
    assert page.evaluate(paper) == dark
    window.go("/search")
    assert page.evaluate(paper) == dark
    assert page.inner_text("#theme") == "Theme: dark"


@pytest.mark.parametrize("window", [wide(java_script_enabled=False)], indirect=True)
@pytest.mark.parametrize("path", PAGES)
def test_every_page_is_whole_without_javascript(window: Reader, path: str) -> None:
    page = window.go(path)
    assert page.locator("main h1").count() == 1
    assert page.locator("button:visible", has_text=re.compile("Copy|Theme|Recompute")).count() == 0
    assert page.locator("form.find").count() == 1


@pytest.mark.parametrize("window", [phone()], indirect=True)
@pytest.mark.parametrize("path", PAGES)
def test_no_page_scrolls_sideways_on_a_phone(window: Reader, path: str) -> None:
    page = window.go(path)
    assert page.evaluate("document.documentElement.scrollWidth") <= 360
    wide_parts = page.evaluate(
        """() => [...document.querySelectorAll('main *')].filter(each => {
          for (let at = each; at; at = at.parentElement) {
            if (['auto', 'scroll', 'hidden'].includes(getComputedStyle(at).overflowX)) return false;
          }
          return each.getBoundingClientRect().right > 361;
        }).map(each => each.outerHTML.slice(0, 90))"""
    )
    assert wide_parts == []


@pytest.mark.parametrize("window", [wide(color_scheme="light")], indirect=True)
@pytest.mark.parametrize("path", PAGES)
def test_axe_finds_no_violation(window: Reader, path: str) -> None:
    import axe_playwright_python

    page = window.go(path)
    script = Path(axe_playwright_python.__file__).parent / "axe.min.js"
    page.evaluate(script.read_text("utf-8"))  # run by the driver, which no policy forbids
    for theme in ("light", "dark"):
        page.emulate_media(color_scheme=theme)
        page.set_viewport_size({"width": 1200 if theme == "light" else 360, "height": 800})
        found = page.evaluate("axe.run()")
        assert len(found["passes"]) > 10
        assert [
            (theme, each["id"], [node["html"][:160] for node in each["nodes"][:3]])
            for each in found["violations"]
        ] == []


def test_the_keyboard_reaches_everything_in_order_and_focus_is_seen(window: Reader) -> None:
    page = window.go(f"/a/{GREET}")
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.textContent") == "Skip to content"
    assert page.evaluate("document.activeElement.getBoundingClientRect().left") >= 0
    page.keyboard.press("Enter")
    assert page.url.endswith("#main")
    window.go(f"/a/{GREET}")
    reached: list[str] = []
    for _ in range(60):
        page.keyboard.press("Tab")
        name = page.evaluate(
            "(e => e.getAttribute('aria-label') || e.textContent.trim() || e.name || '')(document.activeElement)"
        )
        outline = page.evaluate("getComputedStyle(document.activeElement).outlineStyle")
        assert outline != "none", name
        reached.append(name)
        if name == "API":
            break
    for wanted in ("Search", "Browse", "Theme: system", "Read the whole file at its exact version.",
                   "Copy the install line by label", "Recompute the hash in this browser"):  # fmt: skip
        assert wanted in reached
    assert reached.index("Browse") < reached.index("Copy the install line by label")


@pytest.mark.parametrize(
    "path", [f"/a/{EVIL}", f"/a/{EVIL}/v/latest", "/r/acme/tools", "/search?q=evil", "/"]
)
def test_a_hostile_file_runs_nothing_and_reaches_nobody(window: Reader, path: str) -> None:
    page = window.go(path)
    page.wait_for_load_state("networkidle")
    assert window.said == []
    assert window.stayed_home()
    assert page.locator("main script, main iframe, main svg[onload], main img").count() == 0


def test_every_known_vector_is_harmless_in_a_real_browser(window: Reader) -> None:
    from web_xss import VECTORS

    from mdr.web.markdown import render
    from mdr.web.pages import POLICY
    from mdr.web.targets import Home

    home = Home(host="github.com", repository="a/b", path="SKILL.md", commit="c" * 40)
    pieces = [
        render(f"{each}\n\ntext {each}\n".encode("utf-8", "replace"), home) for each in VECTORS
    ]
    html = "".join(f"<section>{piece.html}</section>" for piece in pieces if piece is not None)
    page = window.page
    called: list[str] = []
    page.expose_function("boom", lambda: called.append("boom"))
    # once without the policy, so that the renderer alone has to hold; once as it is served
    served_with: dict[str, str] = {}
    body = f"<!doctype html><title>x</title>{html}"
    page.route(
        "**/vectors",
        lambda route: route.fulfill(body=body, content_type="text/html", headers=served_with),
    )
    for headers in ({}, {"content-security-policy": POLICY}):
        served_with.update(headers)
        page.goto(window.base + "/vectors")
        page.evaluate("""() => {
          const events = ['mouseover', 'focus', 'toggle', 'load', 'error', 'begin', 'start'];
          for (const each of document.querySelectorAll('*'))
            for (const name of events) each.dispatchEvent(new Event(name));
        }""")
        page.wait_for_load_state("networkidle")
    assert called == []
    assert window.said == []
    assert window.stayed_home()
    schemes = page.evaluate(
        "[...new Set([...document.querySelectorAll('a[href]')].map(each => each.protocol))]"
    )
    assert set(schemes) <= {"http:", "https:", "mailto:"}


def test_the_policy_stops_what_might_slip_through(window: Reader) -> None:
    page = window.go(f"/a/{GREET}")
    page.evaluate("""() => {
      const script = document.createElement('script');
      script.textContent = 'window.ran = true';
      document.body.append(script);
      const image = new Image();
      image.src = 'https://evil.example/x.png';
      document.body.append(image);
    }""")
    page.wait_for_load_state("networkidle")
    assert page.evaluate("window.ran") is None
    assert any("Content Security Policy" in each for each in window.said)


def test_the_badge_can_be_embedded_by_another_page(window: Reader) -> None:
    page = window.page
    page.route(
        "**/elsewhere",
        lambda route: route.fulfill(
            body=f"<!doctype html><title>x</title><img id=b src='{window.base}/badge/{GREET}.svg'>",
            content_type="text/html",
        ),
    )
    page.goto(window.base.replace("127.0.0.1", "localhost") + "/elsewhere")
    page.wait_for_function("document.querySelector('#b').complete")
    assert page.evaluate("document.querySelector('#b').naturalWidth") > 60


def test_printing_leaves_out_what_paper_cannot_do(window: Reader) -> None:
    page = window.go(f"/a/{GREET}")
    page.emulate_media(media="print")
    assert page.locator("nav:visible, .find:visible, .copy:visible").count() == 0
    assert page.locator("h1:visible").count() == 1
