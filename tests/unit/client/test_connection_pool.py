"""Clients with the same URL share idle connections; a child process opens its own."""

import json
import os
import socket
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack

import pytest

from myqueue import Admin, ApiHandler
from myqueue.connection_pool import MAX_IDLE, ConnectionPool
from myqueue.protocol import routes
from tests.waiting import until


class PortServer:
    """Answers each request with the client's port: which connection it came over."""

    def __init__(self) -> None:
        self.barrier: threading.Barrier | None = None
        self.open = 0
        self._listening = socket.create_server(("127.0.0.1", 0), backlog=64)
        self._thread = threading.Thread(target=self._accept)
        self._thread.start()
        self.url = f"http://127.0.0.1:{self._listening.getsockname()[1]}"

    def _accept(self) -> None:
        while True:
            try:
                taken, peer = self._listening.accept()
            except OSError:
                return
            threading.Thread(target=self._serve, args=(taken, peer[1]), daemon=True).start()

    def _serve(self, taken: socket.socket, port: int) -> None:
        body = json.dumps({"status": "success", "service": port}).encode()
        self.open += 1
        with taken:
            while taken.recv(1 << 16):
                if self.barrier is not None:
                    self.barrier.wait(10)
                taken.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body))
        self.open -= 1

    def close(self) -> None:
        self._listening.shutdown(socket.SHUT_RDWR)
        self._listening.close()
        self._thread.join()


@pytest.fixture
def ports() -> Iterator[PortServer]:
    server = PortServer()
    yield server
    server.close()


def test_clients_of_a_url_use_one_connection(ports: PortServer) -> None:
    with Admin(ports.url) as one, Admin(ports.url + "/") as other, ApiHandler(ports.url) as third:
        used = {
            one.health()["service"],
            other.health()["service"],
            third._transport.call(routes.HEALTHZ).body["service"],
        }
        assert (len(used), ports.open) == (1, 1)
        one.close()
        assert other.health()["service"] in used
        assert one.health()["service"]  # closing ends pauses, not later calls
    until(lambda: ports.open == 0)


def test_a_burst_leaves_few_connections_behind(ports: PortServer) -> None:
    count = MAX_IDLE + 4
    ports.barrier = threading.Barrier(count)
    with ExitStack() as stack, ThreadPoolExecutor(count) as threads:
        admins = [stack.enter_context(Admin(ports.url)) for _ in range(count)]
        used = set(threads.map(lambda admin: admin.health()["service"], admins))
        assert len(used) == count
        until(lambda: ports.open == MAX_IDLE)
    until(lambda: ports.open == 0)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_child_opens_its_own_connection_and_leaves_its_parents_open(ports: PortServer) -> None:
    with Admin(ports.url) as admin:
        mine = admin.health()["service"]
        reading, writing = os.pipe()
        child = os.fork()
        if child == 0:
            try:
                first, second = admin.health()["service"], admin.health()["service"]
                admin.close()
                os.write(writing, f"{first} {second}".encode())
            finally:
                os._exit(0)
        os.close(writing)
        with os.fdopen(reading) as pipe:
            first, second = pipe.read().split()
        os.waitpid(child, 0)
        assert first == second != str(mine)
        assert admin.health()["service"] == mine


def test_closing_twice_releases_once(ports: PortServer) -> None:
    with Admin(ports.url) as staying, Admin(ports.url) as leaving:
        port = staying.health()["service"]
        leaving.close()
        leaving.close()
        assert staying.health()["service"] == port


def test_the_connection_used_last_is_borrowed_first() -> None:
    pool = ConnectionPool("http://localhost")
    first, second = pool.borrow(), pool.borrow()
    pool.give_back(first)
    pool.give_back(second)
    assert pool.borrow() is second
