"""Atom feeds of an artifact's versions, the site map, and what crawlers may do.

Sources: RFC 4287 (Atom), sitemaps.org protocol 0.9, RFC 9309 (robots.txt).
"""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING, Any, Final
from xml.etree import ElementTree as ET

from mdr.answers.answer import Answer
from mdr.errors import BadReference
from mdr.store import listing

if TYPE_CHECKING:
    from collections.abc import Mapping

    from mdr.answers.service import Service

ATOM: Final = "http://www.w3.org/2005/Atom"
SITEMAP: Final = "http://www.sitemaps.org/schemas/sitemap/0.9"
NAMES: Final = uuid.UUID("6f1d4a52-1f0c-5a0e-9c53-5a2a6e0a7d41")
"""Space of our feed ids; they depend on artifact and label only, and stay the same wherever it is served."""
ENTRIES: Final = 50
PART: Final = 10_000
"""Artifacts of one part of the site map; the protocol allows 50,000 addresses and 50 MB."""
FIXED: Final = ("/", "/search", "/about/audit")


def feed(service: Service, artifact_id: str) -> Answer:
    """Write the feed of an artifact, newest version first.

    Raises:
        mdr.errors.BadReference: not-found.
    """
    found = service.reading.found(artifact_id)
    versions = service.reading.versions(artifact_id, limit=ENTRIES)["items"]
    base, home = service.base_url, f"{service.base_url}/a/{artifact_id}"
    root = ET.Element(f"{{{ATOM}}}feed")
    _add(root, "id", f"urn:uuid:{uuid.uuid5(NAMES, artifact_id)}")
    _add(root, "title", f"{found.name} ({found.ref})")
    _add(root, "updated", max((each["committed"] for each in versions), default=_EPOCH))
    _add(root, "link", rel="self", type="application/atom+xml", href=f"{home}/feed.atom")
    _add(root, "link", rel="alternate", type="text/html", href=home)
    _add(_add(root, "author"), "name", found.repository.partition("/")[0])
    if found.description:
        _add(root, "subtitle", found.description)
    for number, version in enumerate(versions):
        before = versions[number + 1]["label"] if number + 1 < len(versions) else None
        _entry(root, f"{base}/a/{artifact_id}", artifact_id, version, before)
    return _xml(root, ATOM, "application/atom+xml; charset=utf-8")


def _entry(
    root: ET.Element, home: str, artifact_id: str, version: Mapping[str, Any], before: str | None
) -> None:
    entry = _add(root, "entry")
    _add(entry, "id", f"urn:uuid:{uuid.uuid5(NAMES, artifact_id + ' ' + version['label'])}")
    _add(entry, "title", f"{version['label']}, audit {version['grade'] or 'not known'}")
    _add(entry, "updated", version["committed"])
    _add(entry, "published", version["committed"])
    _add(entry, "link", rel="alternate", type="text/html", href=f"{home}/v/{version['label']}")
    if before is not None:
        href = f"{home}/diff/{before}...{version['label']}"
        _add(entry, "link", rel="related", type="text/html", title="diff", href=href)
    words = f"{version['size']:,} bytes, sha256 {version['sha256']}"
    if version["yanked"] is not None:
        words += f"; yanked: {version['yanked']['reason']}"
    _add(entry, "summary", words)


def sitemap_index(service: Service) -> Answer:
    """Write the list of the parts of the site map."""
    root = ET.Element(f"{{{SITEMAP}}}sitemapindex")
    parts = -(-listing.last_number(service.stores.index) // PART)
    for part in range(max(1, parts)):
        entry = ET.SubElement(root, f"{{{SITEMAP}}}sitemap")
        ET.SubElement(entry, f"{{{SITEMAP}}}loc").text = f"{service.base_url}/sitemap-{part}.xml"
    return _xml(root, SITEMAP, "application/xml; charset=utf-8")


def sitemap_part(service: Service, part: int) -> Answer:
    """Write one part: artifacts by number, so that new ones never move old ones to another part.

    Raises:
        mdr.errors.BadReference: not-found.
    """
    last = listing.last_number(service.stores.index)
    if part and part * PART >= last:
        raise BadReference("not-found", "the site map has no such part", hint="see /sitemap.xml")
    root = ET.Element(f"{{{SITEMAP}}}urlset")
    for path in FIXED if part == 0 else ():
        _url(root, service.base_url + path, None)
    first = part * PART + 1
    for artifact_id, committed in listing.numbered(service.stores.index, first, first + PART - 1):
        _url(root, f"{service.base_url}/a/{artifact_id}", committed)
    return _xml(root, SITEMAP, "application/xml; charset=utf-8")


def robots(service: Service) -> Answer:
    """Say what crawlers may do: everything but endless lists and comparisons."""
    lines = (
        "User-agent: *",
        "Disallow: /search?",
        "Disallow: /a/*/diff/",
        "Disallow: /api/",
        "",
        f"Sitemap: {service.base_url}/sitemap.xml",
        "",
    )
    return Answer(body="\n".join(lines).encode(), media_type="text/plain; charset=utf-8")


_EPOCH: Final = "1970-01-01T00:00:00Z"


def _url(root: ET.Element, address: str, changed: str | None) -> None:
    entry = ET.SubElement(root, f"{{{SITEMAP}}}url")
    ET.SubElement(entry, f"{{{SITEMAP}}}loc").text = address
    if changed is not None:
        ET.SubElement(entry, f"{{{SITEMAP}}}lastmod").text = changed


def _add(parent: ET.Element, tag: str, text: str | None = None, **attributes: str) -> ET.Element:
    element = ET.SubElement(parent, f"{{{ATOM}}}{tag}", attributes)
    element.text = None if text is None else xml_text(text)
    return element


def xml_text(text: str) -> str:
    """Replace what XML 1.0 cannot hold."""
    return "".join(
        char
        if char in "\t\n\r" or 0x20 <= ord(char) < 0xD800 or 0xE000 <= ord(char) < 0xFFFE
        or ord(char) >= 0x10000
        else "\ufffd"
        for char in text
    )  # fmt: skip


def _xml(root: ET.Element, space: str, media_type: str) -> Answer:
    ET.register_namespace("", space)
    body = ET.tostring(root, encoding="utf-8", xml_declaration=True, default_namespace=None)
    return Answer(body=body, media_type=media_type)
