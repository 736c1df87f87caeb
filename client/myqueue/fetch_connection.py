"""A connection that never blocks: its response is received in pieces, as they arrive.

One thread can wait for many of them, by a selector or by an event loop.
"""

import asyncio
import socket
import ssl
import time
from collections.abc import Mapping

import pyarrow as pa

from myqueue.connecting import SHORTEST_S, ConnectFailed, SocketAddress, is_address, unconnected, unresolved
from myqueue.http_connection import HttpConnection, NoResponse, NotConnected, RawResponse, is_readable
from myqueue.http_response import (
    END_OF_HEAD,
    MAX_BODY_BYTES,
    MAX_HEAD_BYTES,
    NotHttp,
    ResponseHead,
    check_start,
    parse_head,
    unchunk,
)

_AT_ONCE_BYTES = 16 << 10


class FetchConnection(HttpConnection):
    """`open` and `exchange` are awaited; the other calls return at once."""

    def __init__(self, url: str) -> None:
        super().__init__(url)
        self._unsent = memoryview(b"")
        self._filled = 0  # bytes of the response in the buffer, until its head is whole
        self._response: ResponseHead | None = None
        self._body = memoryview(b"")
        self._have = 0  # bytes of the body
        self._unframed: bytearray | None = None  # a body whose length the head does not tell
        self._wanted = 0  # bytes that the last call could have received

    async def open(self, connect_s: float) -> None:
        """Raises NoResponse."""
        self.close()
        try:
            async with asyncio.timeout(connect_s):
                sock = await self._connected(connect_s)
                self._sock = await self._after_handshake(sock) if self._tls else sock
        except TimeoutError as error:
            late = unconnected(error, connect_s)
            raise NotConnected(f"cannot connect to {self._url}: {late}", late.reason) from error
        except ConnectFailed as error:
            raise NotConnected(f"cannot connect to {self._url}: {error}", error.reason) from error
        except OSError as error:
            raise self._no_tls(error) from error

    async def exchange(  # type: ignore[override]
        self,
        method: str,
        path: str,
        headers: Mapping[str, str],
        body: bytes | None = None,
        *,
        connect_s: float,
        read_s: float,
    ) -> RawResponse:
        """The response, whatever its status; raises NoResponse. Closes the connection if it is cancelled."""
        try:
            if not self.is_usable:
                await self.open(connect_s)
            self.request(path, headers, read_s, method=method, body=body)
            async with asyncio.timeout(read_s):
                while self._unsent and self._sock is not None:
                    await _ready(self._sock, to_send=True)
                    self._send_rest()
                while (response := self.receive_available()) is None:
                    assert self._sock is not None
                    await _ready(self._sock)
            return response
        except TimeoutError:
            raise self.timed_out() from None
        except BaseException:
            self.close()
            raise

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

    def request(
        self,
        path: str,
        headers: Mapping[str, str],
        read_s: float,
        *,
        method: str = "GET",
        body: bytes | None = None,
    ) -> None:
        """Sends a request, as far as the socket takes it; raises NoResponse."""
        head = self._head(method, path, headers, None if body is None and method == "GET" else len(body or b""))
        self._method, self._started, self._read_s, self._reusable = method, time.monotonic(), read_s, True
        self._filled = self._have = 0
        self._response = self._unframed = None
        self._unsent = memoryview(head + body if body else head)
        self._send_rest()

    def _send_rest(self) -> None:
        try:
            if self._sock is None:
                raise ConnectionError("closed")
            self._unsent = self._unsent[self._sock.send(self._unsent) :]
        except (BlockingIOError, ssl.SSLWantWriteError):
            return
        except OSError as error:
            raise self._no_response(error) from error

    def receive_available(self) -> RawResponse | None:
        """The response to the request, None while it has not arrived as a whole; raises NoResponse."""
        try:
            if self._unsent:
                self._send_rest()
            while (received := self._receive_some()) is not None:
                if received == 0 and not self._ends_with_connection:
                    raise ConnectionResetError("closed before the end of the response")
                if self._response is None:
                    self._response = self._parsed_head()
                if self._response is not None and self._is_whole(self._response, at_end=received == 0):
                    return self._whole(self._response)
                if not self._tls and received < self._wanted:
                    return None  # nothing more has arrived: saves a call to find that out
        except (OSError, NotHttp) as error:
            raise self._no_response(error) from error
        return None

    def timed_out(self) -> NoResponse:
        return self._no_response(TimeoutError())

    async def _connected(self, connect_s: float) -> socket.socket:
        """Raises ConnectFailed."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + connect_s
        failed: OSError | None = None
        addresses = await _addresses(self._host, self._port)
        for tried, (family, address) in enumerate(addresses):
            share_s = (deadline - loop.time()) / (len(addresses) - tried)
            sock = socket.socket(family, socket.SOCK_STREAM)
            try:
                sock.setblocking(False)
                async with asyncio.timeout(max(SHORTEST_S, share_s)):
                    await loop.sock_connect(sock, address)
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                return sock
            except OSError as error:
                failed = error
                sock.close()
            except BaseException:
                sock.close()
                raise
        raise unconnected(failed, connect_s) from failed

    async def _after_handshake(self, plain: socket.socket) -> socket.socket:
        sock = plain
        try:
            sock = tls = self._with_tls(plain, handshake=False)
            while True:
                try:
                    tls.do_handshake()
                    return tls
                except ssl.SSLWantReadError:
                    await _ready(tls)
                except ssl.SSLWantWriteError:
                    await _ready(tls, to_send=True)
        except BaseException:
            sock.close()
            raise

    @property
    def _ends_with_connection(self) -> bool:
        return self._unframed is not None and self._response is not None and not self._response.chunked

    def _receive_some(self) -> int | None:
        """How many bytes; None when none have arrived."""
        sock = self._sock
        if sock is None:
            raise ConnectionError("closed")
        if self._response is None or self._unframed is not None:
            at = self._filled if self._response is None else 0
            target = memoryview(self._buffer)[at : at + _AT_ONCE_BYTES]
        else:
            target = self._body[self._have :]
        self._wanted = len(target)
        try:
            received = sock.recv_into(target)
        except (BlockingIOError, ssl.SSLWantReadError):
            return None
        if self._response is None:
            self._filled += received
        elif self._unframed is not None:
            self._unframed += target[:received]
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
            self._unframed = bytearray(memoryview(buffer)[start:filled])
        elif head.status < 200 or filled - start > head.length:
            raise NotHttp("it is not of the kind that a broker sends")
        else:
            self._have = filled - start
            self._body = self._body_of(head.length)
            self._body[: self._have] = memoryview(buffer)[start:filled]
        return head

    def _is_whole(self, head: ResponseHead, *, at_end: bool) -> bool:
        """No server of myqueue sends a body without its length, but a proxy may."""
        if self._unframed is None:
            return self._have == len(self._body)
        if len(self._unframed) > MAX_BODY_BYTES:
            raise NotHttp("its body does not end")
        if not head.chunked:
            self._body = memoryview(bytes(self._unframed) if at_end else b"")
            return at_end
        whole = unchunk(self._unframed)
        if whole is None:
            return False
        self._body = memoryview(whole[0])
        self._reusable = self._reusable and whole[1] == len(self._unframed)  # else something follows
        return True

    def _body_of(self, length: int) -> memoryview:
        """Not a large bytearray: that would be filled with zeros first."""
        return memoryview(pa.allocate_buffer(length) if length > _AT_ONCE_BYTES else bytearray(length)).cast("B")

    def _whole(self, head: ResponseHead) -> RawResponse:
        body = self._body
        self._body = memoryview(b"")
        self._unframed = None
        if self._unsent or not (head.keep_alive and self._reusable):
            self.close()
        return RawResponse(head.status, head.headers, body if head.status == 200 else bytes(body))


async def _addresses(host: str, port: int) -> list[SocketAddress]:
    """Raises ConnectFailed."""
    try:
        if is_address(host):  # a look-up would take a turn through another thread
            found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        else:
            found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except (UnicodeError, OSError) as error:
        raise unresolved(host, error) from error
    return [SocketAddress(family, address) for family, _, _, _, address in found]


async def _ready(sock: socket.socket, *, to_send: bool = False) -> None:
    """Returns when the socket may be read, or written."""
    loop = asyncio.get_running_loop()
    ready = loop.create_future()
    number = sock.fileno()
    (loop.add_writer if to_send else loop.add_reader)(number, _resolve, ready)
    try:
        await ready
    finally:
        (loop.remove_writer if to_send else loop.remove_reader)(number)


def _resolve(future: "asyncio.Future[None]") -> None:
    if not future.done():
        future.set_result(None)
