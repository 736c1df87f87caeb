"""One keep-alive HTTP/1.1 connection that sends from the caller's buffers and receives a large body in one call.

A request leaves with one system call, and a small response arrives with one. Timeouts are left to the kernel where it
has them: a large send or receive is then one call that releases the GIL once. With Python's own timeouts it is many
calls, and after each the thread waits milliseconds for the GIL while another thread is busy.
"""

import os
import re
import select
import socket
import ssl
import struct
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from urllib.parse import urlsplit

from myqueue.connecting import ConnectFailed, Reason, connect, host_and_port
from myqueue.http_response import (
    END_OF_HEAD,
    MAX_BODY_BYTES,
    MAX_HEAD_BYTES,
    NotHttp,
    ResponseHead,
    ResponseHeaders,
    check_start,
    parse_head,
    unchunk,
)
from myqueue.protocol.errors import Unavailable
from myqueue.version import VERSION

Body = bytes | Sequence[bytes | memoryview]

# Plain sockets of other systems, and TLS, have Python's timeouts and no `sendmsg`.
_KERNEL_TIMEOUTS = os.name == "posix"
_TIMEVAL = struct.Struct("@ll")  # s, µs
_RECEIVED_AT_ONCE = 16 << 10
_MOST_BUFFERS = 512  # of one `sendmsg`
_MOST_INTERIM = 16  # responses with a status of 1xx before the one that counts
_TARGET = re.compile(r"[!-~]+")


@dataclass(frozen=True, slots=True)
class RawResponse:
    status: int
    headers: ResponseHeaders
    body: bytes | bytearray | memoryview


class NoResponse(Unavailable):
    """No response arrived. Its outcome is `not_written` if there was no connection to send the request over."""

    permanent = False
    timed_out = False


class NotConnected(NoResponse):
    """There is no connection to send the request over; `reason` says why."""

    def __init__(self, message: str | None = None, reason: Reason = "failed") -> None:
        """By the message alone as well: that is how `copy` and `pickle` make an error anew, before its attributes."""
        super().__init__(message, outcome="not_written")
        self.reason = reason


class NotHttpServer(NoResponse):
    """What came is no HTTP response: another program listens there."""


class TlsFailed(NoResponse):
    """No trusted TLS connection: a retry does not help."""

    permanent = True
    retriable = False


