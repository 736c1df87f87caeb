"""Addresses as people write them."""

import pytest

from myqueue.http_connection import base_url


@pytest.mark.parametrize(
    ("written", "url"),
    [
        ("http://localhost", "http://localhost"),
        ("http://localhost/", "http://localhost"),
        ("localhost", "http://localhost"),
        ("localhost:8080", "http://localhost:8080"),
        ("127.0.0.1:8080/", "http://127.0.0.1:8080"),
        (" https://queue.example:8443// ", "https://queue.example:8443"),
        ("http://gateway/queue/", "http://gateway/queue"),
        ("[::1]:8080", "http://[::1]:8080"),
    ],
)
def test_good_addresses(written: str, url: str) -> None:
    assert base_url(written) == url


@pytest.mark.parametrize(
    "written", ["", "http://", "ftp://host", "host:notaport", "host:70000", "http://a b", "http://u:p@host", "host?x=1"]
)
def test_bad_addresses_are_named(written: str) -> None:
    with pytest.raises(ValueError, match=r"address|port"):
        base_url(written)
