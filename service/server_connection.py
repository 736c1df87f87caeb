"""One connection of an HTTP/1.1 server on the event loop: requests in turn, their answers, and time limits.

Requests that a client sends ahead wait until the one before them is answered. Time limits are checked once a second for
all connections of a listener; they cost a request nothing.
"""

import asyncio
from collections.abc import Callable
from enum import Enum, auto
from typing import cast

import structlog

from myqueue.protocol import http_headers
from myqueue.protocol.errors import InvalidRequest, MyQueueError, RequestTimeout
from service.http_app import Exchange
from service.http_messages import HttpRequest, HttpResponse
from service.open_connections import HttpServerConnections
from service.request_parser import RequestParser
from service.response_encoding import encode_response
from service.response_stream import ChunkSource, ResponseStream

IDLE_TIMEOUT_S = 75.0  # above the time for which nginx and AsyncCaller keep a connection
HEAD_TIMEOUT_S = 10.0  # from its first byte
BODY_TIMEOUT_S = 10.0  # and a second more for each BODY_BYTES_PER_S
BODY_BYTES_PER_S = 100_000
SEND_TIMEOUT_S = 30.0  # without progress: the client does not read its answer
LINGER_S = 5.0  # for which the rest of a refused request is read: closing at once could destroy the answer
SENT_AHEAD_BYTES = 64 << 10  # of requests that wait; beyond it the connection is not read

_REQUEST_ID = http_headers.REQUEST_ID.lower()
_CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"
_NEVER = float("inf")


class _State(Enum):
    HEAD = auto()  # between requests, or within a head
    BODY = auto()  # of a known length
    CHUNKS = auto()
    DISCARD = auto()  # the body of a refused request
    BUSY = auto()  # the handler runs, or its answer is being sent
    CLOSING = auto()


