"""Doors that stay shut: unknown paths, wrong methods, internal routes, and bytes that are hardly HTTP."""

import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import requests

from myqueue.protocol import internal
from myqueue.protocol.routes import ROUTES
from tests.calls import PARAMETERS, Calls, assert_failure
from tests.cluster import BROKERS, Cluster
from tests.raw_http import POST, SMUGGLED, SMUGGLED_NAME, VECTORS, answers, connect, exchange
from tests.waiting import until

# ---- paths and methods ----


@pytest.mark.parametrize(
    "path",
    [
        "/nothing",
        "/topic",
        "/TOPICS",
        "/topics/x",
        "/topics/x/partitions/0",
        "/consumer",
        "/producer/produce/x",
        "/v2/topics",
        "/.git/config",
        "/index.php",
        "/docs/nothing",
        "/%2e%2e%2fetc%2fpasswd",
        "/topics%00",
    ],
)
@pytest.mark.parametrize("method", ["GET", "POST", "DELETE"])
def test_unknown_paths(calls: Calls, method: str, path: str) -> None:
    answer = requests.request(method, calls.url + path, timeout=10)
    assert answer.status_code == (400 if "%00" in path or "%2e" in path else 404), answer.text
    assert_failure(
        answer,
        answer.status_code,
        40400 if answer.status_code == 404 else 40001,
        outcome=None if method == "GET" else "not_written",
    )


def allowed(path: str) -> set[str]:
    here = [route for route in ROUTES if route.path == path]
    heads = {"HEAD" for route in here if route.method == "GET" and route.head}
    return heads | {route.method for route in here}


METHODS = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "PROPFIND")
WRONG = [
    (path, method) for path in sorted({r.path for r in ROUTES}) for method in METHODS if method not in allowed(path)
]


@pytest.mark.parametrize(("path", "method"), WRONG)
def test_wrong_methods(calls: Calls, path: str, method: str) -> None:
    answer = requests.request(method, calls.url + path.format_map(PARAMETERS), timeout=10)
    assert answer.status_code == 405, answer.text
    assert set(answer.headers["Allow"].split(", ")) == allowed(path)
    if method != "HEAD":
        assert_failure(
            answer,
            405,
            40500,
            outcome=None if method == "GET" else "not_written",
            details={"allow": sorted(allowed(path))},
        )


@pytest.mark.parametrize("method", ["TRACE", "foo"])
def test_methods_that_are_none(calls: Calls, method: str) -> None:
    answer = requests.request(method, calls.url + "/topics", timeout=10)
    assert answer.status_code in (400, 405)
    assert answer.json()["error_code"] in (40001, 40500)


# ---- doors that are not for the public ----


@pytest.mark.parametrize(
    "path",
    [
        "/internal",
        "/internal/topics",
        "/internal/brokers",
        "/internal/claims",
        "/internal/jobs/runs",
        "/INTERNAL/topics",
        "//internal/topics",
        "/%69nternal/topics",
        "/internal%2ftopics",
        "/internal;x/topics",
    ],
)
def test_internal_routes_from_outside(stack: Cluster, calls: Calls, path: str) -> None:
    """Not even with the secret."""
    for method in ("GET", "POST", "PUT"):
        answer = requests.request(
            method, calls.url + path, json={}, headers={"X-Myqueue-Secret": stack.secret}, timeout=10
        )
        assert_failure(answer, 404, 40400, "no such path", outcome=None if method == "GET" else "not_written")


WRITE_MANAGER_ROUTES = [
    internal.REGISTER_BROKER,
    internal.BROKER_HEARTBEAT,
    internal.MANAGER_HEARTBEAT,
    internal.MANAGER_ADDRESSES,
    internal.DATA_ADDRESSES,
    internal.CLAIM,
    internal.GIVE_BACK,
    internal.DELIVERED,
    internal.CURSORS,
    internal.LEASE,
    internal.CATALOG_TOPICS,
    internal.CATALOG_TOPIC,
    internal.LISTING,
    internal.BEGIN_RUN,
    internal.RENEW_RUN,
    internal.POST_RESULTS,
    internal.END_RUN,
    internal.REGISTER_CONSUMER,
]
BROKER_ROUTES = [
    internal.CREATE_PARTITION,
    internal.DELETE_PARTITION,
    internal.CHANGE_MEMBERS,
    internal.MOVE_LEADER,
    internal.BROKER_TOPICS,
    internal.BROKER_TOPIC,
    internal.APPEND,
    internal.APPEND_CONNECTION,
    internal.BATCHES,
    internal.MESSAGES,
    internal.OFFSETS,
    internal.WAIT,
]
PATH_VALUES = {
    "broker_id": 1,
    "consumer_id": 0,
    "topic": "bad-input",
    "topic_id": "0" * 32,
    "partition_id": 0,
    "name": "list_runs",
    "run_id": 0,
}


