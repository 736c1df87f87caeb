"""Messages split into pieces with a MAC each, and reassembled; no IO.

    length    4   of this piece, at most 256 KiB
    follows   4   bytes of the same message in later pieces; 0: this is the last one
    mac      16   GMAC: the tag of AES-256-GCM over the piece, nothing is encrypted
    piece

The nonce is `follows` and a sequence number that both sides count and that is never sent; every connection has keys of
its own, so no nonce comes twice. A piece that is changed, inserted, left out, repeated or moved fails its MAC, and no
message is passed on before all its MACs are checked. An empty message is a keepalive.
"""

import struct
from collections.abc import Iterator, Sequence
from typing import Final

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

PIECE_BYTES: Final = 256 << 10
_STAGING_BYTES = 64 << 10
_MAC_BYTES = 16
_HEADER = struct.Struct(f">II{_MAC_BYTES}s")
_NONCE = struct.Struct(">IQ")
OVERHEAD_BYTES: Final = _HEADER.size

Pieces = Sequence[bytes | memoryview]


class BadMac(Exception):
    """The bytes received are not those the peer has sent."""


class _MacSequence:
    """The MACs of one direction of one connection."""

    __slots__ = ("_cipher", "_number")

    def __init__(self, key: bytes) -> None:
        self._cipher = AESGCM(key)
        self._number = 0

    def _nonce(self, follows: int) -> bytes:
        nonce = _NONCE.pack(follows, self._number)
        self._number += 1
        return nonce

    def mac(self, follows: int, parts: Pieces) -> bytes:
        return self._cipher.encrypt(self._nonce(follows), b"", parts[0] if len(parts) == 1 else b"".join(parts))

    def check(self, mac: bytes, follows: int, piece: memoryview) -> None:
        try:
            self._cipher.decrypt(self._nonce(follows), mac, piece)
        except InvalidTag as error:
            raise BadMac("the MAC is wrong") from error


class MacWriter:
    def __init__(self, key: bytes) -> None:
        self._macs = _MacSequence(key)

    def pieces(self, parts: Sequence[bytes], size: int) -> Iterator[list[bytes | memoryview]]:
        """Pieces of the message, each a list of buffers to write. Take all, in order: each uses the next nonce."""
        if size <= PIECE_BYTES:
            yield [_HEADER.pack(size, 0, self._macs.mac(0, parts)), *parts]
            return
        piece: list[bytes | memoryview] = []
        left_in_piece = PIECE_BYTES
        left = size
        for part in parts:
            view = memoryview(part)
            while len(view) >= left_in_piece:
                piece.append(view[:left_in_piece])
                view = view[left_in_piece:]
                left -= PIECE_BYTES
                yield self._with_mac(PIECE_BYTES, left, piece)
                piece = []
                left_in_piece = PIECE_BYTES
            if len(view):
                piece.append(view)
                left_in_piece -= len(view)
        if piece:
            yield self._with_mac(left, 0, piece)

    def _with_mac(self, length: int, follows: int, piece: list[bytes | memoryview]) -> list[bytes | memoryview]:
        return [_HEADER.pack(length, follows, self._macs.mac(follows, piece)), *piece]


class MacReader:
    """Fill `buffer` from the front, report how much with `advance`, get messages.

    Small pieces are read many at a time; the rest of a large one is read directly into the message.
    """

    def __init__(self, key: bytes, max_message_bytes: int) -> None:
        self._macs = _MacSequence(key)
        self._max_bytes = max_message_bytes
        self._staging = memoryview(bytearray(_STAGING_BYTES))
        self._filled = 0
        self._message: memoryview | None = None  # in flight, when it has more than one piece or a large one
        self._done = 0  # authenticated bytes of it
        self._follows = 0
        self._length = 0  # of the piece that is read directly into the message; 0: none is
        self._arrived = 0
        self._mac = b""

    def buffer(self) -> memoryview:
        if self._length:
            assert self._message is not None
            return self._message[self._done + self._arrived : self._done + self._length]
        return self._staging[self._filled :]

    def advance(self, count: int) -> Iterator[memoryview]:
        """A message is valid until the next one is read."""
        if self._length:
            self._arrived += count
            if self._arrived == self._length:
                yield from self._piece_arrived()
            return
        self._filled += count
        at = 0
        while self._filled - at >= _HEADER.size:
            length, follows, mac = _HEADER.unpack_from(self._staging, at)
            self._check_sizes(length, follows)
            start, end = at + _HEADER.size, at + _HEADER.size + length
            if end <= self._filled:
                at = end
                piece = self._staging[start:end]
                if self._message is None and not follows:
                    self._macs.check(mac, 0, piece)
                    yield piece
                    continue
                self._begin(length, follows, mac, piece)
                yield from self._piece_arrived()
            elif end - at > _STAGING_BYTES:
                self._begin(length, follows, mac, self._staging[start : self._filled])
                at = self._filled
            else:
                break
        rest = self._filled - at
        if at and rest:
            self._staging[:rest] = bytes(self._staging[at : self._filled])
        self._filled = rest

    def _check_sizes(self, length: int, follows: int) -> None:
        """Before memory is allocated for it."""
        if length > PIECE_BYTES:
            raise BadMac("a piece is too long")
        if self._message is not None:
            if length == 0 or length + follows != self._follows:
                raise BadMac("a piece does not go on where the last one ended")
        elif length + follows > self._max_bytes:
            raise BadMac("a message is too long")
        elif length == 0 and follows:
            raise BadMac("an empty piece of a message")

    def _begin(self, length: int, follows: int, mac: bytes, arrived: memoryview) -> None:
        if self._message is None:
            self._message = memoryview(bytearray(length + follows))
            self._done = 0
        self._message[self._done : self._done + len(arrived)] = arrived
        self._length, self._follows, self._mac, self._arrived = length, follows, mac, len(arrived)

    def _piece_arrived(self) -> Iterator[memoryview]:
        message = self._message
        assert message is not None
        end = self._done + self._length
        self._macs.check(self._mac, self._follows, message[self._done : end])
        self._done = end
        self._length = 0
        if not self._follows:
            self._message = None
            yield message