class HttpServerConnection(asyncio.Protocol):
    transport: asyncio.Transport

    def __init__(self, connections: HttpServerConnections, loop: asyncio.AbstractEventLoop) -> None:
        self._connections = connections
        self._app = connections.app
        self._loop = loop
        self._parser = RequestParser()
        self._state = _State.HEAD
        self.deadline_s = connections.now_s + IDLE_TIMEOUT_S
        self._exchange: Exchange | None = None
        self._task: asyncio.Task[None] | None = None  # the loop keeps no reference
        self._stream: ResponseStream | None = None  # while one is being sent
        self._missing = 0  # bytes of the body still to come
        self._chunks: list[bytes] = []
        self._refusal: HttpResponse | None = None  # to be sent once the body is discarded
        self._keep_alive = False
        self._sent_ahead = b""
        self._reading_paused = False
        self._writing_paused = False
        self._unsent_bytes = 0  # when it was last checked
        self._disconnected: asyncio.Future[None] | None = None
        self._is_lost = False
        self._at_eof = False

    # ---- the transport ----

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        self._connections.open.add(self)

    def data_received(self, data: bytes) -> None:
        if self._state is _State.BUSY:
            self._sent_ahead += data
            if len(self._sent_ahead) > SENT_AHEAD_BYTES and not self._reading_paused:
                self._reading_paused = True
                self.transport.pause_reading()
        elif self._state is not _State.CLOSING:
            self._read(data)

    def eof_received(self) -> bool:
        """A client that only ends its own side still gets its answer, but no message may be claimed for it. The answer
        that is a stream ends with it."""
        self._at_eof = True
        self._signal_disconnect()
        if self._stream is not None:
            self._stream.cancel()
            return False
        return self._state is _State.BUSY

    def connection_lost(self, _error: Exception | None) -> None:
        self._is_lost = True
        self._connections.open.discard(self)
        self._signal_disconnect()
        if self._stream is not None:
            self._stream.cancel()
        elif self._task is None:
            self._end_exchange(0)
            self._state = _State.CLOSING
        self._chunks.clear()
        self._sent_ahead = b""

    def pause_writing(self) -> None:
        self._writing_paused = True
        if self._stream is not None:
            self._stream.pause()
            self._await_reader()

    def resume_writing(self) -> None:
        self._writing_paused = False
        if self._stream is not None:
            self._stream.resume()
            self.deadline_s = _NEVER
        elif self._state is _State.BUSY and self._exchange is None:
            self._next_request()

    async def disconnected(self) -> None:
        """Returns when the client has closed the connection."""
        if self._is_lost or self._at_eof:
            return
        if self._disconnected is None:
            self._disconnected = self._loop.create_future()
        await asyncio.shield(self._disconnected)

    def _signal_disconnect(self) -> None:
        if self._disconnected is not None and not self._disconnected.done():
            self._disconnected.set_result(None)

    # ---- reading ----

    def _read(self, data: bytes) -> None:
        position, size = 0, len(data)
        try:
            while position < size:
                state = self._state
                if state is _State.HEAD:
                    position = self._read_head(data, position)
                elif state is _State.BODY or state is _State.DISCARD:
                    position = self._read_body(data, position)
                elif state is _State.CHUNKS:
                    position = self._read_chunks(data, position)
                else:
                    break
        except InvalidRequest as error:
            self._fail(error)
            return
        if position < size and self._state is _State.BUSY:
            self._sent_ahead = data[position:] if position else data

    def _read_head(self, data: bytes, position: int) -> int:
        parser = self._parser
        is_first = parser.head_bytes == 0
        position, is_complete = parser.read_head(data, position)
        if is_complete:
            self._begin_request(data, position)
        elif is_first:
            self.deadline_s = self._connections.now_s + HEAD_TIMEOUT_S
        return len(data) if self._state is _State.CLOSING else position

    def _begin_request(self, data: bytes, position: int) -> None:
        """The head is complete, its body begins at `position`."""
        parser, app = self._parser, self._app
        path, query = parser.path_and_query()
        match = app.router.find(parser.method, path)
        headers = parser.headers
        request_id = headers.get(_REQUEST_ID)
        values = {} if match is None else match.path_values
        request = HttpRequest(parser.method, path, values, query, headers, b"", request_id, self.disconnected)
        self._keep_alive = parser.keep_alive
        self._exchange = exchange = app.begin(request, match)
        structlog.contextvars.bind_contextvars(request_id=request_id)  # on every log line of the request
        if match is None:
            self._refuse(app.router.respond_unmatched(request))
            return
        size = app.max_body_bytes if parser.is_chunked else parser.content_length
        try:
            exchange.admit(match, size)
            if match.route.upgrade is not None:
                self._upgrade(match.route.upgrade, data, position)
                return
        except MyQueueError as error:
            self._refuse(app.router.refuse(request, error))
            return
        if not size:
            self._respond(b"")
            return
        if position == len(data) and headers.get("expect", "").lower() == "100-continue":
            self.transport.write(_CONTINUE)
        self._state = _State.CHUNKS if parser.is_chunked else _State.BODY
        self._missing = size
        if len(data) - position < size:
            self.deadline_s = self._connections.now_s + BODY_TIMEOUT_S + size / BODY_BYTES_PER_S

    def _read_body(self, data: bytes, position: int) -> int:
        end = position + self._missing
        if end > len(data):
            self._missing = end - len(data)
            if self._state is _State.BODY:
                self._chunks.append(data[position:] if position else data)
            return len(data)
        if self._state is _State.DISCARD:
            assert self._refusal is not None
            refusal, self._refusal = self._refusal, None
            self._answer(refusal)
        elif self._chunks:
            self._chunks.append(data[position:end])
            body = b"".join(self._chunks)
            self._chunks = []
            self._respond(body)
        else:
            self._respond(data[position:end])
        return end

    def _read_chunks(self, data: bytes, position: int) -> int:
        parser = self._parser
        end = parser.read_chunks(data, position)
        try:
            self._app.check_size(parser.body_bytes)
        except MyQueueError as error:
            assert self._exchange is not None
            self._refuse(self._app.router.refuse(self._exchange.request, error))
            return len(data)
        if parser.body_complete:
            self._respond(parser.take_body())
        return end

    # ---- answering ----

    def _respond(self, body: bytes) -> None:
        """The request is complete."""
        assert self._exchange is not None
        self._exchange.set_body(body)
        self._state = _State.BUSY
        self.deadline_s = _NEVER
        self._task = self._loop.create_task(self._run(self._exchange))

    async def _run(self, exchange: Exchange) -> None:
        assert exchange.match is not None
        try:
            response: HttpResponse | None = await self._app.router.respond(exchange.match, exchange.request)
            if response is not None and response.stream is not None:
                response = await self._send_stream(exchange, response, response.stream)
        except BaseException:  # cancelled, such as by a future that the handler waited for
            self._end_exchange(0)
            self.transport.abort()
            raise
        finally:
            self._task = None
        if response is not None:
            self._answer(response)
        if self._state is _State.HEAD and self._sent_ahead:
            self._read_sent_ahead()

    def _refuse(self, response: HttpResponse) -> None:
        """Read and discard the body of a refused request: a client that is still sending when the connection closes
        may get a reset instead of the response. Unless the body is too large, or its size unknown."""
        parser, exchange = self._parser, self._exchange
        assert exchange is not None
        exchange.release()
        if parser.is_chunked or parser.content_length > 2 * self._app.max_body_bytes:
            self._answer(response, linger=True)
        elif not parser.content_length:
            self._answer(response)
        elif "expect" in parser.headers:
            self._answer(response, linger=True)  # whether the body comes is not known
        else:
            self._state = _State.DISCARD
            self._refusal = response
            self._missing = parser.content_length
            self.deadline_s = self._connections.now_s + BODY_TIMEOUT_S + self._missing / BODY_BYTES_PER_S

    def _fail(self, error: MyQueueError) -> None:
        """Bytes that are no request, or come too slowly: whatever follows is not trusted."""
        exchange = self._exchange
        if exchange is None:
            request = HttpRequest("", "", {}, "", {}, b"", None)
            exchange = self._exchange = self._app.begin(request, None)
        self._answer(self._app.router.refuse(exchange.request, error), linger=True)

    def _answer(self, response: HttpResponse, *, linger: bool = False) -> None:
        """`linger`: the request was not read to its end."""
        exchange = self._exchange
        assert exchange is not None
        exchange.release()
        if self._is_lost or self.transport.is_closing():
            self._end_exchange(response.status)
            self._state = _State.CLOSING
            return
        is_last = linger or not self._keep_alive or self._connections.stopping or self._at_eof
        try:
            self._send(response, exchange.request.method, is_last=is_last)
        except (KeyError, ValueError) as error:  # a status or headers that no response may have
            response = self._app.router.refuse(exchange.request, error)
            self._send(response, exchange.request.method, is_last=is_last)
        if response.on_sent is not None and not self._at_eof:  # else it is likely that nobody reads it
            self._loop.call_soon(response.on_sent)
        self._end_exchange(response.status)
        self._await_next(is_last=is_last, linger=linger)

    async def _send_stream(
        self, exchange: Exchange, response: HttpResponse, chunks: ChunkSource
    ) -> HttpResponse | None:
        """What is to be answered instead, if anything."""
        if exchange.request.method == "HEAD" or self._is_lost or self._at_eof:
            await chunks.aclose()
            return response
        is_chunked = self._parser.is_http_1_1
        try:
            self._app.begin_stream()
        except MyQueueError as error:
            await chunks.aclose()
            return self._app.router.refuse(exchange.request, error)
        exchange.release()
        self._stream = ResponseStream(self.transport, chunks, is_chunked=is_chunked)
        if self._connections.stopping:
            self._stream.end()
        try:
            self._send(response, "GET", is_last=not self._keep_alive, is_chunked=is_chunked)
            await self._stream.send()
        except Exception as error:  # noqa: BLE001 the head is sent: only the end of the connection tells the client
            self._end_exchange(self._app.router.refuse(exchange.request, error).status)
            self.transport.abort()
            return None
        finally:
            self._stream = None
            self._app.end_stream()
        self._end_exchange(response.status)
        is_last = not self._keep_alive or self._connections.stopping or self._at_eof or self._is_lost
        self._await_next(is_last=is_last, linger=False)
        return None

    def _await_next(self, *, is_last: bool, linger: bool) -> None:
        """The answer is written."""
        if is_last:
            self._end(linger=linger)
        elif self._writing_paused:
            self._state = _State.BUSY
            self._await_reader()
        else:
            self._state = _State.HEAD
            self.deadline_s = self._connections.now_s + IDLE_TIMEOUT_S
            self._parser.next_request()

    def _await_reader(self) -> None:
        self._unsent_bytes = self.transport.get_write_buffer_size()
        self.deadline_s = self._connections.now_s + SEND_TIMEOUT_S

    def _send(self, response: HttpResponse, method: str, *, is_last: bool, is_chunked: bool = False) -> None:
        date_line, is_head = self._connections.date_line, method == "HEAD"
        parts = encode_response(response, date_line, is_head=is_head, is_last=is_last, is_chunked=is_chunked)
        if len(parts) == 1:
            self.transport.write(parts[0])
        else:
            self.transport.writelines(parts)

    def _end_exchange(self, status: int) -> None:
        if self._exchange is not None:
            self._exchange.end(status)
            self._exchange = None

    def _next_request(self) -> None:
        """The answer is sent, after the client had not read it for a while."""
        if self._at_eof or self._connections.stopping:
            self._end(linger=False)
            return
        self._state = _State.HEAD
        self.deadline_s = self._connections.now_s + IDLE_TIMEOUT_S
        self._parser.next_request()
        if self._sent_ahead:
            self._read_sent_ahead()

    def _read_sent_ahead(self) -> None:
        data, self._sent_ahead = self._sent_ahead, b""
        self._read(data)
        if self._reading_paused and len(self._sent_ahead) <= SENT_AHEAD_BYTES and not self.transport.is_closing():
            self._reading_paused = False
            self.transport.resume_reading()

    # ---- upgrade ----

    def _upgrade(self, factory: Callable[[HttpRequest], asyncio.Protocol], data: bytes, position: int) -> None:
        exchange, parser = self._exchange, self._parser
        assert exchange is not None
        assert exchange.match is not None
        refusal = self._app.router.refusal(exchange.match.route, exchange.request)
        if refusal is not None:
            raise refusal
        name = parser.headers.get("upgrade")
        if name is None or not parser.is_upgrade or parser.content_length:
            raise InvalidRequest("this call upgrades the connection: it takes an Upgrade header and no body")
        protocol = factory(exchange.request)
        self.transport.write(
            f"HTTP/1.1 101 Switching Protocols\r\nconnection: upgrade\r\nupgrade: {name}\r\n\r\n".encode("latin-1")
        )
        self._end_exchange(101)
        self._state = _State.CLOSING
        self._connections.open.discard(self)
        self._connections.upgraded[self.transport] = protocol
        self.transport.set_protocol(protocol)
        protocol.connection_made(self.transport)
        if position < len(data):
            protocol.data_received(data[position:])

    # ---- the end ----

    def time_out(self) -> None:
        """The deadline has passed."""
        if self._state is _State.HEAD and not self._parser.head_bytes:
            self._end(linger=False)
        elif self._state is _State.BUSY or self._state is _State.CLOSING:
            unsent_bytes = self.transport.get_write_buffer_size()
            if not unsent_bytes or unsent_bytes == self._unsent_bytes:
                self.transport.abort()
            self._unsent_bytes = unsent_bytes
            self.deadline_s = self._connections.now_s + SEND_TIMEOUT_S
        else:
            self._fail(RequestTimeout("the request did not arrive in time", outcome="not_written"))

    def stop(self) -> None:
        if self._stream is not None:
            self._stream.end()
        elif self._state is _State.HEAD and not self._parser.head_bytes:
            self._end(linger=False)

    def close(self) -> None:
        self._end(linger=False)

    def _end(self, *, linger: bool) -> None:
        self._state = _State.CLOSING
        if self.transport.is_closing():
            return
        self._unsent_bytes = self.transport.get_write_buffer_size()
        if linger and not self._at_eof:
            self.deadline_s = self._connections.now_s + LINGER_S
            self.transport.write_eof()
        else:
            self.deadline_s = self._connections.now_s + SEND_TIMEOUT_S
            self.transport.close()
