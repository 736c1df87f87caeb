"""Which requests count as those of another origin's page."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from myqueue.protocol.errors import CrossOrigin
from service.cross_origin import check_origin

OWN, FOREIGN = "queue.example:8080", "https://evil.example"


@pytest.mark.parametrize(
    ("headers", "is_refused"),
    [
        ({}, False),  # curl, the library
        ({"host": OWN}, False),
        ({"host": OWN, "origin": f"http://{OWN}"}, False),
        ({"host": OWN, "origin": f"https://{OWN}"}, False),  # TLS ends in front of it
        ({"host": OWN.upper(), "origin": f"http://{OWN}"}, False),
        ({"host": "[::1]:8080", "origin": "http://[::1]:8080"}, False),
        ({"host": OWN, "origin": "http://queue.example"}, True),  # another port is another origin
        ({"host": OWN, "origin": "http://queue.example:8080.evil.example"}, True),
        ({"host": OWN, "origin": FOREIGN}, True),
        ({"host": OWN, "origin": "null"}, True),
        ({"host": "", "origin": "null"}, True),
        ({"origin": FOREIGN}, True),
        ({"host": OWN, "origin": ""}, True),
        ({"host": OWN, "sec-fetch-site": "same-origin"}, False),
        ({"host": OWN, "sec-fetch-site": "none"}, False),
        ({"host": OWN, "sec-fetch-site": "same-site"}, True),
        ({"host": OWN, "sec-fetch-site": "cross-site"}, True),
        ({"host": OWN, "sec-fetch-site": "something-new"}, True),
        # A proxy has changed the host, but the browser knows.
        ({"host": "inner:1", "origin": f"http://{OWN}", "sec-fetch-site": "same-origin"}, False),
        ({"host": OWN, "origin": f"http://{OWN}", "sec-fetch-site": "cross-site"}, True),
    ],
)
def test_who_is_refused(headers: dict[str, str], is_refused: bool) -> None:
    assert isinstance(check_origin(headers), CrossOrigin) is is_refused


def test_the_message_says_who_asked_and_what_to_do() -> None:
    refusal = check_origin({"host": OWN, "origin": FOREIGN + "x" * 1000})
    assert refusal is not None
    assert FOREIGN in refusal.message
    assert "console" in refusal.message
    assert len(refusal.message) < 400


@given(st.text(), st.text())
def test_no_header_is_too_odd(host: str, origin: str) -> None:
    refusal = check_origin({"host": host, "origin": origin})
    assert (refusal is None) is (origin.strip().lower().partition("://")[1:] == ("://", host.strip().lower()))
