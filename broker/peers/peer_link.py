"""The link to one other broker: two connections dialled from here, dialled again whenever they end."""

import asyncio
import os
import socket
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from broker.peers.connection import PeerConnection
from broker.peers.handshake import NONCE_BYTES, VERSION, DataFolder, Dialling, Purpose
from broker.peers.send_queue import SendQueue
from service.logs import Log

OPENING_S: Final = 2.0  # connect and handshake
SILENCE_S: Final = 3.0
BULK_BYTES: Final = 16 << 20
_CONTROL_BYTES = 4 << 20
_FIRST_PAUSE_S = 0.05
_LONGEST_PAUSE_S = 1.0
_STEADY_S = 1.0  # after a connection that lasted this long, the pause starts again from the first one
_BULK_FLUSH_BYTES = 1 << 20  # of bulk between two flushes of control
_UNSENT_MS = 10_000
_HANG_UPS = 3  # in a row, before the oldest version is tried
_CLOSE_S = 0.5  # for bytes written and not yet sent


@dataclass(slots=True)
class PeerCounters:
    """Of all links of this broker since its start."""

    sent_frames: int = 0
    sent_bytes: int = 0
    received_frames: int = 0
    received_bytes: int = 0
    dropped_frames: int = 0  # no connection, or the send queue was full
    unsendable_frames: int = 0  # too large, or an entry without its batch
    connections_made: int = 0
    connections_lost: int = 0
    silent_connections: int = 0  # closed because nothing came any more
    refused_connections: int = 0  # failed the handshake
    bad_messages: int = 0  # connections closed because the peer broke the protocol


