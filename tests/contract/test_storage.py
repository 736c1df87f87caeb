"""What a partition promises, whatever it is stored on."""

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from broker.raft.configuration import MemberId, initial_configuration
from broker.raft.effects import Applied, CommittedEntries, Role
from broker.raft.entry import Kind, LogEntry
from broker.raft.snapshot import HardState
from broker.storage.group import Group, Settings, SnapshotState
from broker.storage.round import Round
from broker.storage.writer import Change
from myqueue.protocol import batch as batches
from myqueue.protocol.batch import Message
from myqueue.protocol.errors import (
    DiskFull,
    IdempotencyConflict,
    Overloaded,
    PartitionNotFound,
    ProducerFenced,
    RegistrationConflict,
    SequenceGap,
)
from tests.broker_store import TOPIC_ID, Store, append, append_batch, opened, read_all
from tests.waiting import until

MakeStore = Callable[..., Store]
BATCH = batches.encode(TOPIC_ID, 0, [Message(b"c"), Message(b"d")])

steps = st.lists(
    st.lists(
        st.tuples(st.sampled_from([b"red", b"green"]), st.none() | st.sampled_from(["a", "b", "c"])),
        min_size=1,
        max_size=5,
    ),
    max_size=12,
)


def test_what_is_appended_is_read_in_order(store: Store) -> None:
    replica = store.replica()
    answer = append(replica, [b"a", b"b"])
    assert answer["results"] == [{"offset": 0}, {"offset": 1}]
    assert append(replica, [b"c"])["end_offset"] == 3
    assert read_all(replica) == [b"a", b"b", b"c"]
    assert read_all(replica, limit=1) == [b"a", b"b", b"c"]
    assert replica.messages(3, 1) is None
    assert replica.messages(1000, 1) is None


def test_what_is_committed_before_it_is_on_this_disk_is_read_from_memory(store: Store) -> None:
    """A leader with faster followers: fetches have it, whatever goes by the files does not."""
    replica = store.replica()
    append(replica, [b"a", b"b"])
    first = replica.tail_batches(0, 1 << 20)[0]
    later = LogEntry(first.index + 1, first.term, Kind.MESSAGES, 2, first.append_time, 2, body=BATCH)
    replica.committed(CommittedEntries(replica.name, 4, (later,)))
    assert (replica.view.end_offset, replica.view.applied_offset) == (4, 2)
    assert [replica.has(offset) for offset in (1, 2, 3, 4)] == [True, True, True, False]
    assert [entry.base_offset for entry in replica.tail_batches(1, 1 << 20)] == [0, 2]
    assert replica.cached_messages(3, 1) is not None
    assert replica.messages(2, 10) is None
    assert [entry.base_offset for entry in replica.stored_batches(0, 1 << 20)] == [0]
    assert replica.offset_at(first.append_time + 1) == 2
    assert replica.since(2).size_bytes == 0
    replica.applied(Applied(replica.name, later.index, later.index, 4, (later,)))
    assert replica.view.end_offset == replica.view.applied_offset == 4
    assert len(replica.tail_batches(2, 1 << 20)) == 1


def test_what_is_committed_and_nowhere_to_be_read_counts_as_the_end(make_store: MakeStore) -> None:
    replica = make_store(cache_bytes=1).replica()
    replica.committed(CommittedEntries(replica.name, 2, (LogEntry(2, 1, Kind.MESSAGES, 0, 5, 2, body=BATCH),)))
    assert replica.view.end_offset == 2
    assert not replica.has(0)
    assert replica.messages(0, 1) is None


def test_the_body_is_stored_as_it_came(store: Store) -> None:
    replica = store.replica()
    sent = batches.encode(TOPIC_ID, 0, [Message(b"a", b"k", 5, (("h", b"v"),)), Message(b"")])
    append_batch(replica, sent)
    found = replica.messages(0, 10)
    assert found is not None
    assert found[batches.HEADER_BYTES :] == sent[batches.HEADER_BYTES :]


@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(given_batches=steps, window=st.integers(1, 4))
def test_it_behaves_like_a_list_that_remembers_its_last_keys(
    make_store: MakeStore, given_batches: list[list[tuple[bytes, str | None]]], window: int
) -> None:
    replica = make_store(dedupe_window=window).replica()
    expected: list[bytes] = []
    keyed: list[tuple[str, int]] = []  # in order of the log
    for rows in given_batches:
        known = dict(keyed[-window:])
        results: list[dict[str, Any]] = []
        for value, key in rows:
            first = known.get(key) if key is not None else None
            if first is None:
                results.append({"offset": len(expected)})
                if key is not None:
                    known[key] = len(expected)
                    keyed.append((key, len(expected)))
                expected.append(value)
            elif expected[first] == value:
                results.append({"offset": first, "duplicate": True})
            else:
                results.append({"error_code": 40903})
        answer = append(replica, [value for value, _ in rows], [key for _, key in rows])
        assert answer["results"] == results
        assert answer["end_offset"] == len(expected)
    assert read_all(replica) == expected
    assert read_all(replica, limit=1) == expected


