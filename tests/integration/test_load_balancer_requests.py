"""nginx refuses malformed, slow, oversized and internal requests before they reach a manager."""

import json
import socket
import threading
import time

import pytest

from tests.integration.balanced_site import (
    Site,
    assert_failure,
)
from tests.waiting import until


def test_slow_answers_and_slow_clients(site: Site) -> None:
    """Three long waits at once: a slow write manager, slow headers, a slow body."""
    results: dict[str, object] = {}

    def slow_headers() -> None:
        began = time.monotonic()
        answer = site.raw(b"GET /topics HTTP/1.1\r\nHost: x\r\n", timeout_s=20)
        results["headers"] = (answer, time.monotonic() - began)

    def slow_body() -> None:
        began = time.monotonic()
        answer = site.raw(b"POST /slow HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\nhalf", timeout_s=20)
        results["body"] = (answer, time.monotonic() - began)

    threads = [threading.Thread(target=target) for target in (slow_headers, slow_body)]
    for thread in threads:
        thread.start()
    site.write.behaviour.delay_s = 11.0
    response = site.request("POST", "/topics", data=b"{}")
    for thread in threads:
        thread.join()
    assert_failure(response, 50401, "unknown")
    for answer, seconds in results.values():  # type: ignore[misc]
        # nginx logs 408 and closes; there is no way to make it say so to the client.
        assert answer == b""  # type: ignore[has-type]
        assert 8 < seconds < 14  # type: ignore[has-type]
    assert [received.target for received in site.write.received] == ["/topics"]
    until(lambda: '"status":408' in site.access_log.read_text(), within_s=5, what="408 logged")


@pytest.mark.parametrize(
    "path",
    [
        "/internal",
        "/internal/brokers",
        "//internal/brokers",
        "/%2Finternal/brokers",
        "/%69nternal/brokers",
        "/Internal/brokers",
        "/INTERNAL",
        "/x/../internal/brokers",
        "/x/%2e%2e/internal/brokers",
        "/./internal/brokers",
        "/x/..%2finternal",
        "/internal%2Fbrokers",
        "/internal;x=1",
        "/internal?x=1",
    ],
)
@pytest.mark.parametrize("method", ["GET", "POST"])
def test_internal_paths_do_not_exist(site: Site, method: str, path: str) -> None:
    answer = site.raw(f"{method} {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n".encode())
    head, _, body = answer.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 404 ")
    assert json.loads(body)["error_code"] == 40400
    assert json.loads(body).get("outcome") == ("not_written" if method == "POST" else None)
    assert site.reached() == 0


@pytest.mark.parametrize("method", ["GET", "POST"])
def test_the_request_id_is_nginx_s_own(site: Site, method: str) -> None:
    response = site.request(
        method, "/topics", headers={"X-Request-Id": "mine", "X-Myqueue-Secret": "guess", "X-Myqueue-Epoch": "9"}
    )
    received = next(manager.received[0] for manager in site.managers if manager.received)
    request_id = received.headers["x-request-id"]
    assert len(request_id) == 32
    assert response.headers["X-Request-Id"] == request_id
    assert "x-myqueue-secret" not in received.headers
    assert "x-myqueue-epoch" not in received.headers
    assert received.headers["x-forwarded-for"] == "127.0.0.1"
    assert response.headers["X-Content-Type-Options"] == "nosniff"
    assert response.headers["Server"] == "nginx"


@pytest.mark.parametrize(
    ("head", "host"), [("HTTP/1.0\r\n", "localhost"), ("HTTP/1.1\r\nHost: x:1\r\nConnection: close\r\n", "x:1")]
)
def test_every_request_has_a_host(site: Site, head: str, host: str) -> None:
    """Managers refuse one of HTTP/1.1 without it, and nginx speaks HTTP/1.1 to them whatever the client speaks."""
    assert site.raw(f"GET /topics {head}\r\n".encode()).startswith(b"HTTP/1.1 200 ")
    assert [received.headers.get("host") for manager in site.reads for received in manager.received] == [host]


def test_a_large_body_passes_and_a_larger_one_is_refused(site: Site) -> None:
    body = b"x" * (8 << 20)
    assert site.request("POST", "/producer/produce", data=body).status_code == 200
    assert site.write.received[0].body == body
    site.write.received.clear()
    assert_failure(site.request("POST", "/producer/produce", data=body + b"x"), 41301, "not_written")
    assert site.write.received == []


