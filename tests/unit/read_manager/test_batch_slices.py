"""Messages sliced out of stored batches."""

from dataclasses import replace
from uuid import UUID

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from myqueue.protocol import batch as wire
from myqueue.protocol.batch import Message
from myqueue.protocol.dedup_records import DedupRecord, encode_dedup_records
from myqueue.protocol.errors import InternalError, InvalidRequest
from myqueue.protocol.internal import FETCH_ITEM
from read_manager.batch_slices import BatchSlice, as_arrow, as_json, has_compressed, slice_batches

TOPIC = UUID(int=7)
HEADERS = (("source", b"shop"), ("empty", None), ("raw", b"\xff"))


def item(
    messages: list[Message], base: int, *, codec: int = 0, records: bytes = b"", producer: int | None = None
) -> bytes:
    body = wire.encode_body(messages, codec)
    header = wire.placed(wire.header_for(TOPIC, 3, body, len(messages), codec), base, 1000 + base)
    if producer is not None:
        header = replace(header, producer_id=producer)
    batch = header.pack() + body
    return FETCH_ITEM.pack(len(batch), len(records)) + batch + records


def plain(count: int, first: int = 0) -> list[Message]:
    return [Message(f"value {first + n}".encode(), timestamp=n) for n in range(count)]


def slices_of(items: bytes, offset: int, limit: int, max_bytes: int) -> list[BatchSlice]:
    return slice_batches(items, offset, limit, max_bytes)[0]


def test_a_message_in_json() -> None:
    message = Message(b"\xff\x00", "schlüssel".encode(), 17, HEADERS)
    [shown] = as_json(slices_of(item([message], 5, producer=9), 5, 10, 1 << 20))
    assert shown == {
        "partition_id": 3,
        "offset": 5,
        "timestamp": 17,
        "append_time": 1005,
        "key": "schlüssel",
        "value": {"base64": "/wA="},
        "headers": [
            {"key": "source", "value": "shop"},
            {"key": "empty", "value": None},
            {"key": "raw", "value": {"base64": "/w=="}},
        ],
        "producer_id": 9,
    }


def test_records_name_the_producers() -> None:
    records = encode_dedup_records([DedupRecord(0, 4, 0, bytes(16)), DedupRecord(2, wire.NO_PRODUCER, 0, bytes(16))])
    shown = as_json(slices_of(item(plain(4), 0, records=records, producer=8), 0, 10, 1 << 20))
    assert [message["producer_id"] for message in shown] == [4, 8, None, 8]
    assert [message["producer_id"] for message in as_json(slices_of(item(plain(2), 0), 0, 10, 1 << 20))] == [None, None]


@given(
    sizes=st.lists(st.integers(1, 20), min_size=1, max_size=6),
    start=st.integers(0, 130),
    limit=st.integers(1, 60),
    max_bytes=st.integers(1, 400),
    codec=st.sampled_from([wire.CODEC_NONE, wire.CODEC_LZ4, wire.CODEC_ZSTD]),
)
def test_slices_are_what_was_asked(sizes: list[int], start: int, limit: int, max_bytes: int, codec: int) -> None:
    items, stored = b"", list[bytes]()
    for size in sizes:
        messages = plain(size, len(stored))
        items += item(messages, len(stored), codec=codec)
        stored += [message.value for message in messages]
    slices, full = slice_batches(items, start, limit, max_bytes)
    shown = as_json(slices)
    expected = stored[start : start + limit]
    assert [message["value"].encode() for message in shown] == expected[: len(shown)]
    assert [message["offset"] for message in shown] == list(range(start, start + len(shown)))
    taken = sum(len(value) for value in expected[: len(shown)])
    if expected:
        assert shown
        assert taken <= max_bytes or len(shown) == 1
    if len(shown) < len(expected):
        assert taken + len(expected[len(shown)]) > max_bytes, "it stopped early"
    assert full or len(shown) == len(stored[start:])
    if full:
        assert len(shown) == limit or start + len(shown) < len(stored)
    rest, _ = slice_batches(items, start, limit, 0, need_one=False)
    assert rest == []


def test_headers_count() -> None:
    messages = [Message(b"", headers=(("name", b"x" * 96),)) if n % 2 else Message(b"") for n in range(6)]
    for codec in (wire.CODEC_NONE, wire.CODEC_ZSTD):
        items = item(messages, 0, codec=codec)
        assert [len(as_json(slices_of(items, start, 10, 150))) for start in (0, 1, 2)] == [3, 2, 3]
        assert sum(each.bytes for each in slices_of(items, 1, 10, 1000)) == 300


def test_few_rows_of_a_compressed_batch_keep_little() -> None:
    many = item([Message(b"x" * 10_000) for _ in range(500)], 0, codec=wire.CODEC_ZSTD)
    assert len(many) < 100_000
    [each] = slices_of(many, 3, 2, 1 << 20)
    assert each.rows.get_total_buffer_size() < 100_000
    assert [message["offset"] for message in as_json([each])] == [3, 4]
    assert has_compressed(item(plain(1), 0) + many)
    assert not has_compressed(item(plain(1), 0) + item(plain(1), 1))


def test_no_more_is_decoded_than_one_batch_may_hold() -> None:
    large = [Message(b"x" * 1_000_000) for _ in range(20)]
    items = b"".join(item(large, n * 20, codec=wire.CODEC_ZSTD) for n in range(3))
    slices, full = slice_batches(items, 0, 10_000, 1 << 30)
    assert (sum(each.rows.num_rows for each in slices), full) == (20, True)


def test_arrow_says_the_same_as_json() -> None:
    messages = [Message(b"a", b"k", 1, HEADERS), Message(b"b", None, 2), Message(b"", b"", 3)]
    slices = slices_of(item(messages, 0) + item(plain(3), 3), 1, 4, 1 << 20)
    table = pa.ipc.open_stream(as_arrow(slices)).read_all()
    names = ["partition_id", "partition", "offset", "timestamp", "append_time", "key", "value", "headers"]
    assert table.column_names == names
    assert table.column("offset").to_pylist() == [1, 2, 3, 4]
    assert table.column("value").to_pylist() == [b"b", b"", b"value 0", b"value 1"]
    assert table.column("key").to_pylist() == [None, b"", None, None]
    assert table.column("append_time").to_pylist() == [1000, 1000, 1003, 1003]
    assert table.column("partition_id").to_pylist() == table.column("partition").to_pylist() == [3] * 4
    table.validate(full=True)


def test_broken_answers_are_noticed() -> None:
    good = item(plain(2), 0)
    with pytest.raises(InternalError):
        slice_batches(good[:-1], 0, 10, 100)
    flipped = good[:-1] + bytes([good[-1] ^ 1])
    with pytest.raises(InvalidRequest, match="checksum"):
        slice_batches(flipped, 0, 10, 100)
