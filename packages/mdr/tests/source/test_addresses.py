"""Private networks are not reachable through a source URL."""

from __future__ import annotations

import pytest

from mdr.errors import Refusal
from mdr.source.addresses import check_public, is_public
from mdr.source.locate import locate


@pytest.mark.parametrize(
    "address",
    [
        "127.0.0.1", "10.1.2.3", "192.168.0.1", "172.16.9.9", "169.254.169.254", "100.64.0.1",
        "::1", "fe80::1%eth0", "fd00::1", "::ffff:127.0.0.1", "64:ff9b::7f00:1", "2002:7f00:1::", "224.0.0.1", "0.1.2.3", "nonsense",
    ],
)  # fmt: skip
def test_private_addresses(address: str) -> None:
    assert not is_public(address)


@pytest.mark.parametrize("address", ["140.82.121.4", "2606:50c0:8000::153", "::ffff:140.82.121.4"])
def test_public_addresses(address: str) -> None:
    assert is_public(address)


def test_one_private_address_among_several_refuses(monkeypatch: pytest.MonkeyPatch) -> None:
    _no_proxy(monkeypatch)
    with pytest.raises(Refusal) as caught:
        check_public(
            locate("https://example.org/a/b"), resolver=lambda *_: ["140.82.121.4", "10.0.0.1"]
        )
    assert caught.value.code == "private-address"
    assert caught.value.data["addresses"] == ["10.0.0.1"]


def test_git_is_told_the_checked_addresses(monkeypatch: pytest.MonkeyPatch) -> None:
    _no_proxy(monkeypatch)
    pins = check_public(
        locate("https://example.org/a/b"),
        resolver=lambda *_: ["140.82.121.4", "2606:50c0:8000::153"],
    )
    assert pins == {"http.curloptResolve": "example.org:443:140.82.121.4,[2606:50c0:8000::153]"}


@pytest.mark.parametrize(
    "url", ["https://127.0.0.1/a/b", "http://[::1]:8080/a/b", "http://2130706433/a/b"]
)
def test_literal_addresses_are_looked_at_too(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    _no_proxy(monkeypatch)
    with pytest.raises(Refusal):
        check_public(locate(url), resolver=lambda host, _: [host if ":" in host else "127.0.0.1"])


def _no_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (
        "http_proxy",
        "https_proxy",
        "HTTP_PROXY",
        "HTTPS_PROXY",
        "all_proxy",
        "ALL_PROXY",
    ):
        monkeypatch.delenv(name, raising=False)
