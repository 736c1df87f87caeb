"""One TCP connection between two brokers, from the handshake on."""

import asyncio
from collections.abc import Callable, Iterator, Sequence
from typing import Final, cast

from broker.peers.checked import BadFrame
from broker.peers.framing import BadSeal, Opener, Sealer
from broker.peers.handshake import Dialling, Listening, Purpose, Refused

HIGH_WATER_BYTES: Final = 1 << 20
_SMALL_BYTES = 4 << 10


class Connection(asyncio.BufferedProtocol):
    """Hands out messages whose seal was right; anything else ends it.

    Messages go from the side that dialled to the side that listened. What comes back is empty: the listener answers
    every sign of life with one of its own.
    """

    def __init__(
        self,
        handshake: Dialling | Listening,
        *,
        max_message_bytes: int,
        on_ready: Callable[["Connection"], None],
        on_message: Callable[["Connection", memoryview], None],
        on_lost: Callable[["Connection", str], None],
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
        self._opener: Opener | None = None
        self._sealer: Sealer | None = None
        self._transport: asyncio.Transport | None = None
        self._problem: str | None = None
        self.opened_at = self.heard_at = self._loop.time()
        self.paused = False
        self.at_fault = False  # the other side, by what it sent
        self.host = "?"

    @property
    def peer_id(self) -> int:
        return self._handshake.peer_id

    @property
    def purpose(self) -> Purpose:
        return self._handshake.purpose

    @property
    def known(self) -> bool:
        """The other side has proved who it is."""
        return self._handshake.keys is not None

    @property
    def unsent_bytes(self) -> int:
        return 0 if self._transport is None else self._transport.get_write_buffer_size()

    def seal(self, parts: Sequence[bytes], size: int) -> Iterator[list[bytes | memoryview]]:
        assert self._sealer is not None, "the handshake is not over"
        return self._sealer.pieces(parts, size)

    def write(self, buffers: Sequence[bytes | memoryview]) -> None:
        assert self._transport is not None
        if sum(map(len, buffers)) <= _SMALL_BYTES:
            self._transport.write(b"".join(buffers))
        else:
            self._transport.writelines(buffers)

    def fail(self, reason: str) -> None:
        """Ends it at once; the reason comes back with `on_lost`."""
        if self._problem is None:
            self._problem = reason
        if self._transport is not None:
            self._transport.abort()

    def close(self) -> None:
        """Ends it when everything written has gone out."""
        if self._problem is None:
            self._problem = "closed here"
        if self._transport is not None:
            self._transport.close()

    # Called by the loop

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
        # Never more than the handshake still needs: what comes after it belongs to the opener.
        return self._greeting[self._greeted :] if self._opener is None else self._opener.room()

    def buffer_updated(self, nbytes: int) -> None:
        if self._problem is not None:
            return
        self.heard_at = self._loop.time()
        try:
            if self._opener is None:
                self._greet(nbytes)
                return
            for message in self._opener.advance(nbytes):
                if len(message):
                    self._on_message(self, message)
                elif isinstance(self._handshake, Listening):
                    self._answer()
        except (BadFrame, BadSeal, Refused) as error:
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
            for buffers in self.seal((), 0):
                self.write(buffers)

    def _greet(self, nbytes: int) -> None:
        self._greeted += nbytes
        if self._greeted < len(self._greeting):
            return
        answer = self._handshake.receive(bytes(self._greeting))
        assert self._transport is not None
        if answer:
            self._transport.write(answer)
        self._greeting = memoryview(bytearray(self._handshake.needs))
        self._greeted = 0
        keys = self._handshake.keys
        if keys is not None:
            self._sealer = Sealer(keys.sending)
            self._opener = Opener(keys.receiving, self._max_message_bytes)
            self._on_ready(self)
