"""The first call of a process to a URL: a wrong address fails within seconds, a known cluster is waited for."""

import socket
import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager

import pytest

from myqueue import Admin, MyQueueError, NotConnected, NotMyQueue, RetryPolicy, Timeouts, connection_pool
from myqueue.http_connection import NoResponse
from myqueue.protocol import routes
from myqueue.transport import Transport
from tests.unit.client.scripted_server import Reply, ScriptedServer
from tests.waiting import until

QUICK = RetryPolicy(first_pause_s=0.01, longest_pause_s=0.05)


@pytest.fixture(autouse=True)
def nothing_reached(monkeypatch: pytest.MonkeyPatch) -> None:
    """A port may have been that of another test's server."""
    monkeypatch.setattr(connection_pool, "_reached", set())


def free_port() -> int:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        port: int = unused.getsockname()[1]
        return port


@contextmanager
def answering(said: bytes) -> Iterator[str]:
    """A server that says the same to everybody, and closes the connection."""
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def serve() -> None:
            while True:
                try:
                    taken, _ = listening.accept()
                except OSError:
                    return
                with taken:
                    taken.settimeout(2)
                    taken.recv(1 << 16)
                    taken.sendall(said)

        thread = threading.Thread(target=serve)
        thread.start()
        yield f"http://127.0.0.1:{listening.getsockname()[1]}"
        listening.shutdown(socket.SHUT_RDWR)
    thread.join()


def failed_first_call(url: str, retry: RetryPolicy = QUICK) -> tuple[MyQueueError, float]:
    started = time.monotonic()
    with Admin(url, retry=retry) as admin, pytest.raises(MyQueueError) as caught:
        admin.list_topics()
    return caught.value, time.monotonic() - started


def test_a_refused_connection_fails_within_three_seconds() -> None:
    url = f"http://127.0.0.1:{free_port()}"
    error, took_s = failed_first_call(url, RetryPolicy())
    assert isinstance(error, NotConnected)
    assert (error.reason, str(error)) == ("refused", f"cannot connect to {url}: connection refused")
    assert took_s < 3


def test_an_unknown_host_is_called_so() -> None:
    error, took_s = failed_first_call("http://no-such-host.invalid", RetryPolicy())
    assert isinstance(error, NotConnected)
    assert error.reason == "unknown host"
    assert str(error).startswith("cannot connect to http://no-such-host.invalid: unknown host 'no-such-host.invalid': ")
    assert took_s < 3


def test_a_host_that_takes_no_connection_is_a_timeout() -> None:
    with closing(socket.socket()) as full:
        full.bind(("127.0.0.1", 0))
        full.listen(0)
        queued = []
        for _ in range(4):  # the backlog is full: further SYNs are dropped
            waiting = socket.socket()
            waiting.setblocking(False)
            waiting.connect_ex(full.getsockname())
            queued.append(waiting)
        error, took_s = failed_first_call(f"http://127.0.0.1:{full.getsockname()[1]}", RetryPolicy())
        for waiting in queued:
            waiting.close()
    assert isinstance(error, NotConnected)
    assert (error.reason, took_s < 3) == ("timeout", True)
    assert "timed out after" in str(error)


def test_a_process_can_be_told_to_wait_for_the_cluster() -> None:
    url = f"http://127.0.0.1:{free_port()}"
    started: list[ScriptedServer] = []
    starting = threading.Timer(2.5, lambda: started.append(ScriptedServer(port=int(url.rpartition(":")[2]))))
    starting.start()
    with Admin(url, retry=RetryPolicy(deadline_s=20, connect_deadline_s=None)) as admin:
        assert admin.health() == {"status": "success"}
    starting.join()
    started[0].close()


def test_a_cluster_that_was_reached_is_waited_for() -> None:
    """Also by a client that is new: the process knows that there is a cluster."""
    before = ScriptedServer()
    url, port = before.url, int(before.url.rpartition(":")[2])
    with Admin(url) as admin:
        admin.health()
    before.close()
    again: list[ScriptedServer] = []
    starting = threading.Timer(2.5, lambda: again.append(ScriptedServer(port=port)))
    starting.start()
    with Admin(url, retry=RetryPolicy(deadline_s=20, longest_pause_s=0.2)) as admin:
        assert admin.health() == {"status": "success"}
    starting.join()
    again[0].close()


@pytest.mark.parametrize(
    "said", [b"SSH-2.0-OpenSSH_9.2\r\n", b"-ERR unknown command 'GET'\r\n", b"E\0\0\0\x8eSFATAL\0C0A000\0\0"]
)
def test_a_server_that_speaks_no_http_is_recognised(said: bytes) -> None:
    with answering(said) as url:
        error, took_s = failed_first_call(url, RetryPolicy())
    assert isinstance(error, NotMyQueue)
    begins = ascii(said[:40].splitlines()[0].decode("latin-1"))
    assert str(error) == (
        f"what answers is not myqueue: what came from {url} is no HTTP response: it begins with {begins}"
    )
    assert took_s < 3


def test_a_server_that_closes_without_an_answer_is_not_waited_for() -> None:
    with answering(b"") as url:
        error, took_s = failed_first_call(url, RetryPolicy())
    assert isinstance(error, NoResponse)
    assert str(error) == f"no answer from {url}: the connection was closed before the end of a response"
    assert took_s < 3


@pytest.mark.parametrize("status", [200, 302, 401, 403, 404, 500])
def test_another_http_server_is_recognised(server: ScriptedServer, status: int) -> None:
    server.answer = lambda _: Reply(status, "<html></html>", {"Content-Type": "text/html"})
    error, _ = failed_first_call(server.url)
    assert isinstance(error, NotMyQueue)
    assert str(error).startswith(f"{server.url}: what answers is not myqueue (BaseHTTP/")
    assert str(error).endswith(f", HTTP {status}, text/html)")
    assert len(server.seen) == 1


def test_another_json_api_is_recognised(server: ScriptedServer) -> None:
    server.answer = lambda _: Reply(200, {"tagline": "You Know, for Search"}, {"Content-Type": "application/json"})
    error, _ = failed_first_call(server.url)
    assert isinstance(error, NotMyQueue)
    assert "HTTP 200, application/json): its answer has no field 'topics'" in str(error)


def test_a_slow_first_answer_is_waited_for(server: ScriptedServer) -> None:
    server.script(Reply(after_s=3.0), Reply())
    transport = Transport(server.url, timeouts=Timeouts(read_s=2.6), retry=RetryPolicy(deadline_s=20))
    assert transport.call(routes.HEALTHZ).status == 200
    until(lambda: len(server.seen) == 2, within_s=5)
    transport.close()