class HttpConnection:
    """Used by one thread at a time; only `cancel` and `interrupt` may come from another.

    The thread that receives may be another one than the thread that sent.
    """

    def __init__(self, url: str) -> None:
        self._url = url
        parts = urlsplit(url)
        self._host, self._port = host_and_port(url)
        self._tls = parts.scheme == "https"
        default_port = 443 if self._tls else 80
        name = self._host if self._host.isascii() else self._host.encode("idna").decode()
        name = f"[{name}]" if ":" in name else name
        authority = name if self._port == default_port else f"{name}:{self._port}"
        self._prefix = parts.path
        self._own_lines = (
            f" HTTP/1.1\r\nHost: {authority}\r\nUser-Agent: myqueue-python/{VERSION}\r\nAccept-Encoding: identity\r\n"
        )
        self._kernel_timeouts = _KERNEL_TIMEOUTS and not self._tls
        self._timeout_s = -1.0
        self._sock: socket.socket | None = None
        self._buffer = bytearray(MAX_HEAD_BYTES)
        self._method = ""  # of the request in flight, and its times
        self._started = 0.0
        self._read_s = 0.0
        self._reusable = True
        self._interrupted = False
        self._opening = threading.Lock()

    @property
    def url(self) -> str:
        return self._url

    def exchange(
        self,
        method: str,
        path: str,
        headers: Mapping[str, str],
        body: Body | None = None,
        *,
        connect_s: float,
        read_s: float,
    ) -> RawResponse:
        """The response, whatever its status; raises NoResponse."""
        try:
            self.send(method, path, headers, body, connect_s=connect_s, read_s=read_s)
            return self.receive()
        except BaseException:
            # After a KeyboardInterrupt, say, the response would be taken for the one to the next request.
            self.close()
            raise

    def send(
        self,
        method: str,
        path: str,
        headers: Mapping[str, str],
        body: Body | None = None,
        *,
        connect_s: float,
        read_s: float,
    ) -> None:
        """Sends a request, to be followed by `receive`; raises NoResponse."""
        buffers: list[bytes | memoryview] = [b""]
        if body is None:
            length = 0
        elif isinstance(body, bytes):
            length = len(body)
            buffers.append(body)
        else:
            length = sum(map(len, body))
            buffers += body
        buffers[0] = self._head(method, path, headers, None if body is None and method in ("GET", "HEAD") else length)
        sock = self._sock
        if sock is not None and _was_dropped(sock):
            self.close()
            sock = None
        if sock is None:
            sock = self._connect(connect_s)
        self._method, self._started, self._read_s, self._reusable = method, time.monotonic(), read_s, True
        try:
            self._set_timeout(sock, read_s)
            self._send_all(sock, buffers)
        except (BrokenPipeError, ConnectionResetError):
            # The server may have responded before it closed: it refused the request without reading all of it.
            self._reusable = False
        except OSError as error:
            if not (_is_timeout(error) and is_readable(sock)):
                raise self._no_response(error) from error
            self._reusable = False

    def receive(self) -> RawResponse:
        """The response to the request that was sent; raises NoResponse."""
        sock = self._sock
        try:
            if sock is None:
                raise ConnectionError("closed")
            head, at, filled = self._receive_head(sock)
            body, end = self._receive_body(sock, head, at, filled)
        except (OSError, NotHttp) as error:
            raise self._no_response(error) from error
        # More than the response, or a response before the whole request: the next one would not be found.
        if not head.keep_alive or end != filled or not self._reusable:
            self.close()
        return RawResponse(head.status, head.headers, body)

    def cancel(self) -> None:
        """Ends the request in flight, if there is one."""
        sock = self._sock
        if sock is not None:
            with suppress(OSError):  # its own thread has closed it
                socket.socket.shutdown(sock, socket.SHUT_RDWR)

    def interrupt(self) -> None:
        """Ends the request in flight, and all later ones."""
        with self._opening:
            self._interrupted = True
        self.cancel()

    def close(self) -> None:
        sock, self._sock = self._sock, None
        if sock is not None:
            sock.close()

    def __del__(self) -> None:  # also when an owner was dropped without being closed
        if hasattr(self, "_sock"):
            self.close()

    def _head(self, method: str, path: str, headers: Mapping[str, str], length: int | None) -> bytes:
        target = self._prefix + path
        if _TARGET.fullmatch(target) is None:
            raise ValueError(f"{target!r} is no target of a request")
        lines = "".join([f"{name}: {value}\r\n" for name, value in headers.items()])
        if lines.count("\r") != len(headers) or lines.count("\n") != len(headers):
            raise ValueError("a header holds a line break")
        if "Accept" not in headers:
            lines += "Accept: application/json\r\n"
        if length is not None:
            lines += f"Content-Length: {length}\r\n"
        return f"{method} {target}{self._own_lines}{lines}\r\n".encode("latin-1")

    def _set_timeout(self, sock: socket.socket, timeout_s: float) -> None:
        if timeout_s == self._timeout_s:
            return
        if self._kernel_timeouts:
            seconds, micros = divmod(max(1, int(timeout_s * 1_000_000)), 1_000_000)
            for option in (socket.SO_RCVTIMEO, socket.SO_SNDTIMEO):
                sock.setsockopt(socket.SOL_SOCKET, option, _TIMEVAL.pack(seconds, micros))
        else:
            sock.settimeout(timeout_s)
        self._timeout_s = timeout_s

    def _send_all(self, sock: socket.socket, buffers: list[bytes | memoryview]) -> None:
        if self._kernel_timeouts:
            while buffers:
                buffers = _rest(buffers, sock.sendmsg(buffers[:_MOST_BUFFERS]))
        else:
            for buffer in _joined(buffers):
                sock.sendall(buffer)

    def _receive_head(self, sock: socket.socket) -> tuple[ResponseHead, int, int]:
        """The final response's head, where its body begins in the buffer, and where the received bytes end."""
        buffer, view = self._buffer, memoryview(self._buffer)
        start = filled = interim = 0
        while True:
            end = buffer.find(END_OF_HEAD, start, filled)
            if end >= 0:
                head = parse_head(bytes(view[start : end + 2]), self._method)
                start = end + len(END_OF_HEAD)
                if head.status >= 200:
                    return head, start, filled
                interim += 1
                if interim > _MOST_INTERIM or head.status == 101:
                    raise NotHttp("it goes on without an answer")
                continue
            if filled > start:
                check_start(bytes(view[start:filled]))
            if filled == MAX_HEAD_BYTES:
                raise NotHttp("its head does not end")
            if filled and time.monotonic() - self._started >= self._read_s:
                raise TimeoutError
            received = sock.recv_into(view[filled : filled + _RECEIVED_AT_ONCE])
            if received == 0:
                raise ConnectionResetError("closed without an answer")
            filled += received

    def _receive_body(
        self, sock: socket.socket, head: ResponseHead, at: int, filled: int
    ) -> tuple[bytes | bytearray, int]:
        """The body, and where it ends in the buffer: at the end of what was received if it was received on its own."""
        length = head.length
        if length is None:
            return self._receive_unknown(sock, head, bytearray(memoryview(self._buffer)[at:filled])), filled
        if filled - at >= length:
            return bytes(memoryview(self._buffer)[at : at + length]), at + length
        data = bytearray(length)
        view = memoryview(data)
        have = filled - at
        view[:have] = memoryview(self._buffer)[at:filled]
        flags = socket.MSG_WAITALL if self._kernel_timeouts else 0
        while have < length:
            received = sock.recv_into(view[have:], length - have, flags)
            if received == 0:
                raise ConnectionResetError("closed before the end of the body")
            have += received
        return data, filled

    def _receive_unknown(self, sock: socket.socket, head: ResponseHead, data: bytearray) -> bytes | bytearray:
        """A body without a length, which no server of myqueue sends: chunked, or up to the end of the connection."""
        while True:
            if head.chunked and (whole := unchunk(data)) is not None:
                if whole[1] != len(data):
                    self._reusable = False  # something follows: not a connection to keep
                return whole[0]
            if len(data) > MAX_BODY_BYTES:
                raise NotHttp("its body does not end")
            if time.monotonic() - self._started >= self._read_s:
                raise TimeoutError
            received = sock.recv(64 << 10)
            if not received:
                if head.chunked:
                    raise ConnectionResetError("closed before the end of the body")
                return data
            data += received

    def _connect(self, connect_s: float) -> socket.socket:
        try:
            sock = connect(self._host, self._port, connect_s)
        except ConnectFailed as error:
            raise NotConnected(f"cannot connect to {self._url}: {error}", error.reason) from error
        try:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if self._tls:
                sock = self._with_tls(sock)
        except OSError as error:
            sock.close()
            raise self._no_tls(error) from error
        if self._kernel_timeouts:
            sock.settimeout(None)
        self._timeout_s = -1.0
        with self._opening:
            interrupted = self._interrupted
            if not interrupted:
                self._sock = sock
        if interrupted:
            sock.close()
            raise NoResponse(f"no answer from {self._url}: was interrupted", outcome="not_written")
        return sock

    def _with_tls(self, sock: socket.socket, *, handshake: bool = True) -> ssl.SSLSocket:
        return _tls().wrap_socket(sock, server_hostname=self._host, do_handshake_on_connect=handshake)

    def _no_tls(self, error: OSError) -> NoResponse:
        if isinstance(error, ssl.SSLError):
            return TlsFailed(f"no TLS connection to {self._url}: {error}", outcome="not_written")
        reason: Reason = "timeout" if _is_timeout(error) else "failed"
        return NotConnected(f"cannot connect to {self._url}: no TLS connection: {error}", reason)

    def _no_response(self, error: Exception) -> NoResponse:
        self.close()
        timed_out = False
        if self._interrupted:
            what = "was interrupted"
        elif _is_timeout(error) or time.monotonic() - self._started >= self._read_s:
            timed_out, what = True, f"timed out after {self._read_s:.1f} s"
        elif isinstance(error, NotHttp):
            return NotHttpServer(f"what came from {self._url} is no HTTP response: {error}", outcome="unknown")
        elif isinstance(error, ConnectionError):
            what = "the connection was closed before the end of a response"
        else:
            what = str(error) or type(error).__name__
        failed = NoResponse(f"no answer from {self._url}: {what}", outcome="unknown")
        failed.timed_out = timed_out
        return failed