def test_expect_continue_is_answered(site: Site) -> None:
    request = b"POST /topics HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\nExpect: 100-continue\r\n\r\n"
    with socket.create_connection(("127.0.0.1", site.port), timeout=3) as connection:
        connection.sendall(request)
        assert connection.recv(100).startswith(b"HTTP/1.1 100 ")
        connection.sendall(b"{}")
        assert connection.recv(100).startswith(b"HTTP/1.1 200 ")


CHUNKED = b"POST /topics HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n"


REFUSED = {
    "length and chunks": CHUNKED + b"Content-Length: 5\r\n\r\n0\r\n\r\n",
    "two lengths": b"POST /t HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\nContent-Length: 3\r\n\r\n{} ",
    "a list of lengths": b"POST /t HTTP/1.1\r\nHost: x\r\nContent-Length: 2, 2\r\n\r\n{}",
    "negative length": b"POST /t HTTP/1.1\r\nHost: x\r\nContent-Length: -2\r\n\r\n{}",
    "length with a sign": b"POST /t HTTP/1.1\r\nHost: x\r\nContent-Length: +2\r\n\r\n{}",
    "chunk size is no number": CHUNKED + b"\r\nxyz\r\n{}\r\n0\r\n\r\n",
    "chunk size too large": CHUNKED + b"\r\nffffffffffffffffff\r\n{}\r\n0\r\n\r\n",
    "chunk without its end": CHUNKED + b"\r\n2\r\n{}XX0\r\n\r\n",
    "unknown coding": b"POST /t HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: gzip\r\n\r\n{}",
    "coding twice": CHUNKED + b"Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    "coding with HTTP/1.0": b"POST /t HTTP/1.0\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    "space before the colon": b"POST /t HTTP/1.1\r\nHost: x\r\nContent-Length : 2\r\n\r\n{}",
    "no host": b"GET /t HTTP/1.1\r\n\r\n",
    "two hosts": b"GET /t HTTP/1.1\r\nHost: x\r\nHost: y\r\n\r\n",
    "NUL in a header": b"GET /t HTTP/1.1\r\nHost: x\r\nX-A: a\x00b\r\n\r\n",
    "bare CR in a header": b"GET /t HTTP/1.1\r\nHost: x\r\nX-A: a\rContent-Length: 9\r\n\r\n",
    "a proxy's method": b"CONNECT /t HTTP/1.1\r\nHost: x\r\n\r\n",
    "not HTTP": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\r\n\r\n",
    "line too long": b"GET /" + b"x" * 40_000 + b" HTTP/1.1\r\nHost: x\r\n\r\n",
    "headers too large": b"GET / HTTP/1.1\r\nHost: x\r\nX-A: " + b"x" * 70_000 + b"\r\n\r\n",
    "NUL in the path": b"GET /a%00b HTTP/1.1\r\nHost: x\r\n\r\n",
    "bad escape": b"GET /a%zz HTTP/1.1\r\nHost: x\r\n\r\n",
    "above the root": b"GET /../../etc/passwd HTTP/1.1\r\nHost: x\r\n\r\n",
}


@pytest.mark.parametrize("data", REFUSED.values(), ids=REFUSED.keys())
def test_malformed_requests_are_refused_and_reach_no_server(site: Site, data: bytes) -> None:
    head, _, body = site.raw(data).partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 400 "), head
    assert b"Connection: close" in head
    assert json.loads(body)["error_code"] == 40001
    assert site.reached() == 0


def test_trace_is_not_allowed(site: Site) -> None:
    answer = site.raw(b"TRACE /topics HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
    head, _, body = answer.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 405 "), head
    assert json.loads(body)["error_code"] == 40500
    assert site.reached() == 0


def test_bare_line_feeds_cannot_smuggle(site: Site) -> None:
    """nginx takes a lone LF as a line end, as it may, and hands the request on in one clear form."""
    answer = site.raw(
        b"POST /t HTTP/1.1\nHost: x\nContent-Length: 2\nConnection: close\n\n{}GET /hidden HTTP/1.1\r\n\r\n"
    )
    assert answer.count(b"HTTP/1.1 ") == 1
    assert [(received.target, received.body) for manager in site.managers for received in manager.received] == [
        ("/t", b"{}")
    ]
