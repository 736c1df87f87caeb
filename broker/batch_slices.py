"""Parts of a batch: some of its messages as a batch of their own."""

from array import array
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import replace

import pyarrow as pa
from crc32c import crc32c

from myqueue.protocol import batch as batches
from myqueue.protocol.batch import Header
from myqueue.protocol.dedup_records import DedupRecord


def rows_of(header: Header, batch: pa.RecordBatch, rows: Sequence[int]) -> tuple[Header, bytes]:
    """Only these messages, in this order, for a batch that is still to be appended."""
    # Not from the list: for that pyarrow imports pandas, where it is installed.
    indices = pa.Array.from_buffers(pa.int32(), len(rows), [None, pa.py_buffer(array("i", rows))])
    return _encoded(header, batch.take(indices))


def dedup_records_of(records: Sequence[DedupRecord], rows: Sequence[int]) -> list[DedupRecord]:
    """The records of these messages, with their positions among them."""
    place = {row: position for position, row in enumerate(rows)}
    return [record._replace(position=place[record.position]) for record in records if record.position in place]


def slice_of(header: Header, batch: pa.RecordBatch, first: int, count: int) -> bytes:
    """`count` messages from position `first` of a stored batch, with their own offsets."""
    part, body = _encoded(header, batch.slice(first, count))
    sequence = header.sequence if header.producer_id == batches.NO_PRODUCER else (header.sequence + first) & 0xFFFFFFFF
    return replace(part, base_offset=header.base_offset + first, sequence=sequence).pack() + body


def dedup_records_in(records: Sequence[DedupRecord], first: int, count: int) -> list[DedupRecord]:
    """They are in order of position, and often every message has one."""
    low = bisect_left(records, first, key=_position)
    high = bisect_left(records, first + count, lo=low, key=_position)
    return [record._replace(position=record.position - first) for record in records[low:high]]


def _position(record: DedupRecord) -> int:
    return record.position


def _encoded(header: Header, batch: pa.RecordBatch) -> tuple[Header, bytes]:
    body = batches.encode_record_batch(batch)
    return (
        replace(header, count=batch.num_rows, body_size=len(body), body_crc=crc32c(body), codec=batches.CODEC_NONE),
        body,
    )
