"""A real HTTP server that answers by script: it fails in the ways that networks and servers fail, on purpose."""

import json
import socket
import struct
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

from tests.waiting import let_pass


@dataclass(frozen=True)
class Reply:
    status: int = 200
    body: dict[str, Any] | str | bytes | None = field(default_factory=lambda: {"status": "success"})
    headers: dict[str, str] = field(default_factory=dict)
    after_s: float = 0.0
    stall: threading.Event | None = None  # the second half of the body waits for it


@dataclass(frozen=True)
class Reset:
    """The connection breaks after the request was read."""


Step = Reply | Reset


@dataclass(frozen=True)
class Seen:
    method: str
    path: str
    query: dict[str, str]
    headers: dict[str, str]
    body: Any
    at: float

    @property
    def key(self) -> str:
        return self.headers["idempotency-key"]


def failure(status: int, code: int, message: str = "failed", **fields: Any) -> dict[str, Any]:
    body = {"status": "failure", "error_code": code, "message": message, "request_id": "r1"}
    return body | {"retriable": status in (421, 429, 502, 503, 504, 507)} | fields


class ScriptedServer:
    """Takes the next step of the script for each request, then asks `answer`."""

    def __init__(self, port: int = 0) -> None:
        self.steps: deque[Step] = deque()
        self.seen: list[Seen] = []
        self.answer: Callable[[Seen], Step] = lambda _: Reply()
        self._lock = threading.Lock()
        self._server = ThreadingHTTPServer(("127.0.0.1", port), self._handler_class())
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.02,))
        self._thread.start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    def script(self, *steps: Step) -> None:
        self.steps.extend(steps)

    def calls(self, path: str) -> list[Seen]:
        return [seen for seen in self.seen if seen.path == path]

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def _next(self, seen: Seen) -> Step:
        with self._lock:
            self.seen.append(seen)
            if self.steps:
                return self.steps.popleft()
        return self.answer(seen)

    def _handler_class(self) -> type[BaseHTTPRequestHandler]:
        script = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            timeout = 5
            disable_nagle_algorithm = True

            def do_GET(self) -> None:
                length = int(self.headers.get("Content-Length", "0"))
                data = self.rfile.read(length)
                parts = urlsplit(self.path)
                step = script._next(
                    Seen(
                        self.command,
                        parts.path,
                        {name: values[0] for name, values in parse_qs(parts.query).items()},
                        {name.lower(): value for name, value in self.headers.items()},
                        _content(data, self.headers.get("Content-Type", "")),
                        time.monotonic(),
                    )
                )
                if isinstance(step, Reset):
                    self.close_connection = True
                    linger = struct.pack("ii", 1, 0)  # closing now sends RST
                    self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
                    self.connection.close()
                    return
                let_pass(step.after_s)
                self._reply(step)

            do_POST = do_DELETE = do_GET

            def _reply(self, step: Reply) -> None:
                data = _as_bytes(step.body)
                try:
                    self.send_response(step.status)
                    for name, value in step.headers.items():
                        self.send_header(name, value)
                    if step.status != 204:
                        self.send_header("Content-Length", str(len(data)))
                    self.end_headers()
                    half = len(data) // 2 if step.stall is not None else len(data)
                    self.wfile.write(data[:half])
                    if step.stall is not None:
                        self.wfile.flush()
                        step.stall.wait(5)
                        self.wfile.write(data[half:])
                except OSError:
                    self.close_connection = True  # the client did not wait

            def finish(self) -> None:
                try:
                    super().finish()
                except (OSError, ValueError):
                    self.close_connection = True

            def log_message(self, format: str, *args: object) -> None:
                pass

        return Handler


def _content(data: bytes, content_type: str) -> Any:
    if content_type == "application/json":
        return json.loads(data)
    return data or None


def _as_bytes(body: dict[str, Any] | str | bytes | None) -> bytes:
    if isinstance(body, bytes):
        return body
    if body is None:
        return b""
    return body.encode() if isinstance(body, str) else json.dumps(body).encode()
