"""Kept connections to the brokers for appends, one to each: any number of batches in flight, answered in any order.

A broker of a release that has no such connection gets a request for each batch.
"""

import asyncio
import itertools
from typing import cast
from urllib.parse import urlsplit

from myqueue.protocol import append_frames, http_headers, internal
from myqueue.protocol.append_frames import AppendedOffsets, FrameError, FrameReader
from myqueue.protocol.errors import MyQueueError, from_body
from service.async_calls import AsyncCaller
from service.calls import NoAnswer

CONNECT_TIMEOUT_S = 1.0
MAX_HEAD_BYTES = 16 << 10
MAX_UNSENT_BYTES = 8 << 20  # of a broker that does not read; beyond it a call waits, and is not written in time

_Answer = asyncio.Future[AppendedOffsets]
_SWITCHED = b"HTTP/1.1 101 "
_NO_SUCH_ROUTE = b"HTTP/1.1 404 "
_OLDER_S = 5.0  # for which a broker without the route is not asked for a connection again
_NUMBERS = 1 << 32


class _OlderBroker(Exception):
    """It is of release 0.9 or earlier."""


class _BrokerConnection(asyncio.Protocol):
    _transport: asyncio.Transport

    def __init__(self, endpoint: str, head: bytes) -> None:
        self._endpoint = endpoint
        self._head = head
        self._received_head: bytearray | None = bytearray()  # None once the broker has switched to frames
        self._reader = FrameReader(append_frames.MAX_ANSWER_BYTES)
        self._numbers = itertools.count()
        self._waiting: dict[int, _Answer] = {}
        self._receptions = 0
        self._replaced = False  # new calls use another connection; this one is kept for those that wait
        self._writable = asyncio.Event()
        self._writable.set()
        loop = asyncio.get_running_loop()
        self._loop = loop
        self.upgraded: asyncio.Future[None] = loop.create_future()

    @property
    def usable(self) -> bool:
        return not self._replaced and not self._transport.is_closing()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._transport.set_write_buffer_limits(high=MAX_UNSENT_BYTES)
        self._transport.write(self._head)

    def data_received(self, data: bytes) -> None:
        self._receptions += 1
        try:
            if self._received_head is not None:
                data = self._read_head(self._received_head, data)
            if data:
                self._read_answers(data)
        except FrameError as error:
            self._end(f"{self._endpoint} sent {error}")

    def _read_head(self, head: bytearray, data: bytes) -> bytes:
        head += data
        end = head.find(b"\r\n\r\n")
        if end < 0:
            if len(head) > MAX_HEAD_BYTES:
                raise FrameError("endless headers")
            return b""
        if head.startswith(_NO_SUCH_ROUTE) and not self.upgraded.done():
            self.upgraded.set_exception(_OlderBroker())
            self._transport.abort()
            return b""
        if not head.startswith(_SWITCHED):
            raise FrameError(f"no switch of protocols but {bytes(head[:60])!r}")
        self._received_head = None
        if not self.upgraded.done():
            self.upgraded.set_result(None)
        return bytes(head[end + 4 :])

    def _read_answers(self, data: bytes) -> None:
        for number, content in self._reader.feed(data):
            answer = append_frames.decode_answer(content)
            waiting = self._waiting.pop(number, None)
            if waiting is None or waiting.done():
                continue  # it came too late
            if isinstance(answer, MyQueueError):
                waiting.set_exception(answer)
            else:
                waiting.set_result(answer)

    async def append(self, batch: bytes, deadline_s: float, request_id: str | None) -> AppendedOffsets:
        if not self._writable.is_set():
            await self._wait_until_writable(deadline_s)
        number = next(self._numbers) % _NUMBERS
        waiting: _Answer = self._loop.create_future()
        self._waiting[number] = waiting
        # The loop writes everything of one turn together.
        self._transport.writelines(append_frames.encode_request(number, request_id, batch))
        timer = self._loop.call_at(deadline_s, self._time_out, waiting, self._receptions)
        try:
            return await waiting
        finally:
            timer.cancel()
            self._waiting.pop(number, None)
            del waiting  # it has the error, whose traceback has this frame and so the batch: no cycle, it goes at once
            if self._replaced and not self._waiting:
                self._transport.abort()

    async def _wait_until_writable(self, deadline_s: float) -> None:
        try:
            async with asyncio.timeout_at(deadline_s):
                await self._writable.wait()
        except TimeoutError:
            raise NoAnswer(f"{self._endpoint} reads nothing", outcome="not_written") from None
        if not self.usable:
            raise NoAnswer(f"the connection to {self._endpoint} has ended", outcome="not_written")

    def _time_out(self, waiting: _Answer, receptions: int) -> None:
        if waiting.done():
            return
        waiting.set_exception(NoAnswer(f"no answer from {self._endpoint} in time", outcome="unknown"))
        if self._receptions == receptions:
            # Not even another answer since then: the broker may hang or have vanished. The next call connects anew.
            self._replaced = True

    def _end(self, why: str) -> None:
        self._fail(why)
        self._transport.abort()

    def _fail(self, why: str) -> None:
        if not self.upgraded.done():
            self.upgraded.set_exception(NoAnswer(why, outcome="not_written"))
        waiting, self._waiting = self._waiting, {}
        for answer in waiting.values():
            if not answer.done():
                answer.set_exception(NoAnswer(why, outcome="unknown"))
        self._writable.set()

    def pause_writing(self) -> None:
        self._writable.clear()

    def resume_writing(self) -> None:
        self._writable.set()

    def connection_lost(self, exc: Exception | None) -> None:
        self._fail(f"the connection to {self._endpoint} has ended: {exc or 'closed'}")

    def close(self) -> None:
        self._transport.close()


