"""The start of a log moves up by retention and snapshots, whatever it is stored on."""

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

import pytest

from broker.raft.events import AdvanceLogStart, EntryCommitted
from broker.replica import Replica
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
        await_start(replica, 2)
        store.reload()
        replica = store.replica()
    assert append(replica, [b"e"])["results"] == [{"offset": 4}]


def await_start(replica: Replica, offset: int) -> None:
    until(lambda: replica.log.group.start_offset == offset, what="the snapshot record of the cut is stored")


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
    until(lambda: find_cut(replica, None) is None, what="the snapshot record of the cut is stored")


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


def test_a_cut_unlinks_the_files_below_it(make_store: MakeStore) -> None:
    """Not before the snapshot record of the cut is stored: a restart in between goes on from the old start."""
    store = make_store(segment_bytes=10_000)
    store.create(settings=Settings("orders", None, 20_000))
    replica = store.partitions.get(TOPIC_ID, 0)
    for number in range(30):
        append(replica, [b"x" * 3000], [f"k{number}"])
    store.await_flushed()
    first = min(files_of(store))
    files = len(files_of(store))
    Retention(store.partitions.all, SharedClock()).run()
    until(lambda: len(files_of(store)) < files // 2, what="files are unlinked")
    assert first not in files_of(store)
    assert [name for name in store.disk.names(replica.log.folder) if name.startswith("snapshot-")] != []
    start = replica.view.start_offset
    assert start > 20
    store.reload()
    replica = store.partitions.get(TOPIC_ID, 0)
    assert (replica.view.start_offset, replica.view.end_offset) == (start, 30)
    assert append(replica, [b"x" * 3000], ["k1"])["results"] == [{"offset": 1, "duplicate": True}]
    assert opened(replica.messages(start, 1) or b"")[1] == [b"x" * 3000]
    assert replica.damage is None


def files_of(store: Store) -> list[str]:
    return [name for name in store.disk.names(store.partitions.get(TOPIC_ID, 0).log.folder) if name.endswith(".log")]


def test_a_cut_during_a_search_is_not_damage(make_store: MakeStore) -> None:
    times = iter(range(1, 1 << 30))
    store = make_store(segment_bytes=5000, clock_ms=lambda: next(times), cache_bytes=0)
    store.create(settings=Settings("orders", None, 8000))
    replica = store.partitions.get(TOPIC_ID, 0)
    done = threading.Event()

    def search(look: Callable[[int], object]) -> int:
        """Every place there is, as long as it is there."""
        count = 0
        while not done.is_set():
            for offset in range(replica.view.start_offset, replica.view.end_offset, 2):
                with suppress(OffsetOutOfRange):
                    look(offset)
                count += 1
        return count

    def size_from(offset: int) -> None:
        replica.log.first_ending_beyond(replica.log.group.start_bytes + offset * 10, replica.view.applied + 1)

    looks: list[Callable[[int], object]] = [
        lambda offset: replica.messages(offset, 1),
        lambda offset: replica.stored_batches(offset, 3000),
        replica.since,
        replica.offset_at,
        size_from,
    ]
    retention = Retention(store.partitions.all, SharedClock())
    with ThreadPoolExecutor(len(looks)) as pool:
        searches = [pool.submit(search, look) for look in looks]
        try:
            for _ in range(60):
                append(replica, [b"x" * 900])
                retention.run()
        finally:
            done.set()
        counts = [found.result(20) for found in searches]
    assert min(counts) > 0
    assert replica.view.start_offset > 20
    assert replica.damage is None
