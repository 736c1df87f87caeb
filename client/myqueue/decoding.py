"""Fetched batches as messages or as a table. Converts whole columns: no Python code runs per message."""

from collections.abc import Iterable, Iterator
from itertools import repeat
from operator import length_hint

import pyarrow as pa
import pyarrow.compute as pc

from myqueue.message import Message
from myqueue.protocol.batch import CODEC_NONE, NO_PRODUCER, SCHEMA, batches_in, check_body, decode_body

TABLE_SCHEMA: pa.Schema = pa.schema(
    [
        pa.field("partition", pa.int32(), nullable=False),
        pa.field("offset", pa.int64(), nullable=False),
        *(SCHEMA.field(name) for name in ("timestamp", "key", "value", "headers")),
    ]
)
TOPICS_SCHEMA: pa.Schema = pa.schema([pa.field("topic", pa.string(), nullable=False), *TABLE_SCHEMA])


class Chunk:
    """Messages of one batch. A compressed body is decompressed when it is handed out: it may become much larger."""

    __slots__ = ("_rows", "count", "first", "partition", "producer_id", "size")

    def __init__(
        self,
        partition: int,
        first: int,
        count: int,
        rows: pa.RecordBatch | memoryview,
        producer_id: int | None,
        size: int,
    ) -> None:
        self.partition = partition
        self.first = first  # offset
        self.count = count
        self.producer_id = producer_id
        self.size = size  # bytes, as it is kept
        self._rows = rows

    @property
    def end(self) -> int:
        return self.first + self.count

    @property
    def rows(self) -> pa.RecordBatch:
        if isinstance(self._rows, memoryview):
            self._rows = decode_body(self._rows)
        return self._rows

    def rest(self, skip: int) -> "Chunk":
        return self._part(skip, self.count - skip)

    def start(self, count: int) -> "Chunk":
        return self._part(0, count)

    def _part(self, skip: int, count: int) -> "Chunk":
        rows = self.rows.slice(skip, count)
        return Chunk(self.partition, self.first + skip, count, rows, self.producer_id, rows.nbytes)


def chunks_in(data: bytes | bytearray | memoryview, partition: int, offset: int) -> Iterator[Chunk]:
    """The batches of a fetch, from this offset on; raises InvalidRequest for a damaged one."""
    for header, body in batches_in(memoryview(data)):
        if header.end_offset <= offset:
            continue
        check_body(header, body)
        producer_id = None if header.producer_id == NO_PRODUCER else header.producer_id
        rows = decode_body(body) if header.codec == CODEC_NONE else body
        chunk = Chunk(partition, header.base_offset, header.count, rows, producer_id, header.body_size)
        yield chunk.rest(offset - chunk.first) if chunk.first < offset else chunk


class Messages:
    """The messages of a chunk, one at a time.

    Each is made on demand: a list of all of them would keep the garbage collector busy for longer than it takes to
    make them. The iterator over the values counts how many are left.
    """

    __slots__ = ("_left", "_values", "iterator")

    def __init__(self, topic: str, chunk: Chunk) -> None:
        key, value, timestamp, headers = chunk.rows.columns
        self._values: list[bytes] = value.to_pylist()
        self._left = iter(self._values)
        fields = zip(
            repeat(topic),
            self._left,
            key.to_pylist() if key.null_count < chunk.count else repeat(None),
            repeat(chunk.partition),
            range(chunk.first, chunk.end),
            timestamp.to_pylist(),
            map(_pairs, headers.to_pylist()) if headers.null_count < chunk.count else repeat(()),
            repeat(chunk.producer_id),
            strict=False,
        )
        # Faster than Message._make, which looks at the length of each tuple.
        self.iterator: Iterator[Message] = map(tuple.__new__, repeat(Message), fields)

    @property
    def left(self) -> int:
        return length_hint(self._left)

    def cut(self) -> int:
        """Ends the iteration; how many messages were left. One that another thread is taking may be counted."""
        left = self.left
        del self._values[len(self._values) - left :]
        return left


def _pairs(headers: list[dict[str, str | bytes | None]] | None) -> tuple[tuple[str, bytes | None], ...]:
    return tuple((header["key"], header["value"]) for header in headers or ())  # type: ignore[misc]


def table_of(chunks: Iterable[Chunk], topics: Iterable[str] | None = None) -> pa.Table:
    """`topics`: of each chunk, where there are several; they are the first column then."""
    if topics is None:
        return pa.Table.from_batches([_numbered(chunk) for chunk in chunks], TABLE_SCHEMA)
    named = [_named(topic, _numbered(chunk)) for topic, chunk in zip(topics, chunks, strict=True)]
    return pa.Table.from_batches(named, TOPICS_SCHEMA)


def _named(topic: str, rows: pa.RecordBatch) -> pa.RecordBatch:
    names = pa.repeat(pa.scalar(topic, pa.string()), rows.num_rows)
    return pa.RecordBatch.from_arrays([names, *rows.columns], schema=TOPICS_SCHEMA)


def _numbered(chunk: Chunk) -> pa.RecordBatch:
    key, value, timestamp, headers = chunk.rows.columns
    partition = pa.repeat(pa.scalar(chunk.partition, pa.int32()), chunk.count)
    offset = pc.add(_counting(chunk.count), pa.scalar(chunk.first, pa.int64()))
    return pa.RecordBatch.from_arrays([partition, offset, timestamp, key, value, headers], schema=TABLE_SCHEMA)


_counted: pa.Array = pa.array(range(1 << 10), pa.int64())


def _counting(count: int) -> pa.Array:
    """0, 1, 2, …; made once for the longest batch so far."""
    global _counted
    if len(_counted) < count:
        _counted = pa.array(range(count), pa.int64())
    return _counted.slice(0, count)
