"""The way to one other broker: two connections dialled from here, dialled again whenever they end."""

import asyncio
import os
import socket
from collections.abc import Callable, Sequence
from typing import Any, Final

from broker.peers.connection import Connection
from broker.peers.counters import Counters
from broker.peers.handshake import NONCE_BYTES, Dialling, Purpose
from broker.peers.lane import Lane
from service.logs import Log

OPENING_S: Final = 2.0  # connect and handshake
SILENCE_S: Final = 3.0
BULK_BYTES: Final = 16 << 20
_CONTROL_BYTES = 4 << 20
_FIRST_PAUSE_S = 0.05
_LONGEST_PAUSE_S = 1.0
_STEADY_S = 1.0  # what took this long to fail may be tried again soon
_TURN_BYTES = 1 << 20  # of entries between two looks at everything else
_UNSENT_MS = 10_000
_PARTING_S = 0.5  # for what is written and not yet sent


class Peer:
    def __init__(
        self,
        broker_id: int,
        host: str,
        port: int,
        *,
        own_id: Callable[[], int | None],
        secret: bytes,
        counters: Counters,
        log: Log,
        on_connected: Callable[[int], None],
    ) -> None:
        self._broker_id = broker_id
        self._address = (host, port)
        self._own_id = own_id
        self._secret = secret
        self._counters = counters
        self._log = log.bind(peer=broker_id, address=f"{host}:{port}")
        self._on_connected = on_connected
        self._loop = asyncio.get_running_loop()
        self._lanes = {Purpose.CONTROL: Lane(_CONTROL_BYTES), Purpose.BULK: Lane(BULK_BYTES)}
        self._flushing = False
        self._told_away = False
        self._woken = asyncio.Event()
        self._tasks = [self._loop.create_task(self._keep_connected(purpose)) for purpose in Purpose]

    @property
    def connected(self) -> bool:
        return all(lane.connection is not None for lane in self._lanes.values())

    def send(self, purpose: Purpose, parts: Sequence[bytes], size: int) -> bool:
        if not self._lanes[purpose].offer(parts, size):
            return False
        self._flush_soon()
        return True

    def wake(self) -> None:
        """It is there, it has just called: dial now instead of later."""
        self._woken.set()

    def tick(self, now: float) -> None:
        control = self._lanes[Purpose.CONTROL].connection
        if control is not None and now - control.heard_at > SILENCE_S:
            self._counters.silent_connections += 1
            for lane in self._lanes.values():
                if lane.connection is not None:
                    lane.connection.fail("silent")
            return
        for purpose, lane in self._lanes.items():
            # Behind entries that wait, a sign of life would say nothing that they do not say.
            if lane.connection is not None and (purpose is Purpose.CONTROL or lane.idle):
                self.send(purpose, (), 0)

    async def close(self) -> None:
        for lane in self._lanes.values():
            lane.flush(BULK_BYTES)
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    # Writing: all of control, then a turn of bulk

    def _flush_soon(self) -> None:
        if not self._flushing:
            self._flushing = True
            self._loop.call_soon(self._flush)

    def _flush(self) -> None:
        self._flushing = False
        more = self._lanes[Purpose.CONTROL].flush(_CONTROL_BYTES)
        if self._lanes[Purpose.BULK].flush(_TURN_BYTES) or more:
            self._flush_soon()

    # Dialling

    async def _keep_connected(self, purpose: Purpose) -> None:
        pause_s = _FIRST_PAUSE_S
        while True:
            own_id = self._own_id()
            if own_id is not None and own_id != self._broker_id:
                began = self._loop.time()
                reason = await self._one_connection(purpose, own_id)
                if self._loop.time() - began >= _STEADY_S:
                    pause_s = _FIRST_PAUSE_S
                if not self._told_away:
                    self._told_away = True
                    self._log.warning("no connection to this broker", reason=reason)
            self._woken.clear()
            try:
                async with asyncio.timeout(pause_s):
                    await self._woken.wait()
            except TimeoutError:
                pause_s = min(pause_s * 2, _LONGEST_PAUSE_S)

    async def _one_connection(self, purpose: Purpose, own_id: int) -> str:
        """Stays until the connection ends, and says why it did."""
        ready: asyncio.Future[None] = self._loop.create_future()
        lost: asyncio.Future[str] = self._loop.create_future()
        either: list[asyncio.Future[Any]] = [ready, lost]
        connection = Connection(
            Dialling(self._secret, purpose, own_id, self._broker_id, os.urandom(NONCE_BYTES)),
            max_message_bytes=0,
            on_ready=lambda _: ready.set_result(None),
            on_message=_nothing_comes_back,
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
                return lost.result()
            self._attach(purpose, connection)
            await asyncio.wait([lost])  # unlike awaiting it, that does not cancel it when this task is cancelled
            return lost.result()
        finally:
            if self._lanes[purpose].connection is connection:
                self._counters.connections_lost += 1
                self._counters.dropped_frames += self._lanes[purpose].detach()
            if ready.done() and not lost.done():
                connection.close()
                await asyncio.wait([lost], timeout=_PARTING_S)
            connection.fail("given up")

    async def _socket(self) -> socket.socket:
        """A connection that is stuck while the other one is fine has nobody to notice it: the kernel gives it up."""
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

    def _attach(self, purpose: Purpose, connection: Connection) -> None:
        self._lanes[purpose].attach(connection)
        self._counters.connections_made += 1
        if self.connected:
            self._told_away = False
            self._log.info("connected to this broker")
            self._on_connected(self._broker_id)


def _nothing_comes_back(connection: Connection, message: memoryview) -> None:
    raise AssertionError(f"{connection.host} sent {len(message)} bytes over a connection that takes none")
