"""The partition of a key: the same in every process and every release."""

from crc32c import crc32c


def partition_for(key: bytes, partitions: int) -> int:
    crc: int = crc32c(key)
    return crc % partitions