def _joined(buffers: list[bytes | memoryview]) -> list[bytes | memoryview]:
    """The head together with a small body: one record of TLS, one packet."""
    if len(buffers) > 1 and sum(map(len, buffers)) <= _RECEIVED_AT_ONCE:
        return [b"".join(buffers)]
    return buffers


def _rest(buffers: list[bytes | memoryview], sent: int) -> list[bytes | memoryview]:
    for index, buffer in enumerate(buffers):
        if sent < len(buffer):
            return [memoryview(buffer)[sent:], *buffers[index + 1 :]]
        sent -= len(buffer)
    return []


def _is_timeout(error: Exception) -> bool:
    """Python reports the kernel's timeouts as BlockingIOError."""
    return isinstance(error, TimeoutError | BlockingIOError)


def _was_dropped(sock: socket.socket) -> bool:
    """Between two requests only the end of the connection can be readable."""
    return is_readable(sock)


def is_readable(sock: socket.socket) -> bool:
    if not hasattr(select, "poll"):
        return bool(select.select([sock], [], [], 0)[0])
    poll = select.poll()
    poll.register(sock, select.POLLIN)
    return bool(poll.poll(0))


@lru_cache(maxsize=1)
def _tls() -> ssl.SSLContext:
    return ssl.create_default_context()
