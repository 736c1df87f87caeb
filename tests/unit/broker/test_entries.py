"""What the Raft core says comes back from the disk as it was said, and every replica stores the same bytes."""

from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.raft.configuration import GroupConfiguration, MemberId
from broker.raft.dedupe import DedupeSnapshot, Producer, SeenBatch, pack_producers
from broker.raft.entry import Kind, LogEntry, LogStart
from broker.raft.snapshot import HardState, Snapshot
from broker.storage.entry import NO_KEY, Corrupted, Tail, entry_of, keyed, log_entry_of, stamp_of
from broker.storage.group import (
    Group,
    LogPosition,
    Settings,
    SnapshotState,
    group_of,
    group_value,
    position_of,
    position_value,
)
from broker.storage.memory_disk import MemoryDisk
from broker.storage.record import RECORD_BYTES, entry_at, entry_record, parse
from broker.storage.snapshot_files import read_snapshot, write_snapshot
from myqueue.protocol import batch as batches
from myqueue.protocol.batch import Message
from myqueue.protocol.dedup_records import DedupRecord, encode_dedup_records

numbers = st.integers(0, (1 << 63) - 1)
small = st.integers(0, (1 << 32) - 1)
members = st.builds(MemberId, st.integers(1, (1 << 31) - 1), st.integers(0, (1 << 64) - 1))
configurations = st.builds(
    GroupConfiguration, st.lists(members, max_size=3).map(tuple), st.lists(members, max_size=2).map(tuple)
)
keys = st.binary(min_size=28, max_size=28)
producers = st.tuples(
    small,
    st.builds(
        Producer,
        st.integers(0, 65535),
        st.lists(st.builds(SeenBatch, small, small, small, numbers), min_size=1, max_size=3).map(tuple),
    ),
)
snapshots = st.builds(
    Snapshot,
    numbers,
    numbers,
    numbers,
    numbers,
    configurations,
    numbers,
    st.builds(
        DedupeSnapshot, st.lists(keys, max_size=3).map(b"".join), st.lists(producers, max_size=3).map(pack_producers)
    ),
)


def batch_of(count: int, records: list[DedupRecord], producer_id: int = batches.NO_PRODUCER) -> bytes:
    header, body, _ = batches.split(batches.encode(UUID(int=3), 1, [Message(b"v%d" % n) for n in range(count)]))
    named = batches.Header(
        header.topic_id, 1, count, header.body_size, header.body_crc, producer_id=producer_id, sequence=5
    )
    return named.pack() + bytes(body) + encode_dedup_records(records)


@given(st.integers(1, 5), st.integers(0, 1 << 50), st.integers(0, 1 << 50), st.sampled_from([batches.NO_PRODUCER, 7]))
def test_a_batch_gets_its_place_once_and_stays_the_same_afterwards(
    count: int, base_offset: int, time: int, producer_id: int
) -> None:
    records = [DedupRecord(0, 1, 2, b"k" * 16)] + [DedupRecord(1, 1, 2, NO_KEY)] * (count > 1)
    data = batch_of(count, records, producer_id)
    header = batches.decode_header(data)
    entry = LogEntry(9, 4, Kind.MESSAGES, base_offset, time, count, stamp_of(header), keyed(records), data)
    kept = entry_of(entry)
    placed, body, rest = batches.split(kept.data)
    assert (placed.base_offset, placed.append_time, placed.count) == (base_offset, time, count)
    batches.validate(placed, body)
    assert bytes(rest) == encode_dedup_records(records)
    again = log_entry_of(kept)
    assert again.body == kept.data
    assert (again.dedup_records, again.stamp, again.index, again.term) == (entry.dedup_records, entry.stamp, 9, 4)
    assert entry_of(again) == kept, "what travels from a disk is stored as it came"
    record = entry_record(3, kept, chain=5)
    written = memoryview(bytes(record.header) + bytes(record.body))
    assert entry_at(written, 0, parse(written, 0), with_body=True) == kept


@given(st.sampled_from([None, LogStart(5, 7)]) | configurations)
def test_other_entries_come_back(body: LogStart | GroupConfiguration | None) -> None:
    kind = {LogStart: Kind.TRUNCATE, GroupConfiguration: Kind.CONFIGURATION}.get(type(body), Kind.NOOP)
    entry = LogEntry(1, 2, kind, 3, 4, body=body)
    assert log_entry_of(entry_of(entry)) == entry


@given(snapshots)
def test_a_snapshot_comes_back(snapshot: Snapshot) -> None:
    disk = MemoryDisk()
    state = write_snapshot(disk, 7, snapshot)
    place = (snapshot.start_index, snapshot.start_offset, 0, 0, snapshot.previous_term)
    group = Group(7, UUID(int=1), 0, 5, Settings("orders"), HardState(), *place, state)
    assert read_snapshot(disk, group_of(group_value(group))) == snapshot
    disk.close()


groups = st.builds(
    Group,
    small,
    st.uuids(),
    small,
    st.integers(0, (1 << 64) - 1),
    st.builds(Settings, st.text(max_size=5), st.none() | numbers, st.none() | numbers),
    st.builds(HardState, numbers, st.none() | members, numbers),
    numbers,
    numbers,
    numbers,
    small,
    numbers,
    st.builds(SnapshotState, numbers, configurations, numbers, numbers, small),
    st.none() | st.text(max_size=5),
    st.none() | st.text(max_size=5),
)
positions = st.builds(
    LogPosition,
    numbers,
    numbers,
    st.builds(Tail, numbers, numbers, numbers, numbers, small),
    st.lists(st.tuples(numbers, numbers), max_size=3).map(tuple),
)


@given(groups, positions)
def test_the_state_of_a_replica_comes_back(group: Group, position: LogPosition) -> None:
    assert group_of(group_value(group)) == group
    assert position_of(position_value(position)) == position


@given(st.binary(max_size=100))
def test_garbage_is_refused(data: bytes) -> None:
    with pytest.raises(Corrupted):
        group_of(data)
    with pytest.raises(Corrupted):
        position_of(data)


@given(st.binary(min_size=RECORD_BYTES, max_size=100))
def test_what_is_no_record_is_refused_or_has_possible_lengths(data: bytes) -> None:
    try:
        parsed = parse(data, 0)
    except Corrupted:
        return
    assert RECORD_BYTES <= parsed.size_bytes < 17 << 20
