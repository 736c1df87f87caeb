"""A listener: an HTTP/1.1 server on the process's event loop, in front of a router. One process has any number."""

import asyncio
import socket
import sys
from collections.abc import Awaitable, Callable

from service.http_app import HttpApp
from service.open_connections import HttpServerConnections
from service.router import Router
from service.server_connection import HttpServerConnection

BACKLOG = 1024
CHECK_INTERVAL_S = 1.0


async def _nothing() -> None:
    pass


class Listener:
    def __init__(
        self,
        app: HttpApp,
        host: str,
        port: int,
        before_stop: Callable[[], Awaitable[None]] = _nothing,
        *,
        opens_late: bool = False,
    ) -> None:
        """Requests are accepted until `before_stop` has ended: it moves the load to other processes.

        `opens_late`: connections are refused until `open`. A port on which another process listens is found at once.
        """
        self._app = app
        self._before_stop = before_stop
        self._opened = asyncio.Event()
        if not opens_late:
            self._opened.set()
        self._host, self._port = host, port
        self._connections = HttpServerConnections(app)
        self._server: asyncio.Server | None = None
        self._task: asyncio.Task[None] | None = None
        self._stopping = False

    @property
    def router(self) -> Router:
        return self._app.router

    def start(self) -> asyncio.Task[None]:
        """The task ends when the listener stops, or fails."""
        self._task = asyncio.create_task(self._serve(self._bind()))
        return self._task

    def open(self) -> None:
        self._opened.set()

    def _bind(self) -> socket.socket:
        """Without SO_REUSEPORT: a second process would silently get half of the connections."""
        bound = socket.socket()
        try:
            bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            bound.bind((self._host, self._port))
            if self._opened.is_set():
                bound.listen(BACKLOG)
            return bound
        except OSError as error:
            bound.close()
            print(f"cannot listen on {self._host}:{self._port}: {error.strerror}", file=sys.stderr)
            raise SystemExit(2) from error

    async def _serve(self, bound: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        connections = self._connections
        try:
            await self._opened.wait()
        except asyncio.CancelledError:
            bound.close()
            raise
        if self._stopping:  # told to open and to stop at the same time
            bound.close()
            return
        self._server = await loop.create_server(
            lambda: HttpServerConnection(connections, loop), sock=bound, backlog=BACKLOG
        )
        if self._stopping:
            self._server.close()
            return
        while True:
            await asyncio.sleep(CHECK_INTERVAL_S)
            connections.check_times()

    async def stop(self, timeout_s: float) -> bool:
        """True when every request in flight was answered in time."""
        await self._before_stop()
        if self._task is None:
            return True
        self._stopping = True
        if self._server is not None:
            self._server.close()
        self._connections.stop()
        self._app.stop()
        drained = await self._app.drain(timeout_s)
        await self._connections.close(timeout_s)
        self._task.cancel()
        await asyncio.wait([self._task])
        self._task = None
        self._app.close()
        return drained