@pytest.mark.parametrize("secret", [None, "", "wrong"])
def test_internal_listeners_want_the_secret(stack: Cluster, secret: str | None) -> None:
    headers = {} if secret is None else {"X-Myqueue-Secret": secret}
    doors = [(stack.internal_url, route) for route in WRITE_MANAGER_ROUTES]
    doors += [(stack.address_of(name), route) for name in BROKERS for route in BROKER_ROUTES]
    for address, route in doors:
        url = address + route.path_for(**PATH_VALUES)
        answer = requests.request(route.method, url, json={}, headers=headers, timeout=10)
        assert (answer.status_code, answer.json()["error_code"]) == (401, 40101), f"{route.method} {url}"


@pytest.mark.parametrize("chosen", [None, "read-manager-1", "read-manager-2"])
def test_public_listeners_have_no_internal_routes(stack: Cluster, chosen: str | None) -> None:
    name = chosen or stack.active_write_manager()
    for route in WRITE_MANAGER_ROUTES:
        answer = requests.request(
            route.method,
            stack.address_of(name) + route.path_for(**PATH_VALUES),
            json={},
            headers={"X-Myqueue-Secret": stack.secret},
            timeout=10,
        )
        assert (answer.status_code, answer.json()["error_code"]) == (404, 40400)


@pytest.mark.parametrize(
    "endpoint",
    [
        "http://10.0.0.1:5000",
        "http://169.254.169.254",
        "http://8.8.8.8:80",
        "http://0.0.0.0:80",
        "http://[::1]:80",
        "http://no-such-host.invalid:80",
        "https://127.0.0.1:80",
        "ftp://127.0.0.1:80",
        "file:///etc/passwd",
        "http://user:word@127.0.0.1:80",
        "http://127.0.0.1:80/path",
        "http://127.0.0.1:99999",
        "127.0.0.1:80",
        "http://",
        "",
    ],
)
def test_broker_endpoints_outside_the_allowed_networks(stack: Cluster, endpoint: str) -> None:
    registration: dict[str, Any] = {
        "broker_id": None,
        "endpoint": endpoint,
        "hostname": "x",
        "incarnation": "0" * 16,
        "partitions": [],
    }
    answer = requests.post(
        stack.internal_url + internal.REGISTER_BROKER.path,
        json=registration,
        headers={"X-Myqueue-Secret": stack.secret},
        timeout=10,
    )
    assert (answer.status_code, answer.json()["error_code"]) == (400, 40001), answer.text


# ---- bytes that are hardly HTTP ----


@pytest.mark.parametrize("data", VECTORS.values(), ids=VECTORS)
def test_ambiguous_requests_are_refused_and_the_connection_closed(calls: Calls, data: bytes) -> None:
    (answer,) = answers(exchange(calls.url, data + SMUGGLED))
    assert (answer.status, answer.headers["connection"]) == (400, "close")
    body = answer.json()
    assert (body["status"], body["error_code"]) == ("failure", 40001)
    assert body["request_id"] == answer.headers["x-request-id"]
    assert SMUGGLED_NAME not in calls.get("/topics").text


def test_bare_line_feeds_hide_no_second_request(calls: Calls) -> None:
    """nginx takes a bare line feed for the end of a header line, and says the same to everybody behind it."""
    data = b"POST /topics HTTP/1.1\nHost: x\nContent-Type: application/json\nConnection: close\n"
    data += b"Content-Length: %d\n\n" % len(SMUGGLED) + SMUGGLED
    (answer,) = answers(exchange(calls.url, data))
    assert answer.status == 400
    assert SMUGGLED_NAME not in calls.get("/topics").text


@pytest.mark.slow
def test_slow_clients_hold_up_nobody_and_are_cut_off(stack: Cluster, calls: Calls, topic_name: str) -> None:
    calls.topic(topic_name)

    def served_s() -> float:
        began_s = time.monotonic()
        for _ in range(20):
            assert calls.partitions(topic_name).status_code == 200
            assert calls.register_consumer(topic_name).status_code == 201
        return time.monotonic() - began_s

    bound_s = max(8, 4 * served_s())
    unfinished = [POST[:-20], POST + b"Content-Length: 500\r\n\r\n{"]
    connections = [connect(calls.url, timeout_s=20) for _ in range(50) for _ in unfinished]
    try:
        started_s = time.monotonic()
        for number, connection in enumerate(connections):
            connection.sendall(unfinished[number % 2])
        served_s()
        assert time.monotonic() - started_s < bound_s, "others are served as ever"
        with ThreadPoolExecutor(len(connections)) as pool:
            ends = list(pool.map(_end_of, connections))
        assert time.monotonic() - started_s < bound_s + 12
        assert all(end == b"" or answers(end)[0].status == 408 for end in ends)
    finally:
        for connection in connections:
            connection.close()
    until(lambda: stack.log_of("nginx.access").count('"status":408') >= len(connections), within_s=5, what="408 logged")


def _end_of(connection: Any) -> bytes:
    received = b""
    try:
        while chunk := connection.recv(4096):
            received += chunk
    except ConnectionResetError:
        return received
    return received
