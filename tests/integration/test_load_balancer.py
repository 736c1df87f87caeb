"""nginx and its scripts, for real, in front of stand-in managers and brokers."""

import json
import os
import resource
import socket
import stat
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from myqueue.protocol.routes import ROUTES, Route
from stack.binaries import find_nginx
from stack.config import DEFAULT_MAX_CLIENT_CONNECTIONS
from stack.nginx import MEMORY_BYTES, SOURCE
from tests.calls import PARAMETERS
from tests.integration.balanced_site import SECRET, Site, assert_failure, await_, running_site
from tests.integration.stand_in_manager import Behaviour, StandInManager

HEALTH_INTERVAL_S = 5.0
CHECK_TIMEOUT_S = 2.0
RETURN_S = 3.0  # a manager that is back is found within a second, and the machine may be busy


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    with running_site(tmp_path_factory.mktemp("balancer")) as site:
        yield site


@pytest.fixture
def site(running: Site) -> Site:
    running.heal()
    return running


@pytest.mark.parametrize("route", ROUTES, ids=lambda route: route.name)
def test_every_route_reaches_its_tier(site: Site, route: Route) -> None:
    answer = site.request(route.method, route.path.format_map(PARAMETERS)).text
    assert answer.startswith(route.tier)


@pytest.mark.parametrize(
    ("method", "tier"),
    [("GET", "read"), ("HEAD", "read")]
    + [(method, "write") for method in ("POST", "PUT", "DELETE", "PATCH", "OPTIONS", "PROPFIND")],
)
def test_the_method_decides(site: Site, method: str, tier: str) -> None:
    assert site.request(method, "/anything/at%20all?x=%2F").status_code == 200
    receivers = [manager for manager in site.managers if manager.received]
    assert [manager.name.partition("-")[0] for manager in receivers] == [tier]
    received = receivers[0].received[0]
    assert (received.method, received.target) == (method, "/anything/at%20all?x=%2F")


def test_reads_take_turns(site: Site) -> None:
    answers = site.who_answers(20)
    assert answers[0::2] == [answers[0]] * 10
    assert answers[1::2] == [answers[1]] * 10
    assert answers[0] != answers[1]


def test_a_read_that_hits_a_dying_manager_is_answered_by_the_other(site: Site) -> None:
    site.reads[0].behaviour.hang_up = True
    assert site.who_answers(6) == ["read-2"] * 6
    # The first failure marked it: no further read went there before a check found it well.
    assert len(site.reads[0].received) <= 2


def test_reads_survive_a_manager_that_is_gone(site: Site) -> None:
    site.reads[1].stop()
    assert site.who_answers(20) == ["read-1"] * 20
    site.reads[1].reset()
    await_(lambda: set(site.who_answers(2)) == {"read-1", "read-2"}, within_s=RETURN_S)


def test_a_manager_that_is_not_ready_gets_no_reads_until_it_is(site: Site) -> None:
    site.reads[0].behaviour.ready = False
    await_(lambda: site.who_answers(4) == ["read-2"] * 4, within_s=HEALTH_INTERVAL_S + 2)
    site.reads[0].behaviour.ready = True
    await_(lambda: set(site.who_answers(2)) == {"read-1", "read-2"}, within_s=RETURN_S)


def test_a_write_manager_that_is_slow_to_say_it_is_not_ready_still_gets_writes(site: Site) -> None:
    site.write.behaviour.ready_delay_s = 12.0
    time.sleep(HEALTH_INTERVAL_S + CHECK_TIMEOUT_S + 0.5)
    assert site.request("POST", "/topics", data=b"{}").text == "write"


def test_when_no_manager_is_ready_they_answer_for_themselves(site: Site) -> None:
    for manager in site.reads:
        manager.behaviour.ready = False
        manager.behaviour.status = 503
    time.sleep(HEALTH_INTERVAL_S + 0.5)
    answers = [site.request("GET", "/topics") for _ in range(4)]
    assert {answer.status_code for answer in answers} == {503}
    assert {answer.text for answer in answers} == {"read-1", "read-2"}


def test_when_no_read_manager_is_left(site: Site) -> None:
    for manager in site.reads:
        manager.stop()
    assert_failure(site.request("GET", "/topics"), 50304, None)


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE"])
def test_a_write_is_never_resent(site: Site, method: str) -> None:
    site.request(method, "/warm-up")  # leaves an idle connection, the tempting case
    site.write.received.clear()
    site.write.behaviour.hang_up = True
    assert_failure(site.request(method, "/producer/produce", data=b"{}"), 50201, "unknown")
    assert len(site.write.received) == 1


