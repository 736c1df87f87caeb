"""One connection: kept alive, opened again after a drop, cancelled from another thread."""

import signal
import socket
import ssl
import subprocess
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import pytest

from myqueue import http_connection
from myqueue.http_connection import HttpConnection, NoResponse, RawResponse, TlsFailed
from tests.unit.client.scripted_server import Reply, Reset, ScriptedServer
from tests.waiting import let_pass

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
    kept = connection._sock
    assert get(connection) == 200
    assert connection._sock is kept
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


@pytest.mark.skipif(not hasattr(signal, "pthread_kill"), reason="needs signals to a thread")
def test_the_response_to_an_interrupted_request_is_not_taken_for_the_next_one(server: ScriptedServer) -> None:
    main = threading.main_thread().ident
    assert main == threading.get_ident()
    server.script(Reply(200, "first", after_s=0.5), Reply(200, "second"))
    connection = HttpConnection(server.url)
    timer = threading.Timer(0.1, lambda: signal.pthread_kill(main, signal.SIGINT))
    timer.start()
    with pytest.raises(KeyboardInterrupt):
        get(connection)
    timer.join()
    assert connection.exchange("GET", "/x", {}, None, **TIMES).body == b"second"
    connection.close()


class RawServer:
    """Sends what it is given, piece by piece, when the head of a request has arrived; then waits for the client."""

    def __init__(self, *pieces: bytes, close: bool = False) -> None:
        self._pieces, self._close = pieces, close
        self._listening = socket.create_server(("127.0.0.1", 0))
        self._pool = ThreadPoolExecutor(1)
        self.url = f"http://127.0.0.1:{self._listening.getsockname()[1]}"

    def __enter__(self) -> "RawServer":
        self._served = self._pool.submit(self._serve)
        return self

    def __exit__(self, *_: object) -> None:
        self._served.result(10)
        self._pool.shutdown()
        self._listening.close()

    def _serve(self) -> None:
        connection, _ = self._listening.accept()
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        with connection:
            connection.recv(1000)
            try:
                for piece in self._pieces:
                    connection.sendall(piece)
                    let_pass(0.005)
                while not self._close and connection.recv(1 << 20):
                    pass
            except OSError:
                return  # the client has closed


def exchange_with(*pieces: bytes, close: bool = False, read_s: float = 5.0) -> RawResponse:
    with RawServer(*pieces, close=close) as server:
        connection = HttpConnection(server.url)
        try:
            return connection.exchange("GET", "/", {}, connect_s=2.0, read_s=read_s)
        finally:
            connection.close()


ANSWER = b"HTTP/1.1 200 OK\r\ncontent-LENGTH:  5 \r\nX-Request-Id: abc\r\nRetry-After: 7\r\n\r\nhello"


def test_a_response_in_any_pieces() -> None:
    for size in (1, 2, 3, 7, 30):
        pieces = [ANSWER[at : at + size] for at in range(0, len(ANSWER), size)]
        answer = exchange_with(*pieces)
        assert (answer.status, answer.body) == (200, b"hello")
        assert answer.headers.get("retry-after") == "7"
        assert answer.headers.get("X-REQUEST-ID") == "abc"
        assert answer.headers.get("Request-Id") is None
        assert answer.headers.get("Date", "") == ""


def test_interim_responses_are_skipped() -> None:
    interim = b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nLink: a\r\n\r\n"
    assert exchange_with(interim, ANSWER).body == b"hello"
    assert exchange_with(interim + ANSWER).body == b"hello"
    with pytest.raises(NoResponse, match="no HTTP response"):
        exchange_with(b"HTTP/1.1 100 Continue\r\n\r\n" * 100)


@pytest.mark.parametrize("size", [1, 4, 1000])
def test_a_chunked_response_of_another_server(size: int) -> None:
    message = (
        b"HTTP/1.1 502 Bad\r\nTransfer-Encoding: chunked\r\n\r\n"
        b"5\r\nhello\r\n6;a=b\r\n world\r\n0\r\nTrailer: x\r\n\r\n"
    )
    answer = exchange_with(*[message[at : at + size] for at in range(0, len(message), size)])
    assert (answer.status, answer.body) == (502, b"hello world")


def test_a_response_that_ends_with_its_connection() -> None:
    assert exchange_with(b"HTTP/1.0 200 OK\r\n\r\nhel", b"lo", close=True).body == b"hello"


@pytest.mark.parametrize("status", [204, 304])
def test_a_status_without_a_body(status: int) -> None:
    assert exchange_with(b"HTTP/1.1 %d None\r\nContent-Length: 9\r\n\r\n" % status).body == b""