def test_concurrent_appends_share_commits_and_leave_no_gap(store: Store) -> None:
    replicas = [store.replica(n) for n in range(3)]

    def run(number: int) -> list[tuple[int, int]]:
        partition = number % 3
        return [
            (partition, append(replicas[partition], [b"%d-%d" % (number, n)])["results"][0]["offset"])
            for n in range(30)
        ]

    with ThreadPoolExecutor(12) as pool:
        places = [place for found in pool.map(run, range(12)) for place in found]
    assert sorted(places) == [(partition, offset) for partition in range(3) for offset in range(120)]
    for partition, replica in enumerate(replicas):
        wanted = {b"%d-%d" % (number, n) for number in range(12) if number % 3 == partition for n in range(30)}
        assert set(read_all(replica)) == wanted


def test_concurrent_appends_with_one_key_get_one_offset(store: Store) -> None:
    replica = store.replica()
    barrier = threading.Barrier(8)

    def run(_: int) -> tuple[int, bool]:
        barrier.wait()
        result = append(replica, [b"once"], ["key"])["results"][0]
        return result["offset"], result.get("duplicate", False)

    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(run, range(8)))
    assert {offset for offset, _ in found} == {0}
    assert sorted(duplicate for _, duplicate in found) == [False] + [True] * 7
    assert read_all(replica) == [b"once"]


def test_append_times_never_decrease_and_find_offsets(make_store: MakeStore) -> None:
    clock = iter([1, 100, 50, 200])
    replica = make_store(clock_ms=lambda: next(clock)).replica()
    times = [append(replica, [b"x", b"y"])["append_time"] for _ in range(4)]
    assert times == [1, 100, 100, 200]
    assert [replica.offset_at(t) for t in (0, 1, 2, 100, 101, 200, 201)] == [0, 0, 2, 2, 6, 6, 8]


def test_slices_carry_their_marks_and_offsets(store: Store) -> None:
    replica = store.replica()
    append(replica, [b"a"])
    append(replica, [b"b", b"c", b"d", b"e"], ["k0", None, "k2", None])
    found = replica.messages(2, 2)
    assert found is not None
    header, values, marks = opened(found)
    assert (header.base_offset, values) == (2, [b"c", b"d"])
    assert [(mark.position, mark.producer_id) for mark in marks] == [(1, 7)]


def test_too_much_waiting_is_refused_and_not_written(make_store: MakeStore) -> None:
    store = make_store(max_waiting=2)
    replica = store.replica()
    append(replica, [b"x"])
    held, entered = threading.Event(), threading.Event()

    def slow(_: Round) -> None:
        entered.set()
        held.wait(10)

    store.writer.submit(Change(slow))
    entered.wait(10)
    waiting = [store.writer.submit(Change(lambda _: None)) for _ in range(2)]
    with pytest.raises(Overloaded) as refused:
        append(replica, [b"one too many"])
    assert refused.value.outcome == "not_written"
    held.set()
    for future in waiting:
        future.result(10)
    assert append(replica, [b"y"])["results"] == [{"offset": 1}]


def test_a_low_disk_refuses_appends_keeps_reads_and_recovers(make_store: MakeStore) -> None:
    free = [1 << 40]
    store = make_store(free_bytes=lambda: free[0])
    replica = store.replica()
    append(replica, [b"a"], ["k"])
    free[0] = 999
    with pytest.raises(DiskFull) as refused:
        append(replica, [b"b"], ["k2"])
    assert refused.value.outcome == "not_written"
    assert store.writer.problem() is not None
    assert read_all(replica) == [b"a"]
    free[0] = 1 << 40
    assert store.writer.problem() is None
    assert append(replica, [b"b"], ["k2"])["results"] == [{"offset": 1}]


def test_a_low_disk_still_lets_partitions_go(make_store: MakeStore) -> None:
    free = [1 << 40]
    store = make_store(free_bytes=lambda: free[0])
    append(store.replica(), [b"a"])
    free[0] = 0
    store.partitions.drop(TOPIC_ID, 0)
    assert store.partitions.all() == []
    until(lambda: not store.disk.names("partitions"), what="its files are unlinked")


def test_creating_twice_and_dropping(store: Store) -> None:
    assert store.create()
    assert not store.create()
    old = store.partitions.get(TOPIC_ID, 0)
    append(old, [b"a"] * 10)
    store.partitions.drop(TOPIC_ID, 0)
    for use in (lambda: append(old, [b"b"]), lambda: old.messages(0, 1), lambda: store.partitions.drop(TOPIC_ID, 0)):
        with pytest.raises(PartitionNotFound):
            use()
    until(lambda: not store.disk.names("partitions"), what="its files are unlinked")
    store.reload()
    assert store.partitions.all() == []