def test_a_write_that_could_not_be_sent_says_so(site: Site) -> None:
    site.write.stop()
    assert_failure(site.request("POST", "/topics", data=b"{}"), 50304, "not_written")


# ---- read managers that come and go ----


@pytest.fixture
def followed(site: Site) -> Iterator[list[StandInManager]]:
    """Two that the configuration does not name; nginx sends them reads."""
    more = [StandInManager("read-3"), StandInManager("read-4")]
    for server in more:
        server.start()
    try:
        site.place_reads([*site.reads, *more])
        await_(lambda: len(set(site.who_answers(4))) == 4, within_s=RETURN_S)
        for server in (*site.reads, *more):
            server.received.clear()
        yield more
    finally:
        for server in (*site.reads, *more):
            server.reset()
        site.place_reads(site.reads)
        await_(lambda: set(site.who_answers(4)) <= {"read-1", "read-2"})
        for server in more:
            server.stop()


def test_read_managers_that_join_and_leave_are_followed(site: Site, followed: list[StandInManager]) -> None:
    answers = site.who_answers(12)
    assert {answers.count(name) for name in ("read-1", "read-2", "read-3", "read-4")} == {3}
    site.internal.stop()  # who is known stays while the write manager cannot say
    time.sleep(1.2)
    assert len(set(site.who_answers(4))) == 4
    site.internal.reset()
    followed[0].stop()
    assert set(site.who_answers(12)) == {"read-1", "read-2", "read-4"}
    followed[0].reset()
    await_(lambda: "read-3" in site.who_answers(4), within_s=RETURN_S)
    site.place_reads([followed[0]])
    await_(lambda: "read-4" not in site.who_answers(4), within_s=RETURN_S)
    assert set(site.who_answers(6)) == {"read-1", "read-2", "read-3"}  # those of the configuration need no listing


def test_a_read_that_a_followed_manager_fails_goes_to_the_next(site: Site, followed: list[StandInManager]) -> None:
    """Whatever the method, with its body, and however many fail it on the way."""
    failing = [*site.reads, followed[0]]
    for method, path, body in (
        ("GET", "/topics", None),
        ("HEAD", "/topics", None),
        ("POST", "/v1/consumers/7/poll", b'{"member": "a"}' * 20_000),
    ):
        for server in failing:
            server.reset()
            server.behaviour.hang_up = True
        followed[1].received.clear()
        answers = [site.request(method, path, data=body) for _ in range(4)]
        assert [answer.status_code for answer in answers] == [200] * 4
        assert {(got.method, got.target, got.body) for got in followed[1].received} == {(method, path, body or b"")}
        assert {answer.headers["X-Request-Id"] for answer in answers} == {
            got.headers["x-request-id"] for got in followed[1].received
        }
        assert sum(len(server.received) for server in failing) <= 6, "who failed gets no more until a check"
        for server in failing:
            server.reset()
        await_(lambda: len(set(site.who_answers(4))) == 4, within_s=RETURN_S)


def test_hung_managers_get_no_new_requests(site: Site, followed: list[StandInManager]) -> None:
    hung = [site.reads[0], site.write, followed[0]]
    for manager in hung:
        manager.behaviour.delay_s = 12.0
    followed[1].behaviour.ready = False
    time.sleep(HEALTH_INTERVAL_S + CHECK_TIMEOUT_S + 0.5)  # nothing to poll: a request would hang
    began = time.monotonic()
    assert site.who_answers(6) == ["read-2"] * 6
    assert_failure(site.request("POST", "/topics", data=b"{}"), 50304, "not_written")
    assert time.monotonic() - began < 2
    assert [manager.received for manager in hung] == [[], [], []]


def test_a_new_manager_gets_no_reads_before_it_is_ready(site: Site) -> None:
    new = StandInManager("new")
    new.start()
    new.behaviour.ready = False
    try:
        site.place_reads([*site.reads, new])
        began = time.monotonic()
        while time.monotonic() - began < 1.5:  # by then nginx has heard of it
            assert set(site.who_answers(10)) == {"read-1", "read-2"}
        new.behaviour.ready = True
        await_(lambda: "new" in site.who_answers(3), within_s=RETURN_S)
    finally:
        site.place_reads(site.reads)
        await_(lambda: "new" not in site.who_answers(3), within_s=RETURN_S)
        new.stop()


