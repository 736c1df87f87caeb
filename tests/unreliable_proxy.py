"""A TCP proxy that delays, reorders and drops what passes: requests overtake each other, answers get lost."""

import random
import socket
import threading
from contextlib import suppress

from tests.waiting import let_pass


class UnreliableProxy:
    """Each piece that passes waits up to `delay_s`, and breaks its connection with the probability `drop`.

    A client's connections are delayed independently, so what it sends over several of them arrives in any order.
    A request that is dropped may be cut in the middle; an answer that is dropped belongs to a request that arrived.
    """

    def __init__(self, url: str, seed: int, *, delay_s: float = 0.02, drop: float = 0.05) -> None:
        host, port = url.removeprefix("http://").split(":")
        self._target = (host, int(port))
        self._chance = random.Random(seed)
        self._delay_s, self.drop = delay_s, drop
        self.dropped = 0
        self._listening = socket.create_server(("127.0.0.1", 0))
        self._open: set[socket.socket] = set()
        self._closed = False
        self._threads = [threading.Thread(target=self._accept, daemon=True)]
        self._threads[0].start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._listening.getsockname()[1]}"

    def close(self) -> None:
        self._closed = True
        with suppress(OSError):
            self._listening.shutdown(socket.SHUT_RDWR)
        self._listening.close()
        for connection in list(self._open):
            _shut(connection)
        for thread in self._threads:
            thread.join(5)

    def _accept(self) -> None:
        while not self._closed:
            try:
                client, _ = self._listening.accept()
                server = socket.create_connection(self._target, 5)
            except OSError:
                return
            self._open |= {client, server}
            for source, sink in ((client, server), (server, client)):
                source.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                thread = threading.Thread(target=self._pump, args=(source, sink), daemon=True)
                self._threads.append(thread)
                thread.start()

    def _pump(self, source: socket.socket, sink: socket.socket) -> None:
        with suppress(OSError):
            while data := source.recv(1 << 20):
                let_pass(self._chance.random() * self._delay_s)
                if self._chance.random() < self.drop:
                    self.dropped += 1
                    break
                sink.sendall(data)
        _shut(source)
        _shut(sink)
        source.close()
        self._open.discard(source)


def _shut(connection: socket.socket) -> None:
    with suppress(OSError):
        connection.shutdown(socket.SHUT_RDWR)
