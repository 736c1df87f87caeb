"""Messages cut into sealed pieces, and put together again; no IO.

    length    4   of this piece, at most 256 KiB
    follows   4   bytes of the same message in later pieces; 0: this is the last one
    seal     16   GMAC: the tag of AES-256-GCM over the piece, nothing is encrypted
    piece

The nonce is `follows` and a sequence number that both sides count and nobody sends; every connection has keys of its
own, so no nonce comes twice. Nothing can be changed, put in, left out, repeated or moved without the seal failing, and
nothing is handed on before its seal was checked. An empty message is a sign of life.
"""

import struct
from collections.abc import Iterator, Sequence
from typing import Final

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

PIECE_BYTES: Final = 256 << 10
_STAGING_BYTES = 64 << 10
_SEAL_BYTES = 16
_HEADER = struct.Struct(f">II{_SEAL_BYTES}s")
_NONCE = struct.Struct(">IQ")
OVERHEAD_BYTES: Final = _HEADER.size

Pieces = Sequence[bytes | memoryview]


class BadSeal(Exception):
    """What came is not what the peer has sent."""


class _Sequence:
    """The seals of one direction of one connection."""

    __slots__ = ("_cipher", "_number")

    def __init__(self, key: bytes) -> None:
        self._cipher = AESGCM(key)
        self._number = 0

    def _nonce(self, follows: int) -> bytes:
        nonce = _NONCE.pack(follows, self._number)
        self._number += 1
        return nonce

    def seal(self, follows: int, parts: Pieces) -> bytes:
        return self._cipher.encrypt(self._nonce(follows), b"", parts[0] if len(parts) == 1 else b"".join(parts))

    def check(self, seal: bytes, follows: int, piece: memoryview) -> None:
        try:
            self._cipher.decrypt(self._nonce(follows), seal, piece)
        except InvalidTag as error:
            raise BadSeal("the seal is wrong") from error


class Sealer:
    def __init__(self, key: bytes) -> None:
        self._seals = _Sequence(key)

    def pieces(self, parts: Sequence[bytes], size: int) -> Iterator[list[bytes | memoryview]]:
        """The message as pieces, each a list of buffers to write. They are sealed when taken: take all, in order."""
        if size <= PIECE_BYTES:
            yield [_HEADER.pack(size, 0, self._seals.seal(0, parts)), *parts]
            return
        piece: list[bytes | memoryview] = []
        room = PIECE_BYTES
        left = size
        for part in parts:
            view = memoryview(part)
            while len(view) >= room:
                piece.append(view[:room])
                view = view[room:]
                left -= PIECE_BYTES
                yield self._sealed(PIECE_BYTES, left, piece)
                piece = []
                room = PIECE_BYTES
            if len(view):
                piece.append(view)
                room -= len(view)
        if piece:
            yield self._sealed(left, 0, piece)

    def _sealed(self, length: int, follows: int, piece: list[bytes | memoryview]) -> list[bytes | memoryview]:
        return [_HEADER.pack(length, follows, self._seals.seal(follows, piece)), *piece]


class Opener:
    """Ask for `room`, fill it from the front, say how much with `advance`, get messages.

    Small pieces are read many at a time; the rest of a large one goes straight to its place in the message.
    """

    def __init__(self, key: bytes, max_message_bytes: int) -> None:
        self._seals = _Sequence(key)
        self._max_bytes = max_message_bytes
        self._staging = memoryview(bytearray(_STAGING_BYTES))
        self._filled = 0
        self._message: memoryview | None = None  # under way, when it has more than one piece or a large one
        self._done = 0  # sealed bytes of it
        self._follows = 0
        self._length = 0  # of the piece that is read straight into the message; 0: none is
        self._arrived = 0
        self._seal = b""

    def room(self) -> memoryview:
        if self._length:
            assert self._message is not None
            return self._message[self._done + self._arrived : self._done + self._length]
        return self._staging[self._filled :]

    def advance(self, count: int) -> Iterator[memoryview]:
        """A message is valid until the next one is asked for."""
        if self._length:
            self._arrived += count
            if self._arrived == self._length:
                yield from self._piece_arrived()
            return
        self._filled += count
        at = 0
        while self._filled - at >= _HEADER.size:
            length, follows, seal = _HEADER.unpack_from(self._staging, at)
            self._check_sizes(length, follows)
            start, end = at + _HEADER.size, at + _HEADER.size + length
            if end <= self._filled:
                at = end
                piece = self._staging[start:end]
                if self._message is None and not follows:
                    self._seals.check(seal, 0, piece)
                    yield piece
                    continue
                self._begin(length, follows, seal, piece)
                yield from self._piece_arrived()
            elif end - at > _STAGING_BYTES:
                self._begin(length, follows, seal, self._staging[start : self._filled])
                at = self._filled
            else:
                break
        rest = self._filled - at
        if at and rest:
            self._staging[:rest] = bytes(self._staging[at : self._filled])
        self._filled = rest

    def _check_sizes(self, length: int, follows: int) -> None:
        """Before anything is set aside for it."""
        if length > PIECE_BYTES:
            raise BadSeal("a piece is too long")
        if self._message is not None:
            if length == 0 or length + follows != self._follows:
                raise BadSeal("a piece does not go on where the last one ended")
        elif length + follows > self._max_bytes:
            raise BadSeal("a message is too long")
        elif length == 0 and follows:
            raise BadSeal("an empty piece of a message")

    def _begin(self, length: int, follows: int, seal: bytes, arrived: memoryview) -> None:
        if self._message is None:
            self._message = memoryview(bytearray(length + follows))
            self._done = 0
        self._message[self._done : self._done + len(arrived)] = arrived
        self._length, self._follows, self._seal, self._arrived = length, follows, seal, len(arrived)

    def _piece_arrived(self) -> Iterator[memoryview]:
        message = self._message
        assert message is not None
        end = self._done + self._length
        self._seals.check(self._seal, self._follows, message[self._done : end])
        self._done = end
        self._length = 0
        if not self._follows:
            self._message = None
            yield message
