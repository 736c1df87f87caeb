"""Requests of consumers in the background thread: as `Transport`, and awaited."""

import asyncio
from collections.abc import Mapping
from functools import partial
from typing import Any

from myqueue.fetch_connection import FetchConnection
from myqueue.http_connection import NoResponse
from myqueue.io_thread import IoThread
from myqueue.protocol import http_headers
from myqueue.protocol.routes import Route
from myqueue.transport import FailedAttempt, Response, RetriedCall, Transport, decode_response, encode_call


class AsyncTransport:
    """The requests of one consumer. It has the settings and the session token of `transport`."""

    def __init__(self, io: IoThread, transport: Transport) -> None:
        self.url = transport.url
        self.retry = transport.retry
        self._io = io
        self._timeouts = transport.timeouts
        self._token = transport.token
        self._closed = asyncio.Event()

    async def call(
        self,
        route: Route,
        *,
        path: Mapping[str, str | int] | None = None,
        query: Mapping[str, str | int] | None = None,
        body: Mapping[str, Any] | None = None,
        idempotency_key: str | None = None,
        deadline_s: float | None = None,
    ) -> Response:
        """The response of a successful call; raises the error of a failed one. The call must be safe to repeat."""
        retried = RetriedCall(self.retry, route, repeatable=True, deadline_s=deadline_s, wait_s=0.0)
        while True:
            left_s = retried.left_s()
            attempt = partial(self._attempt, route, path, query, body, idempotency_key, left_s, self._timeouts.read_s)
            result = await self._io.with_connection(attempt)
            if isinstance(result, Response):
                return result
            if await self._closes_within(retried.pause_s(result)):
                raise result.error

    async def call_once(
        self,
        connection: FetchConnection,
        route: Route,
        *,
        path: Mapping[str, str | int] | None = None,
        body: Mapping[str, Any] | None = None,
        read_s: float,
    ) -> Response:
        """One attempt, over a connection of the caller's own; raises its error.

        `read_s` counts alone: the server may have been asked to wait.
        """
        result = await self._attempt(route, path, None, body, None, read_s, read_s, connection)
        if isinstance(result, FailedAttempt):
            raise result.error
        return result

    def close(self) -> None:
        """Ends pauses between attempts."""
        self._closed.set()

    async def _attempt(
        self,
        route: Route,
        path: Mapping[str, str | int] | None,
        query: Mapping[str, str | int] | None,
        body: Mapping[str, Any] | None,
        idempotency_key: str | None,
        left_s: float,
        read_s: float,
        connection: FetchConnection,
    ) -> Response | FailedAttempt:
        target, sent, data = encode_call(route, path, query, body, idempotency_key, self._token.value)
        try:
            raw = await connection.exchange(
                route.method,
                target,
                sent,
                data,
                connect_s=min(self._timeouts.connect_s, left_s),
                read_s=min(read_s, left_s),
            )
        except NoResponse as error:
            return FailedAttempt(error, retriable=not error.permanent)
        self._token.learn(raw.headers.get(http_headers.TOKEN))
        return decode_response(raw)

    async def _closes_within(self, seconds: float) -> bool:
        try:
            async with asyncio.timeout(seconds):
                await self._closed.wait()
        except TimeoutError:
            return False
        return True
