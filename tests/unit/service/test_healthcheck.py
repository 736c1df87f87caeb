"""What a container's health check says."""

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from service.healthcheck import main, problem


@contextmanager
def answering(answer: bytes) -> Iterator[str]:
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            connection, _ = server.accept()
            with connection:
                connection.recv(1024)
                connection.sendall(answer)

        thread = threading.Thread(target=serve)
        thread.start()
        yield str(server.getsockname()[1])
        thread.join()


def test_only_200_is_healthy() -> None:
    with answering(b"HTTP/1.1 200 OK\r\n\r\n") as port:
        assert problem(port) is None
    with answering(b"HTTP/1.1 503 Service Unavailable\r\n\r\n") as port:
        assert "503" in str(problem(port))
    with answering(b"") as port:
        assert "answered ''" in str(problem(port))


def test_nobody_there() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = str(server.getsockname()[1])
    assert f"port {port}" in str(problem(port))


def test_no_port_is_a_problem_that_says_so() -> None:
    assert "MYQUEUE_PORT" in str(problem(""))


def test_a_write_manager_is_asked_at_its_internal_port(monkeypatch: pytest.MonkeyPatch) -> None:
    """The other one is closed while it is the standby."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        closed = str(server.getsockname()[1])
    monkeypatch.setenv("MYQUEUE_PORT", closed)
    assert main() == 1
    with answering(b"HTTP/1.1 200 OK\r\n\r\n") as port:
        monkeypatch.setenv("MYQUEUE_INTERNAL_PORT", port)
        assert main() == 0
