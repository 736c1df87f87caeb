"""Parts of a batch carry their own offsets, dedup records and checksums."""

from dataclasses import replace
from uuid import UUID

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from broker import batch_slices
from myqueue.protocol import batch as batches
from myqueue.protocol.batch import Message
from myqueue.protocol.dedup_records import DedupRecord

TOPIC_ID = UUID(int=5)

messages = st.lists(
    st.builds(
        Message,
        value=st.binary(max_size=20),
        key=st.none() | st.binary(max_size=5),
        timestamp=st.integers(0, 1 << 50),
        headers=st.lists(st.tuples(st.text(max_size=3), st.none() | st.binary(max_size=3)), max_size=2).map(tuple),
    ),
    min_size=1,
    max_size=20,
)


def stored(given_messages: list[Message], base_offset: int) -> tuple[batches.Header, pa.RecordBatch]:
    header, body, _ = batches.split(batches.encode(TOPIC_ID, 3, given_messages))
    return batches.placed(header, base_offset, 17), batches.validate(header, body)


@given(messages, st.integers(0, 1 << 40), st.data())
def test_a_slice_is_a_valid_batch_of_exactly_those_messages(
    given_messages: list[Message], base_offset: int, data: st.DataObject
) -> None:
    first = data.draw(st.integers(0, len(given_messages) - 1))
    count = data.draw(st.integers(1, len(given_messages) - first))
    header, batch = stored(given_messages, base_offset)
    part, body, rest = batches.split(batch_slices.slice_of(header, batch, first, count))
    assert batches.messages_of(batches.validate(part, body)) == given_messages[first : first + count]
    assert (part.base_offset, part.count, part.append_time) == (base_offset + first, count, 17)
    assert not rest


@given(messages, st.data())
def test_rows_keep_their_order_and_dedup_records_follow_them(
    given_messages: list[Message], data: st.DataObject
) -> None:
    every = range(len(given_messages))
    rows = sorted(data.draw(st.sets(st.sampled_from(list(every)), min_size=1)))
    header, batch = stored(given_messages, 0)
    part, body = batch_slices.rows_of(header, batch, rows)
    assert batches.messages_of(batches.validate(part, body)) == [given_messages[row] for row in rows]
    records = batch_slices.dedup_records_of([DedupRecord(row, row, 0, bytes(16)) for row in every], rows)
    assert [(record.position, record.producer_id) for record in records] == list(enumerate(rows))


def test_dedup_records_of_a_slice_count_from_its_first_message() -> None:
    records = [DedupRecord(n, n, 0, bytes(16)) for n in (0, 2, 3, 5)]
    assert [(m.position, m.producer_id) for m in batch_slices.dedup_records_in(records, 2, 2)] == [(0, 2), (1, 3)]


def test_a_slice_of_a_compressed_batch_says_that_it_is_not() -> None:
    batch = stored([Message(b"x" * 100)] * 10, 0)[1]
    options = pa.ipc.IpcWriteOptions(compression="zstd")
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batches.SCHEMA, options=options) as stream:
        stream.write_batch(batch)
    reader = pa.ipc.MessageReader.open_stream(sink.getvalue())
    reader.read_next_message()
    body = reader.read_next_message().serialize().to_pybytes()
    header = replace(batches.header_for(TOPIC_ID, 3, body, 10), codec=batches.CODEC_ZSTD)
    part, plain, _ = batches.split(batch_slices.slice_of(header, batches.validate(header, body), 4, 3))
    assert part.codec == batches.CODEC_NONE
    assert batches.validate(part, plain).num_rows == 3


def test_sequences_of_a_slice_follow_its_first_message() -> None:
    header, batch = stored([Message(b"x")] * 5, 10)
    header = replace(header, producer_id=1, sequence=100)
    part, _, _ = batches.split(batch_slices.slice_of(header, batch, 2, 2))
    assert (part.producer_id, part.sequence) == (1, 102)
