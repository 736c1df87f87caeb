"""The open connections of one listener: their time limits, and the order in which they end."""

import asyncio
import time
from collections.abc import Callable
from email.utils import formatdate
from typing import TYPE_CHECKING

from service.http_app import HttpApp

if TYPE_CHECKING:
    from service.server_connection import HttpServerConnection

_CLOSE_POLL_S = 0.01


class HttpServerConnections:
    def __init__(self, app: HttpApp) -> None:
        self.app = app
        self.open: set[HttpServerConnection] = set()
        self.upgraded: dict[asyncio.Transport, asyncio.Protocol] = {}
        self.stopping = False
        self.check_times()

    def check_times(self) -> None:
        """Once a second."""
        self.now_s = time.monotonic()  # as of the last check: exact enough for limits of seconds
        self.date_line = f"date: {formatdate(usegmt=True)}\r\n"
        for connection in [one for one in self.open if one.deadline_s < self.now_s]:
            connection.time_out()
        for transport in [one for one in self.upgraded if one.is_closing()]:
            del self.upgraded[transport]

    def stop(self) -> None:
        """Every answer from now on is the last one of its connection."""
        self.stopping = True
        for connection in list(self.open):
            connection.stop()

    async def close(self, timeout_s: float) -> None:
        """What is not closed in time is aborted."""
        for connection in list(self.open):
            connection.close()
        for transport, protocol in self.upgraded.items():
            if not transport.is_closing():
                close: Callable[[], None] = getattr(protocol, "close", transport.close)
                close()
        deadline_s = time.monotonic() + timeout_s
        while (self.open or not all(one.is_closing() for one in self.upgraded)) and time.monotonic() < deadline_s:
            await asyncio.sleep(_CLOSE_POLL_S)
        for transport in [*self.upgraded, *(one.transport for one in self.open)]:
            transport.abort()
        self.upgraded.clear()
