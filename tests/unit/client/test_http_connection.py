"""One connection: kept alive, opened again after a drop, cancelled from another thread."""

import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from myqueue.http_connection import HttpConnection, NoResponse
from tests.unit.client.scripted_server import Reply, Reset, ScriptedServer

TIMES = {"connect_s": 2.0, "read_s": 5.0}


def get(connection: HttpConnection, path: str = "/x") -> int:
    return connection.exchange("GET", path, {}, None, **TIMES).status


def test_buffers_go_out_as_they_are_and_a_body_comes_in_whole(server: ScriptedServer) -> None:
    large = bytes(range(256)) * 20_000
    server.answer = lambda seen: Reply(200, seen.body)
    connection = HttpConnection(server.url + "/prefix")
    answer = connection.exchange("POST", "/p", {"Content-Type": "a/b"}, (b"head", memoryview(large)), **TIMES)
    assert answer.body == b"head" + large
    assert server.seen[0].path == "/prefix/p"
    connection.close()


def test_a_connection_is_kept_and_made_again(server: ScriptedServer) -> None:
    connection = HttpConnection(server.url)
    assert get(connection) == 200
    kept = connection._connection.sock
    assert get(connection) == 200
    assert connection._connection.sock is kept
    server.script(Reply(200, headers={"Connection": "close"}), Reset())
    assert get(connection) == 200
    with pytest.raises(NoResponse) as caught:
        get(connection)
    assert caught.value.outcome == "unknown"
    assert get(connection) == 200
    connection.close()


def test_a_connection_that_was_dropped_while_idle_is_not_used(server: ScriptedServer) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def answer_and_drop() -> None:
            for _ in range(2):
                connection, _ = listening.accept()
                connection.recv(10_000)
                connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")
                connection.close()
                dropped.set()

        dropped = threading.Event()
        thread = threading.Thread(target=answer_and_drop)
        thread.start()
        connection = HttpConnection(f"http://127.0.0.1:{listening.getsockname()[1]}")
        assert get(connection) == 200
        assert dropped.wait(5)
        assert get(connection) == 200
        thread.join(5)
        connection.close()


def test_a_refusal_before_the_whole_body_is_read() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening, ThreadPoolExecutor(1) as pool:

        def refuse() -> None:
            connection, _ = listening.accept()
            connection.recv(1000)
            connection.sendall(b"HTTP/1.1 413 Too Large\r\nContent-Length: 2\r\nConnection: close\r\n\r\n{}")
            connection.shutdown(socket.SHUT_WR)
            while connection.recv(1 << 20):
                pass
            connection.close()

        refused = pool.submit(refuse)
        connection = HttpConnection(f"http://127.0.0.1:{listening.getsockname()[1]}")
        assert connection.exchange("POST", "/", {}, b"x" * (8 << 20), **TIMES).status == 413
        connection.close()
        refused.result(5)


@pytest.mark.parametrize(
    "sent",
    [
        b"",
        b"HTTP/1.1 200 OK\r\nX-A: 1\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\n12345",
        b"HTTP/1.1 200 OK\r\nContent-Length: 100000\r\n\r\n12345",
    ],
)
def test_a_response_that_stalls_anywhere_times_out(sent: bytes) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening, ThreadPoolExecutor(1) as pool:

        def stall() -> None:
            connection, _ = listening.accept()
            connection.recv(10_000)
            connection.sendall(sent)
            connection.recv(1)  # until the client gives up
            connection.close()

        stalled = pool.submit(stall)
        connection = HttpConnection(f"http://127.0.0.1:{listening.getsockname()[1]}")
        with pytest.raises(NoResponse, match="timed out") as caught:
            connection.exchange("GET", "/", {}, connect_s=2.0, read_s=0.1)
        assert caught.value.outcome == "unknown"
        stalled.result(5)


def test_a_request_is_cancelled_and_the_connection_stays_usable(server: ScriptedServer) -> None:
    server.script(Reply(after_s=1.0))
    connection = HttpConnection(server.url)
    timer = threading.Timer(0.1, connection.cancel)
    timer.start()
    started = time.monotonic()
    with pytest.raises(NoResponse):
        get(connection)
    assert time.monotonic() - started < 0.9
    assert get(connection) == 200
    connection.interrupt()
    with pytest.raises(NoResponse):
        get(connection)
    with pytest.raises(NoResponse, match="interrupted") as caught:
        get(connection)
    assert caught.value.outcome == "not_written"
    timer.join()
