"""``/a/{id}/v/{label}``: a version read whole, rendered and line by line, with what was found beside it."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final

from mdr.digest import Sha256
from mdr.errors import BadReference
from mdr.web.artifact_page import recompute_command, references, with_links
from mdr.web.hidden import MAX_PARTS, hidden_parts
from mdr.web.lines import folder_notes_of, lines_of, notes_of
from mdr.web.markdown import Rendered, render
from mdr.web.pages import page
from mdr.web.targets import Home, commit_url, home_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from mdr.answers.answer import Answer
    from mdr.answers.service import Service

KEPT: Final = 256
"""Rendered files that are kept: a function of bytes and place, whatever the stores' state."""


def version_page(service: Service, artifact_id: str, label: str) -> Answer:
    """Write the page of a version.

    Raises:
        mdr.errors.BadReference: not-found, bad-reference, digest-too-short, ambiguous-reference.
        mdr.errors.Refusal: tombstone.
    """
    document = service.reading.version(artifact_id, label)
    artifact, version, audit = document["artifact"], document["version"], document["audit"]
    data = service.reading.blob(Sha256(version["sha256"]))
    home = home_of(artifact, version["commit"])
    parts = hidden_parts(data)
    return page(
        "version",
        service.base_url,
        **_frame(service, artifact, version),
        files=[
            {**file, "url": _file_url(home, artifact, file["path"])} for file in document["files"]
        ],
        audit=audit,
        rendered=_rendered(data, home),
        hidden=parts[:MAX_PARTS],
        more_parts=len(parts) > MAX_PARTS,
        lines=lines_of(data, notes_of(audit)),
        own=artifact["path"].rpartition("/")[2],
    )


def file_page(service: Service, artifact_id: str, label: str, path: str) -> Answer:
    """Write the page of another file of a version's folder: its lines, and what was found in it.

    Raises:
        mdr.errors.BadReference: not-found and the other codes of ``resolve``.
        mdr.errors.Refusal: tombstone.
    """
    document = service.reading.version(artifact_id, label)
    artifact, version = document["artifact"], document["version"]
    file = next((each for each in document["files"] if each["path"] == path), None)
    if file is None:
        raise BadReference(
            "not-found",
            f"{artifact['name']} has no file {path!r} at {version['label']}",
            hint="the page of the version lists its files",
        )
    data = service.reading.blob(Sha256(file["sha256"]))
    own = path == artifact["path"].rpartition("/")[2]
    notes = notes_of(document["audit"]) if own else folder_notes_of(document["audit"], path)
    return page(
        "file",
        service.base_url,
        **_frame(service, artifact, version),
        file=file,
        binary=b"\0" in data,
        lines=lines_of(data, notes),
        host_url=_file_url(home_of(artifact, version["commit"]), artifact, path),
    )


def _frame(
    service: Service, artifact: Mapping[str, Any], version: Mapping[str, Any]
) -> dict[str, Any]:
    """Return what every page of a version shows around its content."""
    versions = service.reading.versions(artifact["id"], limit=1_000)["items"]
    linked = with_links(artifact, versions)
    at = next((i for i, each in enumerate(linked) if each["label"] == version["label"]), None)
    before = None if at is None else linked[at]["before"]
    after = linked[at - 1]["label"] if at else None
    return {
        "a": artifact,
        "v": version,
        "before": before,
        "after": after,
        "names": references(service, artifact, version),
        "commit_url": commit_url(artifact["host"], artifact["repository"], version["commit"]),
        "recompute": recompute_command(service.base_url, version["sha256"], artifact["kind"]),
    }


def _file_url(home: Home, artifact: Mapping[str, Any], path: str) -> str | None:
    folder = artifact["path"].rpartition("/")[0]
    return home.blob(f"{folder}/{path}" if folder else path)


@lru_cache(maxsize=KEPT)
def _rendered(data: bytes, home: Home) -> Rendered | None:
    return render(data, home)
