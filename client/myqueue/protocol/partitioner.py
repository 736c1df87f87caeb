"""The partition of a key: the same in every process and every release."""

import pyarrow as pa
import pyarrow.compute as pc
from crc32c import crc32c

_PARTITION = pa.uint16()
_SAMPLE = 1 << 14


def partition_for(key: bytes, partitions: int) -> int:
    crc: int = crc32c(key)
    return crc % partitions


def partitions_for(keys: pa.Array, partitions: int) -> pa.Array:
    """Of each key of a column of binary; null where there is none.

    Where keys repeat, only distinct ones are looked at one by one. Where they do not, looking for repetitions would
    cost as much as it could save: a sample decides.
    """
    sample = keys.slice(0, _SAMPLE)
    if pc.count_distinct(sample).as_py() * 2 <= len(sample):
        encoded = keys.dictionary_encode()
        return _partitions(encoded.dictionary, partitions).take(encoded.indices)
    if keys.null_count:
        return pc.replace_with_mask(
            pa.nulls(len(keys), _PARTITION), keys.is_valid(), _partitions(keys.drop_null(), partitions)
        )
    return _partitions(keys, partitions)


def _partitions(keys: pa.Array, partitions: int) -> pa.Array:
    crcs = pa.array(list(map(crc32c, keys.to_pylist())), pa.uint32())
    divisor = pa.scalar(partitions, pa.uint32())
    return pc.subtract(crcs, pc.multiply(pc.divide(crcs, divisor), divisor)).cast(_PARTITION)
