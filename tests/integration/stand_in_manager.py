"""A small real HTTP server in the place of a manager: it notes what reaches it and can misbehave on order."""

import contextlib
import select
import socket
import threading
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from stack.local import free_port
from tests.waiting import let_pass


@dataclass(frozen=True)
class Received:
    method: str
    target: str
    headers: dict[str, str]
    body: bytes


@dataclass
class Behaviour:
    ready: bool = True
    ready_delay_s: float = 0.0  # of the readiness check alone
    status: int = 200
    body: bytes | None = None  # instead of the name
    hang_up: bool = False  # close the connection instead of answering
    delay_s: float = 0.0
    answer_delay_s: float = 0.0  # of everything but the checks
    received: list[Received] = field(default_factory=list)
    checks: int = 0  # health checks that arrived
    abandoned_checks: int = 0  # those that nginx gave up waiting for


class StandInManager:
    """Keeps its port over `stop` and `start`, like a manager that is restarted."""

    def __init__(self, name: str, host: str = "127.0.0.1") -> None:
        self.name = name
        self.host = host
        self.behaviour = Behaviour()
        self.port = free_port()
        self._server: ThreadingHTTPServer | None = None
        self.read_connections = 0  # those with a request that is no health check

    @property
    def address(self) -> str:
        return f"{self.host}:{self.port}"

    @property
    def received(self) -> list[Received]:
        return self.behaviour.received

    def start(self) -> None:
        manager = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            has_read = False

            def answer(self) -> None:
                behaviour = manager.behaviour
                length = int(self.headers.get("Content-Length", 0))
                body = self.rfile.read(length)
                if self.headers.get("Host") == "health-check":
                    is_readiness = self.path == "/readyz"
                    behaviour.checks += 1
                    self.delay_check(behaviour, behaviour.delay_s + (behaviour.ready_delay_s if is_readiness else 0.0))
                    self.reply(200 if behaviour.ready or not is_readiness else 503, b"{}")
                    return
                if not self.has_read:
                    self.has_read = True
                    manager.read_connections += 1
                headers = {name.lower(): value for name, value in self.headers.items()}
                behaviour.received.append(Received(self.command, self.path, headers, body))
                if behaviour.hang_up:
                    self.close_connection = True
                    self.connection.shutdown(socket.SHUT_RDWR)
                    return
                let_pass(behaviour.delay_s + behaviour.answer_delay_s)
                self.reply(behaviour.status, manager.name.encode() if behaviour.body is None else behaviour.body)

            def delay_check(self, behaviour: Behaviour, seconds: float) -> None:
                if seconds and select.select([self.connection], [], [], seconds)[0]:
                    behaviour.abandoned_checks += 1

            def reply(self, status: int, body: bytes) -> None:
                self.send_response(status)
                self.send_header("Content-Length", str(len(body)))
                self.send_header("X-Request-Id", "from-the-manager")
                self.end_headers()
                if self.command != "HEAD":
                    self.wfile.write(body)

            def __getattr__(self, name: str) -> object:
                if name.startswith("do_"):
                    return self.answer
                raise AttributeError(name)

            def log_message(self, format: str, *args: object) -> None:
                """Silent: the test looks at what was received."""

        class Server(ThreadingHTTPServer):
            daemon_threads = True

            def __init__(self) -> None:
                self.connections: list[socket.socket] = []  # first: a port that is taken closes the server
                super().__init__((manager.host, manager.port), Handler)

            def get_request(self) -> tuple[socket.socket, object]:
                connection, address = super().get_request()
                self.connections.append(connection)
                return connection, address

            def server_close(self) -> None:
                """Also hangs up on everyone, like a process that ends."""
                super().server_close()
                for connection in self.connections:
                    with contextlib.suppress(OSError):
                        connection.shutdown(socket.SHUT_RDWR)

            def handle_error(self, request: object, client_address: object) -> None:
                """nginx giving up on a slow answer is part of the play."""

        self._server = Server()
        threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True).start()

    def stop(self) -> None:
        if self._server is not None:
            self._server.shutdown()
            self._server.server_close()
            self._server = None

    def reset(self) -> None:
        self.behaviour = Behaviour()
        if self._server is None:
            self.start()