class PeerLink:
    def __init__(
        self,
        broker_id: int,
        host: str,
        port: int,
        *,
        own_id: Callable[[], int | None],
        secret: bytes,
        counters: PeerCounters,
        log: Log,
        on_connected: Callable[[int], None],
        folder: Callable[[], DataFolder | None],
        on_accepted: Callable[[int, int], None],
        on_refuted: Callable[[int, str], None],
    ) -> None:
        self._broker_id = broker_id
        self._folder = folder
        self._on_accepted = on_accepted
        self._on_refuted = on_refuted
        self._address = (host, port)
        self._own_id = own_id
        self._secret = secret
        self._counters = counters
        self._log = log.bind(peer=broker_id, address=f"{host}:{port}")
        self._on_connected = on_connected
        self._loop = asyncio.get_running_loop()
        self._queues = {Purpose.CONTROL: SendQueue(_CONTROL_BYTES), Purpose.BULK: SendQueue(BULK_BYTES)}
        self._flushing: asyncio.Handle | None = None
        self._reported_down = False
        self._hung_up: set[Purpose] = set()  # the peer closed the last connection without an answer to the hello
        self._woken = asyncio.Event()
        self._tasks = [self._loop.create_task(self._keep_connected(purpose)) for purpose in Purpose]

    @property
    def connected(self) -> bool:
        return all(queue.connection is not None for queue in self._queues.values())

    def version(self, purpose: Purpose) -> int:
        """Of the frames that the peer understands."""
        connection = self._queues[purpose].connection
        return VERSION if connection is None else connection.version

    def send(self, purpose: Purpose, parts: Sequence[bytes], size: int) -> bool:
        if not self._queues[purpose].offer(parts, size):
            return False
        self._flush_soon()
        return True

    def flush(self) -> None:
        if self._flushing is not None:
            self._flushing.cancel()
            self._flush()

    def wake(self) -> None:
        """The peer has just connected to us: dial now instead of later."""
        self._woken.set()

    def tick(self, now: float) -> None:
        control = self._queues[Purpose.CONTROL].connection
        if control is not None and now - control.received_at > SILENCE_S:
            self._counters.silent_connections += 1
            for queue in self._queues.values():
                if queue.connection is not None:
                    queue.connection.fail("silent")
            return
        for purpose, queue in self._queues.items():
            # Entries that wait serve as keepalive themselves.
            if queue.connection is not None and (purpose is Purpose.CONTROL or queue.idle):
                self.send(purpose, (), 0)

    async def close(self) -> None:
        for queue in self._queues.values():
            queue.flush(BULK_BYTES)
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    # Writing: all of control, then some bulk

    def _flush_soon(self) -> None:
        if self._flushing is None:
            self._flushing = self._loop.call_soon(self._flush)

    def _flush(self) -> None:
        self._flushing = None
        more = self._queues[Purpose.CONTROL].flush(_CONTROL_BYTES)
        if self._queues[Purpose.BULK].flush(_BULK_FLUSH_BYTES) or more:
            self._flush_soon()

    # Dialling

    async def _keep_connected(self, purpose: Purpose) -> None:
        pause_s = _FIRST_PAUSE_S
        hang_ups = 0
        while True:
            own_id = self._own_id()
            if own_id is not None and own_id != self._broker_id:
                began = self._loop.time()
                folder = self._folder() if hang_ups < _HANG_UPS else None
                dialling = Dialling(self._secret, purpose, own_id, self._broker_id, os.urandom(NONCE_BYTES), folder)
                reason = await self._one_connection(purpose, dialling)
                # A broker of the oldest version hangs up on a hello with a folder: after some, one is without. Others
                # may hang up too, before they have their id or when they have too many connections.
                hang_ups = hang_ups + 1 if folder is not None and purpose in self._hung_up else 0
                if self._loop.time() - began >= _STEADY_S:
                    pause_s = _FIRST_PAUSE_S
                if not self._reported_down:
                    self._reported_down = True
                    self._log.warning("no connection to this broker", reason=reason)
            self._woken.clear()
            try:
                async with asyncio.timeout(pause_s):
                    await self._woken.wait()
            except TimeoutError:
                pause_s = min(pause_s * 2, _LONGEST_PAUSE_S)

    async def _one_connection(self, purpose: Purpose, dialling: Dialling) -> str:
        """Returns when the connection has ended, with the reason."""
        ready: asyncio.Future[None] = self._loop.create_future()
        lost: asyncio.Future[str] = self._loop.create_future()
        either: list[asyncio.Future[Any]] = [ready, lost]
        self._hung_up.discard(purpose)
        connection = PeerConnection(
            dialling,
            max_message_bytes=0,
            on_ready=lambda _: ready.set_result(None),
            on_message=_refuse_message,
            on_lost=lambda _, reason: lost.set_result(reason),
            on_writable=self._flush_soon,
        )
        try:
            try:
                async with asyncio.timeout(OPENING_S):
                    await self._loop.create_connection(lambda: connection, sock=await self._socket())
                    await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
            except TimeoutError:
                return "no answer"
            except OSError as error:
                return error.strerror or str(error)
            except UnicodeError as error:  # a host name that cannot be one
                return str(error)
            if lost.done():
                self._counters.refused_connections += connection.at_fault
                if not dialling.answered:
                    self._hung_up.add(purpose)
                if dialling.folder is not None and dialling.refuted_by_starts is not None:
                    seen = f"broker {self._broker_id} has seen {dialling.refuted_by_starts} starts of this data folder"
                    why = f"{seen}, which counts {dialling.folder.starts}: it is an older copy"
                    self._on_refuted(dialling.folder.incarnation, why)
                return lost.result()
            if dialling.folder is not None:
                self._on_accepted(self._broker_id, dialling.folder.incarnation)
            self._attach(purpose, connection)
            await asyncio.wait([lost])  # unlike awaiting it, that does not cancel it when this task is cancelled
            return lost.result()
        finally:
            if self._queues[purpose].connection is connection:
                self._counters.connections_lost += 1
                self._counters.dropped_frames += self._queues[purpose].detach()
            if ready.done() and not lost.done():
                connection.close()
                await asyncio.wait([lost], timeout=_CLOSE_S)
            connection.fail("given up")

    async def _socket(self) -> socket.socket:
        """TCP_USER_TIMEOUT: only the kernel notices a connection that is stuck while the other one works."""
        host, port = self._address
        family, kind, protocol, _, address = (
            await self._loop.getaddrinfo(host, port, type=socket.SOCK_STREAM, proto=socket.IPPROTO_TCP)
        )[0]
        dialled = socket.socket(family, kind, protocol)
        try:
            dialled.setblocking(False)
            dialled.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            dialled.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, _UNSENT_MS)
            await self._loop.sock_connect(dialled, address)
        except BaseException:
            dialled.close()
            raise
        return dialled

    def _attach(self, purpose: Purpose, connection: PeerConnection) -> None:
        self._queues[purpose].attach(connection)
        self._counters.connections_made += 1
        if self.connected:
            self._reported_down = False
            self._log.info("connected to this broker")
            self._on_connected(self._broker_id)


def _refuse_message(connection: PeerConnection, message: memoryview) -> None:
    raise AssertionError(f"{connection.host} sent {len(message)} bytes over a connection that takes none")
