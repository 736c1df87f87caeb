"""The start of a log moves up by retention and snapshots, whatever it is stored on."""

from collections.abc import Callable

import pytest

from broker.raft.events import AdvanceLogStart, EntryCommitted
from broker.retention import Retention, SharedClock, find_cut
from broker.storage.group import Settings
from myqueue.protocol.errors import OffsetOutOfRange
from tests.broker_store import NOW_MS, TOPIC_ID, Store, append, on_loop, opened, read_all
from tests.waiting import until

MakeStore = Callable[..., Store]


def test_below_the_start_is_gone(store: Store) -> None:
    replica = store.replica()
    for value in (b"a", b"b", b"c"):
        append(replica, [value])
    cut = replica.log.at_offset(2)
    assert cut is not None
    cut_at = cut.index
    assert isinstance(
        on_loop(replica, replica.leader_requests.request(lambda number: AdvanceLogStart(number, cut_at, 2, 0))),
        EntryCommitted,
    )
    append(replica, [b"d"])  # after the snapshot record is stored
    for _ in range(2):
        with pytest.raises(OffsetOutOfRange) as refused:
            replica.messages(1, 1)
        assert refused.value.details == {"beginning_offset": 2}
        assert opened(replica.messages(2, 1) or b"")[1] == [b"c"]
        until(lambda: replica.log.group.start_offset == 2, what="the snapshot record of the cut is stored")
        store.reload()
        replica = store.replica()
    assert append(replica, [b"e"])["results"] == [{"offset": 4}]


def test_a_snapshot_shortens_what_a_restart_goes_through(store: Store) -> None:
    replica = store.replica()
    for number in range(20):
        append(replica, [b"%d" % number], [f"k{number}"])
    store.driver.write_snapshots(max_replay=5)
    append(replica, [b"more"])
    until(lambda: store.driver.applied_since_snapshot()[replica.name] < 5, what="upkeep writes the snapshot")
    store.reload()
    replica = store.replica()
    assert store.driver.applied_since_snapshot()[replica.name] < 10
    assert append(replica, [b"7"], ["k7"])["results"] == [{"offset": 7, "duplicate": True}]
    assert len(read_all(replica)) == 21


def test_retention_by_bytes_keeps_at_least_the_limit(store: Store) -> None:
    store.create(settings=Settings("orders", None, 10_000))
    replica = store.partitions.get(TOPIC_ID, 0)
    assert find_cut(replica, None) is None
    for _ in range(10):
        append(replica, [b"x" * 3000])
    cut = find_cut(replica, None)
    assert cut is not None
    size = replica.bounds().size_bytes
    one = size // 10
    assert 10_000 <= size - cut.freed_bytes < 10_000 + one
    Retention(store.partitions.all, SharedClock()).run()
    for _ in range(2):  # the first may be committed together with the cut, the second after its record is stored
        append(replica, [b"y"])
    assert replica.view.start_offset == cut.start_offset
    assert find_cut(replica, None) is None


def test_retention_by_time_needs_a_clock_that_agrees(make_store: MakeStore) -> None:
    times = [NOW_MS]
    store = make_store(clock_ms=lambda: times[0])
    store.create(settings=Settings("orders", 1000, None))
    replica = store.partitions.get(TOPIC_ID, 0)
    for _ in range(4):
        append(replica, [b"x", b"y"])
        times[0] += 600
    clock = SharedClock(lambda: times[0], lambda: 0)
    retention = Retention(store.partitions.all, clock)
    retention.run()
    clock.set_median(times[0] - 6000)
    retention.run()
    append(replica, [b"z"])
    assert replica.view.start_offset == 0
    clock.set_median(times[0])
    retention.run()
    append(replica, [b"z"])
    assert replica.view.start_offset == 6, "appended 1200 ms ago and before"
