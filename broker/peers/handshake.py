"""Mutual authentication of two brokers by the cluster secret, without IO.

    dialler → listener   hello: magic, version, purpose, dialler's id, listener's id, nonce, dialler's data folder
    listener → dialler   nonce
    dialler → listener   HMAC-SHA256(secret, "dialler proves" + hello + nonce)
    listener → dialler   verdict, HMAC-SHA256(secret, "listener proves" + hello + nonce + verdict)

Both proofs cover everything sent before, so ids and purpose cannot be changed on the way; both nonces are new, so
a recording cannot be replayed; the labels differ, so a proof cannot be reflected to its maker. The dialler proves
first: a connection without the secret gets nothing to test passwords on. Two keys, one for each direction, are derived
from the same transcript for the frames that follow. Nothing is encrypted.

The verdict refutes a data folder that was started more often than its own count says: it is an older copy, and its
votes are not to be counted. Version 2 has neither data folder nor verdict; brokers speak it with those of release 0.8.
"""

import hmac
import struct
from collections.abc import Callable
from enum import IntEnum
from typing import Final, NamedTuple

VERSION: Final = 3
OLDEST_VERSION: Final = 2
NONCE_BYTES: Final = 32
_PROOF_BYTES = 32
_MAGIC = b"myqp"
_HELLO = struct.Struct(f">4sBBQQ{NONCE_BYTES}s")
_FOLDER = struct.Struct(">QQQ")  # incarnation, starts, session
_VERDICT = struct.Struct(">BQ")  # accepted; else the count of starts that refutes the folder
_ACCEPTED = _VERDICT.pack(1, 0)


class Purpose(IntEnum):
    CONTROL = 1  # small frames that must not wait
    BULK = 2  # entries


class HandshakeRefused(Exception):
    """The reason is for our own log only; the peer does not get it."""


class DataFolder(NamedTuple):
    """What tells a broker's data folder from an older copy of it."""

    incarnation: int
    starts: int  # grows with every start on this folder
    session: int  # random, of the running process


CheckFolder = Callable[[int, DataFolder], int | None]
"""The highest count of starts of a broker's folder when that refutes it; else None."""


class Keys(NamedTuple):
    sending: bytes
    receiving: bytes


def _signed(secret: bytes, label: bytes, transcript: bytes) -> bytes:
    return hmac.digest(secret, b"myqueue peers: " + label + b"\0" + transcript, "sha256")


class Dialling:
    """The side that connects. Send `hello`, then feed the answers, `needs` bytes at a time, until there are `keys`."""

    def __init__(
        self, secret: bytes, purpose: Purpose, own_id: int, peer_id: int, nonce: bytes, folder: DataFolder | None
    ) -> None:
        """Without a folder it speaks version 2."""
        self.purpose = purpose
        self.peer_id = peer_id
        self.folder = folder
        self.version = OLDEST_VERSION if folder is None else VERSION
        self.hello = _HELLO.pack(_MAGIC, self.version, purpose, own_id, peer_id, nonce)
        self.hello += b"" if folder is None else _FOLDER.pack(*folder)
        self.refuted_by_starts: int | None = None  # the count of starts of this folder that the listener has seen
        self.needs = NONCE_BYTES
        self.keys: Keys | None = None
        self._secret = secret
        self._transcript: bytes | None = None

    @property
    def answered(self) -> bool:
        return self._transcript is not None

    def receive(self, data: bytes) -> bytes:
        """Returns the bytes to send now."""
        if self._transcript is None:
            self._transcript = self.hello + data
            self.needs = _PROOF_BYTES + (0 if self.folder is None else _VERDICT.size)
            return _signed(self._secret, b"dialler proves", self._transcript)
        verdict, proof = data[:-_PROOF_BYTES], data[-_PROOF_BYTES:]
        if not hmac.compare_digest(proof, _signed(self._secret, b"listener proves", self._transcript + verdict)):
            raise HandshakeRefused("the listener does not know the secret")
        if verdict not in (b"", _ACCEPTED):
            _, self.refuted_by_starts = _VERDICT.unpack(verdict)
            raise HandshakeRefused(f"it has seen {self.refuted_by_starts} starts of this data folder")
        self.needs = 0
        self.keys = Keys(
            sending=_signed(self._secret, b"dialler's frames", self._transcript),
            receiving=_signed(self._secret, b"listener's frames", self._transcript),
        )
        return b""


class Listening:
    """The side that accepts. `peer_id` and `purpose` count only once there are `keys`.

    When `refusal` is set, the bytes returned last are sent before the connection is closed.
    """

    def __init__(self, secret: bytes, own_id: int | None, nonce: bytes, check_folder: CheckFolder) -> None:
        self.peer_id = 0
        self.version = VERSION
        self.refusal: str | None = None
        self.purpose = Purpose.CONTROL
        self.needs = _HELLO.size
        self.keys: Keys | None = None
        self._secret = secret
        self._own_id = own_id
        self._nonce = nonce
        self._check_folder = check_folder
        self._folder: DataFolder | None = None
        self._hello = b""
        self._transcript: bytes | None = None

    def receive(self, data: bytes) -> bytes:
        """Returns the bytes to send now."""
        if self._transcript is None:
            if self._hello:
                self._folder = DataFolder(*_FOLDER.unpack(data))
            else:
                self._read_hello(data)
            self._hello += data
            if self.version > OLDEST_VERSION and self._folder is None:
                self.needs = _FOLDER.size
                return b""
            self._transcript = self._hello + self._nonce
            self.needs = _PROOF_BYTES
            return self._nonce
        if not hmac.compare_digest(data, _signed(self._secret, b"dialler proves", self._transcript)):
            raise HandshakeRefused("the dialler does not know the secret")
        verdict = self._verdict()
        answer = verdict + _signed(self._secret, b"listener proves", self._transcript + verdict)
        self.needs = 0
        if self.refusal is not None:
            return answer
        self.keys = Keys(
            sending=_signed(self._secret, b"listener's frames", self._transcript),
            receiving=_signed(self._secret, b"dialler's frames", self._transcript),
        )
        return answer

    def _verdict(self) -> bytes:
        """Only of a dialler that has proved who it is: a count of starts is remembered."""
        if self._folder is None:
            return b""
        starts = self._check_folder(self.peer_id, self._folder)
        if starts is None:
            return _ACCEPTED
        folder = self._folder
        self.refusal = f"data folder {folder.incarnation:016x} with {folder.starts} starts, of which {starts} were seen"
        return _VERDICT.pack(0, starts)

    def _read_hello(self, data: bytes) -> None:
        magic, version, purpose, peer_id, meant_for, _ = _HELLO.unpack(data)
        if magic != _MAGIC:
            raise HandshakeRefused("unknown protocol")
        if not OLDEST_VERSION <= version <= VERSION:
            raise HandshakeRefused(f"protocol version {version}, expected {VERSION}")
        if purpose not in Purpose.__members__.values():
            raise HandshakeRefused("a connection of unknown purpose")
        if self._own_id is None:
            raise HandshakeRefused("this broker has no id yet")
        if meant_for != self._own_id:
            raise HandshakeRefused(f"looks for broker {meant_for}, this is {self._own_id}")
        if peer_id == self._own_id:
            raise HandshakeRefused("its id is this broker's own")
        self.version = version
        self.peer_id = peer_id
        self.purpose = Purpose(purpose)
