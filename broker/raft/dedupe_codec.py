"""The dedupe part of a snapshot as bytes, the same for peers and for the disk.

0  keys                      4   how many
4  bytes of producers        4
8  key records           28 each, oldest first
   producer records          see `pack_producers`
"""

import struct

from broker.raft.dedupe import DedupeSnapshot, unpack_producers
from broker.raft.key_table import KEY_RECORD_BYTES

_HEAD = struct.Struct("<II")


def encode_dedupe(snapshot: DedupeSnapshot) -> bytes:
    count, rest = divmod(len(snapshot.keys), KEY_RECORD_BYTES)
    if rest:
        raise ValueError("the last key record is cut off")
    return b"".join((_HEAD.pack(count, len(snapshot.producers)), snapshot.keys, snapshot.producers))


def decode_dedupe(data: bytes) -> DedupeSnapshot:
    if len(data) < _HEAD.size:
        raise ValueError("the dedupe table has no head")
    count, producers_bytes = _HEAD.unpack_from(data)
    producers_at = _HEAD.size + count * KEY_RECORD_BYTES
    if len(data) != producers_at + producers_bytes:
        raise ValueError("the dedupe table is not as long as its head says")
    producers = data[producers_at:]
    unpack_producers(producers)
    return DedupeSnapshot(data[_HEAD.size : producers_at], producers)
