"""Two brokers prove to each other that they know the cluster secret, without IO.

    dialler → listener   hello: magic, version, purpose, dialler's id, listener's id, nonce
    listener → dialler   nonce
    dialler → listener   HMAC-SHA256(secret, "dialler proves" + hello + nonce)
    listener → dialler   HMAC-SHA256(secret, "listener proves" + hello + nonce)

Both proofs cover everything said before, so ids and purpose cannot be changed on the way; both nonces are new, so
nothing recorded is of use again; the labels differ, so a proof cannot be handed back to the one who made it. The
dialler proves first: who merely connects gets nothing to try passwords on. From the same transcript come two keys, one
for each direction, for the frames that follow. Nothing is encrypted.
"""

import hmac
import struct
from enum import IntEnum
from typing import Final, NamedTuple

VERSION: Final = 2
NONCE_BYTES: Final = 32
_PROOF_BYTES = 32
_MAGIC = b"myqp"
_HELLO = struct.Struct(f">4sBBQQ{NONCE_BYTES}s")


class Purpose(IntEnum):
    CONTROL = 1  # small frames that must not wait
    BULK = 2  # entries


class Refused(Exception):
    """The other side does not get in; the text says why and is for our own log only."""


class Keys(NamedTuple):
    sending: bytes
    receiving: bytes


def _signed(secret: bytes, label: bytes, transcript: bytes) -> bytes:
    return hmac.digest(secret, b"myqueue peers: " + label + b"\0" + transcript, "sha256")


class Dialling:
    """The side that connects. Send `hello`, then feed what comes, `needs` bytes at a time, until there are `keys`."""

    def __init__(self, secret: bytes, purpose: Purpose, own_id: int, peer_id: int, nonce: bytes) -> None:
        self.purpose = purpose
        self.peer_id = peer_id
        self.hello = _HELLO.pack(_MAGIC, VERSION, purpose, own_id, peer_id, nonce)
        self.needs = NONCE_BYTES
        self.keys: Keys | None = None
        self._secret = secret
        self._transcript: bytes | None = None

    def receive(self, data: bytes) -> bytes:
        """What to send now."""
        if self._transcript is None:
            self._transcript = self.hello + data
            self.needs = _PROOF_BYTES
            return _signed(self._secret, b"dialler proves", self._transcript)
        if not hmac.compare_digest(data, _signed(self._secret, b"listener proves", self._transcript)):
            raise Refused("the listener does not know the secret")
        self.needs = 0
        self.keys = Keys(
            sending=_signed(self._secret, b"dialler's frames", self._transcript),
            receiving=_signed(self._secret, b"listener's frames", self._transcript),
        )
        return b""


class Listening:
    """The side that is connected to. `peer_id` and `purpose` count only once there are `keys`."""

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
        """What to send now."""
        if self._transcript is None:
            self._read_hello(data)
            self._transcript = data + self._nonce
            self.needs = _PROOF_BYTES
            return self._nonce
        if not hmac.compare_digest(data, _signed(self._secret, b"dialler proves", self._transcript)):
            raise Refused("the dialler does not know the secret")
        self.needs = 0
        self.keys = Keys(
            sending=_signed(self._secret, b"listener's frames", self._transcript),
            receiving=_signed(self._secret, b"dialler's frames", self._transcript),
        )
        return _signed(self._secret, b"listener proves", self._transcript)

    def _read_hello(self, data: bytes) -> None:
        magic, version, purpose, peer_id, meant_for, _ = _HELLO.unpack(data)
        if magic != _MAGIC:
            raise Refused("speaks another protocol")
        if version != VERSION:
            raise Refused(f"speaks version {version}, not {VERSION}")
        if purpose not in Purpose.__members__.values():
            raise Refused("a connection of unknown purpose")
        if self._own_id is None:
            raise Refused("this broker has no id yet")
        if meant_for != self._own_id:
            raise Refused(f"looks for broker {meant_for}, this is {self._own_id}")
        if peer_id == self._own_id:
            raise Refused("calls itself by this broker's id")
        self.peer_id = peer_id
        self.purpose = Purpose(purpose)
