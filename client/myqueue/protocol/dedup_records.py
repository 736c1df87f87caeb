"""Dedup records: the producer and the idempotency key of one message of a batch.

Messages that arrive one at a time share batches, so the batch header cannot name their producer. Each has a 28-byte
record beside the batch, stored and replicated with it:

     0  position in the batch     4
     4  producer id               4
     8  CRC32C of the message     4   a key that comes again with another message is a conflict
    12  idempotency key hash     16
"""

import hashlib
import struct
from collections.abc import Iterable
from typing import NamedTuple

from crc32c import crc32c

from myqueue.protocol.batch import Message
from myqueue.protocol.errors import InvalidRequest

_RECORD = struct.Struct("<III16s")
DEDUP_RECORD_BYTES = _RECORD.size


class DedupRecord(NamedTuple):
    position: int
    producer_id: int
    crc: int
    key: bytes


def key_hash(caller: str, topic: str, idempotency_key: str) -> bytes:
    """Keys are scoped by caller and topic: two producers may use the same one."""
    scoped = "\0".join((caller, topic, idempotency_key)).encode()
    return hashlib.blake2b(scoped, digest_size=16).digest()


def message_crc(message: Message) -> int:
    """Covers what the caller chose; not the timestamp, which differs in a retry."""
    crc: int = crc32c(message.value)
    crc = crc32c(b"\x00" if message.key is None else b"\x01" + message.key, crc)
    for name, value in message.headers:
        crc = crc32c(name.encode() + b"\x00" + (value or b""), crc)
    return crc


def encode_dedup_records(records: Iterable[DedupRecord]) -> bytes:
    return b"".join([_RECORD.pack(*record) for record in records])


def decode_dedup_records(data: bytes | memoryview, count: int) -> list[DedupRecord]:
    """The records of a batch of `count` messages, in order of position."""
    if len(data) % DEDUP_RECORD_BYTES:
        raise InvalidRequest("dedup records are cut off")
    records = list(map(DedupRecord._make, _RECORD.iter_unpack(data)))
    positions = [record.position for record in records]
    if positions != sorted(set(positions)) or (positions and positions[-1] >= count):
        raise InvalidRequest("dedup records must name each position of the batch at most once, in order")
    return records
