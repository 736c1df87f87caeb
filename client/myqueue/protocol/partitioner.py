"""The partition of a key: the same in every process and every release."""

import pyarrow as pa
import pyarrow.compute as pc
from crc32c import crc32c


def partition_for(key: bytes, partitions: int) -> int:
    crc: int = crc32c(key)
    return crc % partitions


def partitions_for(keys: pa.Array, partitions: int) -> pa.Array:
    """Of each key of a column of binary; null where there is none. Only distinct keys are looked at one by one."""
    encoded = keys.dictionary_encode()
    crcs = pa.array(list(map(crc32c, encoded.dictionary.to_pylist())), pa.uint32())
    divisor = pa.scalar(partitions, pa.uint32())
    numbers = pc.subtract(crcs, pc.multiply(pc.divide(crcs, divisor), divisor))
    return numbers.cast(pa.uint16()).take(encoded.indices)
