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
    # Not made from the list: pyarrow imports pandas for that, where it is installed.
    indices = pa.Array.from_buffers(pa.int32(), len(rows), [None, pa.py_buffer(array("i", rows))])
    return _encoded(header, batch.take(indices))


def marks_of(marks: Sequence[DedupRecord], rows: Sequence[int]) -> list[DedupRecord]:
    """The marks of these messages, with their positions among them."""
    place = {row: position for position, row in enumerate(rows)}
    return [replace(mark, position=place[mark.position]) for mark in marks if mark.position in place]


def slice_of(header: Header, batch: pa.RecordBatch, first: int, count: int) -> bytes:
    """`count` messages from position `first` of a stored batch, with their own offsets."""
    part, body = _encoded(header, batch.slice(first, count))
    sequence = header.sequence if header.producer_id == batches.NO_PRODUCER else (header.sequence + first) & 0xFFFFFFFF
    return replace(part, base_offset=header.base_offset + first, sequence=sequence).pack() + body


def marks_in(marks: Sequence[DedupRecord], first: int, count: int) -> list[DedupRecord]:
    """They are in order of position, and often every message has one."""
    low = bisect_left(marks, first, key=_position)
    high = bisect_left(marks, first + count, lo=low, key=_position)
    return [replace(mark, position=mark.position - first) for mark in marks[low:high]]


def _position(mark: DedupRecord) -> int:
    return mark.position


def _encoded(header: Header, batch: pa.RecordBatch) -> tuple[Header, bytes]:
    body = batches.encode_record_batch(batch)
    return (
        replace(header, count=batch.num_rows, body_size=len(body), body_crc=crc32c(body), codec=batches.CODEC_NONE),
        body,
    )
