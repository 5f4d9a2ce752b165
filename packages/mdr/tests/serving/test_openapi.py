"""The OpenAPI document is the truth: schemathesis asks every route what it describes, and worse."""

from __future__ import annotations

import json
import warnings
from collections.abc import Iterator

import pytest
from served import Running, running
from starlette.testclient import TestClient
from web_site import GREET, SECOND

from mdr.digest import sha256
from mdr.settings import Settings

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # the library's own, on import
    import schemathesis
    from hypothesis import HealthCheck, Phase, given
    from hypothesis import settings as generated
    from schemathesis.checks import not_a_server_error
    from schemathesis.specs.openapi.checks import (
        content_type_conformance,
        response_schema_conformance,
        status_code_conformance,
    )

CHECKS = (
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_schema_conformance,
)
DIGEST = sha256(SECOND)
KNOWN = {
    "/api/v1/artifacts/{id}": f"/api/v1/artifacts/{GREET}",
    "/api/v1/blob/{sha256}": f"/api/v1/blob/{DIGEST}",
    "/api/v1/audit/{sha256}": f"/api/v1/audit/{DIGEST}",
}


@pytest.fixture(scope="module")
def document(api: TestClient) -> dict[str, object]:
    found: dict[str, object] = api.get("/openapi.json").json()
    return found


@pytest.fixture(scope="module")
def server(settings: Settings, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    folder = tmp_path_factory.mktemp("server")
    with running(settings.data, "--rate-limit", "0", folder=folder) as found:
        yield found


def operations(document: dict[str, object]) -> list[tuple[str, str]]:
    paths = document["paths"]
    assert isinstance(paths, dict)
    return [(path, method) for path, methods in paths.items() for method in methods]


def test_every_route_answers_as_described(server: Running, document: dict[str, object]) -> None:
    schema = schemathesis.openapi.from_dict(document)
    schema.config.update(base_url=server.url)
    for path, method in operations(document):
        operation = schema[path][method.upper()]

        @given(case=operation.as_strategy())
        @generated(
            max_examples=8,
            deadline=None,
            database=None,
            derandomize=True,
            phases=[Phase.generate],
            suppress_health_check=list(HealthCheck),
        )
        def ask(case: schemathesis.Case) -> None:
            case.call_and_validate(checks=list(CHECKS))

        ask()


def test_every_route_of_the_contract_is_described(document: dict[str, object]) -> None:
    paths = document["paths"]
    assert isinstance(paths, dict)
    wanted = {
        "/api/v1/artifacts", "/api/v1/artifacts/{id}", "/api/v1/artifacts/{id}/versions",
        "/api/v1/artifacts/{id}/versions/{label}", "/api/v1/artifacts/{id}/diff", "/api/v1/resolve",
        "/api/v1/blob/{sha256}", "/api/v1/audit/{sha256}", "/api/v1/verify", "/healthz", "/readyz",
        "/metrics",
    }  # fmt: skip
    assert wanted <= set(paths)
    names = [each["operationId"] for path in paths.values() for each in path.values()]
    assert len(names) == len(set(names))


@pytest.mark.parametrize("template", sorted(KNOWN))
def test_the_described_answer_is_the_one_given(
    api: TestClient, document: dict[str, object], template: str
) -> None:
    answer = api.get(KNOWN[template])
    described_types = json.loads(json.dumps(document))["paths"][template]["get"]["responses"]["200"]
    assert answer.headers["content-type"].partition(";")[0] in described_types["content"]
