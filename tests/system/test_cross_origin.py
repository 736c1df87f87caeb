"""Pages of other origins cannot change anything, through nginx and at every process; programs and own pages can."""

import re
from urllib.parse import urlsplit

import pytest

from myqueue.protocol.routes import CONSUME, ROUTES, Route
from tests.calls import Calls
from tests.raw_http import RawAnswer, answers, exchange

CHANGING = [route for route in ROUTES if route.method != "GET" or route is CONSUME]
FOREIGN = ("Origin: https://evil.example", "Sec-Fetch-Site: cross-site", "Sec-Fetch-Site: same-site", "Origin: null")


def ask(url: str, method: str, path: str, *headers: str, host: str | None = None, body: bytes = b"") -> RawAnswer:
    lines = [f"{method} {path} HTTP/1.1", f"Host: {host or urlsplit(url).netloc}", *headers]
    if body:
        lines += ["Content-Type: application/json", f"Content-Length: {len(body)}"]
    [answer] = answers(exchange(url, "\r\n".join([*lines, "Connection: close", "", ""]).encode() + body))
    return answer


@pytest.mark.parametrize("header", FOREIGN)
@pytest.mark.parametrize("route", CHANGING, ids=lambda route: route.name)
def test_foreign_pages_are_refused(url: str, route: Route, header: str) -> None:
    answer = ask(url, route.method, re.sub(r"{\w+}", "1", route.path), header)
    assert (answer.status, answer.json()["error_code"]) == (403, 40302), answer.body
    assert "console" in answer.json()["message"]


@pytest.mark.parametrize("host", [None, "queue.example", "QUEUE.example:8080", "[::1]"])
def test_own_pages_may_under_any_name(calls: Calls, topic_name: str, host: str | None) -> None:
    own = host or urlsplit(calls.url).netloc
    for headers in (
        [f"Origin: http://{own.lower()}"],
        [f"Origin: https://{own.lower()}"],
        ["Sec-Fetch-Site: none"],
        [],
    ):
        answer = ask(calls.url, "PUT", f"/v1/topics/{topic_name}", *headers, host=host, body=b'{"partitions": 1}')
        assert answer.status in (200, 201), answer.body


def test_reading_is_left_to_the_browser(calls: Calls, topic_name: str) -> None:
    """It withholds the answers from pages of other origins, as no header here allows them."""
    calls.topic(topic_name)
    answer = ask(calls.url, "GET", f"/v1/topics/{topic_name}", "Origin: https://evil.example")
    assert answer.status == 200
    assert not [name for name in answer.headers if name.startswith("access-control-")]
    preflight = ask(calls.url, "OPTIONS", f"/v1/topics/{topic_name}", "Access-Control-Request-Method: DELETE")
    assert preflight.status == 405
    assert not [name for name in preflight.headers if name.startswith("access-control-")]
