"""Frames from broker to broker: a listener for connections of the others, and a link to each of them.

Frames are dropped when there is no connection or its send queue is full: the Raft core repeats what matters.
"""

import asyncio
import os
from collections.abc import Callable, Mapping

from broker.peers.connection import PeerConnection
from broker.peers.folder_starts import FolderStarts
from broker.peers.frame_codec import MAX_FRAME_BYTES, PackedEntries, decode, encode, is_known
from broker.peers.handshake import NONCE_BYTES, DataFolder, Listening, Purpose
from broker.peers.msgpack_values import BadFrame
from broker.peers.peer_link import OPENING_S, SILENCE_S, PeerCounters, PeerLink
from broker.raft.messages import Append, Envelope, Frame, InstallSnapshot
from service.logs import Log

_TICK_S = 0.5
_MAX_UNAUTHENTICATED = 64
_LOG_AGAIN_S = 60.0
_MAX_LOGGED = 1000


class Transport:
    """Runs on the loop that `start` is called on; only `set_peers` may be called from another thread."""

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
        folder: Callable[[], DataFolder | None] = lambda: None,
        folder_starts: FolderStarts | None = None,
        on_accepted: Callable[[int, int], None] = lambda *_: None,
        on_refuted: Callable[[int, str], None] = lambda *_: None,
    ) -> None:
        """`folder` is this broker's data folder as of now; `folder_starts` are those of the others.

        `on_accepted` gets the broker that has accepted the folder, and its incarnation; `on_refuted` the incarnation
        that a broker refuted, and why. Both are called on the loop, again with every connection.
        """
        self._host = host
        self._port = port
        self._broker_id = broker_id
        self._secret = secret.encode()
        self._log = log
        self._on_frame = on_frame
        self._on_connected = on_connected or (lambda _: None)
        self._folder = folder
        self._folder_starts = folder_starts or FolderStarts({})
        self._on_accepted = on_accepted
        self._on_refuted = on_refuted
        self.counters = PeerCounters()
        self._packed = PackedEntries()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._server: asyncio.Server | None = None
        self._ticking: asyncio.TimerHandle | None = None
        self._wanted: dict[int, str] = {}
        self._addresses: dict[int, str] = {}
        self._links: dict[int, PeerLink] = {}
        self._closing: set[asyncio.Task[None]] = set()
        self._unauthenticated: dict[PeerConnection, None] = {}  # in the handshake; oldest first
        self._accepted: dict[tuple[int, Purpose], PeerConnection] = {}
        self._logged: dict[tuple[str, str], float] = {}

    @property
    def port(self) -> int:
        """The port it listens on, also when the system chose it."""
        return self._port

    @property
    def connected(self) -> list[int]:
        """Brokers that frames can be sent to now."""
        return [broker_id for broker_id, link in self._links.items() if link.connected]

    async def start(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._server = await self._loop.create_server(self._accept, self._host, self._port)
        self._port = self._server.sockets[0].getsockname()[1]
        self._ticking = self._loop.call_later(_TICK_S, self._tick)
        self._update_links()

    async def stop(self) -> None:
        if self._server is None:
            return
        server, self._server = self._server, None
        server.close()
        if self._ticking is not None:
            self._ticking.cancel()
        self._update_links()
        await asyncio.gather(*self._closing)
        for connection in [*self._unauthenticated, *self._accepted.values()]:
            connection.fail("stopping")
        await server.wait_closed()

    def set_peers(self, addresses: Mapping[int, str]) -> None:
        """All other brokers, by id, as host:port. This broker itself may be among them."""
        self._wanted = dict(addresses)
        if self._loop is not None and self._server is not None:
            self._loop.call_soon_threadsafe(self._update_links)

    def send(self, broker_id: int, frame: Frame) -> None:
        counters = self.counters
        link = self._links.get(broker_id)
        if link is None:
            counters.dropped_frames += 1
            return
        purpose = purpose_of(frame)
        version = link.version(purpose)
        if not is_known(frame, version):
            counters.dropped_frames += 1
            return
        try:
            parts = encode(frame, version, self._packed)
        except BadFrame as error:
            counters.unsendable_frames += 1
            self._log_once(self._log.error, "a frame cannot be sent", f"broker {broker_id}", str(error))
            return
        size = sum(map(len, parts))
        if link.send(purpose, parts, size):
            counters.sent_frames += 1
            counters.sent_bytes += size
        else:
            counters.dropped_frames += 1

    def flush(self) -> None:
        """Write what `send` has queued now instead of in the next turn of the loop."""
        for link in self._links.values():
            link.flush()

    # Outgoing links

    def _update_links(self) -> None:
        assert self._loop is not None
        wanted = self._wanted if self._server is not None else {}
        for broker_id, address in list(self._addresses.items()):
            if wanted.get(broker_id) != address:
                del self._addresses[broker_id]
                closing = self._loop.create_task(self._links.pop(broker_id).close())
                self._closing.add(closing)
                closing.add_done_callback(self._closing.discard)
        for broker_id, address in wanted.items():
            if broker_id in self._links:
                continue
            parsed = parsed_address(address)
            if parsed is None:
                self._log_once(self._log.error, "a broker's address cannot be used", f"broker {broker_id}", address)
                continue
            self._addresses[broker_id] = address
            self._links[broker_id] = PeerLink(
                broker_id,
                *parsed,
                own_id=self._broker_id,
                secret=self._secret,
                counters=self.counters,
                log=self._log,
                on_connected=self._on_connected,
                folder=self._folder,
                on_accepted=self._on_accepted,
                on_refuted=self._on_refuted,
            )

    # Incoming connections

    def _accept(self) -> PeerConnection:
        """Evict the oldest unauthenticated connection when there are too many."""
        if len(self._unauthenticated) >= _MAX_UNAUTHENTICATED:
            oldest = next(iter(self._unauthenticated))
            del self._unauthenticated[oldest]
            oldest.fail("too many at once")
        connection = PeerConnection(
            Listening(self._secret, self._broker_id(), os.urandom(NONCE_BYTES), self._folder_starts.check),
            max_message_bytes=MAX_FRAME_BYTES,
            on_ready=self._authenticated,
            on_message=self._message,
            on_lost=self._connection_lost,
        )
        self._unauthenticated[connection] = None
        return connection

    def _authenticated(self, connection: PeerConnection) -> None:
        self._unauthenticated.pop(connection, None)
        name = (connection.peer_id, connection.purpose)
        before = self._accepted.get(name)
        self._accepted[name] = connection
        if before is not None:
            before.fail("replaced by a newer connection")
        link = self._links.get(connection.peer_id)
        if link is not None:
            link.wake()

    def _connection_lost(self, connection: PeerConnection, reason: str) -> None:
        if connection.authenticated:
            name = (connection.peer_id, connection.purpose)
            if self._accepted.get(name) is connection:
                del self._accepted[name]
            if connection.at_fault:
                self.counters.bad_messages += 1
                self._log_once(
                    self._log.warning, "a broker sent what it must not", f"broker {connection.peer_id}", reason
                )
            return
        self._unauthenticated.pop(connection, None)
        if connection.at_fault:
            self.counters.refused_connections += 1
            self._log_once(self._log.warning, "a connection was refused", connection.host, reason)

    def _message(self, connection: PeerConnection, message: memoryview) -> None:
        frame = decode(message, connection.version)
        sender = frame.sender.broker_id if isinstance(frame, Envelope) else frame.broker_id
        if sender != connection.peer_id:
            raise BadFrame(f"a frame with sender {sender}")
        self.counters.received_frames += 1
        self.counters.received_bytes += len(message)
        self._on_frame(frame)

    # Time

    def _tick(self) -> None:
        assert self._loop is not None
        now = self._loop.time()
        self._ticking = self._loop.call_later(_TICK_S, self._tick)
        for link in self._links.values():
            link.tick(now)
        for connection in list(self._accepted.values()):
            if now - connection.received_at > SILENCE_S:
                self.counters.silent_connections += 1
                connection.fail("silent")
        for connection in list(self._unauthenticated):
            if now - connection.opened_at > OPENING_S:
                connection.fail("handshake timed out")

    def _log_once(self, report: Callable[..., object], event: str, who: str, reason: str) -> None:
        """Once a minute for the same reason: a failing peer retries all the time."""
        assert self._loop is not None
        now = self._loop.time()
        key = (who, reason)
        if now - self._logged.get(key, -_LOG_AGAIN_S) < _LOG_AGAIN_S:
            return
        if len(self._logged) >= _MAX_LOGGED:
            self._logged.clear()
        self._logged[key] = now
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
