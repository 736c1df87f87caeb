"""A listener's inside without the port: a router, its limits, and connections over socket pairs."""

import asyncio
import json
import logging
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

import structlog
from prometheus_client import CollectorRegistry

from myqueue.protocol.errors import MyQueueError
from myqueue.protocol.routes import Route
from service.body_budget import BodyBudget
from service.flask_app import FlaskApp
from service.http_app import HttpApp
from service.http_messages import LoopHandler, ThreadHandler
from service.open_connections import HttpServerConnections
from service.request_observer import RequestObserver
from service.router import Router
from service.server_connection import HttpServerConnection

WITHIN_S = 10.0
LOG = structlog.wrap_logger(None, wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))


@dataclass(frozen=True)
class Answer:
    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def error_code(self) -> int:
        code: int = json.loads(self.body)["error_code"]
        return code


async def read_answer(reader: asyncio.StreamReader, *, is_head: bool = False) -> Answer:
    status_line, *lines = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")[:-2]
    headers = dict(line.split(": ", 1) for line in lines)
    assert len(headers) == len(lines), f"a header twice: {lines}"
    body = b"" if is_head else await reader.readexactly(int(headers.get("content-length", "0")))
    return Answer(int(status_line.split(" ")[1]), headers, body)


class HttpSite:
    def __init__(
        self,
        *,
        gate: MyQueueError | None = None,
        max_on_loop: int = 9,
        max_open_body_bytes: int = 900,
        max_body_bytes: int = 100,
        max_streams: int = 9,
        known_routes: tuple[Route, ...] = (),
        log: Any = LOG,
    ) -> None:
        self.registry = CollectorRegistry()
        self.router = Router(
            LOG,
            RequestObserver(self.registry, log),
            flask_app=FlaskApp("test", threads=2),
            secret="x" * 16,
            gate=lambda: gate,
            known_routes=known_routes,
        )
        self.app = HttpApp(
            self.router,
            max_body_bytes=max_body_bytes,
            max_on_loop=max_on_loop,
            max_on_threads=9,
            max_streams=max_streams,
            bodies=BodyBudget(max_open_body_bytes),
        )
        self.connections = HttpServerConnections(self.app)

    def add(
        self, name: str, method: str, path: str, handler: LoopHandler | ThreadHandler, *, head: bool = True
    ) -> None:
        self.router.add(Route(name, method, path, "read", "", head=head), handler)

    @asynccontextmanager
    async def connected(self) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
        loop = asyncio.get_running_loop()
        here, there = socket.socketpair()
        await loop.connect_accepted_socket(lambda: HttpServerConnection(self.connections, loop), there)
        reader, writer = await asyncio.open_connection(sock=here)
        try:
            async with asyncio.timeout(WITHIN_S):
                yield reader, writer
        finally:
            writer.close()

    async def ask(self, method: str, path: str, body: bytes = b"", **given: str) -> Answer:
        """On a connection of its own."""
        headers = {"host": "x", "x-request-id": "r-1", **given}
        if body:
            headers["content-length"] = str(len(body))
        head = f"{method} {quote(path)} HTTP/1.1\r\n" + "".join(f"{name}: {text}\r\n" for name, text in headers.items())
        async with self.connected() as (reader, writer):
            writer.write(head.encode() + b"\r\n" + body)
            return await read_answer(reader, is_head=method == "HEAD")
