"""Write what ``/about/audit`` shows: definitions from the reference page, rates from public collections.

    python tools/audit_catalogue.py                          definitions only, rates as they are
    python tools/audit_catalogue.py NVIDIA/skills=PATH ...   count again over bare or other repositories

A count takes every artifact at the repository's head. How many of the flagged files were harmless is what
one reader found once (``FALSE``); it cannot be counted, only read again.
"""

from __future__ import annotations

import json
import re
import sys
from collections import Counter
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
REFERENCE = ROOT / "docs/reference/audit-checks.md"
TARGET = ROOT / "packages/mdr/src/mdr/web/data/audit_catalogue.json"
READER = "one reader, once,"
FALSE: dict[str, dict[str, int]] = {
    "NVIDIA/skills": {"pipe-shell": 0},
    "openclaw/skills": {
        "frontmatter": 0, "name": 0, "description": 0, "size": 0, "invisible": 0, "html-comment": 0,
        "exfil-host": 5, "credential": 0, "send-credentials": 3, "injection": 17, "pipe-shell": 4,
        "read-credentials": 7, "raw-ip": 2,
    },
    "github/awesome-copilot": {
        "size": 0, "invisible": 0, "html-comment": 0, "credential": 1, "injection": 7, "pipe-shell": 0,
        "rm-rf": 2, "raw-ip": 1,
    },
}  # fmt: skip
"""Collection -> check -> flagged files whose intent was harmless, from docs/reference/audit-checks.md."""
SECTION = re.compile(r"^## \d+\. `([\w-]+)`: .*\n((?:(?!^## ).*\n?)*)", re.MULTILINE)


def definitions() -> dict[str, dict[str, str]]:
    """Read the reference page: the paragraph of each check, and its three lists."""
    found = {}
    for match in SECTION.finditer(REFERENCE.read_text("utf-8")):
        lines = [line for line in match.group(2).splitlines() if line.strip()]
        words = {
            name: next(
                (plain(line[len(mark) :]) for line in lines if line.startswith(mark)), "not said"
            )
            for name, mark in (
                ("passes", "- passes: "),
                ("fails", "- fails: "),
                ("blind", "- cannot see: "),
            )
        }
        body = " ".join(line for line in lines if not line.startswith("- "))
        found[match.group(1)] = {"definition": plain(body), **words}
    return found


def plain(text: str) -> str:
    """Drop the backticks: the page shows plain words."""
    return text.replace("`", "")


def measured(name: str, place: str) -> dict[str, Any]:
    """Audit every artifact at the head of a repository and count what is flagged."""
    from mdr.audit.run import audit
    from mdr.registry.indexing import index_source
    from mdr.registry.stores import open_stores
    from mdr.settings import Settings

    with TemporaryDirectory() as folder:
        settings = Settings(data=Path(folder))
        index_source(place, settings, name_as=name)
        stores = open_stores(settings, create=False)
        assert stores is not None
        source = stores.index.source("github.com", name)
        assert source is not None
        flagged: Counter[str] = Counter()
        grades: Counter[str] = Counter()
        kinds: Counter[str] = Counter()
        for artifact in stores.index.artifacts_in(source.id):
            if not artifact.present:
                continue
            data = stores.blobs.get(stores.index.versions(artifact, "r1")[0].sha256)
            assert data is not None
            result = audit(data, kind=artifact.kind)
            grades[result.grade] += 1
            kinds[artifact.kind.value] += 1
            flagged.update(check.id for check in result.checks if check.status.rank)
        stores.close()
    return {
        "name": name,
        "commit": source.head,
        "files": sum(kinds.values()),
        "kinds": ", ".join(f"{count} {kind}" for kind, count in sorted(kinds.items())),
        "grades": dict(sorted(grades.items())),
        "flagged": dict(sorted(flagged.items())),
        "false": dict(sorted(FALSE.get(name, {}).items())),
    }


def main(arguments: list[str]) -> None:
    """Write the file."""
    old = json.loads(TARGET.read_text("utf-8")) if TARGET.exists() else {"corpora": []}
    corpora = (
        [measured(*argument.split("=", 1)) for argument in arguments]
        if arguments
        else old["corpora"]
    )
    document = {
        "about": "Written by tools/audit_catalogue.py; shown on /about/audit.",
        "ruleset": "r1",
        "reader": READER,
        "definitions": definitions(),
        "corpora": corpora,
    }
    TARGET.parent.mkdir(exist_ok=True)
    TARGET.write_text(json.dumps(document, indent=1, ensure_ascii=False) + "\n", "utf-8")
    print(f"{len(document['definitions'])} definitions, {len(corpora)} collections")


if __name__ == "__main__":
    main(sys.argv[1:])
