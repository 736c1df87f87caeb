"""Where a process that listens on every address is reached."""

import socket

import pytest

from service import own_address
from service.own_address import reachable_host


def resolve_to(monkeypatch: pytest.MonkeyPatch, *addresses: str) -> None:
    found = [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (address, 0)) for address in addresses]

    def getaddrinfo(name: str, *_: object, **__: object) -> object:
        assert name == "this-machine"
        if not found:
            raise socket.gaierror("unknown")
        return found

    monkeypatch.setattr(own_address, "hostname", lambda: "this-machine")
    monkeypatch.setattr(socket, "getaddrinfo", getaddrinfo)


@pytest.mark.parametrize("host", ["127.0.0.1", "10.1.2.3", "broker-1"])
def test_an_address_to_listen_on_is_the_one_to_reach(host: str) -> None:
    assert reachable_host(host) == host


def test_for_every_address_it_is_the_machine_s_own_but_never_loopback(monkeypatch: pytest.MonkeyPatch) -> None:
    resolve_to(monkeypatch, "127.0.1.1", "172.18.0.7", "172.19.0.7")
    for host in ("0.0.0.0", "::", ""):
        assert reachable_host(host) == "172.18.0.7"


@pytest.mark.parametrize(("addresses", "means"), [((), "nothing"), (("127.0.1.1",), "127.0.1.1")])
def test_without_one_it_says_that_it_must_be_given(
    monkeypatch: pytest.MonkeyPatch, addresses: tuple[str, ...], means: str
) -> None:
    resolve_to(monkeypatch, *addresses)
    with pytest.raises(ValueError, match=f"must be given: .* this-machine means {means}"):
        reachable_host("0.0.0.0")
