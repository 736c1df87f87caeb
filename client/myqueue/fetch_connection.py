"""A connection whose response is received in pieces, as they arrive, so that one thread can wait for many of them."""

import socket
import ssl
import time
from collections.abc import Mapping

import pyarrow as pa

from myqueue.http_connection import HttpConnection, NoResponse, RawResponse, is_readable
from myqueue.http_response import END_OF_HEAD, MAX_HEAD_BYTES, NotHttp, ResponseHead, check_start, parse_head

_AT_ONCE_BYTES = 16 << 10
_DONTWAIT = getattr(socket, "MSG_DONTWAIT", 0)


class FetchConnection(HttpConnection):
    """`open` may wait; all other calls do not."""

    def __init__(self, url: str) -> None:
        super().__init__(url)
        self._filled = 0  # bytes of the response in the buffer, until its head is whole
        self._response: ResponseHead | None = None
        self._body = memoryview(b"")
        self._have = 0  # bytes of the body
        self._wanted = 0  # bytes that the last call could have received

    def open(self, connect_s: float) -> None:
        """Raises NoResponse."""
        sock = self._connect(connect_s)
        if self._waits_in_python:
            self._set_timeout(sock, 0.0)

    @property
    def _waits_in_python(self) -> bool:
        return not (self._kernel_timeouts and _DONTWAIT)

    @property
    def is_usable(self) -> bool:
        """Without a request in flight: false when the server has closed it since the last response."""
        if self._sock is None or not is_readable(self._sock):
            return self._sock is not None
        if not self._tls:
            return False
        try:
            self._sock.recv(1)
        except ssl.SSLWantReadError:
            return True  # what came belongs to TLS itself
        except OSError:
            return False
        return False

    def fileno(self) -> int:
        return -1 if self._sock is None else self._sock.fileno()

    def request(self, path: str, headers: Mapping[str, str], read_s: float) -> None:
        """Sends a GET; raises NoResponse."""
        head = self._head("GET", path, headers, None)
        self._method, self._started, self._read_s, self._reusable = "GET", time.monotonic(), read_s, True
        self._filled = self._have = 0
        self._response = None
        try:
            if self._sock is None or self._sock.send(head) != len(head):
                raise ConnectionError("the request was not sent")
        except OSError as error:
            raise self._no_response(error) from error

    def receive_available(self) -> RawResponse | None:
        """The response to the request, None while it has not arrived as a whole; raises NoResponse."""
        try:
            while (received := self._receive_some()) is not None:
                if received == 0:
                    raise ConnectionResetError("closed before the end of the response")
                if self._response is None:
                    self._response = self._parsed_head()
                if self._response is not None and self._have == len(self._body):
                    return self._whole(self._response)
                if not self._tls and received < self._wanted:
                    return None  # nothing more has arrived: saves a call to find that out
        except (OSError, NotHttp) as error:
            raise self._no_response(error) from error
        return None

    def timed_out(self) -> NoResponse:
        return self._no_response(TimeoutError())

    def _receive_some(self) -> int | None:
        """How many bytes; None when none have arrived."""
        sock = self._sock
        if sock is None:
            raise ConnectionError("closed")
        if self._response is None:
            target = memoryview(self._buffer)[self._filled : self._filled + _AT_ONCE_BYTES]
        else:
            target = self._body[self._have :]
        self._wanted = len(target)
        try:
            received = sock.recv_into(target, 0, 0 if self._waits_in_python else _DONTWAIT)
        except (BlockingIOError, ssl.SSLWantReadError):
            return None
        if self._response is None:
            self._filled += received
        else:
            self._have += received
        return received

    def _parsed_head(self) -> ResponseHead | None:
        """None while the head is not whole. Moves what follows it into the body."""
        buffer, filled = self._buffer, self._filled
        end = buffer.find(END_OF_HEAD, 0, filled)
        if end < 0:
            check_start(bytes(memoryview(buffer)[:filled]))
            if filled == MAX_HEAD_BYTES:
                raise NotHttp("its head does not end")
            return None
        head = parse_head(bytes(memoryview(buffer)[: end + 2]), self._method)
        start = end + len(END_OF_HEAD)
        if head.length is None:
            self._body = memoryview(self._wait_for_rest(head, start))
            self._have = len(self._body)
        elif head.status < 200 or filled - start > head.length:
            raise NotHttp("it is not of the kind that a broker sends")
        else:
            self._have = filled - start
            self._body = self._body_of(head.length)
            self._body[: self._have] = memoryview(buffer)[start:filled]
        return head

    def _body_of(self, length: int) -> memoryview:
        """Not a large bytearray: that would be filled with zeros first."""
        return memoryview(pa.allocate_buffer(length) if length > _AT_ONCE_BYTES else bytearray(length)).cast("B")

    def _wait_for_rest(self, head: ResponseHead, start: int) -> bytes | bytearray:
        """No server of myqueue sends a body without its length, but a proxy may."""
        sock = self._sock
        assert sock is not None
        self._set_timeout(sock, self._read_s)
        body, _ = self._receive_body(sock, head, start, self._filled)
        if self._waits_in_python:
            self._set_timeout(sock, 0.0)
        return body

    def _whole(self, head: ResponseHead) -> RawResponse:
        body = self._body
        self._body = memoryview(b"")
        if not (head.keep_alive and self._reusable):
            self.close()
        return RawResponse(head.status, head.headers, body if head.status == 200 else bytes(body))