@pytest.mark.parametrize(
    "sent",
    [
        b"SSH-2.0-OpenSSH_9.6\r\n",
        b"220 mail ready\n\n",
        b"\x15\x03\x01\x00\x02\x02\x46",
        b"HTTP/1.1 OK\r\n\r\n",
        b"HTTP/2 200\r\n\r\n",
        b"HTTP/1.1 200 OK\nContent-Length: 1\n\nx",
        b"HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nxx",
        b"HTTP/1.1 200 OK\r\nContent-Length: 99999999999999\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip, chunked\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nxyz\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nhello\r\n",
    ],
)
def test_what_is_no_response_is_recognised_without_waiting(sent: bytes) -> None:
    with pytest.raises(NoResponse, match="no HTTP response") as caught:
        exchange_with(sent, read_s=60.0)
    assert caught.value.outcome == "unknown"


def test_a_head_has_a_limit_in_bytes_and_in_time() -> None:
    with pytest.raises(NoResponse, match="does not end"):
        exchange_with(b"HTTP/1.1 200 OK\r\n", *[b"X-A: %b\r\n" % (b"a" * 1000)] * 40, read_s=60.0)
    with pytest.raises(NoResponse, match="timed out"):
        exchange_with(b"HTTP/1.1 200 OK\r\n", *[b"X-A: a\r\n"] * 200, read_s=0.2)
    with pytest.raises(NoResponse, match="timed out"):
        exchange_with(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n", *[b"1\r\na\r\n"] * 200, read_s=0.2)


def test_bytes_behind_a_response_end_the_connection(server: ScriptedServer) -> None:
    with RawServer(ANSWER + ANSWER) as raw:
        connection = HttpConnection(raw.url)
        assert get(connection) == 200
        assert connection._sock is None


def test_an_early_answer_to_a_body_that_nobody_reads() -> None:
    """The server neither reads on nor closes: the answer counts, and the connection is not used again."""
    with socket.create_server(("127.0.0.1", 0)) as listening, ThreadPoolExecutor(1) as pool:
        over = threading.Event()

        def refuse() -> None:
            connection, _ = listening.accept()
            with connection:
                connection.recv(1000)
                connection.sendall(b"HTTP/1.1 413 Too Large\r\nContent-Length: 2\r\n\r\n{}")
                assert over.wait(20)

        refused = pool.submit(refuse)
        connection = HttpConnection(f"http://127.0.0.1:{listening.getsockname()[1]}")
        try:
            body = b"x" * (64 << 20)  # more than the socket's buffers
            assert connection.exchange("POST", "/", {}, body, connect_s=2.0, read_s=0.5).status == 413
            assert connection._sock is None
        finally:
            over.set()
        refused.result(5)


def test_many_buffers_go_out_in_order(server: ScriptedServer) -> None:
    server.answer = lambda seen: Reply(200, seen.body)
    pieces = [b"%d," % number for number in range(3000)]
    connection = HttpConnection(server.url)
    assert connection.exchange("POST", "/", {}, pieces, **TIMES).body == b"".join(pieces)
    connection.close()


@pytest.mark.parametrize("headers", [{"A": "1\r\nB: 2"}, {"A": "1\n"}, {"A\r": "1"}])
def test_a_header_cannot_hold_a_line_break(server: ScriptedServer, headers: dict[str, str]) -> None:
    connection = HttpConnection(server.url)
    with pytest.raises(ValueError, match="line break"):
        connection.exchange("GET", "/", headers, None, **TIMES)
    with pytest.raises(ValueError, match="target"):
        connection.exchange("GET", "/a HTTP/1.1\r\nX: y", {}, None, **TIMES)
    assert server.seen == []


def test_tls_takes_the_same_way(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    certificate, key = tmp_path / "certificate.pem", tmp_path / "key.pem"
    request = "req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2 -subj /CN=localhost"
    names = "-addext subjectAltName=DNS:localhost,IP:127.0.0.1"
    files = f"-keyout {key} -out {certificate}"
    subprocess.run(f"openssl {request} {names} {files}".split(), check=True, capture_output=True)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    large = bytes(range(256)) * 5000
    with socket.create_server(("127.0.0.1", 0)) as listening, ThreadPoolExecutor(1) as pool:
        url = f"https://127.0.0.1:{listening.getsockname()[1]}"

        def serve() -> None:
            with suppress(ssl.SSLError, OSError):
                context.wrap_socket(listening.accept()[0], server_side=True).close()  # one that does not trust us
            with context.wrap_socket(listening.accept()[0], server_side=True) as connection:
                for _ in range(2):
                    received = b""
                    while not received.endswith(b"end"):
                        received += connection.recv(1 << 20)
                    connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(large) + large)
                while connection.recv(1):
                    pass

        served = pool.submit(serve)
        with pytest.raises(TlsFailed) as caught:
            get(HttpConnection(url))
        assert caught.value.outcome == "not_written"
        monkeypatch.setattr(http_connection, "_tls", lambda: ssl.create_default_context(cafile=certificate))
        connection = HttpConnection(url)
        for size in (10, 200_000):
            assert connection.exchange("POST", "/", {}, (b"x" * size, b"end"), **TIMES).body == large
        connection.close()
        served.result(5)
