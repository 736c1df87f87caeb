"""Values that carry the time they were sent at: end-to-end latency without two clocks."""

import struct
import time

_STAMP = struct.Struct("<q")


def stamped(size: int) -> bytes:
    """CLOCK_MONOTONIC is the same in all processes of a machine."""
    return _STAMP.pack(time.monotonic_ns()) + bytes(size - _STAMP.size)


def age_s(value: bytes) -> float:
    sent: int = _STAMP.unpack_from(value)[0]
    return (time.monotonic_ns() - sent) / 1e9
