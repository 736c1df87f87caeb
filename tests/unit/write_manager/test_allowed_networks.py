"""Addresses that others may name, so that they are called there."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from myqueue.protocol.errors import InvalidRequest
from write_manager.heartbeats import MAX_ENDPOINT_CHARS, AllowedNetworks
from write_manager.read_managers import MAX_NAME_CHARS, check_name

NETWORKS = AllowedNetworks(["127.0.0.0/8", "10.0.0.0/8", "::1/128"])


@pytest.mark.parametrize("host", ["127.0.0.1", "10.1.2.3", "[::1]", "localhost"])
def test_addresses_inside_the_networks(host: str) -> None:
    NETWORKS.check_endpoint(f"http://{host}:5001")
    NETWORKS.check_data_address(f"{host}:5402")


@pytest.mark.parametrize(
    ("endpoint", "why"),
    [
        ("http://192.0.2.1:5001", "outside the networks"),
        ("http://[2001:db8::1]:5001", "outside the networks"),
        ("http://no-such-host.invalid:5001", "cannot be resolved"),
        ("http://a..b:5001", "cannot be resolved"),
        (f"http://{'1' * MAX_ENDPOINT_CHARS}:5001", f"longer than {MAX_ENDPOINT_CHARS}"),
        *(
            (endpoint, "must be http://host:port")
            for endpoint in (
                *("", "127.0.0.1:5001", "https://127.0.0.1:5001", "http://127.0.0.1", "http://127.0.0.1:"),
                *("http://127.0.0.1:0", "http://127.0.0.1:65536", "http://127.0.0.1:5001/", "http://127.0.0.1:5001\n"),
                *("http://127.0.0.1:5001?x", "http://127.0.0.1:5001#x", "http://u@127.0.0.1:5001", "http://$host:80"),
                *("http://127.0.0.1:5001 127.0.0.1:5002", "http://127.0.0.1:٥٠٠١", "http://a\x00b:80"),
            )
        ),
    ],
)
def test_addresses_that_are_refused(endpoint: str, why: str) -> None:
    with pytest.raises(InvalidRequest, match=f"endpoint: .*{re.escape(why)}"):
        NETWORKS.check_endpoint(endpoint)


def test_the_field_is_named() -> None:
    with pytest.raises(InvalidRequest, match="data_address: must be host:port"):
        NETWORKS.check_data_address("127.0.0.1")


@pytest.mark.parametrize("name", ["", "x" * (MAX_NAME_CHARS + 1), "a\x00b", "a\nb", "\ud800"])
def test_names_that_are_refused(name: str) -> None:
    with pytest.raises(InvalidRequest, match="name: must have 1 to 200 printable characters"):
        check_name(name)


@given(st.text(max_size=MAX_NAME_CHARS + 50))
def test_a_name_that_is_taken_can_be_stored(name: str) -> None:
    try:
        check_name(name)
    except InvalidRequest:
        return
    assert 1 <= len(name) <= MAX_NAME_CHARS
    assert "\x00" not in name
    name.encode()
