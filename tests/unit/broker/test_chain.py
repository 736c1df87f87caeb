"""The checksum chain notices every change of an entry and of its place; the body has a checksum of its own in it."""

from dataclasses import replace
from typing import Any

from crc32c import crc32c
from hypothesis import given
from hypothesis import strategies as st

from broker.raft.entry import Kind
from broker.storage.entry import Entry, Tail, chained_crc

START = Tail(next_index=1, end_offset=0, append_time=0, end_bytes=0, crc=0)

bodies = st.binary(min_size=1, max_size=200)


def entry_with(body: bytes, **fields: Any) -> Entry:
    return Entry(body=body, body_bytes=len(body), body_crc=crc32c(body), **fields)


entries = st.builds(
    entry_with,
    index=st.integers(1, 1 << 40),
    term=st.integers(0, 1 << 30),
    kind=st.sampled_from(Kind),
    base_offset=st.integers(0, 1 << 50),
    count=st.integers(0, 1 << 20),
    append_time=st.integers(0, 1 << 50),
    head=st.binary(max_size=64),
    dedup_records=st.binary(max_size=60),
    body=bodies,
)


def flipped(part: bytes, data: st.DataObject) -> bytes:
    bit = data.draw(st.integers(0, len(part) * 8 - 1))
    changed = bytearray(part)
    changed[bit // 8] ^= 1 << bit % 8
    return bytes(changed)


@given(entries, st.integers(0, (1 << 32) - 1), st.data())
def test_a_flipped_bit_is_noticed(entry: Entry, previous: int, data: st.DataObject) -> None:
    crc = chained_crc(previous, entry)
    if entry.head:
        assert chained_crc(previous, replace(entry, head=flipped(entry.head, data))) != crc
    if entry.dedup_records:
        assert chained_crc(previous, replace(entry, dedup_records=flipped(entry.dedup_records, data))) != crc
    for field in ("index", "term", "kind", "base_offset", "count", "append_time", "body_bytes", "body_crc"):
        assert chained_crc(previous, replace(entry, **{field: getattr(entry, field) ^ 1})) != crc
    assert chained_crc(previous ^ 1, entry) != crc


@given(entries, st.integers(0, (1 << 32) - 1))
def test_bytes_do_not_move_between_the_parts(entry: Entry, previous: int) -> None:
    """Also when the body's own checksum happens to fit."""
    less = replace(entry, body=entry.body[1:], body_bytes=entry.body_bytes - 1)
    for moved in (
        replace(less, dedup_records=entry.dedup_records + bytes(entry.body[:1])),
        replace(less, head=entry.head + bytes(entry.body[:1])),
    ):
        assert chained_crc(previous, moved) != chained_crc(previous, entry)
    if entry.dedup_records:
        moved = replace(entry, head=entry.head + entry.dedup_records, dedup_records=b"")
        assert chained_crc(previous, moved) != chained_crc(previous, entry)


@given(st.lists(st.tuples(st.integers(0, 50), st.binary(min_size=1, max_size=20)), max_size=20))
def test_the_tail_adds_up(batches: list[tuple[int, bytes]]) -> None:
    tail = START
    for count, batch in batches:
        place = (tail.next_index, 0, Kind.MESSAGES, tail.end_offset, count, tail.append_time)
        entry = Entry(*place, b"", b"", batch, len(batch), crc32c(batch))
        tail = tail.after(entry)
    assert tail.next_index == len(batches) + 1
    assert tail.end_offset == sum(count for count, _ in batches)
    assert tail.end_bytes == sum(len(batch) for _, batch in batches)