def test_a_partition_that_comes_back_is_another_member(store: Store) -> None:
    old = store.replica()
    append(old, [b"a"])
    store.partitions.drop(TOPIC_ID, 0)
    again = store.replica()
    assert again.me.broker_id == old.me.broker_id
    assert again.me.incarnation != old.me.incarnation
    assert again.view.role is Role.FOLLOWER
    (report,) = store.partitions.reports()
    assert (report["role"], report["configuration"]) == ("learner", None)
    store.reload()
    assert store.replica().me == again.me


def test_one_that_is_no_founder_waits_to_be_taken_in(store: Store) -> None:
    store.create(initial_voters=[MemberId(2, 2), MemberId(3, 3)])
    (report,) = store.partitions.reports()
    assert (report["role"], report["incarnation"]) == ("learner", store.store.incarnation)


def test_one_that_was_never_taken_in_begins_a_group_when_it_is_named_a_founder(store: Store) -> None:
    """All others have lost their data too. One that has a log is not made to forget it."""
    store.create(initial_voters=[MemberId(2, 2), MemberId(3, 3)])
    assert not store.create(initial_voters=[MemberId(2, 2), MemberId(3, 3)])
    assert store.create(initial_voters=[store.me])
    append(store.replica(), [b"a"])
    store.reload()
    assert not store.create(initial_voters=[store.me, MemberId(2, 2)])
    (report,) = store.partitions.reports()
    assert report["end_offset"] == 1


def test_settings_follow_the_catalog(store: Store) -> None:
    store.create()
    assert not store.create(settings=Settings("orders", 1000, 2000))
    store.reload()
    assert store.partitions.get(TOPIC_ID, 0).log.group.settings == Settings("orders", 1000, 2000)
    with pytest.raises(RegistrationConflict):
        store.create(settings=Settings("invoices"))


def test_topics_and_reports_name_everything_held(store: Store) -> None:
    for partition_id in (1, 0):
        store.replica(partition_id)
    append(store.replica(1), [b"abc"])
    assert store.partitions.topics() == [{"topic": "orders", "topic_id": str(TOPIC_ID), "partitions": [0, 1]}]
    report = next(report for report in store.partitions.reports() if report["partition_id"] == 1)
    assert (report["role"], report["end_offset"], report["beginning_offset"]) == ("leader", 1, 0)
    assert report["size_bytes"] > 64


def test_a_partition_whose_making_was_given_up_is_found_again(store: Store) -> None:
    def insert(round_: Round) -> None:
        members = SnapshotState(configuration=initial_configuration([store.me]))
        group_id = store.store.new_group_id()
        store.store.open_log(
            round_,
            Group(group_id, TOPIC_ID, 0, store.me.incarnation, Settings("orders"), HardState(), snapshot=members),
        )

    store.writer.submit(Change(insert)).result(10)
    assert append(store.replica(), [b"a"])["results"] == [{"offset": 0}]
    assert len(store.partitions.all()) == 1


def test_an_idempotent_producer_is_held_to_its_sequence(store: Store) -> None:
    replica = store.replica()

    def send(sequence: int, value: bytes, epoch: int = 0) -> Any:
        header, body, _ = batches.split(batches.encode(TOPIC_ID, 0, [Message(value), Message(value)]))
        named = replace(header, producer_id=9, producer_epoch=epoch, sequence=sequence)
        return append_batch(replica, named.pack() + bytes(body))["results"]

    assert send(0, b"a") == [{"offset": 0}, {"offset": 1}]
    assert send(2, b"b") == [{"offset": 2}, {"offset": 3}]
    assert send(0, b"a") == [{"offset": 0, "duplicate": True}, {"offset": 1, "duplicate": True}]
    for error, sequence, value, epoch in (
        (IdempotencyConflict, 0, b"other", 0),
        (SequenceGap, 6, b"c", 0),
        (SequenceGap, 4, b"c", 1),
    ):
        with pytest.raises(error):
            send(sequence, value, epoch)
    store.reload()
    replica = store.replica()
    assert send(2, b"b")[0] == {"offset": 2, "duplicate": True}
    assert send(0, b"c", epoch=1)[0] == {"offset": 4}
    with pytest.raises(ProducerFenced):
        send(4, b"d")
    assert len(read_all(replica)) == 6


def test_entries_of_leaders_leave_room_for_votes(make_store: MakeStore) -> None:
    free = [1 << 40]
    store = make_store(free_bytes=lambda: free[0])
    store.replica()
    until(store.writer.takes_entries, what="the journal has a segment to go on in")
    free[0] = 499
    assert not store.writer.takes_entries()
