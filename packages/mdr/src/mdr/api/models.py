"""The shapes of the documents, for the OpenAPI document; a test compares every answer with them.

Documents are written by :mod:`mdr.registry.reading`, never by these models: a model describes, so that
client code can be generated and a checker can find a field that nobody documented.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

HEX64 = "^[0-9a-f]{64}$"
KINDS = Literal["skill", "instructions", "rule", "prompt", "agent", "command"]
GRADES = Literal["A", "B", "C", "D", "F"]


class Document(BaseModel):
    """Base: nothing undocumented, nothing left out."""

    model_config = ConfigDict(extra="forbid", populate_by_name=True)


class SourceModel(Document):
    """What the host says about the repository; unknown is null."""

    stars: int | None
    license: str | None
    pushed: str | None
    branch: str | None
    indexed_commit: str | None


class ArtifactModel(Document):
    """One agent-read markdown file in one repository."""

    id: str
    ref: str
    host: str
    repository: str
    path: str
    name: str
    kind: KINDS
    description: str | None
    latest: str | None
    previously: list[str]
    source: SourceModel
    badge_views_30d: int | None


class FolderRevisionModel(Document):
    """A later commit that changed the folder around the file and left the file alone."""

    commit: str
    committed: str
    manifest_sha256: str


class YankedModel(Document):
    """Why a version should no longer be chosen."""

    reason: str
    at: str


class SignatureModel(Document):
    """Who signed a version."""

    state: str
    signer: str | None


class VersionModel(Document):
    """The bytes of an artifact at one commit."""

    label: str
    latest: bool
    committed: str
    commit: str
    size: int
    sha256: str = Field(pattern=HEX64)
    manifest_sha256: str = Field(pattern=HEX64)
    grade: GRADES | None
    ruleset: str
    same_bytes: list[str]
    folder_revisions: list[FolderRevisionModel]
    yanked: YankedModel | None
    signature: SignatureModel | None


class FileModel(Document):
    """One file of a version's folder."""

    path: str
    mode: Literal["100644", "100755", "120000"]
    size: int
    sha256: str = Field(pattern=HEX64)


class FindingModel(Document):
    """One place of a file."""

    line: int
    column: int
    status: str
    shown: str
    why: str


class CheckModel(Document):
    """What one check says."""

    id: str
    title: str
    severity: str
    detail: str | None
    status: Literal["pass", "warn", "fail", "crit", "na", "skipped"]
    findings: list[FindingModel]


class AuditErrorModel(Document):
    """Why a file cannot be audited."""

    code: str
    message: str


class SpecModel(Document):
    """One departure from the SKILL.md specification; never part of the grade."""

    code: str
    field: str | None
    message: str
    advice: bool


class BundleFindingModel(Document):
    """Something in the folder that a reader should know."""

    path: str
    rule: str
    status: str
    line: int | None
    column: int | None
    shown: str
    why: str


class BundleModel(Document):
    """The audit of all files of a folder; never part of the grade."""

    status: str
    files: int
    bytes: int
    read: int
    scripts: list[str]
    unread: list[str]
    findings: list[BundleFindingModel]


class AuditFields(Document):
    """The verdict on one file."""

    sha256: str = Field(pattern=HEX64)
    size: int
    kind: KINDS
    ruleset: str
    grade: GRADES
    penalty: int | None
    error: AuditErrorModel | None
    checks: list[CheckModel]
    spec: list[SpecModel]
    bundle: BundleModel | None


class AuditDocument(AuditFields):
    """Answer of ``/audit/{sha256}``."""

    document: Literal["mdr.audit/1"] = Field(alias="schema")


class ShowDocument(Document):
    """An artifact, its versions, and the audit of the latest."""

    document: Literal["mdr.show/1"] = Field(alias="schema")
    artifact: ArtifactModel
    versions: list[VersionModel]
    audit: AuditFields


class VersionsDocument(Document):
    """One page of an artifact's versions."""

    document: Literal["mdr.versions/1"] = Field(alias="schema")
    artifact: str
    items: list[VersionModel]
    next_cursor: str | None


class VersionDocument(Document):
    """One version with its files and audit."""

    document: Literal["mdr.version/1"] = Field(alias="schema")
    artifact: ArtifactModel
    version: VersionModel
    files: list[FileModel]
    audit: AuditFields


class ResolveDocument(Document):
    """A reference as exact bytes."""

    document: Literal["mdr.resolve/1"] = Field(alias="schema")
    ref: str
    resolved: str
    artifact: ArtifactModel
    version: VersionModel
    files: list[FileModel]
    blob: str


class HitModel(ArtifactModel):
    """An artifact that was found."""

    grade: GRADES | None
    sha256: str | None
    score: float | None


class SearchDocument(Document):
    """One page of artifacts, and how all pages together divide."""

    document: Literal["mdr.search/1"] = Field(alias="schema")
    query: str
    total: int
    items: list[HitModel]
    facets: dict[str, dict[str, int]]
    next_cursor: str | None


class ChangeModel(Document):
    """What came and what went."""

    added: list[str]
    removed: list[str]


class SemanticModel(Document):
    """What a change means to an agent."""

    hosts: ChangeModel
    commands: ChangeModel
    tools: ChangeModel
    credential_paths: ChangeModel
    tokens: list[int]
    grade: list[str | None]


class FileChangeModel(Document):
    """One file that differs."""

    path: str
    change: Literal["added", "removed", "changed", "mode"]
    before: str | None = Field(alias="from")
    after: str | None = Field(alias="to")


class DiffDocument(Document):
    """Two versions side by side."""

    document: Literal["mdr.diff/1"] = Field(alias="schema")
    artifact: ArtifactModel
    before: VersionModel = Field(alias="from")
    after: VersionModel = Field(alias="to")
    added_lines: int
    removed_lines: int
    unified: str
    semantic: SemanticModel
    files: list[FileChangeModel]


class TombstoneModel(Document):
    """Why bytes are no longer served."""

    sha256: str = Field(pattern=HEX64)
    reason: str
    advisory: str | None
    at: str


class KnownModel(Document):
    """What the registry knows of one hash."""

    sha256: str = Field(pattern=HEX64)
    known: bool
    size: int | None
    grade: GRADES | None
    ruleset: str | None
    refs: list[str]
    advisories: list[str]
    tombstone: TombstoneModel | None


class KnownDocument(Document):
    """Answer of ``POST /verify``, in the order asked."""

    document: Literal["mdr.verify-hashes/1"] = Field(alias="schema")
    items: list[KnownModel]


class Problem(BaseModel):
    """An error (RFC 9457). ``code`` is stable; some problems carry more fields, named after their data."""

    model_config = ConfigDict(extra="allow")

    type: str
    title: str
    status: int
    detail: str
    code: str
    hint: str


class Hashes(Document):
    """Question of ``POST /verify``."""

    hashes: list[Annotated[str, Field(pattern=HEX64)]] = Field(max_length=1000)
