"""Mutual authentication of two brokers by the cluster secret, without IO.

    dialler → listener   hello: magic, version, purpose, dialler's id, listener's id, nonce
    listener → dialler   nonce
    dialler → listener   HMAC-SHA256(secret, "dialler proves" + hello + nonce)
    listener → dialler   HMAC-SHA256(secret, "listener proves" + hello + nonce)

Both proofs cover everything sent before, so ids and purpose cannot be changed on the way; both nonces are new, so
a recording cannot be replayed; the labels differ, so a proof cannot be reflected to its maker. The dialler proves
first: a connection without the secret gets nothing to test passwords on. Two keys, one for each direction, are derived
from the same transcript for the frames that follow. Nothing is encrypted.
"""

import hmac
import struct
from enum import IntEnum
from typing import Final, NamedTuple

VERSION: Final = 3
NONCE_BYTES: Final = 32
_PROOF_BYTES = 32
_MAGIC = b"myqp"
_HELLO = struct.Struct(f">4sBBQQ{NONCE_BYTES}s")


class Purpose(IntEnum):
    CONTROL = 1  # small frames that must not wait
    BULK = 2  # entries


class HandshakeRefused(Exception):
    """The reason is for our own log only; the peer does not get it."""


class Keys(NamedTuple):
    sending: bytes
    receiving: bytes


def _signed(secret: bytes, label: bytes, transcript: bytes) -> bytes:
    return hmac.digest(secret, b"myqueue peers: " + label + b"\0" + transcript, "sha256")


class Dialling:
    """The side that connects. Send `hello`, then feed the answers, `needs` bytes at a time, until there are `keys`."""

    def __init__(self, secret: bytes, purpose: Purpose, own_id: int, peer_id: int, nonce: bytes) -> None:
        self.purpose = purpose
        self.peer_id = peer_id
        self.hello = _HELLO.pack(_MAGIC, VERSION, purpose, own_id, peer_id, nonce)
        self.needs = NONCE_BYTES
        self.keys: Keys | None = None
        self._secret = secret
        self._transcript: bytes | None = None

    def receive(self, data: bytes) -> bytes:
        """Returns the bytes to send now."""
        if self._transcript is None:
            self._transcript = self.hello + data
            self.needs = _PROOF_BYTES
            return _signed(self._secret, b"dialler proves", self._transcript)
        if not hmac.compare_digest(data, _signed(self._secret, b"listener proves", self._transcript)):
            raise HandshakeRefused("the listener does not know the secret")
        self.needs = 0
        self.keys = Keys(
            sending=_signed(self._secret, b"dialler's frames", self._transcript),
            receiving=_signed(self._secret, b"listener's frames", self._transcript),
        )
        return b""


class Listening:
    """The side that accepts. `peer_id` and `purpose` count only once there are `keys`."""

    def __init__(self, secret: bytes, own_id: int | None, nonce: bytes) -> None:
        self.peer_id = 0
        self.purpose = Purpose.CONTROL
        self.needs = _HELLO.size
        self.keys: Keys | None = None
        self._secret = secret
        self._own_id = own_id
        self._nonce = nonce
        self._transcript: bytes | None = None

    def receive(self, data: bytes) -> bytes:
        """Returns the bytes to send now."""
        if self._transcript is None:
            self._read_hello(data)
            self._transcript = data + self._nonce
            self.needs = _PROOF_BYTES
            return self._nonce
        if not hmac.compare_digest(data, _signed(self._secret, b"dialler proves", self._transcript)):
            raise HandshakeRefused("the dialler does not know the secret")
        self.needs = 0
        self.keys = Keys(
            sending=_signed(self._secret, b"listener's frames", self._transcript),
            receiving=_signed(self._secret, b"dialler's frames", self._transcript),
        )
        return _signed(self._secret, b"listener proves", self._transcript)

    def _read_hello(self, data: bytes) -> None:
        magic, version, purpose, peer_id, meant_for, _ = _HELLO.unpack(data)
        if magic != _MAGIC:
            raise HandshakeRefused("unknown protocol")
        if version != VERSION:
            raise HandshakeRefused(f"protocol version {version}, expected {VERSION}")
        if purpose not in Purpose.__members__.values():
            raise HandshakeRefused("a connection of unknown purpose")
        if self._own_id is None:
            raise HandshakeRefused("this broker has no id yet")
        if meant_for != self._own_id:
            raise HandshakeRefused(f"looks for broker {meant_for}, this is {self._own_id}")
        if peer_id == self._own_id:
            raise HandshakeRefused("its id is this broker's own")
        self.peer_id = peer_id
        self.purpose = Purpose(purpose)
