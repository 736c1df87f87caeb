"""Frames that wait to be written to one connection of a peer."""

from collections import deque
from collections.abc import Iterator, Sequence

from broker.peers.connection import PeerConnection

_JOIN_BYTES = 64 << 10
_SMALL_BYTES = 4 << 10


class SendQueue:
    """Holds at most `max_bytes`; a full queue refuses frames (backpressure). Without a connection it holds nothing."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._waiting: deque[tuple[Sequence[bytes], int]] = deque()
        self._waiting_bytes = 0
        self._current: Iterator[list[bytes | memoryview]] | None = None  # pieces of the message being written
        self.connection: PeerConnection | None = None

    def attach(self, connection: PeerConnection) -> None:
        self.connection = connection

    def detach(self) -> int:
        """Returns how many frames were not written yet and are lost with the connection."""
        lost = len(self._waiting) + (self._current is not None)
        self._waiting.clear()
        self._waiting_bytes = 0
        self._current = None
        self.connection = None
        return lost

    def offer(self, parts: Sequence[bytes], size: int) -> bool:
        """False: refused, because there is no connection or the queue is full."""
        if self.connection is None:
            return False
        held = self._waiting_bytes + self.connection.unsent_bytes
        if held and held + size > self._max_bytes:
            return False
        self._waiting.append((parts, size))
        self._waiting_bytes += size
        return True

    @property
    def idle(self) -> bool:
        return not self._waiting and self._current is None

    def flush(self, budget_bytes: int) -> bool:
        """Writes until the connection is full or the budget spent. True: it could write more."""
        connection = self.connection
        if connection is None:
            return False
        small: list[bytes | memoryview] = []
        small_bytes = 0
        while budget_bytes > 0 and not connection.paused:
            buffers = self._next_piece(connection)
            if buffers is None:
                break
            size = sum(map(len, buffers))
            budget_bytes -= size
            if size <= _SMALL_BYTES:  # many small frames are one write
                small += buffers
                small_bytes += size
            if small and (size > _SMALL_BYTES or small_bytes > _JOIN_BYTES):
                connection.write([b"".join(small)])
                small, small_bytes = [], 0
            if size > _SMALL_BYTES:
                connection.write(buffers)
        if small:
            connection.write([b"".join(small)])
        return not self.idle and not connection.paused

    def _next_piece(self, connection: PeerConnection) -> list[bytes | memoryview] | None:
        while True:
            if self._current is None:
                if not self._waiting:
                    return None
                parts, size = self._waiting.popleft()
                self._waiting_bytes -= size
                self._current = connection.pieces(parts, size)
            piece = next(self._current, None)
            if piece is not None:
                return piece
            self._current = None
