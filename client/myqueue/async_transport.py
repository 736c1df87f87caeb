"""Requests of consumers in the background thread: as `Transport`, and awaited."""

import asyncio
from collections.abc import Mapping
from functools import partial
from typing import Any

from myqueue.fetch_connection import FetchConnection
from myqueue.http_connection import NoResponse
from myqueue.io_thread import IoThread
from myqueue.protocol.errors import MyQueueError, PartitionNotFound, TopicNotFound
from myqueue.protocol.routes import Route
from myqueue.transport import FailedAttempt, Response, RetriedCall, Transport, encode_call, unanswered


class AsyncTransport:
    """The requests of one consumer. It has the settings and the session token of `transport`."""

    def __init__(self, io: IoThread, transport: Transport) -> None:
        self.url = transport.url
        self.retry = transport.retry
        self._io = io
        self._transport = transport
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
        connection: FetchConnection | None = None,
    ) -> Response:
        """The response of a successful call; raises the error of a failed one. The call must be safe to repeat.

        With a connection of the caller's own it does not wait for calls of others.
        """
        retried = RetriedCall(self.retry, route, repeatable=True, deadline_s=deadline_s, wait_s=0.0)
        while True:
            left_s, connect_s = retried.left_s(), retried.connect_s(reached=self._transport.pool.reached)
            read_s = self._transport.timeouts.read_s
            attempt = partial(self._attempt, route, path, query, body, idempotency_key, connect_s, min(read_s, left_s))
            result = await (self._io.with_connection(attempt) if connection is None else attempt(connection))
            if isinstance(result, Response):
                return result
            pause_s = retried.pause_s(result, reached=self._transport.pool.reached)
            if pause_s is None or await self._closes_within(pause_s):
                raise await self._named(result.error, route, path, query, body)

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
            raise await self._named(result.error, route, path, None, body)
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
        connect_s: float,
        read_s: float,
        connection: FetchConnection,
    ) -> Response | FailedAttempt:
        pool, token = self._transport.pool, self._transport.token.value
        target, sent, data = encode_call(route, path, query, body, idempotency_key, token)
        connect_s = min(self._transport.timeouts.connect_s, connect_s)
        try:
            raw = await connection.exchange(route.method, target, sent, data, connect_s=connect_s, read_s=read_s)
        except NoResponse as error:
            return unanswered(error, pool)
        return self._transport.answered(raw, pool)

    async def _named(
        self,
        error: MyQueueError,
        route: Route,
        path: Mapping[str, str | int] | None,
        query: Mapping[str, str | int] | None,
        body: Mapping[str, Any] | None,
    ) -> MyQueueError:
        """The error with what it is about. What was probably meant takes a request that blocks."""
        named = partial(self._transport.named, error, route, path, query, body)
        if not isinstance(error, TopicNotFound | PartitionNotFound):
            return named()
        return await asyncio.get_running_loop().run_in_executor(None, named)

    async def _closes_within(self, seconds: float) -> bool:
        try:
            async with asyncio.timeout(seconds):
                await self._closed.wait()
        except TimeoutError:
            return False
        return True