def test_when_no_followed_manager_is_left_either(site: Site, followed: list[StandInManager]) -> None:
    for server in (*site.reads, *followed):
        server.stop()
    assert_failure(site.request("GET", "/topics"), 50304, None)
    assert_failure(site.request("POST", "/v1/consumers/7/poll", json={}), 50304, "not_written")
    for server in (*site.reads, *followed):
        server.reset()
        server.behaviour.hang_up = True
    await_(lambda: site.request("GET", "/topics").status_code == 502, within_s=RETURN_S)
    assert_failure(site.request("GET", "/topics"), 50201, None)


def test_what_is_no_address_is_not_followed(site: Site) -> None:
    wrong = ["http://127.0.0.1:1/x", "http://127.0.0.1", "127.0.0.1:1 127.0.0.1:2", "http://$host:80", None, 7]
    right = StandInManager("right")
    right.start()
    try:
        endpoints = [*wrong, f"http://{right.address}"]
        site.internal.behaviour.body = json.dumps({"managers": [{"endpoint": one} for one in endpoints]}).encode()
        await_(lambda: "right" in site.who_answers(3), within_s=RETURN_S)
        followed = site.log.read_text().rpartition("managers: reads go to ")[2].splitlines()[0]
        assert followed == right.address
    finally:
        site.place_reads(site.reads)
        await_(lambda: "right" not in site.who_answers(3), within_s=RETURN_S)
        right.stop()


# ---- in containers ----


def container_start(folder: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    program = find_nginx(use_system=False).program
    return subprocess.run(
        ["/bin/sh", SOURCE / "container" / "start.sh", "-t"],
        env={"PATH": f"{program.parent}:/usr/bin:/bin", "MYQUEUE_NGINX_DIR": str(folder), **environment},
        capture_output=True,
        text=True,
        timeout=20,
        check=False,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_DATA, (MEMORY_BYTES, MEMORY_BYTES)),
    )


def test_the_configuration_for_containers(tmp_path: Path) -> None:
    """Their names need not exist yet when nginx starts."""
    done = container_start(tmp_path, MYQUEUE_CLUSTER_SECRET=SECRET)
    assert done.returncode == 0, done.stderr
    assert "warn" not in done.stderr
    assert stat.S_IMODE((tmp_path / "site-secret.conf").stat().st_mode) == 0o600
    assert "127.0.0.11" in (tmp_path / "site-resolver.conf").read_text()
    assert f"client_addresses {DEFAULT_MAX_CLIENT_CONNECTIONS};" in (tmp_path / "site-limits.conf").read_text()
    again = container_start(
        tmp_path,
        MYQUEUE_CLUSTER_SECRET=SECRET,
        MYQUEUE_RESOLVER="127.0.0.1:5353 [::1]",
        MYQUEUE_MAX_CLIENT_CONNECTIONS="6144",
    )
    assert again.returncode == 0, again.stderr
    assert "client_addresses 6144;" in (tmp_path / "site-limits.conf").read_text()


@pytest.mark.parametrize(
    ("environment", "named"),
    [
        ({}, "MYQUEUE_CLUSTER_SECRET"),
        ({"MYQUEUE_CLUSTER_SECRET": 'x"; }'}, "MYQUEUE_CLUSTER_SECRET"),
        ({"MYQUEUE_CLUSTER_SECRET": SECRET, "MYQUEUE_RESOLVER": "a;b"}, "MYQUEUE_RESOLVER"),
        *(
            (
                {"MYQUEUE_CLUSTER_SECRET": SECRET, "MYQUEUE_MAX_CLIENT_CONNECTIONS": number},
                "MYQUEUE_MAX_CLIENT_CONNECTIONS",
            )
            for number in ("0", "6145", "-1", "1; }", "99999999999999999999")
        ),
    ],
)
def test_what_a_container_cannot_start_with(tmp_path: Path, environment: dict[str, str], named: str) -> None:
    done = container_start(tmp_path, **environment)
    assert done.returncode == 2
    assert done.stderr.startswith(f"start.sh: {named} ")
    assert not (tmp_path / "nginx.conf").exists()


# ---- the data plane ----


def test_batches_go_to_the_broker_of_the_path_as_they_are(site: Site) -> None:
    path = "/v1/brokers/2/topics/a%20b/partitions/0/batches?offset=0&x=%2F"
    batch, secret = os.urandom(4 << 20), {"X-Myqueue-Secret": "guess", "X-Myqueue-Grant": "granted"}
    assert site.request("POST", path, data=batch, headers=secret).text == "broker-2"
    [received] = site.brokers[2].received
    assert (received.method, received.target, received.body) == ("POST", path, batch)
    assert "x-myqueue-secret" not in received.headers
    assert received.headers["x-myqueue-grant"] == "granted"
    assert len(received.headers["x-request-id"]) == 32
    site.brokers[1].behaviour.body = batch * 2
    assert site.at_broker(1).content == batch * 2
    for status in (204, 404, 421, 507):
        site.brokers[1].behaviour.status = status
        site.brokers[1].behaviour.body = b"" if status == 204 else b"its own words"
        answer = site.at_broker(1)
        assert (answer.status_code, answer.content) == (status, site.brokers[1].behaviour.body)
    assert "temporary file" not in site.log.read_text()
    assert "buffered to" not in site.log.read_text()