class AppendConnections:
    """Used on the event loop."""

    def __init__(self, secret: str, *, connect_timeout_s: float = CONNECT_TIMEOUT_S) -> None:
        self._secret = secret
        self._connect_timeout_s = connect_timeout_s
        self._open: dict[str, _BrokerConnection] = {}
        self._connecting: dict[str, asyncio.Task[_BrokerConnection]] = {}
        self._older_until_s: dict[str, float] = {}  # brokers of older releases
        self._caller = AsyncCaller(secret)

    async def append(self, endpoint: str, batch: bytes, timeout_s: float, request_id: str | None) -> AppendedOffsets:
        """`batch` has its dedup records behind it. Raises the broker's error; NoAnswer when none came in time."""
        if timeout_s <= 0:
            raise NoAnswer(f"no time left to ask {endpoint}", outcome="not_written")
        loop = asyncio.get_running_loop()
        deadline_s = loop.time() + timeout_s
        connection = self._open.get(endpoint)
        if connection is None or not connection.usable:
            try:
                if loop.time() < self._older_until_s.get(endpoint, 0.0):
                    return await self._request(endpoint, batch, timeout_s, request_id)
                connection = await self._connected(endpoint, deadline_s)
            except _OlderBroker:
                self._older_until_s[endpoint] = loop.time() + _OLDER_S
                return await self._request(endpoint, batch, deadline_s - loop.time(), request_id)
        return await connection.append(batch, deadline_s, request_id)

    async def _request(self, endpoint: str, batch: bytes, timeout_s: float, request_id: str | None) -> AppendedOffsets:
        answer = await self._caller.call(
            internal.APPEND.method,
            endpoint + internal.APPEND.path,
            internal.APPEND_ITEM.pack(len(batch)) + batch,
            content_type=http_headers.BATCH_TYPE,
            timeout_s=timeout_s,
            request_id=request_id,
        )
        if answer.status >= 400:
            raise answer.error()
        [appended] = answer.json()["answers"]
        if "error" in appended:
            raise from_body(appended["error"], 500)
        offsets = [one["offset"] if "offset" in one else -one["error_code"] for one in appended["results"]]
        return AppendedOffsets(appended["end_offset"], offsets)

    async def _connected(self, endpoint: str, deadline_s: float) -> _BrokerConnection:
        connecting = self._connecting.get(endpoint)
        if connecting is None:
            connecting = self._connecting[endpoint] = asyncio.create_task(self._connect(endpoint))
            connecting.add_done_callback(lambda task: self._settled(endpoint, task))
        try:
            async with asyncio.timeout_at(deadline_s):
                connection = await asyncio.shield(connecting)
        except TimeoutError:
            raise NoAnswer(f"cannot connect to {endpoint} in time", outcome="not_written") from None
        finally:
            del connecting  # as above: it has the error
        if not connection.usable:
            raise NoAnswer(f"the connection to {endpoint} has ended", outcome="not_written")
        return connection

    def _settled(self, endpoint: str, task: "asyncio.Task[_BrokerConnection]") -> None:
        del self._connecting[endpoint]
        if not task.cancelled() and task.exception() is None:
            self._open[endpoint] = task.result()
        else:
            self._open.pop(endpoint, None)

    async def _connect(self, endpoint: str) -> _BrokerConnection:
        address = urlsplit(endpoint)
        route = internal.APPEND_CONNECTION
        head = (
            f"{route.method} {route.path} HTTP/1.1\r\nHost: {address.netloc}\r\n"
            f"{http_headers.SECRET}: {self._secret}\r\n"
            f"Connection: Upgrade\r\nUpgrade: {append_frames.UPGRADE}\r\n\r\n"
        ).encode("latin-1")
        connection: _BrokerConnection | None = None
        try:
            async with asyncio.timeout(self._connect_timeout_s):
                _, connection = await asyncio.get_running_loop().create_connection(
                    lambda: _BrokerConnection(endpoint, head), address.hostname or "", address.port or 80
                )
                await connection.upgraded
        except (OSError, TimeoutError) as error:
            if connection is not None:
                connection.close()
            raise NoAnswer(f"cannot connect to {endpoint}", outcome="not_written") from error
        return connection

    def close(self) -> None:
        self._caller.close()
        for connection in self._open.values():
            connection.close()
