"""What a partition promises, whatever it is stored on."""

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import apsw
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from broker.storage.log import insert_group
from broker.storage.writer import Append, Change
from myqueue.protocol import batch as batches
from myqueue.protocol.batch import Message
from myqueue.protocol.errors import DiskFull, OffsetOutOfRange, Overloaded, PartitionNotFound, Unavailable
from tests.broker_store import TOPIC_ID, Store, append, opened, read_all

MakeStore = Callable[..., Store]

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
    assert replica.fetch(3, 1) is None
    assert replica.fetch(1000, 1) is None


def test_the_body_is_stored_as_it_came(store: Store) -> None:
    replica = store.replica()
    sent = batches.encode(TOPIC_ID, 0, [Message(b"a", b"k", 5, (("h", b"v"),)), Message(b"")])
    header, body, _ = batches.split(sent)
    replica.append(header, body, batches.validate(header, body), [])
    found = replica.fetch(0, 10)
    assert found is not None
    assert found[batches.HEADER_BYTES :] == bytes(body)


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
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
    clock = iter([1, 1, 100, 50, 200])
    store = make_store(clock_ms=lambda: next(clock))
    replica = store.replica()  # takes the first tick
    times = [append(replica, [b"x", b"y"])["append_time"] for _ in range(4)]
    assert times == [1, 100, 100, 200]
    assert [replica.offset_at(t) for t in (0, 1, 2, 100, 101, 200, 201)] == [0, 0, 2, 2, 6, 6, 8]


def test_slices_carry_their_marks_and_offsets(store: Store) -> None:
    replica = store.replica()
    append(replica, [b"a"])
    append(replica, [b"b", b"c", b"d", b"e"], ["k0", None, "k2", None])
    found = replica.fetch(2, 2)
    assert found is not None
    header, values, marks = opened(found)
    assert (header.base_offset, values) == (2, [b"c", b"d"])
    assert [(mark.position, mark.producer_id) for mark in marks] == [(1, 7)]


def test_below_the_start_is_gone(store: Store) -> None:
    replica = store.replica()
    append(replica, [b"a"])
    with store.database.transaction() as connection:
        connection.execute("UPDATE partition_group SET start_offset = 5, start_bytes = 0, first_index = 2")
        connection.execute("DELETE FROM entry")
    store.partitions.load()
    with pytest.raises(OffsetOutOfRange) as refused:
        store.replica().fetch(4, 1)
    assert refused.value.details == {"beginning_offset": 5}
    assert append(store.replica(), [b"b"])["results"] == [{"offset": 5}]


def test_too_much_waiting_is_refused_and_not_written(make_store: MakeStore) -> None:
    store = make_store(max_waiting=2)
    replica = store.replica()
    header, body, _ = batches.split(batches.encode(TOPIC_ID, 0, [Message(b"x")]))
    held, entered = threading.Event(), threading.Event()

    class Slow(Append):
        def apply(self, round_: Any) -> Any:
            entered.set()
            held.wait(10)
            return super().apply(round_)

    log = store.logs[0]
    slow = store.writer.submit(Slow(log, header, body, b"", 0))
    entered.wait(10)
    waiting = [store.writer.submit(Append(log, header, body, b"", 0)) for _ in range(2)]
    with pytest.raises(Overloaded) as refused:
        append(replica, [b"one too many"])
    assert refused.value.outcome == "not_written"
    held.set()
    assert [future.result(10).base_offset for future in (slow, *waiting)] == [0, 1, 2]
    assert read_all(replica) == [b"x"] * 3


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
    assert append(replica, [b"a"], ["k"])["results"] == [{"offset": 0, "duplicate": True}]
    free[0] = 1 << 40
    assert store.writer.problem() is None
    assert append(replica, [b"b"], ["k2"])["results"] == [{"offset": 1}]


def test_a_low_disk_still_lets_partitions_go(make_store: MakeStore) -> None:
    free = [1 << 40]
    store = make_store(free_bytes=lambda: free[0])
    append(store.replica(), [b"a"])
    free[0] = 0
    store.partitions.drop(TOPIC_ID, 0)
    store.partitions.sweep()
    assert store.partitions.all() == []


