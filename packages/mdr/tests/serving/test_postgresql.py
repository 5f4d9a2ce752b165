"""The same service on PostgreSQL: documents, and a write that the next read sees."""

from __future__ import annotations

from pathlib import Path

from served import client
from web_site import GREET, SECOND, build

from mdr.digest import sha256
from mdr.registry.indexing import index_source
from mdr.registry.stores import open_stores
from mdr.registry.tokens import issue
from mdr.settings import Settings


def test_reads_and_writes(empty_postgres_url: str, tmp_path: Path) -> None:
    settings = Settings(
        data=tmp_path / "data", database=empty_postgres_url, index_on_demand=False, workers=1
    )
    index_source(str(build(tmp_path / "r.git").path), settings, name_as="Acme/Tools")
    stores = open_stores(settings, create=False)
    assert stores is not None
    _, secret = issue(stores, name="n", scopes=["versions:yank"], by="test")
    stores.close()
    ref = "/api/v1/resolve?ref=acme/tools/greet"
    with client(settings) as api:
        assert api.get("/readyz").json()["ready"] is True
        newest = api.get(ref).json()["version"]
        assert (newest["sha256"], api.get(ref).status_code) == (sha256(SECOND), 200)
        assert api.get(f"/api/v1/blob/{sha256(SECOND)}").content == SECOND
        assert api.get("/api/v1/artifacts?q=greeting").json()["total"] >= 1
        done = api.put(
            f"/api/v1/artifacts/{GREET}/versions/{newest['label']}/yank",
            json={"reason": "broken"},
            headers={"authorization": f"Bearer {secret}"},
        )
        assert done.status_code == 204
        assert api.get(ref).json()["version"]["label"] != newest["label"]
