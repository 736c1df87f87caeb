"""A response that arrives in pieces, whatever the pieces are."""

import asyncio
import socket
import ssl
import subprocess
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

from myqueue import http_connection
from myqueue.fetch_connection import FetchConnection
from myqueue.http_connection import NoResponse, RawResponse
from tests.waiting import let_pass, until

BODY = bytes(range(256)) * 400
HEAD = f"HTTP/1.1 200 OK\r\nContent-Length: {len(BODY)}\r\n\r\n".encode()


@contextmanager
def answering(*responses: Sequence[bytes], context: ssl.SSLContext | None = None) -> Iterator[FetchConnection]:
    """A connection to a server that answers each request with these pieces, with a pause between two, and ends."""

    def serve() -> None:
        accepted, _ = listening.accept()
        if context is not None:
            accepted = context.wrap_socket(accepted, server_side=True)
        with accepted:
            for pieces in responses:
                assert accepted.recv(10_000).endswith(b"\r\n\r\n")
                for piece in pieces:
                    accepted.sendall(piece)
                    let_pass(0.02)

    with socket.create_server(("127.0.0.1", 0)) as listening:
        thread = threading.Thread(target=serve)
        thread.start()
        scheme = "http" if context is None else "https"
        connection = FetchConnection(f"{scheme}://localhost:{listening.getsockname()[1]}")
        try:
            asyncio.run(connection.open(2.0))
            yield connection
        finally:
            connection.close()
            thread.join(5)


def response_to(connection: FetchConnection) -> RawResponse:
    connection.request("/x", {}, read_s=5.0)
    return until(connection.receive_available, pause_s=0.001)


@pytest.mark.parametrize("size", [1, 7, len(HEAD) - 2, len(HEAD) + 3, 50_000, 1 << 20])
def test_it_is_put_together(size: int) -> None:
    data = HEAD + BODY
    pieces = [data[at : at + size] for at in range(0, len(data), size)]
    if len(pieces) > 50:  # the first ones as they are
        pieces = [*pieces[:50], b"".join(pieces[50:])]
    with answering(pieces, [b"HTTP/1.1 204 No Content\r\n\r\n"], [data]) as connection:
        assert connection.is_usable
        assert response_to(connection).body == BODY
        assert response_to(connection).status == 204
        assert response_to(connection).body == BODY


def test_a_proxy_may_send_chunks() -> None:
    chunked = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n"
    with answering([chunked, b"0\r\n\r\n"], [HEAD, BODY]) as connection:
        assert response_to(connection).body == b"hello"
        assert response_to(connection).body == BODY


def test_a_connection_with_bytes_behind_chunks_is_not_kept() -> None:
    chunked = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n"
    with answering([chunked + HEAD]) as connection:
        assert response_to(connection).body == b"hello"
        assert connection.fileno() < 0


def test_a_proxy_may_end_a_body_with_the_connection() -> None:
    with answering([b"HTTP/1.1 200 OK\r\n\r\nhel", b"lo"]) as connection:
        assert response_to(connection).body == b"hello"
        assert connection.fileno() < 0


def test_a_request_that_the_socket_does_not_take_at_once_is_sent_in_pieces() -> None:
    body = BODY * 200
    received = bytearray()

    def serve() -> None:
        accepted, _ = listening.accept()
        with accepted:
            let_pass(0.2)
            while not received.endswith(body):
                received.extend(accepted.recv(1 << 20))
            accepted.sendall(HEAD + BODY)

    with socket.create_server(("127.0.0.1", 0)) as listening:
        thread = threading.Thread(target=serve)
        thread.start()
        connection = FetchConnection(f"http://127.0.0.1:{listening.getsockname()[1]}")
        response = asyncio.run(connection.exchange("POST", "/x", {}, body, connect_s=2.0, read_s=5.0))
        thread.join(5)
        connection.close()
    assert response.body == BODY
    assert f"Content-Length: {len(body)}".encode() in received


def test_a_server_that_does_not_answer_in_time() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        connection = FetchConnection(f"http://127.0.0.1:{listening.getsockname()[1]}")
        with pytest.raises(NoResponse, match="timed out"):
            asyncio.run(connection.exchange("GET", "/x", {}, connect_s=2.0, read_s=0.1))
    assert connection.fileno() < 0


@pytest.mark.parametrize(
    "pieces",
    [
        [b"HTTP/1.1 200 OK\r\nContent-Len"],
        [HEAD, BODY[:-1]],
        [b"no HTTP at all\r\n\r\n"],
        [b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nand more"],
        [],
    ],
    ids=["half a head", "half a body", "another protocol", "more than its length", "nothing"],
)
def test_what_is_no_whole_response_is_none(pieces: list[bytes]) -> None:
    with answering(pieces) as connection, pytest.raises(NoResponse):
        response_to(connection)
    assert connection.fileno() < 0


def test_a_connection_that_the_server_closed_is_not_usable() -> None:
    with answering([HEAD, BODY]) as connection:
        assert response_to(connection).status == 200
        until(lambda: not connection.is_usable)
        connection.close()
        with pytest.raises(NoResponse):
            connection.request("/x", {}, read_s=5.0)


def test_tls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    certificate, key = tmp_path / "certificate.pem", tmp_path / "key.pem"
    request = "req -x509 -newkey rsa:2048 -nodes -days 1 -subj /CN=localhost -addext subjectAltName=DNS:localhost"
    subprocess.run(f"openssl {request} -keyout {key} -out {certificate}".split(), check=True, capture_output=True)
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(certificate, key)
    monkeypatch.setattr(http_connection, "_tls", lambda: ssl.create_default_context(cafile=certificate))
    with answering([HEAD, BODY[:20_000], BODY[20_000:]], [HEAD + BODY], context=context) as connection:
        let_pass(0.1)  # the server sends its session tickets: they are not the end of the connection
        assert connection.is_usable
        assert response_to(connection).body == BODY
        assert connection.is_usable
        assert response_to(connection).body == BODY
        until(lambda: not connection.is_usable)


def test_an_address_that_does_not_answer_leaves_time_for_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    """A host may have an IPv6 address that leads nowhere, and an IPv4 address that works."""
    with socket.socket() as full, socket.create_server(("127.0.0.1", 0)) as listening:
        full.bind(("127.0.0.1", 0))
        full.listen(0)
        queued = [socket.socket() for _ in range(4)]
        for waiting in queued:  # the backlog is full: further SYNs are dropped
            waiting.setblocking(False)
            waiting.connect_ex(full.getsockname())
        found = [(socket.AF_INET, socket.SOCK_STREAM, 6, "", end.getsockname()) for end in (full, listening)]
        monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: found)
        connection = FetchConnection("http://two-addresses.test")
        asyncio.run(connection.open(2.0))
        assert connection.is_usable
        connection.close()
        for waiting in queued:
            waiting.close()
