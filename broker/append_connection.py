"""A connection of the write manager for appends: frames of batches, each answered as soon as it is decided."""

import asyncio
import socket
import time
from collections.abc import Awaitable, Callable
from typing import cast

import structlog

from myqueue.protocol import append_frames, internal
from myqueue.protocol.append_frames import AppendedOffsets, FrameError, FrameReader
from myqueue.protocol.errors import InternalError, MyQueueError
from service.error_encoding import forget_frames
from service.logs import Log
from service.request_observer import RequestObserver

MAX_IN_FLIGHT_BYTES = 32 << 20  # of batches that are not answered; beyond it nothing more is read

Append = Callable[[bytes], Awaitable[AppendedOffsets]]


class AppendConnection(asyncio.Protocol):
    """A batch that waits for its leader or its followers does not delay the others."""

    _transport: asyncio.Transport

    def __init__(self, append: Append, observer: RequestObserver, log: Log) -> None:
        self._append = append
        self._observer = observer
        self._log = log
        self._reader = FrameReader(append_frames.MAX_REQUEST_BYTES)
        self._tasks: set[asyncio.Task[None]] = set()
        self._in_flight_bytes = 0
        self._answers_wait = False  # the other end does not read them
        self._reading = True
        self._closing = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        own_socket = self._transport.get_extra_info("socket")
        if own_socket is not None:  # a write manager whose address vanished would leave its connections behind
            own_socket.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)

    def data_received(self, data: bytes) -> None:
        if self._closing:
            return
        try:
            requests = [(number, *append_frames.decode_request(frame)) for number, frame in self._reader.feed(data)]
        except FrameError as error:
            self._log.warning("append connection closed", why=str(error))
            self._closing = True
            self._transport.abort()
            return
        loop = asyncio.get_running_loop()
        for number, request_id, batch in requests:
            self._in_flight_bytes += len(batch)
            task = loop.create_task(self._respond(number, request_id, batch))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        self._pause_or_resume()

    async def _respond(self, number: int, request_id: str | None, batch: bytes) -> None:
        started_s = time.perf_counter()
        structlog.contextvars.bind_contextvars(request_id=request_id)
        answer: AppendedOffsets | MyQueueError
        status = 200
        try:
            answer = await self._append(batch)
        except MyQueueError as error:
            forget_frames(error)
            answer, status = error, error.http_status
        except Exception as error:  # noqa: BLE001 every request gets an answer
            self._log.exception("defect", path=internal.APPEND_CONNECTION.path, exc_info=error)
            forget_frames(error)
            answer, status = InternalError(outcome="unknown"), 500
        self._in_flight_bytes -= len(batch)
        if not self._transport.is_closing():
            self._transport.write(append_frames.encode_answer(number, answer))
            self._pause_or_resume()
        seconds = time.perf_counter() - started_s
        route = internal.APPEND
        self._observer.count(route.name, route.method, status, seconds)
        self._observer.log(route.name, route.method, internal.APPEND_CONNECTION.path, status, seconds)
        if self._closing:
            self._close_if_done()

    def pause_writing(self) -> None:
        self._answers_wait = True
        self._pause_or_resume()

    def resume_writing(self) -> None:
        self._answers_wait = False
        self._pause_or_resume()

    def _pause_or_resume(self) -> None:
        reading = not self._answers_wait and self._in_flight_bytes <= MAX_IN_FLIGHT_BYTES
        if reading != self._reading and not self._transport.is_closing():
            self._reading = reading
            if reading:
                self._transport.resume_reading()
            else:
                self._transport.pause_reading()

    def close(self) -> None:
        """Take no more requests; close when the last one is answered."""
        self._closing = True
        self._close_if_done()

    def _close_if_done(self) -> None:
        if all(task is asyncio.current_task() or task.done() for task in self._tasks):
            self._transport.close()
