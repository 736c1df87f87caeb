"""Frames from broker to broker: a listener for those that dial here, a way to each of the others.

Frames are dropped whenever they cannot go at once or wait in little space: the Raft core sends again what matters.
"""

import asyncio
import os
from collections.abc import Callable, Mapping

from broker.peers.checked import BadFrame
from broker.peers.codec import MAX_FRAME_BYTES, decode, encode
from broker.peers.connection import Connection
from broker.peers.counters import Counters
from broker.peers.handshake import NONCE_BYTES, Listening, Purpose
from broker.peers.peer import OPENING_S, SILENCE_S, Peer
from broker.raft.messages import Append, Envelope, Frame, InstallSnapshot
from service.logs import Log

_TICK_S = 0.5
_MAX_STRANGERS = 64
_SAY_AGAIN_S = 60.0
_MAX_REMEMBERED = 1000


class Transport:
    """Lives on the loop that `start` is called on; only `set_peers` may be called from another thread."""

    def __init__(
        self,
        *,
        host: str,
        port: int,
        broker_id: Callable[[], int | None],
        secret: str,
        log: Log,
        on_frame: Callable[[Frame], None],
        on_connected: Callable[[int], None] | None = None,
    ) -> None:
        self._host = host
        self._port = port
        self._broker_id = broker_id
        self._secret = secret.encode()
        self._log = log
        self._on_frame = on_frame
        self._on_connected = on_connected or (lambda _: None)
        self.counters = Counters()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._server: asyncio.Server | None = None
        self._ticking: asyncio.TimerHandle | None = None
        self._wanted: dict[int, str] = {}
        self._addresses: dict[int, str] = {}
        self._peers: dict[int, Peer] = {}
        self._closing: set[asyncio.Task[None]] = set()
        self._strangers: dict[Connection, None] = {}  # the handshake is not over; oldest first
        self._callers: dict[tuple[int, Purpose], Connection] = {}
        self._said: dict[tuple[str, str], float] = {}

    @property
    def port(self) -> int:
        """Where it listens, also when the system chose."""
        return self._port

    @property
    def connected(self) -> list[int]:
        """Brokers that frames can be sent to now."""
        return [broker_id for broker_id, peer in self._peers.items() if peer.connected]

    async def start(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._server = await self._loop.create_server(self._accept, self._host, self._port)
        self._port = self._server.sockets[0].getsockname()[1]
        self._ticking = self._loop.call_later(_TICK_S, self._tick)
        self._follow_wishes()

    async def stop(self) -> None:
        if self._server is None:
            return
        server, self._server = self._server, None
        server.close()
        if self._ticking is not None:
            self._ticking.cancel()
        self._follow_wishes()
        await asyncio.gather(*self._closing)
        for connection in [*self._strangers, *self._callers.values()]:
            connection.fail("stopping")
        await server.wait_closed()

    def set_peers(self, addresses: Mapping[int, str]) -> None:
        """All other brokers, by id, as host:port. This broker itself may be among them."""
        self._wanted = dict(addresses)
        if self._loop is not None and self._server is not None:
            self._loop.call_soon_threadsafe(self._follow_wishes)

    def send(self, broker_id: int, frame: Frame) -> None:
        counters = self.counters
        peer = self._peers.get(broker_id)
        if peer is None:
            counters.dropped_frames += 1
            return
        try:
            parts = encode(frame)
        except BadFrame as error:
            counters.unsendable_frames += 1
            self._say(self._log.error, "a frame cannot be sent", f"broker {broker_id}", str(error))
            return
        size = sum(map(len, parts))
        if peer.send(purpose_of(frame), parts, size):
            counters.sent_frames += 1
            counters.sent_bytes += size
        else:
            counters.dropped_frames += 1

    # Brokers that are dialled

    def _follow_wishes(self) -> None:
        assert self._loop is not None
        wanted = self._wanted if self._server is not None else {}
        for broker_id, address in list(self._addresses.items()):
            if wanted.get(broker_id) != address:
                del self._addresses[broker_id]
                closing = self._loop.create_task(self._peers.pop(broker_id).close())
                self._closing.add(closing)
                closing.add_done_callback(self._closing.discard)
        for broker_id, address in wanted.items():
            if broker_id in self._peers:
                continue
            place = parsed_address(address)
            if place is None:
                self._say(self._log.error, "a broker's address cannot be used", f"broker {broker_id}", address)
                continue
            self._addresses[broker_id] = address
            self._peers[broker_id] = Peer(
                broker_id,
                *place,
                own_id=self._broker_id,
                secret=self._secret,
                counters=self.counters,
                log=self._log,
                on_connected=self._on_connected,
            )

    # Brokers that dial

    def _accept(self) -> Connection:
        """Strangers who only sit there make place for the next one."""
        if len(self._strangers) >= _MAX_STRANGERS:
            oldest = next(iter(self._strangers))
            del self._strangers[oldest]
            oldest.fail("too many at once")
        connection = Connection(
            Listening(self._secret, self._broker_id(), os.urandom(NONCE_BYTES)),
            max_message_bytes=MAX_FRAME_BYTES,
            on_ready=self._caller_known,
            on_message=self._message,
            on_lost=self._caller_lost,
        )
        self._strangers[connection] = None
        return connection

    def _caller_known(self, connection: Connection) -> None:
        self._strangers.pop(connection, None)
        name = (connection.peer_id, connection.purpose)
        before = self._callers.get(name)
        self._callers[name] = connection
        if before is not None:
            before.fail("replaced by a newer connection")
        peer = self._peers.get(connection.peer_id)
        if peer is not None:
            peer.wake()

    def _caller_lost(self, connection: Connection, reason: str) -> None:
        if connection.known:
            name = (connection.peer_id, connection.purpose)
            if self._callers.get(name) is connection:
                del self._callers[name]
            if connection.at_fault:
                self.counters.bad_messages += 1
                self._say(self._log.warning, "a broker sent what it must not", f"broker {connection.peer_id}", reason)
            return
        self._strangers.pop(connection, None)
        if connection.at_fault:
            self.counters.refused_connections += 1
            self._say(self._log.warning, "a connection was refused", connection.host, reason)

    def _message(self, connection: Connection, message: memoryview) -> None:
        frame = decode(message)
        sender = frame.sender.broker_id if isinstance(frame, Envelope) else frame.broker_id
        if sender != connection.peer_id:
            raise BadFrame(f"speaks for broker {sender}")
        self.counters.received_frames += 1
        self.counters.received_bytes += len(message)
        self._on_frame(frame)

    # Time

    def _tick(self) -> None:
        assert self._loop is not None
        now = self._loop.time()
        self._ticking = self._loop.call_later(_TICK_S, self._tick)
        for peer in self._peers.values():
            peer.tick(now)
        for connection in list(self._callers.values()):
            if now - connection.heard_at > SILENCE_S:
                self.counters.silent_connections += 1
                connection.fail("silent")
        for connection in list(self._strangers):
            if now - connection.opened_at > OPENING_S:
                connection.fail("did not prove who it is in time")

    def _say(self, report: Callable[..., object], event: str, who: str, reason: str) -> None:
        """Once a minute for the same thing: a peer in trouble tries again and again."""
        assert self._loop is not None
        now = self._loop.time()
        key = (who, reason)
        if now - self._said.get(key, -_SAY_AGAIN_S) < _SAY_AGAIN_S:
            return
        if len(self._said) >= _MAX_REMEMBERED:
            self._said.clear()
        self._said[key] = now
        report(event, who=who, reason=reason)


def purpose_of(frame: Frame) -> Purpose:
    if isinstance(frame, Envelope):
        message = frame.message
        if isinstance(message, InstallSnapshot) or (isinstance(message, Append) and message.entries):
            return Purpose.BULK
    return Purpose.CONTROL


def parsed_address(address: str) -> tuple[str, int] | None:
    """host:port, with [ ] around an IPv6 address."""
    host, colon, port = address.rpartition(":")
    if not colon or not host or not (port.isascii() and port.isdigit() and 0 < int(port) < 1 << 16):
        return None
    if host.startswith("[") and host.endswith("]"):
        return host[1:-1], int(port)
    return None if ":" in host else (host, int(port))
