"""Grants: a short-lived permission to read or write a topic's partitions at the brokers.

A read manager issues it with the routing; a broker verifies it with the cluster secret alone, without a look-up.
"""

import base64
import binascii
import hashlib
import hmac
import struct
from dataclasses import dataclass
from uuid import UUID

from myqueue.protocol.errors import Forbidden, GrantInvalid

READ, WRITE = 1, 2
ALL_PARTITIONS = (0, (1 << 16) - 1)

_VERSION = 1
_CLAIMS = struct.Struct(">BB16sHHQ")  # version, rights, topic, first and last partition, expiry
_MAC_BYTES = 16
_PURPOSE = b"myqueue data plane grant\0"  # the cluster secret authenticates other things too


@dataclass(frozen=True, slots=True)
class Grant:
    topic_id: UUID
    rights: int
    first: int
    last: int
    expires_ms: int

    def check(self, right: int, topic_id: UUID, partition: int) -> None:
        if self.topic_id != topic_id or not self.first <= partition <= self.last or not self.rights & right:
            raise Forbidden()


def issue(
    secret: str, topic_id: UUID, rights: int, expires_ms: int, partitions: tuple[int, int] = ALL_PARTITIONS
) -> str:
    claims = _CLAIMS.pack(_VERSION, rights, topic_id.bytes, *partitions, expires_ms)
    return base64.urlsafe_b64encode(claims + _mac(secret, claims)).decode().rstrip("=")


def verify(secret: str, text: str, now_ms: int) -> Grant:
    try:
        data = base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True)
    except (binascii.Error, ValueError) as error:
        raise GrantInvalid() from error
    claims, mac = data[: _CLAIMS.size], data[_CLAIMS.size :]
    if len(claims) != _CLAIMS.size or not hmac.compare_digest(mac, _mac(secret, claims)):
        raise GrantInvalid()
    version, rights, topic, first, last, expires_ms = _CLAIMS.unpack(claims)
    if version != _VERSION or expires_ms <= now_ms:
        raise GrantInvalid()
    return Grant(UUID(bytes=topic), rights, first, last, expires_ms)


def _mac(secret: str, claims: bytes) -> bytes:
    return hmac.digest(secret.encode(), _PURPOSE + claims, hashlib.sha256)[:_MAC_BYTES]
