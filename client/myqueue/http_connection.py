"""One keep-alive HTTP connection that sends from the caller's buffers and receives a large body in one call.

Timeouts are left to the kernel where it has them: a large send or receive is then one call that releases the GIL once.
With Python's own timeouts it is many calls, and after each the thread waits milliseconds for the GIL while another
thread is busy.
"""

import os
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
from http.client import HTTPConnection, HTTPException, HTTPMessage, HTTPResponse, HTTPSConnection, IncompleteRead
from typing import Any
from urllib.parse import urlsplit

from myqueue.protocol.errors import Unavailable
from myqueue.version import VERSION

Body = bytes | Sequence[bytes | memoryview]

_KERNEL_TIMEOUTS = os.name == "posix"
_TIMEVAL = struct.Struct("@ll")  # s, µs
_LARGE_BYTES = 16 << 10

_OWN_HEADERS = {"User-Agent": f"myqueue-python/{VERSION}", "Accept": "application/json"}


@dataclass(frozen=True, slots=True)
class RawResponse:
    status: int
    headers: HTTPMessage  # names in any case
    body: bytes | bytearray


class NoResponse(Unavailable):
    """No response arrived. Its outcome is `not_written` if there was no connection to send the request over."""

    permanent = False


class TlsFailed(NoResponse):
    """No trusted TLS connection: a retry does not help."""

    permanent = True


class _TimedSocket(socket.socket):
    """A blocking socket with the kernel's timeouts, which Python reports as BlockingIOError."""

    def recv_into(self, *arguments: Any) -> int:
        try:
            return super().recv_into(*arguments)
        except BlockingIOError as error:
            raise TimeoutError("timed out") from error


class HttpConnection:
    """Used by one thread at a time; only `cancel` and `interrupt` may come from another."""

    def __init__(self, url: str) -> None:
        self._url = url
        parts = urlsplit(url)
        self._prefix = parts.path
        host = parts.hostname or ""
        self._connection = (
            HTTPSConnection(host, parts.port, context=_tls())
            if parts.scheme == "https"
            else HTTPConnection(host, parts.port)
        )
        self._kernel_timeouts = _KERNEL_TIMEOUTS and parts.scheme == "http"
        self._timeout_s = -1.0
        self._interrupted = False
        self._opening = threading.Lock()

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
        connection = self._connection
        if connection.sock is not None and _was_dropped(connection.sock):
            connection.close()
        if connection.sock is None:
            self._connect(connect_s)
        sent = {**_OWN_HEADERS, **headers}
        if body is not None and not isinstance(body, bytes):
            sent["Content-Length"] = str(sum(map(len, body)))
        started = time.monotonic()
        try:
            self._set_timeout(read_s)
            # The server may have responded before it closed: it refused the request without reading the whole body.
            with suppress(BrokenPipeError, ConnectionResetError):
                connection.request(method, self._prefix + path, body, sent)
            response = connection.getresponse()
            data = self._read(response)
        except (OSError, HTTPException) as error:
            connection.close()
            what = type(error).__name__
            if self._interrupted:
                what = "was interrupted"
            elif time.monotonic() - started >= read_s:
                what = f"timed out after {read_s:.1f} s"
            raise NoResponse(f"no answer from {self._url}: {what}", outcome="unknown") from error
        return RawResponse(response.status, response.headers, data)

    def cancel(self) -> None:
        """Ends the request in flight, if there is one."""
        sock = self._connection.sock
        if sock is not None:
            try:
                sock.shutdown(socket.SHUT_RDWR)
            except OSError:
                return  # its own thread has closed it

    def interrupt(self) -> None:
        """Ends the request in flight, and all later ones."""
        with self._opening:
            self._interrupted = True
        self.cancel()

    def close(self) -> None:
        self._connection.close()

    __del__ = close  # also when an owner was dropped without being closed

    def _set_timeout(self, timeout_s: float) -> None:
        sock = self._connection.sock
        if not self._kernel_timeouts:
            sock.settimeout(timeout_s)
        elif timeout_s != self._timeout_s:
            seconds, micros = divmod(max(1, int(timeout_s * 1_000_000)), 1_000_000)
            for option in (socket.SO_RCVTIMEO, socket.SO_SNDTIMEO):
                sock.setsockopt(socket.SOL_SOCKET, option, _TIMEVAL.pack(seconds, micros))
            self._timeout_s = timeout_s

    def _read(self, response: HTTPResponse) -> bytes | bytearray:
        sock, length = self._connection.sock, response.length
        if not self._kernel_timeouts or sock is None or length is None or length < _LARGE_BYTES:
            return response.read()
        data = bytearray(length)
        view = memoryview(data)
        start = response.fp.read1(length)  # the part that came with the headers
        view[: len(start)] = start
        at = len(start)
        while at < length:
            received = sock.recv_into(view[at:], length - at, socket.MSG_WAITALL)
            if received == 0:
                raise IncompleteRead(bytes(view[:at]), length - at)
            at += received
        response.close()
        return data

    def _connect(self, connect_s: float) -> None:
        self._connection.timeout = connect_s
        try:
            self._connection.connect()
        except ssl.SSLError as error:
            self._connection.close()
            raise TlsFailed(f"no TLS connection to {self._url}: {error}", outcome="not_written") from error
        except OSError as error:
            self._connection.close()
            raise NoResponse(f"cannot connect to {self._url}", outcome="not_written") from error
        if self._kernel_timeouts:
            sock = self._connection.sock
            self._connection.sock = _TimedSocket(sock.family, sock.type, sock.proto, sock.detach())
            self._connection.sock.settimeout(None)
            self._timeout_s = -1.0
        with self._opening:
            interrupted = self._interrupted
        if interrupted:
            self._connection.close()
            raise NoResponse(f"no answer from {self._url}: was interrupted", outcome="not_written")


def _was_dropped(sock: socket.socket) -> bool:
    """Between two requests only the end of the connection can be readable."""
    if not hasattr(select, "poll"):
        return bool(select.select([sock], [], [], 0)[0])
    poll = select.poll()
    poll.register(sock, select.POLLIN)
    return bool(poll.poll(0))


@lru_cache(maxsize=1)
def _tls() -> ssl.SSLContext:
    return ssl.create_default_context()


def base_url(address: str) -> str:
    """`http://host`, `https://host:8443/`, `host:8080` or `host`, as a URL without a trailing slash."""
    text = address.strip()
    if "://" not in text:
        text = f"http://{text}"
    parts = urlsplit(text)
    if parts.scheme not in ("http", "https"):
        raise ValueError(f"{address!r}: the address must start with http:// or https://")
    if not parts.hostname or any(character.isspace() for character in text):
        raise ValueError(f"{address!r}: the address names no host")
    if parts.username is not None or parts.query or parts.fragment:
        raise ValueError(f"{address!r}: the address may hold a host, a port and a path, nothing else")
    try:
        _ = parts.port
    except ValueError:
        raise ValueError(f"{address!r}: the port must be a number from 0 to 65535") from None
    return f"{parts.scheme}://{parts.netloc}{parts.path.rstrip('/')}"
