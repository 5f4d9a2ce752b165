"""Which names a server answers to, by how it is bound and what it was told."""

from __future__ import annotations

import pytest
from served import client
from web_site import GREET

from mdr.errors import UsageError
from mdr.serving.names import Names, host_names, is_loopback, name_of
from mdr.serving.options import Options
from mdr.settings import Settings

LOOP = Options()
NAMED = Options(allowed_hosts=("registry.lan",))
EVERY = "0.0.0.0"  # noqa: S104 - the case in question
OPEN = Options(host=EVERY)
LISTED = Options(host=EVERY, allowed_hosts=("registry.lan",))
ANYTHING = Options(allowed_hosts=("*",))


def names(options: Options, base_url: str = "http://127.0.0.1:8000") -> Names:
    return Names(options, base_url)


def served(found: Names, host: str) -> bool:
    try:
        found.check({"headers": [(b"host", host.encode("latin-1"))]})
    except UsageError as error:
        return error.code != "host-not-served"
    return True


@pytest.mark.parametrize(
    ("options", "host", "yes"),
    [
        (LOOP, "127.0.0.1:8000", True),
        (LOOP, "127.0.0.1:9999", True),  # through a tunnel
        (LOOP, "localhost", True),
        (LOOP, "LocalHost.:8000", True),
        (LOOP, "[::1]:8000", True),
        (LOOP, "[0:0:0:0:0:0:0:1]", True),
        (LOOP, "evil.example", False),
        (LOOP, "localhost.evil.example", False),
        (LOOP, "127.0.0.1.evil.example:8000", False),
        (LOOP, "evil.example:80@localhost", False),
        (LOOP, "localhost:80@evil.example", False),
        (LOOP, "localhost, evil.example", False),
        (LOOP, "localhost\xa0", False),
        (LOOP, "[::1", False),
        (LOOP, "192.0.2.1", False),
        (NAMED, "registry.lan:8000", True),
        (NAMED, "Registry.LAN", True),
        (NAMED, "other.lan", False),
        (OPEN, "whatever.example", True),
        (LISTED, "registry.lan", True),
        (LISTED, "127.0.0.1:8000", True),
        (LISTED, "evil.example", False),
        (ANYTHING, "evil.example", True),
    ],
)
def test_a_host_is_served_or_not(options: Options, host: str, *, yes: bool) -> None:
    assert served(names(options), host) is yes


def test_the_public_address_is_a_name_of_the_server() -> None:
    found = names(LOOP, "https://Registry.example:8443")
    assert served(found, "registry.example")
    assert served(found, "registry.example:8443")
    assert not served(found, "evil.example")


def test_a_name_that_turned_out_to_be_this_machine_is_as_strict() -> None:
    found = names(Options(host="laptop", bound="127.0.1.1"))
    assert served(found, "laptop:8000")
    assert served(found, "127.0.1.1")
    assert not served(found, "evil.example")


def test_every_one_of_several_hosts_must_be_served() -> None:
    with pytest.raises(UsageError):
        names(LOOP).check({"headers": [(b"host", b"localhost"), (b"host", b"evil.example")]})
    names(LOOP).check({"headers": []})


@pytest.mark.parametrize(
    ("options", "origin", "host", "yes"),
    [
        (LOOP, None, "127.0.0.1", True),
        (LOOP, "http://localhost:6274", "127.0.0.1", True),
        (LOOP, "http://127.0.0.1:8000", "127.0.0.1:8000", True),
        (LOOP, "https://evil.example", "127.0.0.1:8000", False),
        (LOOP, "null", "127.0.0.1:8000", False),
        (LOOP, "file://", "127.0.0.1:8000", False),
        (OPEN, "https://registry.example", "registry.example", True),
        (OPEN, "https://evil.example", "registry.example", False),
        (LISTED, "https://registry.lan", "127.0.0.1", True),
    ],
)
def test_a_page_of_another_site_does_not_use_the_tools(
    options: Options, origin: str | None, host: str, *, yes: bool
) -> None:
    headers = [(b"host", host.encode())]
    headers += [] if origin is None else [(b"origin", origin.encode())]
    scope = {"headers": headers}
    if yes:
        names(options).check_origin(scope)
        return
    with pytest.raises(UsageError) as caught:
        names(options).check_origin(scope)
    assert caught.value.code == "origin-not-allowed"


@pytest.mark.parametrize("path", ["/", f"/a/{GREET}", "/api/v1/artifacts", "/metrics", "/nope"])
def test_the_whole_service_refuses_and_says_how_to_allow(settings: Settings, path: str) -> None:
    with client(settings) as api:
        first = api.get(path)  # kept from now on, which must change nothing
        assert first.status_code in {200, 404}
        answer = api.get(path, headers={"host": "evil.example"})
        assert answer.status_code == 421
        assert "host-not-served" in answer.text
        assert "--allow-host" in answer.text
        assert answer.headers["cache-control"] == "no-store"


def call(api: object, **headers: str) -> int:
    fields = {"accept": "application/json, text/event-stream", **headers}
    asked = {"jsonrpc": "2.0", "id": 1, "method": "tools/list", "params": {}}
    answer = api.post("/mcp", json=asked, headers=fields)  # type: ignore[attr-defined]
    return int(answer.status_code)


def test_the_tools_answer_to_the_names_of_the_server_and_to_no_page_of_another(
    settings: Settings,
) -> None:
    with client(settings, allowed_hosts=("registry.lan",)) as api:
        for host in (
            "registry.example",
            "registry.lan:8000",
            "127.0.0.1:8000",
            "[::1]:1",
            "localhost",
            "LOCALHOST:8767",
            "localhost.:1",
        ):
            assert call(api, host=host) == 200, host
            assert call(api, host=host, origin=f"https://{host}") == 200, host
        assert call(api, host="evil.example") == 421
        assert call(api, origin="https://evil.example") == 403
    with client(settings, host="192.0.2.1") as api:
        assert call(api, host="whatever.example") == 200
        assert call(api, host="whatever.example", origin="https://evil.example") == 403


@pytest.mark.parametrize(
    "text", ["", "https://a.example", "a b", "a/b", "a:80", "::1", "\u00e4.example"]
)
def test_what_is_no_name_is_refused(text: str) -> None:
    with pytest.raises(UsageError) as caught:
        host_names((text,))
    assert caught.value.code == "bad-address"


def test_names_are_read_as_host_has_them() -> None:
    assert name_of("A.Example.:80") == "a.example"
    assert name_of("[2001:DB8:0::1]:1") == "[2001:db8::1]"
    assert name_of("") is None
    assert host_names(("a.example", "[::1]", "*")) == ("a.example", "[::1]", "*")


@pytest.mark.parametrize(
    ("address", "yes"),
    [
        ("127.0.0.1", True), ("127.9.9.9", True), ("::1", True), ("::ffff:127.0.0.1", True),
        ("localhost", True), (EVERY, False), ("::", False), ("10.0.0.1", False), ("laptop", False),
    ],
)  # fmt: skip
def test_an_address_is_loopback_or_not(address: str, *, yes: bool) -> None:
    assert is_loopback(address) is yes