def test_creating_twice_and_dropping(store: Store) -> None:
    assert store.partitions.create(TOPIC_ID, 0, "orders")
    assert not store.partitions.create(TOPIC_ID, 0, "orders")
    old = store.partitions.get(TOPIC_ID, 0)
    append(old, [b"a"] * 10)
    store.partitions.drop(TOPIC_ID, 0)
    for use in (lambda: append(old, [b"b"]), lambda: old.fetch(0, 1), lambda: store.partitions.drop(TOPIC_ID, 0)):
        with pytest.raises(PartitionNotFound):
            use()
    new = store.replica()
    append(new, [b"new"])
    store.partitions.sweep()
    assert read_all(new) == [b"new"]
    with store.database.reading() as connection:
        assert connection.execute("SELECT count(*) FROM entry").fetchone() == (1,)
        assert connection.execute("SELECT count(*) FROM partition_group").fetchone() == (1,)


def test_topics_and_reports_name_everything_held(store: Store) -> None:
    for partition_id in (1, 0):
        store.replica(partition_id)
    append(store.replica(1), [b"abc"])
    assert store.partitions.topics() == [{"topic": "orders", "topic_id": str(TOPIC_ID), "partitions": [0, 1]}]
    report = next(report for report in store.partitions.reports() if report["partition_id"] == 1)
    assert (report["role"], report["end_offset"], report["beginning_offset"]) == ("leader", 1, 0)
    assert report["size_bytes"] > 64


@pytest.mark.parametrize(
    "damage",
    [
        "UPDATE entry SET batch = zeroblob(length(batch)) WHERE entry_index = 2",
        "UPDATE entry SET count = 2 WHERE entry_index = 2",
        "UPDATE entry SET base_offset = 7 WHERE entry_index = 2",
        "UPDATE entry SET crc = crc + 1 WHERE entry_index = 2",
        "UPDATE entry SET marks = x'00' WHERE entry_index = 2",
        "UPDATE entry SET batch = 'text' WHERE entry_index = 2",
        "DELETE FROM entry WHERE entry_index = 2",
    ],
)
def test_damage_is_noticed_and_never_served(store: Store, damage: str) -> None:
    replica, other = store.replica(0), store.replica(1)
    for value in (b"a", b"b", b"c"):
        append(replica, [value])
    append(other, [b"fine"])
    with store.database.transaction() as connection:
        connection.execute(damage + " AND group_id = ?", (replica.group_id,))
    with pytest.raises(Unavailable, match="damaged"):
        replica.fetch(1, 1)
    with pytest.raises(Unavailable, match="damaged"):
        append(replica, [b"d"])
    assert replica.report()["role"] == "learner"
    store.partitions.load()
    with pytest.raises(Unavailable, match="damaged"):
        store.partitions.get(TOPIC_ID, 0).fetch(0, 1)
    assert read_all(store.partitions.get(TOPIC_ID, 1)) == [b"fine"]


def test_a_commit_that_finds_no_room_leaves_nothing_behind(store: Store) -> None:
    replica = store.replica()
    append(replica, [b"a"], ["k0"])
    with store.database.transaction() as connection:
        pages = connection.pragma("page_count")
        connection.pragma("max_page_count", pages)
    with pytest.raises(DiskFull) as refused:
        append(replica, [b"x" * 100_000], ["k1"])
    assert refused.value.outcome == "not_written"
    assert replica.fetch(1, 1) is None
    with store.database.transaction() as connection:
        connection.pragma("max_page_count", 1 << 30)
    assert append(replica, [b"x" * 100_000], ["k1"])["results"] == [{"offset": 1}]
    assert read_all(replica) == [b"a", b"x" * 100_000]


def test_a_repeat_of_an_append_on_its_way_shares_its_fate(store: Store) -> None:
    replica = store.replica()
    held, entered = threading.Event(), threading.Event()

    def hold(connection: apsw.Connection) -> None:
        entered.set()
        held.wait(10)
        connection.pragma("max_page_count", connection.pragma("page_count"))

    store.writer.submit(Change(hold))
    entered.wait(10)
    with ThreadPoolExecutor(2) as pool:
        sent = [pool.submit(append, replica, [b"x" * 100_000], ["k"]) for _ in range(2)]
        held.set()
        for future in sent:
            with pytest.raises(DiskFull):
                future.result(10)
    with store.database.transaction() as connection:
        connection.pragma("max_page_count", 1 << 30)
    assert append(replica, [b"y"], ["k"])["results"] == [{"offset": 0}]


def test_a_partition_whose_making_was_given_up_is_found_again(store: Store) -> None:
    with store.database.transaction() as connection:
        insert_group(connection, TOPIC_ID, 0, "orders")
    assert append(store.replica(), [b"a"])["results"] == [{"offset": 0}]
    assert len(store.partitions.all()) == 1
