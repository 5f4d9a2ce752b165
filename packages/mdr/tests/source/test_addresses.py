"""Private networks are not reachable through a source URL."""

from __future__ import annotations

import ipaddress
import shlex
import subprocess

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mdr.errors import Refusal, SourceError
from mdr.source import addresses, git
from mdr.source.addresses import check_public, is_ours
from mdr.source.locate import locate
from mdr.source.ranges import BLOCKS, Block, is_public


@pytest.mark.parametrize("block", BLOCKS, ids=lambda block: block.network)
def test_every_block_refuses_what_it_holds_and_not_its_neighbour(block: Block) -> None:
    network = ipaddress.ip_network(block.network)
    assert ipaddress.ip_address(block.inside) in network
    assert not is_public(block.inside)
    assert block.outside == "-" or is_public(block.outside)


@pytest.mark.parametrize(
    "address",
    [
        "::ffff:127.0.0.1", "::ffff:10.0.0.1", "::127.0.0.1", "64:ff9b::7f00:1", "64:ff9b::a9fe:a9fe",
        "64:ff9b:1::808:808", "2002:808:808::1", "2001:0:808:808::", "::ffff:0:8.8.8.8", "fe80::1%eth0",
        "::1", "::", "255.255.255.255", "nonsense", "", "127.1", "0x7f000001", "8.8.8.8%eth0",
    ],
)  # fmt: skip
def test_other_dresses_of_addresses_that_are_not_public(address: str) -> None:
    assert not is_public(address)


@pytest.mark.parametrize(
    "address",
    ["140.82.121.4", "2606:50c0:8000::153", "::ffff:140.82.121.4", "64:ff9b::8c52:7904"],
)
def test_public_addresses(address: str) -> None:
    assert is_public(address)


@given(st.ip_addresses(v=4))
def test_an_ipv4_address_is_judged_alike_in_every_dress(ip: ipaddress.IPv4Address) -> None:
    low = int(ip)
    dresses = [(0xFFFF << 32) | low, (0x64FF9B << 96) | low]
    assert {is_public(str(ipaddress.IPv6Address(each))) for each in dresses} == {is_public(str(ip))}


@given(st.ip_addresses())
def test_what_python_calls_private_is_never_public(ip: ipaddress.IPv4Address) -> None:
    assert not (is_public(str(ip)) and (ip.is_private or ip.is_multicast or ip.is_loopback))


def test_an_address_of_this_machine_is_refused_whatever_its_block(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(addresses, "is_public", lambda _address: True)
    with pytest.raises(Refusal) as caught:
        check_public(locate("https://example.org/a/b"), resolver=lambda *_: ["127.0.0.1"])
    assert caught.value.data["addresses"] == ["127.0.0.1"]
    assert not is_ours("140.82.121.4")


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
    assert pins.config == {
        "http.curloptResolve": "example.org:443:140.82.121.4,[2606:50c0:8000::153]"
    }
    assert pins.address == "https://example.org/a/b"


def test_ssh_is_told_the_checked_address_and_the_name_whose_key_is_expected() -> None:
    for url, alias in (
        ("git@example.org:a/b.git", "example.org"),
        ("ssh://git@example.org:2222/a/b", "[example.org]:2222"),
    ):
        pins = check_public(locate(url), resolver=lambda *_: ["2606:50c0:8000::153"])
        words = shlex.split(git.environment(ssh_options=pins.ssh_options)["GIT_SSH_COMMAND"])
        seen = subprocess.run(
            [*words, "-G", "example.org"], capture_output=True, text=True, check=True
        ).stdout.splitlines()
        assert "hostname 2606:50c0:8000::153" in seen
        assert f"hostkeyalias {alias}" in seen
        assert "batchmode yes" in seen


def test_the_git_protocol_goes_to_the_address_and_names_the_host() -> None:
    pins = check_public(locate("git://example.org/a/b"), resolver=lambda *_: ["140.82.121.4"])
    assert pins.address == "git://140.82.121.4:9418/a/b"
    assert pins.variables == {"GIT_OVERRIDE_VIRTUAL_HOST": "example.org:9418"}


def test_an_old_git_that_would_ignore_the_pin_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    _no_proxy(monkeypatch)
    monkeypatch.setattr(addresses, "version", lambda: (2, 36))
    with pytest.raises(SourceError) as caught:
        check_public(locate("https://example.org/a/b"), resolver=lambda *_: ["140.82.121.4"])
    assert caught.value.code == "git-too-old"


def test_the_pin_is_given_behind_a_proxy_too(monkeypatch: pytest.MonkeyPatch) -> None:
    _no_proxy(monkeypatch)
    monkeypatch.setenv("https_proxy", "http://proxy.example:3128")
    pins = check_public(locate("https://example.org/a/b"), resolver=lambda *_: ["140.82.121.4"])
    assert "http.curloptResolve" in pins.config


@pytest.mark.parametrize(
    ("variable", "exception", "refused"),
    [
        ("https_proxy", "", False),
        ("https_proxy", "example.org", True),
        ("HTTP_PROXY", "", True),  # git is not given it
        ("http_proxy", "", True),  # of another scheme
    ],
)
def test_only_a_name_that_a_proxy_looks_up_may_be_unknown_here(
    variable: str, exception: str, refused: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    _no_proxy(monkeypatch)
    monkeypatch.setenv(variable, "http://proxy.example:3128")
    monkeypatch.setenv("no_proxy", exception)

    def unknown(host: str, _port: int) -> list[str]:
        raise SourceError("host-unknown", f"the host {host} cannot be found")

    if refused:
        with pytest.raises(SourceError):
            check_public(locate("https://example.org/a/b"), resolver=unknown)
    else:
        assert check_public(locate("https://example.org/a/b"), resolver=unknown).config == {}


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
        "no_proxy",
        "NO_PROXY",
    ):
        monkeypatch.delenv(name, raising=False)


def test_a_name_that_is_nowhere_may_be_one_that_a_registry_holds(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def nowhere(*_: object, **__: object) -> list[object]:
        raise OSError

    monkeypatch.setattr("socket.getaddrinfo", nowhere)
    with pytest.raises(SourceError) as caught:
        addresses.resolve("github.com", 443)
    assert caught.value.code == "host-unknown"
    assert "--registry URL" in caught.value.hint