def test_a_batch_that_is_too_large(site: Site) -> None:
    answer = site.at_broker(1, "POST", data=b"x" * ((4 << 20) + (64 << 10) + 1))
    assert_failure(answer, 41301, "not_written")
    assert site.reached() == 0


def test_an_append_is_never_resent(site: Site) -> None:
    for number in (1, 1):
        site.at_broker(number)  # leaves an idle connection, the tempting case
    site.brokers[1].received.clear()
    site.brokers[1].behaviour.hang_up = True
    assert_failure(site.at_broker(1, "POST", data=b"batch"), 50201, "unknown")
    assert len(site.brokers[1].received) == 1
    assert site.brokers[2].received == []
    assert_failure(site.at_broker(1), 50201, None)


def test_a_broker_that_is_away(site: Site) -> None:
    site.brokers[1].stop()
    assert_failure(site.at_broker(1, "POST", data=b"batch"), 50301, "not_written")
    assert_failure(site.at_broker(1), 50301, None)
    assert site.at_broker(2).text == "broker-2"


@pytest.mark.parametrize("number", ["9", "01", "1234567890", "x"])
def test_a_broker_that_nobody_knows(site: Site, number: str) -> None:
    path = f"/v1/brokers/{number}/topics/x/partitions/0/batches"
    if number == "9":
        assert_failure(site.request("POST", path, data=b"batch"), 40406, "not_written")
        assert_failure(site.request("GET", path), 40406, None)
        assert site.reached() == 0
    else:  # no number of a broker: the managers say that there is no such path
        assert site.request("GET", path).text.startswith("read")


def test_brokers_that_join_move_and_leave_are_followed(site: Site) -> None:
    elsewhere, third = StandInManager("elsewhere"), StandInManager("third")
    for server in (elsewhere, third):
        server.start()
    try:
        site.place_brokers({1: elsewhere, 3: third})
        await_(lambda: site.at_broker(3).text == "third", within_s=RETURN_S)
        assert site.at_broker(1, "POST", data=b"batch").text == "elsewhere"
        assert_failure(site.at_broker(2), 40406, None)
        assert {received.headers["x-myqueue-secret"] for received in site.internal.received} == {SECRET}

        # What is known stays while the write manager cannot say.
        for trouble in ("status", "body", "silence"):
            if trouble == "status":
                site.internal.behaviour.status = 503
            elif trouble == "body":
                site.internal.behaviour = Behaviour(body=b"nonsense")
            else:
                site.internal.stop()
            time.sleep(1.2)
            assert (site.at_broker(3).text, site.at_broker(1).text) == ("third", "elsewhere")
        site.internal.reset()
        site.place_brokers(site.brokers)
        await_(lambda: site.at_broker(1).text == "broker-1", within_s=RETURN_S)
        assert_failure(site.at_broker(3), 40406, None)
    finally:
        for server in (elsewhere, third):
            server.stop()


def test_the_secret_is_not_for_everybody_s_eyes(site: Site) -> None:
    path = site.log.parent / "nginx" / "site-secret.conf"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert SECRET not in site.log.read_text() + site.access_log.read_text()


# ---- polls ----


def test_a_poll_is_a_read_that_another_read_manager_may_answer(site: Site) -> None:
    site.reads[0].behaviour.hang_up = True
    answers = [site.request("POST", "/v1/consumers/7/poll", json={"member": "a"}) for _ in range(4)]
    assert [answer.text for answer in answers] == ["read-2"] * 4
    assert {received.body for received in site.reads[1].received} == {b'{"member": "a"}'}
    assert site.request("POST", "/v1/consumers/7/polls", json={}).text == "write"


# ---- slow and malformed ----


def test_slow_answers_and_slow_clients(site: Site) -> None:
    """Three waits of ten seconds at once: a slow write manager, slow headers, a slow body."""
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
    statuses = [json.loads(line)["status"] for line in site.access_log.read_text().splitlines()]
    assert 408 in statuses


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
def test_malformed_requests_are_refused_and_reach_nobody(site: Site, data: bytes) -> None:
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
