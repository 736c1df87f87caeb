"""One TCP connection between two brokers, from the handshake on."""

import asyncio
from collections.abc import Callable, Iterator, Sequence
from typing import Final, cast

from broker.peers.handshake import Dialling, HandshakeRefused, Listening, Purpose
from broker.peers.mac_framing import BadMac, MacReader, MacWriter
from broker.peers.msgpack_values import BadFrame

HIGH_WATER_BYTES: Final = 1 << 20
_SMALL_BYTES = 4 << 10


class PeerConnection(asyncio.BufferedProtocol):
    """Delivers messages whose MAC is right; anything else ends it.

    Messages go from the dialling side to the listening side. Only keepalives come back: the listener answers every
    keepalive with one of its own.
    """

    def __init__(
        self,
        handshake: Dialling | Listening,
        *,
        max_message_bytes: int,
        on_ready: Callable[["PeerConnection"], None],
        on_message: Callable[["PeerConnection", memoryview], None],
        on_lost: Callable[["PeerConnection", str], None],
        on_writable: Callable[[], None] | None = None,
    ) -> None:
        self._handshake = handshake
        self._max_message_bytes = max_message_bytes
        self._on_ready = on_ready
        self._on_message = on_message
        self._on_lost = on_lost
        self._on_writable = on_writable
        self._loop = asyncio.get_running_loop()
        self._greeting = memoryview(bytearray(handshake.needs))
        self._greeted = 0
        self._reader: MacReader | None = None
        self._writer: MacWriter | None = None
        self._transport: asyncio.Transport | None = None
        self._problem: str | None = None
        self.opened_at = self.received_at = self._loop.time()
        self.paused = False
        self.at_fault = False  # the peer broke the protocol
        self.host = "?"

    @property
    def peer_id(self) -> int:
        return self._handshake.peer_id

    @property
    def purpose(self) -> Purpose:
        return self._handshake.purpose

    @property
    def version(self) -> int:
        """Of the frames that may be sent over it."""
        return self._handshake.version

    @property
    def authenticated(self) -> bool:
        return self._handshake.keys is not None

    @property
    def unsent_bytes(self) -> int:
        return 0 if self._transport is None else self._transport.get_write_buffer_size()

    def pieces(self, parts: Sequence[bytes], size: int) -> Iterator[list[bytes | memoryview]]:
        assert self._writer is not None, "the handshake is not over"
        return self._writer.pieces(parts, size)

    def write(self, buffers: Sequence[bytes | memoryview]) -> None:
        assert self._transport is not None
        if sum(map(len, buffers)) <= _SMALL_BYTES:
            self._transport.write(b"".join(buffers))
        else:
            self._transport.writelines(buffers)

    def fail(self, reason: str) -> None:
        """Close at once; `on_lost` gets the reason."""
        if self._problem is None:
            self._problem = reason
        if self._transport is not None:
            self._transport.abort()

    def close(self) -> None:
        """Close when everything written has been sent."""
        if self._problem is None:
            self._problem = "closed here"
        if self._transport is not None:
            self._transport.close()

    # Callbacks of the event loop

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        if self._problem is not None:
            self._transport.abort()
            return
        remote = transport.get_extra_info("peername")
        self.host = str(remote[0]) if remote else "?"
        self._transport.set_write_buffer_limits(high=HIGH_WATER_BYTES)
        if isinstance(self._handshake, Dialling):
            self._transport.write(self._handshake.hello)

    def get_buffer(self, sizehint: int) -> memoryview:  # noqa: ARG002
        # Never more than the handshake still needs: the bytes after it belong to the reader.
        return self._greeting[self._greeted :] if self._reader is None else self._reader.buffer()

    def buffer_updated(self, nbytes: int) -> None:
        if self._problem is not None:
            return
        self.received_at = self._loop.time()
        try:
            if self._reader is None:
                self._greet(nbytes)
                return
            for message in self._reader.advance(nbytes):
                if len(message):
                    self._on_message(self, message)
                elif isinstance(self._handshake, Listening):
                    self._answer()
        except (BadFrame, BadMac, HandshakeRefused) as error:
            self.at_fault = True
            self.fail(str(error))

    def eof_received(self) -> None:
        """The transport closes itself."""

    def pause_writing(self) -> None:
        self.paused = True

    def resume_writing(self) -> None:
        self.paused = False
        if self._on_writable is not None:
            self._on_writable()

    def connection_lost(self, exc: Exception | None) -> None:
        self.paused = True
        self._transport = None
        self._on_lost(self, self._problem or (str(exc) if exc is not None else "closed by the other side"))

    def _answer(self) -> None:
        if not self.paused:
            for buffers in self.pieces((), 0):
                self.write(buffers)

    def _greet(self, nbytes: int) -> None:
        self._greeted += nbytes
        if self._greeted < len(self._greeting):
            return
        answer = self._handshake.receive(bytes(self._greeting))
        assert self._transport is not None
        if answer:
            self._transport.write(answer)
        if isinstance(self._handshake, Listening) and self._handshake.refusal is not None:
            self.at_fault, self._problem = True, self._handshake.refusal
            self._transport.close()  # not at once: the dialler is to read the verdict
            self._greeting, self._greeted = memoryview(bytearray(1)), 0
            return
        self._greeting = memoryview(bytearray(self._handshake.needs))
        self._greeted = 0
        keys = self._handshake.keys
        if keys is not None:
            self._writer = MacWriter(keys.sending)
            self._reader = MacReader(keys.receiving, self._max_message_bytes)
            self._on_ready(self)
